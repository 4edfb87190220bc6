"""`holdfast harden` from the command line: a run before, a run after, the weights and how to load them; errors before anything is made."""

import json
from pathlib import Path

import numpy as np
import pytest
from cli_workshop import Ask
from safetensors.torch import load_file

import holdfast as hf
from holdfast.cli.demo import _clear_hardened
from holdfast.errors import StoreError

MODEL = """
import torch
from torch import nn


def leaning():
    "Right everywhere, by the feature in which the classes are least apart."
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(0.1)
        module[0].weight[0, 2], module[0].bias[0] = 6.0, -3.0
        module[0].weight[1, 2], module[0].bias[1] = -6.0, 3.0
        module[2].weight[:, :2] = torch.tensor([[-4.0, 4.0], [4.0, -4.0]])
    return module.eval()


def function():
    return lambda x: x[:, :2]
"""


@pytest.fixture(autouse=True)
def lures(workshop: Path) -> None:
    (workshop / "harden_own_code.py").write_text(MODEL)
    random, y = np.random.RandomState(0), np.arange(120) % 2
    x = 0.5 + 0.02 * random.randn(120, 3)
    x[:, 0] += 0.25 * (2 * y - 1)
    x[:, 2] += 0.04 * (2 * y - 1)
    x = x.clip(0, 1).astype("float32")
    np.savez(workshop / "train.npz", x=x, y=y)
    np.savez(workshop / "few.npz", x=x[:20], y=y[:20])
    np.savez(workshop / "bare.npz", x=x)


BASE = ("harden", "--model", "harden_own_code:leaning", "--domain", "0,1", "--data", "train.npz")


def test_a_run_before_a_run_after_and_weights_that_load(ask: Ask, workshop: Path) -> None:
    said = ask(*BASE, "--radius", 0.1, "--recipe", "intervals", "--epochs", 60, "--count", 8, "--out", "run")
    assert said.code == 0, said
    assert "verdict: hardened" in said.out
    assert "certified at 0.1" in said.out
    told = json.loads((workshop / "run" / "harden.json").read_text())
    assert told["better"] is True
    assert told["measured_on"] == "test"
    assert len(told["history"]) == 60
    (made,) = (workshop / "run").glob("hardened_????????.py")
    weights = load_file(workshop / "run" / "hardened.safetensors")
    scope: dict[str, object] = {"__file__": str(made)}
    exec(made.read_text(), scope)
    module = scope["network"]()  # type: ignore[operator]
    assert all(bool((weights[name] == value).all()) for name, value in module.state_dict().items())
    ends = {}
    for name in ("before", "after"):
        with hf.Store.read(workshop / "run" / name) as store:
            ends[name] = [record.bracket.lower.value for record in store.stream()]
    assert len(ends["before"]) == len(ends["after"]) == 8
    assert sum(end >= 0.1 for end in ends["after"]) == round(8 * told["after"]["certified"])
    assert sum(ends["after"]) > sum(ends["before"])
    for file in ("compare.html", "bands.svg"):
        assert (workshop / "run" / file).stat().st_size > 5_000
    again = ask(*BASE, "--radius", 0.1, "--out", "run")
    assert again.code == 2
    assert "already holds hardened.safetensors" in again.err


def test_no_is_an_exit_code_of_its_own(ask: Ask) -> None:
    said = ask(*BASE, "--radius", 0.1, "--recipe", "standard", "--epochs", 1, "--count", 3, "--out", "run")
    assert said.code == 1
    assert "verdict: NOT hardened" in said.out


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--radius", 0), "radius 0.0: say how far"),
        ((), "radius None: say how far"),
        (("--radius", 3), "beyond the data's range"),
        (("--radius", 0.1, "--recipe", "magic"), "recipe 'magic' is unknown"),
        (("--radius", 0.1, "--begin", "anew"), "use given or afresh"),
        (("--radius", 0.1, "--frames", "each"), "one frame at a time"),
        (("--radius", 0.1, "--freeze", "nowhere"), "freeze 'nowhere'"),
        (("--radius", 0.1, "--data", "few.npz"), "too few"),
        (("--radius", 0.1, "--data", "bare.npz"), "labels are missing"),
        (("--radius", 0.1, "--model", "harden_own_code:function"), "harden trains torch modules"),
        (("--radius", 0.1, "--model", "net.onnx"), "harden trains torch modules"),
        (("--radius", 0.1, "--held", 0.7), "between 0 and 0.5"),
    ],
)
def test_bad_input_is_told_before_a_folder_is_made(
    refused: Ask, options: tuple[object, ...], told: str
) -> None:
    assert told in refused(*BASE, *options, "--out", "run").err


def test_the_demo_clears_only_what_it_hardened(workshop: Path) -> None:
    run = workshop / "own"
    run.mkdir()
    (run / "hardened.safetensors").touch()
    (run / "mine.txt").touch()
    with hf.Store.create(run / "before"):
        pass
    with pytest.raises(StoreError, match="not an earlier demo"):
        _clear_hardened(run)
    assert (run / "hardened.safetensors").exists()
