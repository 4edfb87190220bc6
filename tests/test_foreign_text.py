"""Text that files and models bring along: it never steers a terminal, never becomes a formula, and never fills a record."""

import csv
import io
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Group
from rich.table import Table
from rich.text import Text
from torch import nn

import holdfast as hf
from holdfast.cli import _print_message
from holdfast.cli.terminal import Terminal
from holdfast.errors import LONGEST_MESSAGE, BadInput
from holdfast.execution.task import describe_exception
from holdfast.foreign_text import LONGEST_NOTE, cut_text, first_line, printable, printable_lines
from holdfast.report import markdown
from holdfast.report.summary import shorten
from holdfast.result import Bound, Bracket, Evidence, Key, Record, trivial_bound
from holdfast.store.export import csv_cell

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp.exe\u2066\rok\x08"
STEERS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
SOURCE = Path(__file__).resolve().parents[1] / "src"


def test_what_steers_a_terminal_is_written_as_an_escape() -> None:
    assert printable(EVIL) == r"\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp.exe\u2066\rok\x08"
    assert printable("a\nb\tc") == r"a\nb\tc"
    assert printable_lines("a\nb\tc\x1b") == "a\nb\tc\\x1b"
    plain = "ordinary: äöü 中文 עברית 👩‍👩‍👧 – … 1.5 [bold]"
    assert printable(plain) == printable_lines(plain) == plain
    for code in [
        *range(0x20),
        *range(0x7F, 0xA0),
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
        0xD800,
        0xDFFF,
        0xFFF9,
        0xE0041,
    ]:
        shown = printable(f"a{chr(code)}b")
        assert shown.isprintable(), hex(code)
        assert shown.encode()  # half a surrogate pair too
    assert printable("x" * 5000).endswith("x... 3000 more characters")
    assert cut_text("abc", 3) == "abc"
    assert not STEERS.search(shorten(EVIL))
    assert not STEERS.search(markdown.text(EVIL))


def test_no_text_in_anything_that_is_printed_reaches_the_terminal_as_it_is() -> None:
    """Whatever prints it: the console writes escapes, and rich's own colours stay."""
    out = io.StringIO()
    console = Terminal(file=out, force_terminal=True, color_system="truecolor", width=200)
    table = Table(EVIL, title=EVIL, caption=EVIL)
    table.add_row(Text(EVIL, "red"))
    table.add_row(f"[link=http://x]{EVIL}[/link]")
    table.add_row("[/] :smile:")
    console.print(EVIL, Text(EVIL), Group(table), soft_wrap=True)
    console.rule(EVIL)
    console.print(Text("red", "red"))
    shown = out.getvalue()
    assert "\x1b[31mred\x1b[0m" in shown
    left = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert "[link=http://x]" in left  # taken as it is, no markup
    assert ":smile:" in left
    assert not STEERS.search(left)
    assert r"\x1b[2J" in left


def test_every_console_of_the_command_line_is_a_terminal() -> None:
    """A plain rich console would print what it is given."""
    for path in (SOURCE / "holdfast").rglob("*.py"):
        if path.name != "terminal.py":
            assert not re.search(r"(?<![\w\"'`.])Console\(", path.read_text()), path


def test_errors_and_warnings_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    _print_message("red", "error", f"{EVIL}\nrun: /everything/proved")
    told = capsys.readouterr().err
    assert len(told.splitlines()) == 1
    assert not STEERS.search(told)


def test_messages_of_exceptions_are_cut() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("not even that")

    huge = "x" * 10**6
    assert len(str(BadInput(huge))) < LONGEST_MESSAGE + 50
    assert str(BadInput(huge)).endswith(f"... {10**6 - LONGEST_MESSAGE} more characters")
    assert len(describe_exception(ValueError(huge))) < LONGEST_NOTE + 100
    assert first_line(ValueError("  one\ntwo")) == "one"
    assert first_line(Silent()) == first_line(Silent(), silent="") == "Silent"
    assert len(describe_exception(type("N" * 10**5, (Exception,), {})(huge))) < LONGEST_NOTE + 500
    nothing = trivial_bound(-np.inf), trivial_bound(np.inf)
    record = Record(Key(0), Bracket(*nothing, note=huge), "failed", 0.0, 0, skipped=(huge, "short"))
    assert len(record.bracket.note) < LONGEST_NOTE + 50
    assert [len(reason) < LONGEST_NOTE + 50 for reason in record.skipped] == [True, True]
    assert record.skipped[1] == "short"


