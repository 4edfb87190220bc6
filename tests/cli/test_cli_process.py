"""The command line as a process: quick help, signals, kill -9, what pipes and terminals see."""

import contextlib
import os
import pty
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_workshop import SOURCE, Ask

from holdfast.cli import main
from holdfast.store import Store

Start = Callable[..., "subprocess.Popen[str]"]
Copied = Callable[..., Any]  # a copy of this process: conftest.py
# One input at a time, so that there is a middle in which to stop.
LONG = (
    "radius", "-m", "lstm.onnx", "-d", "data.npz", "--norm", "2", "--batch", "1", "--limit", "4", "--methods", "pgd,certify", "-o", "run",
)  # fmt: skip


def answers(run: Path) -> list[tuple[Any, ...]]:
    with Store.open(run) as store:
        return [
            (r.key.index, r.bracket.lower.value, r.bracket.upper.value, r.status) for r in store.records()
        ]


@pytest.fixture(scope="module")
def undisturbed(made_once: Path) -> list[tuple[Any, ...]]:
    """What the long run finds when nobody stops it."""
    with contextlib.chdir(made_once), pytest.raises(SystemExit):
        main([*LONG[:-1], "undisturbed"])
    return answers(made_once / "undisturbed")


def wait_for_records(run: Path, count: int, process: Any) -> None:
    """Until so many inputs are finished."""
    patience = time.monotonic() + 600
    while time.monotonic() < patience:
        assert process.poll() is None, f"it ended before it could be stopped: {process.returncode}"
        with (
            contextlib.suppress(sqlite3.Error),
            contextlib.closing(sqlite3.connect(f"file:{run}/run.sqlite?mode=ro", uri=True)) as found,
        ):
            (finished,) = found.execute(
                "SELECT count(*) FROM record WHERE status != 'interrupted'"
            ).fetchone()
            if finished >= count:
                return
        time.sleep(0.02)
    pytest.fail("no records in time")


