"""The page in a real browser: sort, filter, turn pages, open an input, print; and no word of complaint from the console."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from browser_pipe import PROGRAM, Browser
from report_runs import TinySequence, put, question, record

import holdfast as hf
from holdfast.report import write_report
from holdfast.report.compare import compare
from holdfast.report.compare_page import render
from holdfast.report.pairing import load
from holdfast.report.summary import rows_of
from holdfast.report.verdict import verdict
from holdfast.report.writing import write_document

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here (Debian: apt-get install chromium)")
NewStore = Callable[..., hf.Store]
HOSTILE = '</script><img src=x onerror="document.title=1"><b>'
SHOWN = "[...document.querySelectorAll('#inputs tbody tr.on')].filter(r => r.offsetParent)"
COUNT = 130


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def quiet(browser: Browser) -> Iterator[Browser]:
    browser.complaints.clear()
    yield browser
    assert browser.run("document.title") != "1"
    assert browser.complaints == []


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Inputs 0 to 129 in mixed order of their ends; some closed, open, misclassified."""
    folder = tmp_path_factory.mktemp("page")
    store = hf.Store.create(folder / "run", question(classes=["cat", HOSTILE]))
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(COUNT, 1, 6, 6, generator=generator)
    store.put_inputs(
        list(x),
        [0] * COUNT,
        [1 if k == 7 else 0 for k in range(COUNT)],
        [f"name{k}" for k in range(COUNT)],
        [None] * COUNT,
    )
    records = []
    for k in range(COUNT):
        low = (k * 37 % COUNT) / COUNT
        made = record(
            k,
            low,
            math.inf if k % 10 == 3 else low if k % 10 == 4 else low + 0.1,
            note=HOSTILE if k == 5 else "",
        )
        end = replace(made.bracket.upper, evidence=replace(made.bracket.upper.evidence, witness=(x[k] * 0.9)))
        records.append(
            replace(made, bracket=replace(made.bracket, upper=end)) if math.isfinite(end.value) else made
        )
    records[7] = record(7, 0.0, 0.0, note="the property fails at the input itself")
    store.write(records)
    with store:
        return write_report(store, folder / "report.html")


def numbers(browser: Browser) -> list[int]:
    found: list[int] = browser.run(f"{SHOWN}.map(r => parseInt(r.cells[0].innerText))")
    return found


def choose(browser: Browser, wish: str, value: str) -> None:
    change = f"f.value = {value!r}; f.dispatchEvent(new Event('input', {{bubbles: true}}));"
    browser.run(f"(f => {{ {change} }})(document.querySelector('[data-wish={wish}]'))")


def told(browser: Browser) -> str:
    text: str = browser.run("document.querySelector('output').textContent")
    return text


