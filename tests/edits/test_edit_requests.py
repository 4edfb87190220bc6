"""`hf.Edits`, `hf.radius(edits=)` and `holdfast radius --edits`: what is refused, stored and shown."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from edit_models import Bag, Recurrent, network, texts
from torch import Tensor, nn

import holdfast as hf
from holdfast.api.edits import read_edits
from holdfast.cli import main
from holdfast.datasets import helpdesk
from holdfast.question import Question, Request
from holdfast.question_text import describe_question
from holdfast.report.text_difference import difference_text, text_difference


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "no edit is allowed"),
        ({"delete": -1}, "delete must be at least 0"),
        ({"delete": 1.5}, "whole number"),
        ({"delete": True}, "whole number"),
        ({"delete": 1, "total": 0}, "total must be at least 1"),
        ({"delete": 51}, "at most 50 edits"),
        ({"insert": 1}, "insert needs the words"),
        ({"insert": 1, "insertions": []}, "the list insertions is empty"),
        ({"insert": 1, "insertions": "the"}, "insertions is a list of words"),
        ({"substitute": 1}, "substitute needs words"),
        ({"substitute": 1, "substitutes": {}}, "substitutes is empty"),
        ({"substitute": 1, "substitutes": {"good": "fine"}}, "the substitutes of 'good' are a list"),
        ({"delete": 1, "padding": 0}, "padding fills texts up to a length"),
        ({"delete": 1, "deletable": []}, "the list deletable is empty"),
    ],
)
def test_wrong_edits_are_refused_when_they_are_made(given: dict[str, Any], said: str) -> None:
    with pytest.raises(hf.HoldfastError, match=said):
        hf.Edits(**given)


def test_what_does_not_fit_the_network_is_refused_before_the_work() -> None:
    net, edits = helpdesk.network(), hf.Edits(delete=1)
    with pytest.raises(hf.HoldfastError, match="not in the vocabulary"):
        hf.radius(net, ["hello"], [0], edits=hf.Edits(insert=1, insertions=["zzz"]))
    with pytest.raises(hf.HoldfastError, match="token id 99999"):
        hf.radius(net, ["hello"], [0], edits=hf.Edits(insert=1, insertions=[99999]))
    with pytest.raises(hf.HoldfastError, match="reads numbers"):
        hf.radius(nn.Linear(2, 2).eval(), torch.zeros(1, 2), [0], edits=edits)
    with pytest.raises(hf.HoldfastError, match="both say which words"):
        hf.radius(net, ["hello"], [0], edits=edits, substitutes=helpdesk.substitutes())
    with pytest.raises(hf.HoldfastError, match="frames has no meaning"):
        hf.radius(net, ["hello"], [0], edits=edits, frames="each")
    with pytest.raises(hf.HoldfastError, match="leave the norm out"):
        hf.radius(net, ["hello"], [0], edits=edits, norm=2)
    with pytest.raises(hf.HoldfastError, match=r"expected hf.Edits"):
        hf.radius(net, ["hello"], [0], edits={"delete": 1})  # type: ignore[arg-type]
    with pytest.raises(hf.HoldfastError, match="empty"):
        hf.radius(net, [""], [0], edits=edits)
    with pytest.raises(hf.HoldfastError, match="none of the classes"):
        hf.radius(net, ["hello"], ["nowhere"], edits=edits)
    with pytest.raises(hf.HoldfastError, match="not known for edits"):
        hf.radius(net, ["hello there"], [0], edits=edits, arithmetic="executed")


class ReadsPadding(nn.Module):
    """A mean over all tokens, padding included."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Bag()

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.inner(tokens)
        return scores


def test_padding_that_changes_the_answer_is_refused_or_named() -> None:
    net, rows = network(ReadsPadding()), texts(2, 4)
    padded = torch.nn.functional.pad(rows, (0, 2))
    labels = net.ask_tokens(padded).argmax(1)
    with pytest.raises(hf.HoldfastError, match="with and without its padding"):
        hf.radius(net, padded, labels, lengths=[4, 4], edits=hf.Edits(delete=1))
    named = hf.radius(net, padded, labels, edits=hf.Edits(delete=1, length=6, padding=0))
    for row, bracket in zip(rows.tolist(), named, strict=True):
        kept = True
        for place in range(4):
            cut = [*row[:place], *row[place + 1 :], 0, 0, 0]
            kept &= bool(
                net.ask_tokens(torch.tensor([cut])).argmax()
                == net.ask_tokens(torch.tensor([[*row, 0, 0]])).argmax()
            )
        assert (bracket.lower.value > 0) == kept


