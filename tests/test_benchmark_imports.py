"""Benchmarks, scripts and examples import only names that exist. mypy checks src only, and no test runs all of them."""

import ast
import importlib
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted(
    path for folder in ("benchmarks", "scripts", "examples") for path in (ROOT / folder).rglob("*.py")
)
OWN = ("holdfast", "holdfast_check", "benchmarks")


def missing_names(path: Path) -> list[str]:
    """The imported modules and names of this repository that do not exist."""
    missing = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom) or node.level or (node.module or "").split(".")[0] not in OWN:
            continue
        assert node.module is not None
        module = importlib.import_module(node.module)
        for alias in node.names:
            if (
                not hasattr(module, alias.name)
                and importlib.util.find_spec(f"{node.module}.{alias.name}") is None
            ):
                missing.append(f"{path.name}:{node.lineno}: {node.module}.{alias.name}")
    return missing


def test_every_imported_name_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    assert [name for path in FILES for name in missing_names(path)] == []
