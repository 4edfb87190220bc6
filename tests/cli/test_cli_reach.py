"""`holdfast reach`: a table whose outer numbers are proved, a run for programs, one clear line for what is wrong."""

import math
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_workshop import Ask
from torch import nn

import holdfast as hf
from holdfast.bounding.branching.input_split import InputSplit
from holdfast.store import Store
from holdfast.verification import BranchAndBound, Range, ranges_of

CODE = """
import torch
from torch import nn

def small():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
"""


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 3)).eval()


@pytest.fixture
def model(workshop: Path) -> tuple[str, ...]:
    (workshop / "cli_ranges_code.py").write_text(CODE)
    return "reach", "cli_ranges_code:small", "--shape", "2"


def ranges(folder: str = "run") -> list[Range]:
    """As the run keeps them."""
    with Store.open(folder) as store:
        return ranges_of(
            store.records(), store.question.asked.tolerance or 0.0, hf.Network.from_torch(small(), shape=(2,))
        )


def right(found: Range, low: list[float], high: list[float], tolerance: float) -> None:
    """Against a grid of the network itself."""
    axes = [torch.linspace(a, b, 101) for a, b in zip(low, high, strict=True)]
    with torch.no_grad():
        value = small()(torch.cartesian_prod(*axes))[:, found.output]
    assert (
        found.minimum.lower.value - 1e-6 <= float(value.min()) <= found.minimum.lower.value + tolerance + 2e-3
    )
    assert (
        found.maximum.upper.value + 1e-6 >= float(value.max()) >= found.maximum.upper.value - tolerance - 2e-3
    )
    assert found.gap <= tolerance
    with torch.no_grad():
        at = float(small().double()(found.low_at[None])[0, found.output])
    assert at == pytest.approx(found.minimum.upper.value, abs=1e-9)


def test_a_box_on_the_command_line(model: tuple[str, ...], ask: Ask) -> None:
    said = ask(*model, "--box", "0:10,-1:1", "--outputs", "0,2", "--out", "run", "--tolerance", "0.001")
    assert said.code == 0, said
    assert "2 of 2 known to 0.001" in " ".join(said.out.split())
    assert "proved" in said.out
    first, second = ranges()
    assert (first.output, second.output) == (0, 2)
    for found in (first, second):
        right(found, [0.0, -1.0], [10.0, 1.0], 1e-3)


def test_one_pair_of_ends_is_for_all_inputs(model: tuple[str, ...], ask: Ask) -> None:
    said = ask(*model, "--box", "-1:1", "--outputs", "1", "--out", "run")
    assert "smallest at: " in said.out
    right(ranges()[0], [-1.0, -1.0], [1.0, 1.0], 1e-2)


def test_boxes_from_files(model: tuple[str, ...], ask: Ask) -> None:
    Path("box.csv").write_text("0,10\n\n-1, 1\n")
    np.save("box.npy", np.array([[0.0, -1.0], [10.0, 1.0]]))
    for name in ("box.csv", "box.npy"):
        assert ask(*model, "--box", name, "--outputs", "0", "--out", f"{name}.run").code == 0
        right(ranges(f"{name}.run")[0], [0.0, -1.0], [10.0, 1.0], 1e-2)


def test_boxes_around_inputs_stay_in_the_domain(model: tuple[str, ...], ask: Ask) -> None:
    np.savez(
        "points.npz",
        x=np.array([[0.2, 0.5], [0.9, 0.95]], np.float32),
        y=np.array([0, 1]),
        names=np.array(["a", "b"]),
    )
    said = ask(
        *model,
        "--domain",
        "0,1",
        "--data",
        "points.npz",
        "--radius",
        "0.125",
        "--outputs",
        "0",
        "--out",
        "run",
    )
    assert said.code == 0, said
    first, second = ranges()
    assert (first.box, second.box) == (0, 1)
    assert "│     a │" in said.out
    right(first, [0.075, 0.375], [0.325, 0.625], 1e-2)
    right(second, [0.775, 0.825], [1.0, 1.0], 1e-2)


def test_a_black_box_is_never_called_safe(workshop: Path, ask: Ask) -> None:
    said = ask("reach", "cli_own_code:black_box", "--shape", "3,2", "--box", "0:1", "--out", "run")
    assert said.code == 0, said
    assert "black box" in said.out
    assert "0 of 2 known" in " ".join(said.out.split())
    found = ranges()[0]
    assert (found.minimum.lower.value, found.maximum.upper.value) == (-math.inf, math.inf)
    assert found.maximum.lower.value == pytest.approx(6.0)


def test_a_budget_that_runs_out(model: tuple[str, ...], ask: Ask) -> None:
    said = ask(*model, "--box", "0:1", "--seconds", "0")
    assert said.code == 0
    assert "the time ran out" in said.out


def test_a_run_is_taken_up_again(model: tuple[str, ...], ask: Ask) -> None:
    assert ask(*model, "--box", "0:1", "--out", "run").code == 0
    again = ask("resume", "run", "--trust")
    assert again.code == 0, again
    assert "6 of 6 finished before; 0 to go." in again.out
    assert "3 of 3 known" in " ".join(again.out.split())


def test_ctrl_c(model: tuple[str, ...], ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InputSplit, "look", lambda *_: signal.raise_signal(signal.SIGINT))
    monkeypatch.setattr(BranchAndBound, "_bound_quickly", lambda self, state: state)
    said = ask(*model, "--box", "0:1")
    assert said.code == 130
    assert "interrupted" in said.out
    assert "0 of 3 known" in " ".join(said.out.split())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), ["give the box"]),
        (("--box", "0:1", "--data", "data.npz", "--radius", "1"), ["give the box"]),
        (("--data", "data.npz"), ["--data and --radius belong together"]),
        (("--data", "data.npz", "--radius", "-1"), ["radius -1.0"]),
        (("--box", "0:1,2"), ["expected low:high"]),
        (("--box", "0:1,0:1,0:1"), ["has 3 inputs", "takes 2"]),
        (("--box", "1:0"), ["the lower bound 1 is above"]),
        (("--box", "nan:0"), ["NaN"]),
        (("--box", "none.csv"), ["none.csv"]),
        (("--box", "bad.csv"), ["bad.csv:2: expected low,high"]),
        (("--box", "empty.csv"), ["holds no line"]),
        (("--box", "none.npy"), ["none.npy"]),
        (("--box", "flat.npy"), ["expected the smallest and the largest values"]),
        (("--box", "0:1", "--outputs", "3"), ["number 3 does not exist"]),
        (("--box", "0:1", "--outputs", "a"), ["outputs 'a'"]),
        (("--box", "0:1", "--tolerance", "0"), ["tolerance must be"]),
        (("--box", "0:1", "--seconds", "-1"), ["seconds must not be negative"]),
        (("--box", "0:1", "--out", "there.json"), ["cannot begin a run there"]),
    ],
)
def test_what_a_user_gets_wrong(
    model: tuple[str, ...], refused: Ask, arguments: tuple[str, ...], words: list[str]
) -> None:
    Path("there.json").touch()
    Path("bad.csv").write_text("0,1\n0\n")
    Path("empty.csv").write_text("\n")
    np.save("flat.npy", np.zeros(3))
    said = refused(*model, *arguments)
    for word in words:
        assert word in said.err, said.err
