"""A search for a paper or one of its terms finds it in README, documents, help, keywords and citation, and the pages of the papers
name what they must."""

import re
import tomllib
from pathlib import Path

import pytest
from benchmarks.reproduce import EXPERIMENTS, PAPERS

from holdfast.cli import main

ROOT = Path(__file__).parents[2]
TERMS = (
    "POPQORN",
    "DeepTRE",
    "L0-TRE",
    "DeepQuant",
    "MARBLE",
    "TP-MADS",
    "CLEVER-RNN",
    "C&W-Ada",
    "subspace sensitivity",
    "global robustness",
    "pointwise robustness",
    "0-step",
    "k-step",
)
# Each numbered item of the papers' main text: definitions, theorems, algorithms, tables and figures.
ITEMS = {
    "popqorn": [
        "Table 1",
        "Table 2",
        "Table 4",
        "Table 5",
        "Figure 5",
        "Figure 6",
        "Appendix B.1",
        "Appendix A.4",
    ],
    "deeptre": [
        *(f"Definition {n}" for n in range(1, 9)),
        "Theorem 1",
        "Appendix A.2",
        "Table 1",
        *(f"Figure {n}" for n in range(1, 13)),
    ],
    "deepquant": [
        *(f"Definition {n}" for n in range(1, 8)),
        "Theorem 1",
        "Algorithm 1",
        "Algorithm 2",
        *(f"Table {n}" for n in range(1, 7)),
        *(f"Figure {n}" for n in range(1, 12)),
    ],
    "marble": [
        "Definition 2.1",
        "Definition 2.2",
        "Definition 2.4",
        "Definition 2.5",
        "Example 2.6",
        "Definition 3.1",
        "Definition 3.2",
        "Example 3.3",
        "Definition 3.4",
        "Definition 4.1",
        "Example 4.2",
        "Theorem 4.3",
        "Algorithm 1",
        "Table 1",
        "Table 2",
        *(f"Figure {n}" for n in range(1, 5)),
    ],
}
KIND = re.compile(r"(Definition|Example|Table|Figure|Algorithm|Theorem|Appendix)s?", re.IGNORECASE)
NUMBER = re.compile(r"[A-Z]\.[0-9]+|[0-9]+(\.[0-9]+)?")


def one_line(text: str) -> str:
    return " ".join(text.split()).lower()


def documents() -> str:
    pages = sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "docs" / "papers").glob("*.md"))
    return one_line(" ".join(page.read_text() for page in pages))


def keywords() -> str:
    return one_line(" ".join(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["keywords"]))


@pytest.mark.parametrize("term", TERMS)
def test_a_search_finds_the_term_everywhere(term: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    places = {
        "README.md": one_line((ROOT / "README.md").read_text()),
        "docs": documents(),
        "holdfast --help": one_line(capsys.readouterr().out),
        "keywords of pyproject.toml": keywords(),
        "CITATION.cff": one_line((ROOT / "CITATION.cff").read_text()),
    }
    assert [name for name, text in places.items() if term.lower() not in text] == []


def named(page: str) -> set[str]:
    """All numbered items of a page, with "Figures 2 to 4" and "Tables 1 and 2" written out."""
    found, kind, last, ranges = set(), "", 0, False
    for word in re.findall(r"[A-Za-z]+\.?[0-9.]*|[0-9.]+", page):
        text = word.rstrip(".")
        if NUMBER.fullmatch(text) and kind:
            if ranges and text.isdigit():
                found |= {f"{kind} {n}" for n in range(last, int(text) + 1)}
            found.add(f"{kind} {text}")
            last, ranges = int(text) if text.isdigit() else 0, False
        elif KIND.fullmatch(text):
            kind = KIND.fullmatch(text)[1].capitalize()  # type: ignore[index]
        elif text == "to" and last:
            ranges = True
        elif text != "and":
            kind, last, ranges = "", 0, False
    return found


@pytest.mark.parametrize("paper", list(ITEMS))
def test_each_item_of_the_paper_has_a_row(paper: str) -> None:
    rows = [
        line.split("|")[1]
        for line in (ROOT / "docs" / "papers" / f"{paper}.md").read_text().splitlines()
        if line.startswith("|")
    ]
    assert [item for item in ITEMS[paper] if item not in named("\n".join(rows))] == []


def test_ranges_are_written_out() -> None:
    assert named("Definitions 5 and 6: x") == {"Definition 5", "Definition 6"}
    assert named("Figures 2 to 4, 7") == {"Figure 2", "Figure 3", "Figure 4", "Figure 7"}
    assert named("Appendix B.1: planes") == {"Appendix B.1"}
    assert named("Definition 2.1, Definition 3.4") == {"Definition 2.1", "Definition 3.4"}


@pytest.mark.parametrize("paper", list(PAPERS))
def test_the_page_shows_how_to_reproduce_every_experiment(paper: str) -> None:
    page = (ROOT / "docs" / "papers" / f"{paper}.md").read_text()
    missing = [e.item for e in EXPERIMENTS if e.name == paper and f"`{e.item}`" not in page]
    assert missing == []
