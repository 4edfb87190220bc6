"""The likeliest classes before and after and the saliency map: on the page, in a browser, in the terminal."""

import base64
import math
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from browser_pipe import PROGRAM, Browser
from report_runs import Document, record, witness

import holdfast as hf
from holdfast.cli import main
from holdfast.formatting import format_percent
from holdfast.report import write_report
from holdfast.report.class_probabilities import flatten_map, map_of, pack_answers
from holdfast.report.picture import MORE, PEN
from holdfast.result import Answers, Key, Likely

NewStore = Callable[..., hf.Store]
HOSTILE = '</table><img src=x onerror="document.title=1">\'"'
BEFORE = (Likely(1, 5.0, 0.98), Likely(2, 1.0, 0.0183), Likely(0, -3.0, 0.00001))
AFTER = (Likely(2, 3.0, 0.6), Likely(1, 2.5, 0.4), Likely(0, -math.inf, 0.0))


def answered(store: hf.Store, *, maps: bool = True) -> hf.Store:
    """Input 0 with all there is, input 1 without a witness, input 2 with nothing."""
    x = torch.rand(3, 1, 4, 5, generator=torch.Generator().manual_seed(0))
    store.put_inputs(list(x), [1] * 3, [1] * 3, [""] * 3, [None] * 3)
    first = record(0, 0.1, 0.4)
    first = replace(first, bracket=replace(first.bracket, upper=witness(0.4, x[0] * 0.5)))
    store.write([first, record(1, 0.1, math.inf), record(2, 0.1, 0.2)])
    store.put_answers({Key(0): Answers(BEFORE, AFTER), Key(1): Answers(BEFORE)})
    if maps:
        found = torch.zeros(1, 4, 5)
        found[0, 2, 3] = 1.25
        store.put_artefacts("saliency", {Key(0): found})
    return store


def test_what_rides_on_a_row() -> None:
    assert pack_answers(None) == ""
    assert pack_answers(Answers(BEFORE)) == "1 98 5,2 1.83 1,0 <0.01 -3;"
    assert pack_answers(Answers(BEFORE, AFTER)).endswith(";2 60 3,1 40 2.5,0 0 −∞")
    shares = (1.0, 0.99995, 2 / 3, 1e-5, 0.0, math.nan)
    assert [format_percent(share) for share in shares] == [
        "100 %",
        ">99.99 %",
        "66.67 %",
        "<0.01 %",
        "0 %",
        "–",
    ]


def test_the_map_is_strongest_where_it_is_largest() -> None:
    found = np.zeros((3, 4, 5), np.float32)
    found[1, 2, 3], found[0, 0, 0] = 2.0, np.nan
    drawn = map_of(found)
    assert (
        drawn.words
        == "one change lowers the margin by up to 2, at row 2, column 3 (estimated); 1 of 60 units not measured (grey)"
    )
    data = base64.b64decode(drawn.png)
    start = data.index(b"IDAT")
    lines = np.frombuffer(
        zlib.decompress(data[start + 4 : start + 4 + int.from_bytes(data[start - 4 : start])]), np.uint8
    ).reshape(4, -1)
    levels = np.stack([lines[:, 1:] >> 4, lines[:, 1:] & 15], -1).reshape(4, -1)
    assert levels[2, 3] == 14
    assert levels[0, 0] == 15  # not measured: neither clear nor a shade
    assert levels.sum() == 14 + 15
    assert bytes(MORE) in data
    assert bytes(PEN) in data


@pytest.mark.parametrize("shape", [(1, 3, 4), (3, 100, 60), (3, 4), (70, 2), (5,), (300,), (), (2, 3, 4, 5)])
def test_maps_of_any_shape(shape: tuple[int, ...]) -> None:
    found = np.random.default_rng(0).random(shape).astype(np.float32)
    drawn = map_of(found)
    assert base64.b64decode(drawn.png).startswith(b"\x89PNG")
    assert f"{found.max():.4g}" in drawn.words
    assert flatten_map(found).ndim == 2


def test_what_is_no_map_is_left_out() -> None:
    assert map_of(None).png == map_of(np.zeros((0,))).png == map_of(np.full((2, 2), np.nan)).png == ""
    assert map_of(np.zeros((2, 2))).words == "no single change that was tried lowers the margin"


def test_names_are_escaped_and_rows_stay_small(new_store: NewStore, tmp_path: Path) -> None:
    html = write_report(answered(new_store(classes=["ant", HOSTILE, "cow"])), tmp_path / "r.html").read_text()
    document = Document(html)
    assert document.tags.count("script") == 1
    assert HOSTILE not in html
    assert html.count(" data-a=") == 2
    assert html.count(" data-p=") == 1
    bare = write_report(new_store(), tmp_path / "bare.html").read_text()
    assert " data-names=" not in bare


