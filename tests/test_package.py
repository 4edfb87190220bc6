"""What the package says of itself is said once, and travels with it."""

import importlib.metadata
import os
import re
import tomllib
import zipfile
from importlib.resources import files
from pathlib import Path

import pytest

import holdfast

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_version_is_written_once() -> None:
    assert "version" not in PROJECT["project"]
    assert "version" in PROJECT["project"]["dynamic"]
    source = ROOT / PROJECT["tool"]["hatch"]["version"]["path"]
    assert re.findall(r'^__version__ = "(.+)"$', source.read_text(), re.MULTILINE) == [holdfast.__version__]
    others = [
        p
        for p in (ROOT / "pyproject.toml", ROOT / "CITATION.cff", *(ROOT / "src").rglob("*.py"))
        if p != source
    ]
    assert not [str(path) for path in others if holdfast.__version__ in path.read_text()]


def test_the_installed_version_is_this_one() -> None:
    """Where the package is installed from here; a tree that only lies on the path has no metadata of its own."""
    direct = importlib.metadata.distribution("holdfast").read_text("direct_url.json") or ""
    if ROOT.as_uri() not in direct:
        pytest.skip("the installed holdfast is not that of this tree")
    assert importlib.metadata.version("holdfast") == holdfast.__version__


def test_types_travel_with_the_package() -> None:
    assert (files("holdfast") / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["project"]["classifiers"]


def test_the_wheel_holds_types_data_and_the_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = pytest.importorskip("hatchling.build", reason="hatchling is not installed: pip install hatchling")
    monkeypatch.chdir(ROOT)
    wheel = tmp_path / build.build_wheel(os.fspath(tmp_path))
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        [metadata] = [archive.read(name).decode() for name in names if name.endswith("METADATA")]
    source = ROOT / "src"
    kept = {
        str(p.relative_to(source)) for p in source.rglob("*") if p.is_file() and "__pycache__" not in p.parts
    }
    assert kept - {name for name in kept if ".egg-info" in name} <= names
    assert {"holdfast/py.typed", "holdfast_check/py.typed"} <= names
    assert f"\nVersion: {holdfast.__version__}\n" in metadata
    assert "\nLicense-Expression: Apache-2.0\n" in metadata


def test_the_changelog_begins_with_what_is_not_released_or_with_this_version() -> None:
    first = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert first in ("Unreleased", holdfast.__version__)


def test_the_hooks_are_those_of_make_lint_and_fetch_nothing() -> None:
    hooks = (ROOT / ".pre-commit-config.yaml").read_text()
    [lint] = re.findall(r"^lint: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in lint.splitlines()]
    assert re.findall(r"entry: (.+)", hooks) == commands
    assert re.findall(r"- repo: (.+)", hooks) == ["local"]


def test_what_must_pass_is_lint_and_the_tests() -> None:
    run = (ROOT / ".ci" / "run").read_text()
    assert re.findall(r"^make (\w+)", run, re.MULTILINE) == ["lint", "test"]
    assert "wait $lint ||" in run  # which began beside the tests
