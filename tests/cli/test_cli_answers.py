"""What a run keeps for its page beside the brackets: the likeliest classes before and after, and maps of what matters."""

import contextlib
import importlib
import math
import sqlite3
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_workshop import WORDS, Ask
from rich.console import Console

import holdfast as hf
from holdfast.cli.demo import QUESTIONS, _clear, words_entry
from holdfast.cli.monitor.scores import show_scores
from holdfast.commands import radius
from holdfast.commands.answers import likeliest
from holdfast.commands.options import ModelOptions
from holdfast.commands.radius import Radius
from holdfast.formatting import format_percent
from holdfast.question import Question, plain
from holdfast.store import FILE, SALIENCY, Store

QUICK = ("--methods", "pgd", "--domain", "0,1")
IMAGES = ("radius", "-m", "cli_own_code:pooled", "-d", "images.npz", "-o", "run", *QUICK)


@pytest.fixture
def images(workshop: Path) -> torch.Tensor:
    """What cli_own_code.pooled reads, and its own answers."""
    x = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    np.savez("images.npz", x=x.numpy(), y=[0, 1, 2])
    return x


def test_the_largest_outputs_and_their_shares() -> None:
    [one] = likeliest(torch.tensor([[0.0, 2.0, -1.0, 1.0]]))
    assert [(p.label, p.output) for p in one] == [(1, 2.0), (3, 1.0), (0, 0.0)]
    total = sum(math.exp(v) for v in (0, 2, -1, 1))
    np.testing.assert_allclose([p.share for p in one], [math.exp(v) / total for v in (2, 1, 0)])
    [one, two] = likeliest(torch.tensor([[0.25, 0.75], [0.25, 0.7]]))
    assert [p.share for p in one] == [0.75, 0.25]  # probabilities already
    assert two[0].share == pytest.approx(1 / (1 + math.exp(-0.45)))


def test_answers_are_those_of_the_network(ask: Ask) -> None:
    assert (
        ask(
            "radius",
            "-m",
            "lstm.onnx",
            "-d",
            "wrong.npz",
            "-o",
            "run",
            "--limit",
            "4",
            "--batch",
            "3",
            *QUICK,
        ).code
        == 0
    )
    net = hf.Network.from_onnx("lstm.onnx")
    with Store.open("run") as store:
        answers, records = store.answers(), store.records()
        x = torch.stack([torch.from_numpy(stored.x) for stored in store.inputs()])
    assert sorted(answers) == [r.key for r in records]
    witnesses = torch.stack([w for r in records if (w := r.bracket.upper.evidence.witness) is not None])
    assert len(witnesses) == 4
    for outputs, side in ((net(x), "before"), (net(witnesses), "after")):
        for row, r in zip(outputs, records, strict=True):
            told = getattr(answers[r.key], side)
            np.testing.assert_allclose([p.output for p in told], row.sort(descending=True).values, rtol=1e-5)
            assert [p.label for p in told] == row.argsort(descending=True).tolist()
    labels = np.load("wrong.npz")["y"]
    assert all(answers[r.key].after[0].label != labels[r.key.index] for r in records)


def test_the_few_questions_are_not_counted(ask: Ask) -> None:
    arguments = ("radius", "-m", "lstm.onnx", "-d", "data.npz", "--limit", "2", *QUICK)
    assert ask(*arguments, "-o", "run").code == 0
    with Store.open("run") as store:
        first = [r.queries for r in store.records()]
    net = hf.Network.from_onnx("lstm.onnx", domain=(0, 1))
    data = np.load("data.npz")
    with Store.create("other") as other:
        hf.radius(
            net,
            torch.from_numpy(data["x"][:2]),
            torch.from_numpy(data["y"][:2]),
            methods=[hf.attacks.PGD()],
            store=other,
        )
        assert [r.queries for r in other.records()] == first
        assert other.answers() == {}


def test_replaced_words_are_asked_as_words(ask: Ask) -> None:
    Path("every.json").write_text(str({word: list(WORDS) for word in WORDS}).replace("'", '"'))
    arguments = (
        "radius",
        "-m",
        "reader.onnx",
        "--vocabulary",
        "words.txt",
        "-d",
        "text.tsv",
        "--substitutes",
        "every.json",
    )
    assert ask(*arguments, "--methods", "enumerate", "-o", "run").code == 0
    with Store.open("run") as store:
        answers, inputs = store.answers(), store.inputs()
        found = [r for r in store.records() if r.bracket.upper.evidence.witness is not None]
    assert len(answers) == 3
    assert found
    for r in found:
        before, after = answers[r.key].before, answers[r.key].after
        assert before[0].label == inputs[r.key.index].label != after[0].label


