"""The HTML page: what it says is what the run holds, and nothing a run holds can break it."""

import base64
import hashlib
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from report_runs import (
    Document,
    TinyImages,
    TinySequence,
    TinyWords,
    estimate,
    put,
    record,
)
from torch import Tensor

import holdfast as hf
from holdfast.report import write_report

NewStore = Callable[..., hf.Store]


def page(store: hf.Store, folder: Path) -> Document:
    html = write_report(store, folder / "report.html").read_text(encoding="utf-8")
    document = Document(html)
    assert document.tags.count("script") == 1
    assert len(set(document.ids)) == len(document.ids)
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in document.links)
    assert "nan" not in document.text.lower().split()
    return document


def images(count: int) -> Tensor:
    return torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def test_a_real_run_with_a_misclassified_input(new_store: NewStore, tmp_path: Path) -> None:
    net, x = hf.Network.from_torch(TinyImages().eval(), domain=(0, 1)), images(6)
    labels = net(x).argmax(-1)
    labels[2] = 1 - labels[2]
    store = new_store(classes=["dark", "bright"])
    put(store, x, labels.tolist(), net)
    brackets = hf.radius(net, x, labels, store=store, methods=[hf.attacks.PGD(), hf.attacks.Corners()])
    document = page(store, tmp_path)
    assert len(document.rows) == 6
    assert "1misclassified, radius 0" in document.text
    assert document.rows[2][4:6] == [
        ["dark", "bright"][int(labels[2])],
        ["dark", "bright"][1 - int(labels[2])],
    ]
    assert f"{brackets[0].upper.value:.2g}"[:4] in document.rows[0][7]
    assert "witnessed" in document.rows[0][7]
    assert document.tags.count("img") == 3 * 6


def test_an_empty_run(new_store: NewStore, tmp_path: Path) -> None:
    document = page(new_store(), tmp_path)
    assert document.rows == []
    assert "There are no answers yet" in document.text
    assert "no history yet" in document.text


def test_a_question_that_says_little(tmp_path: Path) -> None:
    with hf.Store.create(tmp_path / "bare") as store:
        store.write([record(0, 0.1, 0.2)])
        assert "the network" in page(store, tmp_path).text