def test_help_answers_before_torch_is_imported() -> None:
    code = (
        f"import sys\nsys.path.insert(0, {str(SOURCE)!r})\nfrom holdfast.cli import main\ntry:\n    main(['--help'])\nfinally:\n"
        "    print('HEAVY', [m for m in ('torch', 'numpy', 'onnx', 'matplotlib') if m in sys.modules])\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert "HEAVY []" in said.stdout
    for command in ("radius", "resume", "report", "export", "inspect", "demo"):
        assert command in said.stdout


@pytest.mark.parametrize("command", ["radius", "resume", "report", "export", "inspect", "demo"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main([command, "--help"])
    assert ending.value.code == 0
    assert f"Usage: holdfast {command}" in capsys.readouterr().out


def test_ctrl_c_keeps_everything_and_says_how_to_go_on(
    process: Start, ask: Ask, workshop: Path, undisturbed: list[tuple[Any, ...]]
) -> None:
    # Whoever runs the tests in the background may have told its children to ignore Ctrl-C.
    running = process(*LONG, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    wait_for_records(workshop / "run", 1, running)
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=600)
    assert running.returncode == 130, (out, err)
    assert re.search("[\x00-\x08\x0b-\x1f\x7f]", out) is None  # a pipe sees no control characters
    expect_everything_kept(out, err, ask, workshop / "run", undisturbed)


def test_sigterm_keeps_everything_and_says_how_to_go_on(
    copied: Copied, ask: Ask, workshop: Path, undisturbed: list[tuple[Any, ...]]
) -> None:
    """In a copy of this process, which spares it the imports; Ctrl-C has a process of its own above."""
    running = copied(*LONG)
    wait_for_records(workshop / "run", 1, running)
    os.kill(running.pid, signal.SIGTERM)
    assert running.wait() == 143
    expect_everything_kept(Path("said.txt").read_text(), "", ask, workshop / "run", undisturbed)


def expect_everything_kept(
    out: str, err: str, ask: Ask, run: Path, undisturbed: list[tuple[Any, ...]]
) -> None:
    assert "Traceback" not in out + err
    assert "proved" in out  # what is known
    assert "holdfast resume run" in out
    assert "interrupted" in {status for *_, status in answers(run)}
    again = ask(*shlex.split("resume run"))
    assert again.code == 0, again.err
    assert re.search(r"[1-3] of 4 finished before", again.out)
    assert answers(run) == undisturbed


def test_a_killed_run_is_finished_by_resume(
    copied: Copied, ask: Ask, workshop: Path, undisturbed: list[tuple[Any, ...]]
) -> None:
    running = copied(*LONG)
    wait_for_records(workshop / "run", 2, running)
    running.kill()
    assert running.wait() == -signal.SIGKILL
    assert ask("resume", "run").code == 0
    assert answers(workshop / "run") == undisturbed
    assert ask("report", "run").code == 0


def test_a_run_killed_before_its_inputs_were_written_gets_them_on_resume(ask: Ask) -> None:
    assert (
        ask(
            "radius", "-m", "lstm.onnx", "-d", "data.npz", "--limit", "1", "--methods", "pgd", "-o", "run"
        ).code
        == 0
    )
    with contextlib.closing(sqlite3.connect("run/run.sqlite")) as connection, connection:
        connection.execute("DELETE FROM input")
        connection.execute("DELETE FROM record")
    assert ask("resume", "run").code == 0
    with contextlib.closing(sqlite3.connect("run/run.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM input").fetchone() == (1,)


def test_on_a_terminal_of_80_columns(copied: Copied, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bar moves while the run goes and is gone afterwards; no line is longer than the terminal."""
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    running = copied(*LONG, "--limit", "2", end=theirs)
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):  # the other end is closed when the process ends
        while part := os.read(ours, 65536):
            seen += part
    os.close(ours)
    assert running.wait() == 0, seen
    text = seen.decode()
    assert "0/2" in text
    assert "\x1b[2K" in text[text.rindex("/2") : text.index("┏")]  # the bar is wiped before the table
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert max(len(line) for line in re.split("[\r\n]+", plain)) <= 80
    assert plain.rstrip().splitlines()[-1] == "next: holdfast report run"


def test_a_reader_that_goes_away_is_no_error(process: Start) -> None:
    running = process("inspect", "lstm.onnx")
    assert running.stdout is not None
    assert running.stderr is not None
    running.stdout.close()
    running.wait(timeout=600)
    assert "Traceback" not in running.stderr.read()


def test_what_libraries_log_about_a_damaged_file_stays_out_of_sight(process: Start) -> None:
    whole = Path("lstm.pt2").read_bytes()
    Path("half.pt2").write_bytes(whole[: len(whole) // 2])
    said = process("inspect", "half.pt2", "--trust")
    _, err = said.communicate(timeout=600)
    assert said.returncode == 2
    assert err.startswith("error: half.pt2: ")
    assert err.count("\n") == 1


def test_a_terminal_without_unicode(copied: Copied) -> None:
    begin = ("radius", "-m", "lstm.onnx", "-d", "data.npz", "--limit", "1", "--seconds", "0", "-o", "run")
    said = copied(*begin, encoding="ascii")
    out = Path("said.txt").read_bytes() if said.wait() == 0 else b""
    assert b"next: holdfast report run" in out
    assert out.isascii()


def test_the_demo_never_removes_what_is_not_its_own(ask: Ask) -> None:
    assert (
        ask(
            "radius",
            "-m",
            "lstm.onnx",
            "-d",
            "data.npz",
            "--limit",
            "1",
            "--methods",
            "pgd",
            "-o",
            "runs/cnn",
        ).code
        == 0
    )
    before = Path("runs/cnn/run.sqlite").read_bytes()
    said = ask("demo", "--out", "runs")
    assert said.code == 2
    assert "not an earlier demo" in said.err
    assert Path("runs/cnn/run.sqlite").read_bytes() == before
