"""The files of a bundle that are derived from the run, so that anybody can derive and compare them."""

import json
import platform
import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import holdfast
from holdfast.certificates.checking import by_question
from holdfast.evidence.claims import FILE as CLAIMS
from holdfast.evidence.claims import WITNESSES, claims_of
from holdfast.evidence.manifest import as_bytes
from holdfast.question import plain
from holdfast.report import page_name
from holdfast.store import Store
from holdfast.store.export import witnesses

RUN = "run"  # The folder of the run itself.
RECORDS, QUESTION, VERSIONS, PAGE = "records.json", "question.json", "versions.json", "report.html"
DRAWING = re.compile(rb"<svg.*?</svg>", re.DOTALL)
# The packages that text and figures of a report depend on.
PARTS = ("torch", "numpy", "matplotlib", "jinja2")


def write_contents(store: Store, folder: Path, certificates_in: Path) -> None:
    """Write all derived files below `folder`. Certificates, if any, lie below `certificates_in`."""
    for write in WRITERS:
        write(store, folder)
    (folder / CLAIMS).write_bytes(as_bytes(claims_of(store, by_question(certificates_in))))


def write_question(store: Store, folder: Path) -> None:
    """Write the question of the run, with its hash."""
    (folder / QUESTION).write_bytes(as_bytes(store.question.as_json()))


def write_versions(store: Store, folder: Path) -> None:
    """Write the versions of the packages with which the run and the bundle were made."""
    (folder / VERSIONS).write_bytes(as_bytes(plain({"run": store.provenance, "bundle": package_versions()})))


def package_versions() -> dict[str, str]:
    return {
        "holdfast": holdfast.__version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in PARTS},
    }


def write_records(store: Store, folder: Path) -> None:
    """Write the records as `holdfast export` does."""
    store.export(folder / RECORDS)


def write_witnesses(store: Store, folder: Path) -> None:
    """Write every witness as an array."""
    (folder / WITNESSES).mkdir(exist_ok=True)
    for name, array in witnesses(store):
        np.save(folder / WITNESSES / f"{name}.npy", array, allow_pickle=False)


def write_report(store: Store, folder: Path) -> None:
    """Write the HTML report."""
    from holdfast.report.page import IN_BUNDLE, render_pages  # here: matplotlib takes a second

    target = folder / PAGE
    for number, document in enumerate(
        render_pages(store, lambda number: page_name(target, number), IN_BUNDLE), 1
    ):
        (folder / page_name(target, number)).write_bytes(document.encode("utf-8", "replace"))


WRITERS: tuple[Callable[[Store, Path], None], ...] = (
    write_question,
    write_versions,
    write_records,
    write_witnesses,
    write_report,
)


def same_content(name: str, one: bytes, other: bytes) -> bool:
    """Compare two files: JSON by content (versions of packages may differ), others byte by byte."""
    if one == other or not name.endswith(".json"):
        return one == other
    told, made = (_content(name, text) for text in (one, other))
    return told is not None and bool(told == made)


def _content(name: str, text: bytes) -> Any:
    try:
        content = json.loads(text)
        return content["run"] if name == VERSIONS else content
    except (ValueError, LookupError, TypeError, RecursionError):
        return None


def without_figures(page: bytes) -> bytes:
    """Return a page without its figures: another version of matplotlib draws them with other numbers."""
    return DRAWING.sub(b"", page)
