"""A run is taken up again only with the very model it was begun with: whatever lies in other files, or cannot be hashed."""

import shutil
from pathlib import Path

import numpy as np
import onnx
from cli_workshop import Ask
from test_cli_verify import SQUARE, write_net

OWN = """
import numpy as np
import torch

class Reads(torch.nn.Module):
    def forward(self, x):
        y = x.sum((1, 2)) * float(open("factor.txt").read())
        return torch.stack([y, -y, 0 * y], -1)

def module():
    return Reads().eval()

def reads():
    return lambda x: np.stack([x.sum((1, 2)), -x.sum((1, 2)), 0 * x.sum((1, 2))], -1) * float(open("factor.txt").read())
"""
QUICK = ("--data", "data.npz", "--out", "run", "--methods", "pgd", "--limit", "2")


def outside(file: Path, target: Path) -> Path:
    """The weights in a file of their own, as torch's exporter writes those of large models."""
    onnx.save(
        onnx.load(file), target, save_as_external_data=True, location=f"{target.name}.data", size_threshold=0
    )
    return target.with_name(f"{target.name}.data")


def doubled(data: Path) -> None:
    data.write_bytes((2 * np.frombuffer(data.read_bytes(), np.float32)).tobytes())


def test_resume_sees_that_only_the_external_data_changed(workshop: Path, ask: Ask) -> None:
    write_net(workshop / "small.onnx")
    data = outside(workshop / "small.onnx", workshop / "large.onnx")
    content = (workshop / "large.onnx").read_bytes()
    asked = ("reach", "large.onnx", "--box", "-1:1", "--out", "run", "--executor", "here")
    assert ask(*asked).code == 0
    assert ask("resume", "run", "--trust").code == 0
    doubled(data)
    assert (workshop / "large.onnx").read_bytes() == content
    said = ask("resume", "run", "--trust")
    assert said.code == 2
    assert "the model is not what this run was begun with" in said.err


def test_so_does_a_list_of_instances(workshop: Path, ask: Ask) -> None:
    """Also where another model of the list is the one that changed."""
    write_net(workshop / "small.onnx")
    data = outside(workshop / "small.onnx", workshop / "large.onnx")
    (workshop / "unsat.vnnlib").write_text(SQUARE + "(assert (>= Y_0 2.1))\n")
    (workshop / "instances.csv").write_text("small.onnx,unsat.vnnlib,20\nlarge.onnx,unsat.vnnlib,20\n")
    assert ask("verify", "instances.csv", "--out", "run", "--executor", "here").code == 0
    assert ask("resume", "run", "--trust").code == 0
    doubled(data)
    said = ask("resume", "run", "--trust")
    assert said.code == 2
    assert "not what this run was begun with" in said.err


def test_a_function_that_reads_files_is_known_by_them(workshop: Path, ask: Ask) -> None:
    (workshop / "cli_own_reader.py").write_text(OWN)
    (workshop / "factor.txt").write_text("1.0")
    asked = (
        "radius",
        "--model",
        "cli_own_reader:reads",
        "--data",
        "data.npz",
        "--limit",
        "1",
        "--methods",
        "mesh",
        "--queries",
        "50",
    )
    said = ask(*asked, "--out", "run")
    assert said.code == 0
    assert "not hashed: " in said.out
    assert "--fingerprint FILE" in said.out
    said = ask("resume", "run", "--trust")
    assert said.code == 2
    assert "cannot be hashed" in said.err
    assert "--fingerprint FILE" in said.err
    shutil.copytree("run", "other")
    assert "cannot be hashed" in ask("merge", "run", "other", "--out", "both").err

    said = ask(*asked, "--out", "named", "--fingerprint", "factor.txt")
    assert said.code == 0
    assert "not hashed" not in said.out
    assert ask("resume", "named", "--trust").code == 0
    (workshop / "factor.txt").write_text("2.0")
    assert "the model is not what this run was begun with" in ask("resume", "named", "--trust").err


def test_so_is_a_torch_module_that_reads_files(workshop: Path, ask: Ask) -> None:
    (workshop / "cli_own_module.py").write_text(OWN)
    (workshop / "factor.txt").write_text("1.0")
    asked = ("radius", "--model", "cli_own_module:module", *QUICK[:2], "--limit", "1", "--methods", "pgd")
    said = ask(*asked, "--out", "run")
    assert said.code == 0
    assert "not hashed: " in said.out
    assert "cannot be hashed" in ask("resume", "run", "--trust").err
    said = ask(*asked, "--out", "named", "--fingerprint", "factor.txt")
    assert said.code == 0
    assert "not hashed" not in said.out
    assert ask("resume", "named", "--trust").code == 0


def test_what_is_hashed_as_a_whole_is_not_named_too(refused: Ask) -> None:
    for model in ("lstm.onnx", "cli_own_code:linear", "cli_own_code:network"):
        said = refused("radius", "--model", model, *QUICK, "--fingerprint", "data.npz")
        assert "--fingerprint has no effect here" in said.err