def test_lists_and_texts_name_the_same_edits(tmp_path: Path) -> None:
    edits = hf.Edits(delete=1, insert=2, total=2, insertions=["the", "my"])
    assert read_edits("delete=1,insert=2,total=2,insertions=the|my") == edits
    file = tmp_path / "edits.json"
    file.write_text(json.dumps(edits.stored()))
    assert read_edits(str(file)).stored() == edits.stored()
    for wrong, said in (
        ("delet=1", "Did you mean 'delete'"),
        ("delete=x", "whole number"),
        ("a=1,b", "no name=value"),
    ):
        with pytest.raises(hf.HoldfastError, match=said):
            read_edits(wrong)


def test_different_edits_are_different_questions() -> None:
    said = set()
    for edits in (
        hf.Edits(delete=1),
        hf.Edits(delete=2),
        hf.Edits(swap=1),
        hf.Edits(delete=1, deletable=["a"]),
    ):
        request = Request.of_arguments(edits=edits)
        assert request.norm is None
        question = Question("radius", asked=Request(norm="edits", edits=edits.stored()))
        said.add((describe_question(question), question.fingerprint))
    assert len({text for text, _ in said}) == len({print_ for _, print_ in said}) == 4


def test_differences_mark_insertions_and_deletions() -> None:
    import numpy as np

    words = ["a", "b", "c", "d"]
    assert difference_text(text_difference([0, 1, 2], np.array([0, 2]), words)) == "a [-b-] c"
    assert difference_text(text_difference([0, 1], np.array([0, 3, 1]), words)) == "a [+d+] b"
    assert difference_text(text_difference([0, 1], np.array([0, 3]), words)) == "a [-b-] [+d+]"
    long = text_difference([0] * 200, np.array([0] * 100 + [1] + [0] * 100), words)
    assert len(long) < 20
    assert "[+b+]" in difference_text(long)


def run_command(*words: str) -> int:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as ended:
        main([*words])
    return int(ended.value.code or 0)


def test_a_run_shows_edited_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    edits = "delete=1,swap=1,insert=1,duplicate=1,total=2,insertions=the|my|not"
    asked = [
        "radius",
        "--model",
        "holdfast.datasets.helpdesk:network",
        "--data",
        "holdfast.datasets.helpdesk:test",
    ]
    assert run_command(*asked, "--edits", edits, "--limit", "6", "--out", str(run)) == 0
    for name in ("page.html", "slide.png"):
        assert run_command("report", str(run), "--out", str(tmp_path / name)) == 0
    page = (tmp_path / "page.html").read_text()
    assert "<del>" in page
    assert "edits may be made" in page
    with hf.Store.open(run) as store:
        broken = next(
            r for r in store.records() if 0 < r.bracket.upper.value < 10 or r.bracket.upper.value == 0
        )
        assert broken.witness is not None
        assert bool((broken.witness >= 0).all())
    capsys.readouterr()
    assert run_command("show", str(run), "--input", str(broken.key.index)) == 0
    shown = capsys.readouterr().out
    assert "[-" in shown or "[+" in shown
    assert run_command("gate", str(run), "--at", "1", "--min-certified", "0.1") == 0


def test_recurrent_networks_answer_a_budget_in_order() -> None:
    net = network(Recurrent(nn.GRU), scale=0.3)
    rows = texts(2, 5)
    labels = net.ask_tokens(rows).argmax(1)
    found = hf.radius(net, rows, labels, edits=hf.Edits(delete=2, swap=1, total=2), tier="search")
    assert all(b.lower.value == 0 for b in found)
    found = hf.radius(net, rows, labels, edits=hf.Edits(delete=2, swap=1, total=2))
    assert found.counts
    assert all(b.closed for b in found)
