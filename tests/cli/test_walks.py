"""Users of many kinds reach their first useful result with what they have, in four steps or fewer; benchmarks/walks.py counts CPU-seconds, too."""

import contextlib
import io
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.walks import MOST, WALKS, walked

from holdfast.cli import main


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr("benchmarks.walks.command", lambda source: here)


@contextlib.contextmanager
def _current_folder_on_path() -> Iterator[None]:
    """Import modules of the current folder, as an interpreter that is started there does."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        sys.modules.pop("mine", None)


def here(step: str) -> tuple[int, str]:
    """In this process, which has imported all that is needed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            if step.startswith(">>> "):
                with _current_folder_on_path():
                    exec(step.replace(">>> ", ""), {})
            else:
                at_once = (
                    ["--executor", "here"]
                    if step.startswith(("radius", "verify")) and "--executor" not in step
                    else []
                )
                main([*step.split(), *at_once])
            code = 0
        except SystemExit as ending:
            code = int(ending.code or 0)
    return code, said.getvalue()


@pytest.mark.parametrize("name", WALKS)
def test_a_first_useful_result_in_few_steps(name: str) -> None:
    if name == "pictures":
        pytest.importorskip("PIL")
    if name in ("researcher", "table", "gaps"):
        pytest.importorskip("pandas")
    if name == "pieces":
        pytest.importorskip("tokenizers")
    found = walked(WALKS[name], here)
    assert not found.ended
    assert 1 <= found.steps <= MOST


def test_a_walk_that_fails_says_where() -> None:
    lost = replace(
        WALKS["controller"], steps=("verify elsewhere.onnx property.vnnlib --out run", "report run")
    )
    found = walked(lost, here)
    assert found.steps == 1
    assert "elsewhere.onnx" in found.ended
    unhelpful = walked(replace(WALKS["controller"], useful=("what nobody said",)), here)
    assert unhelpful.ended == "the output does not mention what nobody said"