def test_inputs_without_an_answer_are_counted(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store()
    put(store, images(3), [0, 0, 0], hf.Network.from_torch(TinyImages().eval()))
    store.write([record(1, 0.1, 0.2)])
    assert "2 of 3 inputs have no answer yet" in page(store, tmp_path).text


def test_one_record_without_a_stored_input(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store()
    store.write([record(0, 0.1, 0.1)])
    document = page(store, tmp_path)
    assert document.rows[0][9 - 1] == "closed"
    assert "1closed: exact value known" in document.text


def test_ends_are_rounded_away_from_the_claim(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store()
    store.write([record(0, 0.12349, 0.56781)])
    [row] = page(store, tmp_path).rows
    assert row[6].startswith("0.1234p")
    assert row[7].startswith("0.5679w")


def test_open_ends_are_said_to_be_open(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store()
    store.write([record(0, 0.1, math.inf), record(1, 0.2, 0.5), record(2, 0.0, math.inf)])
    document = page(store, tmp_path)
    assert document.rows[0][7] == "-no witness yet"
    assert document.rows[2][6] == "-nothing proved yet"
    assert "2open: no witness" in document.text
    assert "the upper bounds that were found have mean 0.5" in document.text


def test_worst_scores_may_be_negative_and_unbounded(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store(command="worst", norm=None)
    store.write(
        [
            record(k, *ends, goal="worst")
            for k, ends in enumerate([(-1.5, -0.5), (-math.inf, 2.0), (0.5, 0.5)])
        ]
    )
    document = page(store, tmp_path)
    assert "How low can the score" in document.text
    assert "misclassified" not in document.text
    assert document.rows[1][6] == "-nothing proved yet"


def test_each_frame_makes_one_row_with_its_weakest_frame(new_store: NewStore, tmp_path: Path) -> None:
    net = hf.Network.from_torch(TinySequence().eval(), domain=(-1, 1))
    x = torch.rand(3, 5, 2, generator=torch.Generator().manual_seed(1)) * 0.3
    store = new_store(frames="each")
    put(store, x, [0, 0, 0], net)
    each = hf.radius(net, x, [0, 0, 0], frames="each", store=store, methods=[hf.attacks.PGD()])
    document = page(store, tmp_path)
    assert len(document.rows) == 3
    assert document.tags.count("u") == 3 * 5
    for row, brackets in zip(document.rows, each, strict=True):
        weakest = min(b.upper.value for b in brackets)
        assert math.isclose(float(row[7].split("w")[0]), weakest, rel_tol=1e-3)


@pytest.mark.parametrize("frames", ["each", None])
def test_words_are_shown(new_store: NewStore, tmp_path: Path, frames: str | None) -> None:
    vocabulary = ["the", "<b>bold", "film", "was", "&amp;"]
    net = hf.Network.from_torch(TinyWords().eval(), vocabulary=vocabulary)
    tokens = torch.tensor([[0, 1, 2], [2, 3, 4]])
    store = new_store(frames=frames, vocabulary=vocabulary)
    put(store, net.embed(tokens), [0, 0], net, tokens)
    hf.radius(net, tokens, [0, 0], norm=2, frames=frames, store=store, methods=[hf.attacks.PGD()])  # type: ignore[call-overload]
    document = page(store, tmp_path)
    assert document.rows[0][1] == "the <b>bold film"
    assert document.rows[1][1] == "film was &amp;"
    assert document.rows[0][2] == document.rows[0][1]
    assert document.rows[0][3].startswith("moves the vector")
    assert ("one word at a time" in document.text) == (frames == "each")


def test_replaced_words_are_marked(new_store: NewStore, tmp_path: Path) -> None:
    vocabulary = ["the", "<b>bold", "film", "was", "dull"]
    model = TinyWords().eval()
    with torch.no_grad():
        model.embedding.weight.copy_(
            torch.randn(5, 2, generator=torch.Generator().manual_seed(1)) * 5
        )  # so that words decide
    net = hf.Network.from_torch(model, vocabulary=vocabulary)
    every = torch.cartesian_prod(*[torch.arange(5)] * 3)
    said = net.ask_tokens(every).argmax(-1)
    tokens, label = every[:1], int(said[0])
    other = every[said != label][0].tolist()
    store = new_store(vocabulary=vocabulary)
    put(store, net.embed(tokens), [label], net, tokens)
    hf.radius(net, tokens, [label], substitutes={0: other}, store=store)
    [record] = store.records()
    assert record.bracket.closed
    marked = [vocabulary[t] for t in record.bracket.upper.evidence.witness.tolist()]
    assert " ".join(marked) in page(store, tmp_path).rows[0][2]


def test_what_nothing_breaks_is_told_apart(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store(norm="words", frames="each")
    store.put_inputs([torch.zeros(2)] * 2, [0, 0], [0, 0], ["", ""], [[1, 2]] * 2)
    safe = [record(1, math.inf, math.inf, frame=k, note="nothing may change here") for k in range(2)]
    store.write(
        [
            record(0, 0.0, 0.0, frame=0),
            record(0, math.inf, math.inf, frame=1, note="nothing may change here"),
            *safe,
        ]
    )
    document = page(store, tmp_path)
    assert (
        "How many words of each of the 3 inputs of points may be replaced, one word at a time, before tiny"
        in document.text
    )
    assert "without the 1 that nothing breaks" in document.text
    assert [row[-1] for row in document.rows] == ["", "nothing may change here"]
    html = (tmp_path / "report.html").read_text()
    assert '<b class="h9" title="0">#1</b> <b class="h0" title="∞">#2</b>' in html
    alone = new_store()
    alone.write(safe)
    assert "mean radius" not in page(alone, tmp_path).text


def test_interruption_is_announced(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store()
    store.write([record(0, 0.1, 0.4, status="interrupted"), record(1, 0.1, 0.3)])
    document = page(store, tmp_path)
    assert "This run was interrupted. 1 of 2 inputs" in document.text
    assert "1 interrupted" in document.text


def test_nothing_is_hidden(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store(prepared={"unheard of": 7})
    answered = record(0, 0.1, 0.4)
    answered = replace(
        answered, bracket=answered.bracket.with_estimate(estimate(0.3)), skipped=("Magic: needs a wand",)
    )
    store.write([answered])
    text = page(store, tmp_path).text
    for part in (
        "Magic: needs a wand",
        "unheard of7",
        "batches 10",
        "tier fast",
        "real arithmetic.",
        "f00d",
        "beef",
    ):
        assert part in text
    assert store.provenance["torch"] in text
    assert "estimated, CLEVER" in text


HOSTILE = (
    "</script></title><script>alert(1)</script><img src=https://evil.example/x onerror=alert(1)>\"'`{{ 7*7 }}"
)


def test_hostile_names_stay_text(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store(
        model={"name": HOSTILE, "source": HOSTILE, "fingerprint": HOSTILE, "domain": HOSTILE},
        data={"name": HOSTILE, "fingerprint": HOSTILE, "count": 1},
        classes=[HOSTILE, HOSTILE],
        vocabulary=[HOSTILE],
    )
    store.put_inputs([torch.zeros(1, 2)], [0], [1], [HOSTILE], [[0]])
    answered = record(0, 0.1, 0.4, note=HOSTILE)
    store.write([replace(answered, skipped=(HOSTILE,))])
    document = page(store, tmp_path)  # counts the scripts and reads every link
    assert document.text.count(HOSTILE) >= 10


def test_only_the_pages_own_script_may_run(new_store: NewStore, tmp_path: Path) -> None:
    html = write_report(new_store(), tmp_path / "report.html").read_text()
    [script] = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html


def test_long_sentences_are_cut_around_what_changed(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store(vocabulary=["filler", "old", "new", "x" * 5000])
    tokens = [0] * 900 + [1] + [0] * 99
    changed = torch.tensor(tokens)
    changed[900] = 2
    store.put_inputs(
        [torch.tensor(tokens), torch.full((3,), 3)], [0, 0], [0, 0], ["", ""], [tokens, [3, 3, 3]]
    )
    answered = record(0, 0.1, 0.4)
    end = replace(answered.bracket.upper, evidence=replace(answered.bracket.upper.evidence, witness=changed))
    store.write([replace(answered, bracket=replace(answered.bracket, upper=end)), record(1, 0.1, 0.2)])
    document = page(store, tmp_path)
    assert document.rows[0][1].split() == [
        "…",
        *["filler"] * 4,
        "old",
        *["filler"] * 4,
        "…",
        "(1000",
        "words)",
    ]
    assert document.rows[0][2].split()[5] == "new"
    assert document.rows[0][3] == "old → new1 of 1000 words"
    assert len(document.rows[1][1]) < 500


def test_every_number_carries_the_standards_attributes(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store(frames="each")
    store.write([record(0, 0.1, 0.4, frame=0)])
    text = page(store, tmp_path).text
    assert "incomplete, deterministic, glass box, real arithmetic, approximate" in text  # Certify
    assert (
        "incomplete, non-deterministic, repeatable by its seed, glass box, computer arithmetic, approximate"
        in text
    )  # PGD
    assert "stability (clause 5.3)" in text
    assert "relevance (clause 5.5)" in text


def test_unknowns_and_timeouts_are_counted(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store()
    store.write(
        [
            record(0, 0.5, 0.6),
            record(1, 0.1, 0.9, status="stopped"),
            record(2, 0.0, math.inf, status="stopped"),
            record(3, 0.2, 0.3),
        ]
    )
    text = page(store, tmp_path).text
    assert "2timed out" in text
    assert "2 certifiedat 0.2 (the median certified radius, rounded down)" in text
    assert "1 open" in text


def test_other_documents(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store(model={"name": HOSTILE, "fingerprint": "f00d"})
    store.write([record(0, 0.1, 0.4), record(1, 0.1, math.inf, status="interrupted")])
    card = write_report(store, tmp_path / "card.md").read_text()
    assert card.startswith("## Robustness")
    assert "0, 1, 0" in card
    assert "<script>" not in card.replace("\\<", "")
    assert (
        json.loads(write_report(store, tmp_path / "run.json").read_text())["records"][1]["upper"]["value"]
        == "inf"
    )
    with pytest.raises(hf.errors.BadInput, match="unknown ending"):
        write_report(store, tmp_path / "run.pdf")


def test_a_name_with_a_lone_surrogate_is_written(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store(domain="\udc80")
    assert write_report(store, tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    "shape", [(8, 8), (1, 8, 8), (3, 8, 8), (40, 3), (3, 300, 200), (2,), (50,), (2, 3, 4, 5), (0,), ()]
)
def test_inputs_of_any_shape(new_store: NewStore, tmp_path: Path, shape: tuple[int, ...]) -> None:
    store = new_store()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    store.put_inputs([x], [0], [0], [""], [None])
    answered = record(0, 0.1, 0.4)
    shown = replace(answered.bracket.upper.evidence, witness=x + 0.1)
    upper = replace(answered.bracket.upper, evidence=shown)
    store.write([replace(answered, bracket=replace(answered.bracket, upper=upper))])
    document = page(store, tmp_path)
    drawn = (
        len(shape) == 2 or (len(shape) == 3 and shape[0] in (1, 3)) or shape == (50,)
    )  # many numbers in a row are a waveform
    is_chart = shape == (40, 3)  # a sensor series of three channels
    assert document.tags.count("img") == (3 if drawn and not is_chart else 0)
    charts = (tmp_path / "report.html").read_text().count('<svg class="series"')
    assert charts == (2 if is_chart else 0)  # the change is one constant offset, which is given in numbers


def small_images(store: hf.Store, count: int, *, pictures: bool = True) -> None:
    generator = np.random.default_rng(0)
    x = (
        torch.from_numpy(generator.integers(0, 17, (count, 1, 8, 8)) / 16).float()
        if pictures
        else torch.zeros(count, 1)
    )
    store.put_inputs(list(x), [1] * count, [1] * count, [""] * count, [None] * count)
    records = []
    for index in range(count):
        lower, upper = sorted(generator.random(2).tolist())
        answered = record(index, lower, upper)
        moved = (x[index] + torch.from_numpy(generator.uniform(-0.1, 0.1, x[index].shape)).float()).clamp(
            0, 1
        )
        end = replace(
            answered.bracket.upper, evidence=replace(answered.bracket.upper.evidence, witness=moved)
        )
        final = replace(answered, bracket=replace(answered.bracket, upper=end))
        records.append(replace(final, seconds=answered.seconds + count))
    store.write(
        [record(k, r.bracket.lower.value / 2, r.bracket.upper.value + 1) for k, r in enumerate(records)]
    )
    store.write(records)


def test_a_thousand_small_inputs_stay_under_a_megabyte(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store()
    small_images(store, 1000)
    document = page(store, tmp_path)
    assert (tmp_path / "report.html").stat().st_size < 1_000_000
    assert len(document.rows) == 1000
    assert (
        document.tags.count("img") > 0.65 * 3 * 1000
    )  # these pictures are noise, which no compression makes smaller


def test_more_inputs_than_a_page_holds_lie_on_further_pages(
    new_store: NewStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.report.page.MOST_ROWS", 5)
    store = new_store()
    small_images(store, 12)
    assert write_report(store, tmp_path / "run.html") == tmp_path / "run.html"
    assert sorted(os.listdir(tmp_path / ".")) == ["run-2.html", "run-3.html", "run.html", "run0"]
    names = ["run.html", "run-2.html", "run-3.html"]
    documents = [Document((tmp_path / name).read_text()) for name in names]
    assert [len(document.rows) for document in documents] == [5, 5, 2]
    for number, (name, document) in enumerate(zip(names, documents, strict=True), 1):
        assert f"page {number} of 3" in document.text
        links = set(re.findall(r'href="([^"#]+)"', (tmp_path / name).read_text()))
        assert links == {*names} - {name}  # files of the same folder, and nothing else
    assert "cover all 12" in documents[0].text
    whole = tmp_path / "whole.html"
    monkeypatch.setattr("holdfast.report.page.MOST_ROWS", 100)
    write_report(store, whole)
    first = documents[0].text
    assert all(cell in first for cell in ("bounds of the mean radius", "Mean bounds over time"))
    assert [row for document in documents for row in document.rows] == Document(whole.read_text()).rows


def test_a_long_history_is_drawn_from_a_share_of_the_inputs_and_says_so(
    new_store: NewStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store()
    small_images(store, 40)
    assert "is drawn," not in page(store, tmp_path).text
    monkeypatch.setattr("holdfast.report.page.MOST_MOMENTS", 20)
    assert "of which about one of 4 is drawn," in page(store, tmp_path).text
    assert 6 <= len(store.history(4)) <= 40
    assert {event.key for event in store.history(4)} < {event.key for event in store.history()}


def test_writing_replaces_the_old_page_in_one_go(new_store: NewStore, tmp_path: Path) -> None:
    target = tmp_path / "deep" / "folder" / "report.html"
    store = new_store()
    assert write_report(store, target) == target
    store.write([record(0, 0.1, 0.2)])
    write_report(store, str(target))
    assert len(Document(target.read_text()).rows) == 1
    assert os.listdir(target.parent) == ["report.html"]


def test_a_place_that_cannot_be_written_is_told(new_store: NewStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(hf.errors.StoreError, match="cannot be written"):
        write_report(new_store(), tmp_path / "file" / "report.html")
    (tmp_path / "taken").mkdir()
    with pytest.raises(hf.errors.StoreError, match="cannot be written"):
        write_report(new_store(), tmp_path / "taken")
    assert not list(tmp_path.glob("*.part"))


def test_importing_the_report_imports_nothing_heavy() -> None:
    code = "import sys, holdfast.report; print(sorted({'matplotlib', 'jinja2', 'rich', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