def test_complaints_are_heard(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_text(
        "<script>console.error('no'); undefinedName()</script><img src='data:image/png;base64,AAAA'>"
    )
    browser.open(tmp_path / "bad.html")
    assert len(browser.complaints) >= 2


def test_rows_come_in_pages(quiet: Browser, page: Path) -> None:
    quiet.open(page)
    assert numbers(quiet) == list(range(50))
    assert told(quiet) == f"1 to 50 of {COUNT}"
    assert quiet.run("document.querySelector('.tools [data-back]').disabled")
    for _ in range(2):
        quiet.run("document.querySelector('.tools [data-on]').click()")
    assert numbers(quiet) == list(range(100, COUNT))
    assert quiet.run("document.querySelector('.tools [data-on]').disabled")
    choose(quiet, "size", "0")
    assert numbers(quiet) == list(range(COUNT))


def test_headings_sort_and_say_so(quiet: Browser, page: Path) -> None:
    quiet.open(page)
    heading = "[...document.querySelectorAll('#inputs th')].find(h => h.textContent == 'upper')"
    quiet.run(f"{heading}.querySelector('button').click()")
    assert quiet.run(f"{heading}.getAttribute('aria-sort')") == "ascending"
    assert numbers(quiet)[0] == 7
    quiet.run(f"{heading}.querySelector('button').click()")
    assert quiet.run(f"{heading}.getAttribute('aria-sort')") == "descending"
    assert all(k % 10 == 3 for k in numbers(quiet)[:13])  # open upper ends are the largest
    assert (
        quiet.run("document.querySelectorAll('th[aria-sort=ascending], th[aria-sort=descending]').length")
        == 1
    )


def test_filters_choose_rows(quiet: Browser, page: Path) -> None:
    with hf.Store.open(page.parent / "run") as store:
        rows = rows_of(store.records(), store.inputs())
    quiet.open(page)
    choose(quiet, "size", "0")
    for at in (0.0, 0.3, 0.85):
        choose(quiet, "at", str(at))
        for kind in ("certified", "broken", "unknown"):
            choose(quiet, "kind", kind)
            assert numbers(quiet) == [row.index for row in rows if verdict(row, at) == kind], (at, kind)
    choose(quiet, "kind", "wrong")
    assert numbers(quiet) == [7]
    choose(quiet, "kind", "")
    choose(quiet, "status", "closed")
    assert numbers(quiet) == [k for k in range(COUNT) if k % 10 == 4 or k == 7]
    choose(quiet, "status", "")
    choose(quiet, "words", "NAME12")
    assert numbers(quiet) == [12, *range(120, COUNT)]
    choose(quiet, "words", "nothing like it")
    assert numbers(quiet) == []
    assert told(quiet) == f"none of {COUNT}"


def test_an_input_opens_by_key_and_by_address(quiet: Browser, page: Path, tmp_path: Path) -> None:
    quiet.open(page)
    quiet.run("document.querySelector('#i5 a').focus()")
    quiet.press("Enter")
    quiet.wait_for("document.querySelector('dialog').open")
    text = quiet.run("document.querySelector('dialog').innerText")
    assert "Input 5, name5" in text
    assert HOSTILE in text
    assert "incomplete, deterministic, glass box, real arithmetic, approximate" in text
    assert quiet.run("document.querySelectorAll('dialog img').length") == 3
    assert quiet.run(
        "[...document.querySelectorAll('dialog img')].every(i => i.naturalWidth == 6 && i.offsetWidth > 100)"
    )
    quiet.run("document.querySelector('dialog [data-on]').click()")
    quiet.wait_for("document.querySelector('dialog').innerText.includes('Input 6')")
    quiet.press("Escape")
    quiet.wait_for("!document.querySelector('dialog').open && !location.hash")
    assert quiet.run("location.hash") == ""
    assert quiet.run("document.activeElement.textContent") == "6"
    quiet.open(page, "#i117")
    quiet.wait_for("document.querySelector('dialog').innerText.includes('Input 117')")
    assert 117 in numbers(quiet)  # its page was turned to
    assert quiet.picture(tmp_path / "shot.png").stat().st_size > 10_000


def test_frames_are_told_one_by_one(quiet: Browser, new_store: NewStore, tmp_path: Path) -> None:
    net = hf.Network.from_torch(TinySequence().eval(), domain=(-1, 1))
    x = torch.rand(2, 5, 2, generator=torch.Generator().manual_seed(1)) * 0.3
    store = new_store(frames="each")
    put(store, x, [0, 0], net)
    hf.radius(net, x, [0, 0], frames="each", store=store, methods=[hf.attacks.PGD()])
    quiet.open(write_report(store, tmp_path / "frames.html"), "#i1")
    quiet.wait_for("document.querySelector('dialog').open")
    assert quiet.run("document.querySelectorAll('dialog li').length") == 5
    assert "Frame by frame" in quiet.run("document.querySelector('dialog').innerText")


def test_all_rows_are_printed(quiet: Browser, page: Path) -> None:
    quiet.open(page)
    quiet.ask("Emulation.setEmulatedMedia", media="print")
    try:
        assert (
            quiet.run("[...document.querySelectorAll('#inputs tbody tr')].filter(r => r.offsetParent).length")
            == COUNT
        )
        assert quiet.run("getComputedStyle(document.querySelector('.tools')).display") == "none"
        assert quiet.pdf().startswith(b"%PDF")
    finally:
        quiet.ask("Emulation.setEmulatedMedia", media="")


def test_dark_mode_follows_the_system(quiet: Browser, page: Path) -> None:
    quiet.open(page)
    shown = []
    for scheme in ("light", "dark"):
        quiet.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        shown.append(quiet.run("getComputedStyle(document.body).backgroundColor"))
    assert shown == ["rgb(246, 247, 249)", "rgb(20, 23, 27)"]
    quiet.ask("Emulation.setEmulatedMedia", features=[])


def test_a_comparison_sorts_and_searches(quiet: Browser, new_store: NewStore, tmp_path: Path) -> None:
    stores = [new_store(), new_store()]
    for k, store in enumerate(stores):
        store.write([record(i, 0.1 * i + k, 0.1 * i + k + 0.5) for i in range(60)])
    quiet.open(
        write_document(
            render(compare([load(store, name) for store, name in zip(stores, "ab", strict=True)])),
            tmp_path / "compare.html",
        )
    )
    assert told(quiet) == "1 to 50 of 60"
    quiet.run("document.querySelectorAll('#inputs th button')[1].click()")
    quiet.run("document.querySelectorAll('#inputs th button')[1].click()")
    assert numbers(quiet)[0] == 59
    choose(quiet, "words", "undecided")
    assert told(quiet).startswith("none")


def test_an_empty_run_opens(quiet: Browser, new_store: NewStore, tmp_path: Path) -> None:
    quiet.open(write_report(new_store(), tmp_path / "empty.html"))
    assert "There are no answers yet" in quiet.run("document.body.innerText")