def test_a_thousand_inputs_with_all_of_it_stay_under_a_megabyte(new_store: NewStore, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x = (torch.rand(1000, 1, 8, 8, generator=generator) * 16).round() / 16
    store = new_store(classes=[f"class {k}" for k in range(10)])
    store.put_inputs(list(x), [1] * 1000, [1] * 1000, [""] * 1000, [None] * 1000)
    made = [record(k, 0.1, 0.4) for k in range(1000)]
    store.write(
        [replace(r, bracket=replace(r.bracket, upper=witness(0.4, 1 - x[k]))) for k, r in enumerate(made)]
    )
    store.put_answers({r.key: Answers(BEFORE, AFTER) for r in made})
    maps = torch.rand(1000, 1, 8, 8, generator=generator)
    store.put_artefacts("saliency", {Key(k): found for k, found in enumerate(maps)})
    html = write_report(store, tmp_path / "r.html").read_text()
    assert len(html.encode()) < 1_000_000
    assert html.count(" data-a=") == 1000
    assert 300 < html.count(" data-p=") < 1000  # noise, which no compression makes smaller


def test_a_run_without_them_has_a_page_as_before(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store()
    store.write([record(0, 0.1, 0.4)])
    html = write_report(store, tmp_path / "r.html").read_text()
    assert not re.search(" data-(a|p|names)=", html)


def test_of_frames_the_weakest_one_is_told(new_store: NewStore, tmp_path: Path) -> None:
    store = new_store(frames="each")
    store.write([record(0, 0.1, 0.4, frame=0), record(0, 0.1, 0.3, frame=1)])
    store.put_answers({Key(0, 0): Answers(BEFORE), Key(0, 1): Answers(BEFORE, AFTER)})
    assert (
        f'data-a="{pack_answers(Answers(BEFORE, AFTER)).replace("<", "&lt;")}"'
        in write_report(store, tmp_path / "r.html").read_text()
    )


def test_the_terminal_tells_the_same(
    new_store: NewStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "150")
    store = answered(new_store(classes=["ant", "[bold]bee\x1b", "cow"]))
    shown = []
    for number in range(3):
        with pytest.raises(SystemExit):
            main(["show", str(store.folder), "--input", str(number)])
        shown.append(capsys.readouterr().out)
    first = re.sub("[│┃ ]+", " ", shown[0])
    assert "says of the input share output of the witness share output" in first
    assert "[bold]bee\N{REPLACEMENT CHARACTER} 98 % 5 cow 60 % 3" in first
    assert "saliency" in first
    assert "\x1b" not in first
    assert "of the witness" not in shown[1]
    assert "says of the input" not in shown[2]
    assert "saliency" not in shown[2]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if PROGRAM is None:
        pytest.skip("no Chromium here (Debian: apt-get install chromium)")
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def test_an_input_opens_with_both_lists_and_the_map(
    browser: Browser, new_store: NewStore, tmp_path: Path
) -> None:
    path = write_report(answered(new_store(classes=["ant", HOSTILE])), tmp_path / "r.html")
    browser.complaints.clear()
    browser.open(path, "#i0")
    browser.wait_for("document.querySelector('dialog').open")
    cells = "[...t.rows].map(r => [...r.cells].map(c => c.textContent))"
    tables = browser.run(f"[...document.querySelectorAll('dialog table')].map(t => {cells})")
    assert tables == [
        [
            ["class", "share", "output"],
            [HOSTILE, "98 %", "5"],
            ["2", "1.83 %", "1"],
            ["ant", "<0.01 %", "-3"],
        ],
        [["class", "share", "output"], ["2", "60 %", "3"], [HOSTILE, "40 %", "2.5"], ["ant", "0 %", "−∞"]],
    ]
    named = browser.run(
        "[...document.querySelectorAll('dialog table')].map(t => t.getAttribute('aria-label')).join()"
    )
    assert named == "most likely classes at the input,most likely classes at the counterexample"
    widths = browser.run("[...document.querySelectorAll('dialog table i')].map(i => i.style.width).join()")
    assert widths == "98%,1.83%,0.01%,60%,40%,0%"
    image = "document.querySelector('dialog img[alt^=saliency]')"
    browser.wait_for(f"{image}.complete")
    assert browser.run(f"{image}.naturalWidth") == 5
    assert "up to 1.25, at row 2, column 3" in browser.run(f"{image}.alt")
    browser.open(path, "#i1")
    browser.wait_for("document.querySelector('dialog').innerText.includes('Input 1')")
    assert browser.run("document.querySelectorAll('dialog table').length") == 1
    browser.open(path, "#i2")
    browser.wait_for("document.querySelector('dialog').innerText.includes('Input 2')")
    assert (
        browser.run(
            "document.querySelectorAll('dialog table').length + document.querySelectorAll('dialog img[alt^=saliency]').length"
        )
        == 0
    )
    assert browser.run("document.title") != "1"
    assert browser.complaints == []
