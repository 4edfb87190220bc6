"""A workshop with models and data as a user has them, and the command line in this process or in its own."""

import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cli_workshop import SOURCE, Ask, Said, forked, make_workshop

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
def ask(workshop: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """holdfast ARGUMENTS, in this process and in the workshop; on a busy machine too without the lines that tell of long work."""
    monkeypatch.setattr("holdfast.cli.views.live.EVERY", math.inf)

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

    def start(
        *arguments: object, environment: Mapping[str, str] | None = None, **options: Any
    ) -> "subprocess.Popen[str]":
        around = {
            **os.environ,
            "PYTHONPATH": str(SOURCE),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "80",
            **(environment or {}),
        }
        code = "from holdfast.cli import main; main()"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": around, **options}
        return subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], **pipes)

    return start


class Copy:
    """holdfast ARGUMENTS in a copy of this process, which has torch at hand. Its output goes to one end, a terminal's or a file's."""

    def __init__(self, arguments: Sequence[object], end: int, encoding: str) -> None:
        self.end, self.encoding = end, encoding
        self.returncode: int | None = None
        self.pid = forked(lambda: self._work([str(a) for a in arguments]))

    def _work(self, arguments: list[str]) -> int:
        for number in (0, 1, 2):
            os.dup2(self.end, number)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  not pytest's
        sys.stdout = open(1, "w", encoding=self.encoding, closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", encoding=self.encoding, closefd=False)  # noqa: SIM115
        try:
            main(arguments)
        except SystemExit as ending:
            return int(ending.code or 0)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
        return 0

    def poll(self) -> int | None:
        if self.returncode is None and (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(found[1])
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


@pytest.fixture
def copied(workshop: Path) -> Iterator[Callable[..., Copy]]:
    """holdfast ARGUMENTS as a copy of this process; without another end its output goes to said.txt."""
    with open("said.txt", "w") as told:
        yield lambda *arguments, end=None, encoding="utf-8": Copy(
            arguments, told.fileno() if end is None else end, encoding
        )
