"""A workshop with models and data as a user has them, and the command line in this process or in its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from cli_workshop import SOURCE, Ask, Said, make_workshop

from holdfast.cli import main


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workshop")
    make_workshop(folder)
    return folder


@pytest.fixture
def workshop(made_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh copy, and the working folder."""
    folder = tmp_path / "workshop"
    shutil.copytree(made_once, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "cli_own_code", raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    return folder


@pytest.fixture
def ask(workshop: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """holdfast ARGUMENTS, in this process and in the workshop."""

    def run(*arguments: object) -> Said:
        with pytest.raises(SystemExit) as ending:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return Said(int(ending.value.code or 0), out, err)

    return run


@pytest.fixture
def refused(ask: Ask, workshop: Path) -> Ask:
    """holdfast ARGUMENTS must fail with one clear line on stderr, no traceback, and no run left behind."""

    def run(*arguments: object) -> Said:
        said = ask(*arguments)
        assert said.code == 2, said
        lines = [line for line in said.err.splitlines() if not line.startswith("warning:")]
        assert len(lines) == 1, said.err
        assert lines[0].startswith("error: ")
        assert said.out == ""
        assert not (workshop / "run").exists()
        return said

    return run


@pytest.fixture
def process(workshop: Path) -> Callable[..., "subprocess.Popen[str]"]:
    """holdfast ARGUMENTS as a process of its own, output piped."""

    def start(*arguments: object, environment: Mapping[str, str] | None = None, **options: Any) -> "subprocess.Popen[str]":
        around = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1", "COLUMNS": "80", **(environment or {})}
        code = "from holdfast.cli import main; main()"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": around, **options}
        return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], **pipes)

    return start
