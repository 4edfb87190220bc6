"""Rules of accessibility, by hand: what a screen reader needs from a page, and contrast that eyes need."""

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from report_runs import TinySequence, put, record

import holdfast as hf
from holdfast.report import write_report
from holdfast.report.compare import compare
from holdfast.report.compare_page import render
from holdfast.report.pairing import load

VOID = {"meta", "img", "br", "input", "hr", "link"}
NewStore = Callable[..., hf.Store]


class Outline(HTMLParser):
    """A page as a screen reader meets it; `faults` are broken rules."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []  # of the open elements
        self.headings: list[int] = []
        self.landmarks: list[str] = []
        self.ids: set[str] = set()
        self.named: list[str] = []  # ids that others point to
        self.faults: list[str] = []
        self._captions: list[bool] = []
        self._heads: list[bool] = []
        self.feed(html)
        self.faults += [f"{name} leads nowhere" for name in self.named if name not in self.ids]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.ids.add(named.get("id") or "")
        for name in ("aria-labelledby", "aria-describedby", "for"):
            self.named += (named.get(name) or "").split()
        if (named.get("href") or "").startswith("#") and tag == "a":
            self.named.append((named["href"] or "")[1:])
        if tag in ("header", "main", "nav", "footer", "dialog"):
            self.landmarks.append(tag)
        self._check(tag, named)
        if tag not in VOID:
            self.open.append(tag)
            self.texts.append("")

    def _check(self, tag: str, named: dict[str, str | None]) -> None:
        around = self.open
        if tag == "html" and not named.get("lang"):
            self.faults.append("no language")
        if tag == "img" and not named.get("alt"):
            self.faults.append("an image without words")
        if (
            tag == "svg"
            and not (named.get("role") == "img" and named.get("aria-label"))
            and "svg" not in around
        ):
            self.faults.append("a plot without words")
        if re.fullmatch(r"h[1-6]", tag):
            if int(tag[1]) > (self.headings[-1] if self.headings else 0) + 1:
                self.faults.append(f"{tag} skips a level")
            self.headings.append(int(tag[1]))
        if tag in ("input", "select") and "label" not in around and not named.get("aria-label"):
            self.faults.append(f"a {tag} without a label")
        if tag == "th" and named.get("scope") not in ("col", "row"):
            self.faults.append("a heading of a table without its direction")
        if tag in ("nav", "dialog") and not (named.get("aria-label") or named.get("aria-labelledby")):
            self.faults.append(f"a {tag} without a name")
        if named.get("tabindex") == "0" and not (named.get("role") and named.get("aria-label")):
            self.faults.append("a place to stop at without a name")
        if (named.get("tabindex") or "0") not in ("0", "-1"):
            self.faults.append("an order of its own for the tab key")
        if tag == "table":
            self._captions.append(False)
            self._heads.append(False)
        if tag == "caption":
            self._captions[-1] = True
        if tag == "th":
            self._heads[-1] = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self.faults += [] if self._captions.pop() else ["a table without a caption"]
            self.faults += [] if self._heads.pop() else ["a table without headings"]
        if self.open and self.open[-1] == tag:
            self.open.pop()
            if not self.texts.pop().strip() and tag in ("button", "a", "h1", "h2", "h3", "caption", "label"):
                self.faults.append(f"an empty {tag}")

    def handle_data(self, data: str) -> None:
        self.texts = [text + data for text in self.texts]


def report(new_store: NewStore, folder: Path) -> str:
    """All kinds of parts: frames, estimates of none, a misclassified input, an open one."""
    net = hf.Network.from_torch(TinySequence().eval(), domain=(-1, 1))
    x = torch.rand(3, 5, 2, generator=torch.Generator().manual_seed(1)) * 0.3
    store = new_store(frames="each")
    put(store, x, [0, 0, 1], net)
    hf.radius(net, x, [0, 0, 1], frames="each", store=store, methods=[hf.attacks.PGD()])
    return write_report(store, folder / "report.html").read_text(encoding="utf-8")


def comparison(new_store: NewStore, _: Path) -> str:
    stores = [new_store(), new_store()]
    for store in stores:
        store.write([record(0, 0.1, 0.2), record(1, 0.3, 0.4)])
    return render(compare([load(store, name) for store, name in zip(stores, "ab", strict=True)]))


@pytest.mark.parametrize("make", [report, comparison])
def test_pages_keep_the_rules(
    new_store: NewStore, tmp_path: Path, make: Callable[[NewStore, Path], str]
) -> None:
    outline = Outline(make(new_store, tmp_path))
    assert outline.faults == []
    assert outline.headings.count(1) == 1
    assert {"header", "main", "footer"} <= set(outline.landmarks)
    assert outline.landmarks.count("main") == 1


def test_the_rules_can_be_broken() -> None:
    broken = '<html><body><h2></h2><img src="x"><input><table><tr><th>a</th></tr></table><a href="#none">b</a></body></html>'
    assert len(set(Outline(broken).faults)) >= 8


def luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    parts = (int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def palettes(html: str) -> list[dict[str, str]]:
    """Light, dark, print."""
    found = [
        dict(re.findall(r"--(\w+): (#\w+)", block))
        for block in re.findall(r":root \{(.*?)\}", html, re.DOTALL)
    ]
    assert len(found) == 3
    return [found[0], {**found[0], **found[1]}, {**found[0], **found[2]}]


def test_contrast(new_store: NewStore) -> None:
    assert round(contrast("#fff", "#000"), 3) == 21
    for palette in palettes(comparison(new_store, Path())):
        for text in ("ink", "strong", "soft", "proved", "witnessed", "estimated", "bad"):
            for paper in ("page", "card"):
                assert contrast(palette[text], palette[paper]) >= 4.5, (text, paper, palette)
        assert contrast(palette["edge"], palette["card"]) >= 3  # borders of fields


def test_words_can_be_read_on_every_shade(new_store: NewStore) -> None:
    html = comparison(new_store, Path())
    heats = [tuple(map(int, found)) for found in re.findall(r"--heat: (\d+) (\d+) (\d+)", html)]
    shades = [int(share) for share in re.findall(r"\.h\d \{ background: rgb\(var\(--heat\) / (\d+)%\)", html)]
    assert len(heats) == 3
    assert len(shades) == 10
    for palette, heat in zip(palettes(html), heats, strict=True):
        card = (
            palette["card"]
            if len(palette["card"]) == 7
            else "#" + "".join(2 * d for d in palette["card"][1:])
        )
        for share in shades:
            mixed = (
                round(part * share / 100 + int(card[k : k + 2], 16) * (1 - share / 100))
                for part, k in zip(heat, (1, 3, 5), strict=True)
            )
            assert contrast(palette["strong"], "#" + "".join(f"{part:02x}" for part in mixed)) >= 4.5, (
                heat,
                share,
            )


def deuteranope(colour: str) -> tuple[float, ...]:
    """Machado, Oliveira and Fernandes 2009, severity 1: what remains of a colour without green cones."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    rows = ((0.367, 0.861, -0.228), (0.280, 0.673, 0.047), (-0.012, 0.043, 0.969))
    return tuple(sum(weight * part for weight, part in zip(row, parts, strict=True)) for row in rows)


def test_proved_and_witnessed_differ_for_colour_blind_eyes(new_store: NewStore) -> None:
    for palette in palettes(comparison(new_store, Path())):
        one, other = (deuteranope(palette[name]) for name in ("proved", "witnessed"))
        assert max(abs(a - b) for a, b in zip(one, other, strict=True)) > 0.3
