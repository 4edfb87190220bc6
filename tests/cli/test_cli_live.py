"""What is seen while a command works, and when it is left before it began."""

import io
import signal
import sys

import pytest
from rich.console import Console

import holdfast
from holdfast.cli import main
from holdfast.cli.views import live
from holdfast.result import Bound, Bracket, Evidence, Key, Record
from holdfast.solver import Progress


def half(seconds_left: float | None) -> Progress:
    bracket = Bracket(Bound(0.1, Evidence("proved", "Certify")), Bound(0.3, Evidence("witnessed", "PGD")))
    return Progress(2, 4, [Record(Key(0), bracket, "interrupted", 1.0, 1)], "PGD", 3.2, seconds_left)


@pytest.mark.parametrize(
    ("left", "said"), [(7.4, "radius: 2 of 4, 3 s, 7 s left, PGD"), (None, "radius: 2 of 4, 3 s, PGD")]
)
def test_a_pipe_sees_a_line_now_and_then(
    left: float | None, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(live, "EVERY", 0.0)
    out = io.StringIO()
    with live.LiveProgress(Console(file=out), "radius", 4) as progress:
        progress(half(left))
    assert out.getvalue() == ""  # what is asked for stands there alone
    assert capsys.readouterr().err == f"{said} mean [0.1, 0.3]\n"


def test_lines_are_seconds_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with live.LiveProgress(Console(file=io.StringIO()), "radius", 4) as progress:
        for _ in range(5):
            progress(half(None))
    assert capsys.readouterr().err == ""


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ending:
        main(["--version"])
    assert ending.value.code == 0
    assert capsys.readouterr().out == f"holdfast {holdfast.__version__}\n"


def test_ctrl_c_before_anything_was_begun(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model whose code is left with Ctrl-C while it is read."""

    class Model:
        @staticmethod
        def slow() -> None:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setitem(sys.modules, "slow_model", Model)  # type: ignore[misc]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as ending:
            main(["inspect", "slow_model:slow"])
    finally:
        signal.signal(signal.SIGINT, before)
    assert ending.value.code == 130
    assert capsys.readouterr().err == "interrupted: nothing had begun that could be saved.\n"