def test_resume_asks_again_only_where_something_is_missing(ask: Ask, images: torch.Tensor) -> None:
    assert ask(*IMAGES, "--saliency").code == 0
    with Store.open("run") as store:
        answers, maps = store.answers(), [stored.saliency for stored in store.inputs()]
    assert len(answers) == len(images)
    with contextlib.closing(sqlite3.connect("run/run.sqlite")) as connection, connection:
        connection.execute("DELETE FROM answer WHERE position = 1")
        connection.execute(
            "UPDATE answer SET body = replace(body, '\"label\": ', '\"label\": 7') WHERE position = 0"
        )
        connection.execute("DELETE FROM artefact")
    assert ask("resume", "run", "--trust").code == 0
    with Store.open("run") as store:
        again = store.answers()
        said = [
            [one.label for one in again[key].before] == [one.label for one in answers[key].before]
            for key in sorted(answers)
        ]
        assert said == [False, True, True]  # what is there stays as it is, what is missing comes again
        for one, two in zip(maps, (stored.saliency for stored in store.inputs()), strict=True):
            np.testing.assert_array_equal(one, two)  # type: ignore[arg-type]


def test_maps_are_those_of_the_library(ask: Ask, images: torch.Tensor) -> None:
    assert ask(*IMAGES, "--batch", "2", "--saliency").code == 0
    with Store.open("run") as store:
        maps = torch.stack([torch.from_numpy(stored.saliency) for stored in store.inputs()])
        asked = store.question
    net = hf.Network.from_torch(importlib.import_module("cli_own_code").pooled(), domain=(0, 1))
    torch.testing.assert_close(maps, hf.saliency(net, images, torch.arange(3)).float())
    assert ask("report", "run").code == 0
    assert Path("run/report.html").read_text().count(" data-p=") == 3
    assert ask(*IMAGES, "--batch", "2", "-o", "other").code == 0
    with Store.open("other") as store:
        assert [stored.saliency for stored in store.inputs()] == [None] * 3
        assert store.question.fingerprint == asked.fingerprint  # a map is no other question


def test_a_map_has_a_share_of_the_seconds_and_goes_on_where_it_ended(ask: Ask, images: torch.Tensor) -> None:
    """A search that takes all its time leaves a quarter of the budget to the maps; a map that is there in part is completed."""
    network = ModelOptions("cli_own_code:pooled", domain="0,1")
    built = Radius(network, "images.npz", methods="pgd", saliency=True, seconds=8.0).build()
    assert (built.stop.seconds, built.afterwards) == (6.0, 2.0)
    built = Radius(network, "images.npz", methods="pgd", seconds=8.0).build()
    assert (built.stop.seconds, built.afterwards) == (8.0, 0.0)
    assert ask(*IMAGES, "--saliency").code == 0
    with Store.open("run") as store:
        whole = store.artefacts(SALIENCY)
        half = {key: found.clone() for key, found in whole.items()}
        for found in half.values():
            found[..., 1::2] = torch.nan
            found[..., 0, 0] = 77.0  # what is there is kept, not asked again
        store.put_artefacts(SALIENCY, half)
    assert Path("run").exists()
    shown = ask("show", "run", "--input", "0")
    assert "18 of 36 units not measured" in " ".join(shown.out.replace("│", " ").split())
    assert ask("report", "run").code == 0
    assert "18 of 36 units not measured (grey)" in Path("run/report.html").read_text()
    assert ask("resume", "run", "--trust").code == 0
    with Store.open("run") as store:
        for key, found in store.artefacts(SALIENCY).items():
            assert not bool(found.isnan().any())
            assert float(found[..., 0, 0]) == 77.0
            torch.testing.assert_close(found[..., 1:, :], whole[key][..., 1:, :])


def test_a_search_without_time_leaves_the_maps_theirs(
    ask: Ask, images: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(radius, "MAPS", 1.0)  # the search has no time at all
    assert ask(*IMAGES, "--saliency", "--seconds", "60").code == 0
    with Store.open("run") as store:
        assert {record.status for record in store.records()} == {"stopped"}
        assert all(
            stored.saliency is not None and not np.isnan(stored.saliency).any() for stored in store.inputs()
        )


def test_where_there_is_no_map_it_is_refused(refused: Ask, images: torch.Tensor) -> None:
    words = (
        "radius",
        "-m",
        "reader.onnx",
        "--vocabulary",
        "words.txt",
        "-d",
        "text.tsv",
        "-o",
        "run",
        "--saliency",
    )
    assert "reads words" in refused(*words).err
    frames = ("radius", "-m", "lstm.onnx", "-d", "data.npz", "-o", "run", "--saliency")
    assert "not for frames" in refused(*frames, *QUICK, "--frames", "each").err
    assert "Give --domain" in refused(*frames).err


def test_an_earlier_demo_is_cleared_away(tmp_path: Path) -> None:
    for name, _, question in QUESTIONS:
        Store.create(tmp_path / name, Question(options=plain(question.as_json()))).close()
        _clear(tmp_path / name, question)
        assert not (tmp_path / name / FILE).exists()


def test_the_words_of_the_demo_name_the_weakest_of_all() -> None:
    shown = show_scores("helpdesk", None, "final", 12, None, Console(quiet=True))
    entry = words_entry(shown)
    assert len(entry.sentences) == len(shown) > 1
    lowest = min(one.scores.lowest for one in shown)
    weak = next(one for one in shown if one.scores.lowest == lowest)
    assert weak.words is not None
    assert repr(weak.words[weak.scores.least]) in entry.answer
    assert f"{format_percent(1 - lowest)} of the time" in entry.answer
    assert f"{lowest:.2f}" in "".join(entry.sentences)
    assert "proved by enumeration" in entry.headline