class Raises(nn.Module):
    """Raises a message without end for inputs above one half."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x > 0.5).any()) and len(x) == 1:
            raise ValueError("\x1b" + "x" * 10**6 + "\n" + "y" * 10**6)
        return torch.cat([x.sum(1, keepdim=True), -x.sum(1, keepdim=True)], 1)


def test_a_record_keeps_no_more_of_what_a_model_says_than_a_person_reads(tmp_path: Path) -> None:
    net = hf.Network.from_callable(
        lambda x: Raises()(torch.as_tensor(x)).numpy(), shape=(2,), domain=(0, 1), fingerprint="raises"
    )
    x = torch.tensor([[0.9, 0.9]])
    try:
        found = hf.radius(net, x, torch.tensor([0]), methods=["pgd"], stop=hf.Stop(seconds=5))
        told = "".join(b.note for b in found)
    except hf.HoldfastError as error:
        told = str(error)
    assert told
    assert len(told) < LONGEST_MESSAGE + 50


@pytest.mark.parametrize("name", ["$\\frac$", "$$", "a_{", "\x1b[2J", "100 $ and 5 $"])
def test_a_class_of_any_name_is_drawn(name: str, tmp_path: Path) -> None:
    """matplotlib reads dollars as formulas, and raises at those that are none."""
    from holdfast.cli.views.pictures import draw_change

    x = np.zeros((1, 4, 4))
    draw_change(x, x + 1, (0.0, 1.0), (f"input 0: {name}", f"test 0: {name}"), "1 changed").savefig(
        tmp_path / "picture.png"
    )
    assert (tmp_path / "picture.png").stat().st_size


# ---- spreadsheets


@pytest.mark.parametrize(
    "text", ["=cmd|' /C calc'!A0", "+1+cmd", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "＝1+1", "=", "-"]
)
def test_a_text_that_a_spreadsheet_takes_for_a_formula_is_quoted(text: str) -> None:
    assert csv_cell(text) == f"'{text}"


@pytest.mark.parametrize(
    "value", ["-0.5", "+3", "-1e-7", -0.5, -3, 0, None, "", "cat", "a=b", "1-2", float("-inf"), True]
)
def test_numbers_and_plain_words_stay(value: Any) -> None:
    assert csv_cell(value) is value


def test_the_exported_table_holds_no_formula(tmp_path: Path) -> None:
    from holdfast.question import DataDescription, Question
    from holdfast.store import Store

    with Store.create(tmp_path / "run", Question(data=DataDescription(classes=("=1+1", "@b")))) as store:
        store.put_inputs([torch.zeros(2)], [0], [1], ['=HYPERLINK("http://x")'], [None])
        witness = Evidence("witnessed", "test", witness=torch.zeros(2))
        bracket = Bracket(trivial_bound(-math.inf), Bound(-1.5, witness), note="-cmd")
        store.write([Record(Key(0), bracket, "finished", 0.0, 1, goal="worst")])
        store.export(tmp_path / "out.csv")
    [row] = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    assert (row["name"], row["label_name"], row["prediction_name"], row["note"]) == (
        '\'=HYPERLINK("http://x")',
        "'=1+1",
        "'@b",
        "'-cmd",
    )
    assert float(row["upper"]) == -1.5


# ---- numbers that are none


LABELS: list[tuple[Any, str]] = [
    ([10**19], "does not hold numbers"),
    ([10**20], "21 digits"), ([10**5000], "y cannot be read"), ([float("nan")], "the label is missing"),
    ([float("inf")], "the label is missing"), (np.array([2**64 - 1], dtype=np.uint64), "the label is missing"), (["9" * 20], "20 digits"),
    (["9" * 5000], "5000 digits"), (["1e400"], "the label is missing"), ([[1], [1, 2]], "does not hold|cannot be read"),
]  # fmt: skip


@pytest.mark.parametrize(("y", "words"), LABELS, ids=range(len(LABELS)))
def test_labels_that_no_number_holds_are_refused_in_words(y: Any, words: str) -> None:
    net = hf.Network.from_torch(nn.Linear(2, 3).eval(), domain=(0, 1))
    with pytest.raises(BadInput, match=words):
        hf.load({"x": np.zeros((len(y), 2)), "y": y}, net)


def test_long_labels_are_not_rounded() -> None:
    """2**53 + 1 is no double: it became 2**53."""
    net = hf.Network.from_torch(nn.Linear(2, 3).eval(), domain=(0, 1))
    texts = [str(2**53 + 1), "1.0", "-2.", "+2"]
    assert hf.load({"x": np.zeros((4, 2)), "y": texts}, net).y.tolist() == [2**53 + 1, 1, -2, 2]
    assert hf.load({"x": np.zeros((1, 2)), "y": np.array([2], dtype=np.uint64)}, net).y.tolist() == [2]


def test_numbers_without_end_are_refused_wherever_json_is_read(tmp_path: Path) -> None:
    from holdfast.region import Columns

    (tmp_path / "columns.json").write_text('{"age": {"step": ' + "9" * 400 + "}}")
    with pytest.raises(hf.errors.UnreadableFile, match="a whole number of 400 digits"):
        Columns.read(tmp_path / "columns.json")
    (tmp_path / "columns.json").write_text("[" * 100_000)
    with pytest.raises(hf.errors.UnreadableFile, match="not JSON"):
        Columns.read(tmp_path / "columns.json")
    net = hf.Network.from_torch(nn.Linear(2, 3).eval(), domain=(0, 1))
    with pytest.raises(BadInput, match="does not hold numbers"):
        hf.load({"x": [[10**400, 1.0]], "y": [1]}, net)


@pytest.mark.parametrize("seconds", ["nan", "-5", "inf", "1e400", "9" * 5000])
def test_seconds_of_an_instance_are_a_number(tmp_path: Path, seconds: str) -> None:
    from holdfast.verification import read_instances

    (tmp_path / "m.onnx").touch()
    (tmp_path / "p.vnnlib").touch()
    (tmp_path / "instances.csv").write_text(f"m.onnx,p.vnnlib,{seconds}\n")
    with pytest.raises(BadInput, match="is not a number of seconds"):
        read_instances(tmp_path)


# ---- the checker


def test_the_checker_prints_escapes_too(tmp_path: Path) -> None:
    name = "a\x1b[2Jb.proof"
    (tmp_path / name).write_bytes(b"")
    (tmp_path / "model\x1b[2J.onnx").write_bytes(b"")
    code = "import sys; from holdfast_check.__main__ import main; sys.exit(main())"
    ended = subprocess.run(
        [sys.executable, "-c", code, "model\x1b[2J.onnx", name], cwd=tmp_path, env={"PYTHONPATH": str(SOURCE)}, capture_output=True,
        text=True,
        timeout=600,
    )  # fmt: skip
    assert ended.returncode == 2, ended
    assert "\x1b" not in ended.stdout + ended.stderr
    assert ended.stderr
