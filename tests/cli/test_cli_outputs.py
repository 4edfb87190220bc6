"""A file with several outputs on the command line: every command asks which is meant, and answers about that one."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from cli_workshop import Ask
from onnx import TensorProto, helper, numpy_helper

from holdfast.store import Store

SQUARE = "".join(
    f"(declare-const X_{i} Real)\n(assert (>= X_{i} -1))\n(assert (<= X_{i} 1))\n" for i in range(2)
)
SEARCH = ("--domain=-1,1", "--queries", "50", "--executor", "here", "--limit", "2")


@pytest.fixture
def two(workshop: Path) -> Path:
    """h = relu(x A), from 0 to 2; y = h B, whose two outputs are h_0 - h_1 and h_1 - h_0."""
    weights = {
        "first": np.array([[1, 1], [1, -1]], np.float32),
        "last": np.array([[1, -1], [-1, 1]], np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "first"], ["b"]),
        helper.make_node("Relu", ["b"], ["h"]),
        helper.make_node("MatMul", ["h", "last"], ["y"]),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 2]) for name in "xhy"]
    initializers = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "two", ports[:1], ports[1:], initializers)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8),
        workshop / "two.onnx",
    )
    outputs = "(declare-const Y_0 Real)\n(declare-const Y_1 Real)\n"
    (workshop / "low.vnnlib").write_text(
        SQUARE + outputs + "(assert (<= Y_0 -1))\n"
    )  # no h is so low, a y is
    np.savez(workshop / "corners.npz", x=np.array([[0.5, 0.25], [0.5, -0.25]], np.float32))
    return workshop


def test_every_command_asks_which_output_is_meant(two: Path, ask: Ask) -> None:
    commands = (
        ("inspect", "two.onnx"),
        ("radius", "--model", "two.onnx", "--data", "corners.npz", "--out", "run", *SEARCH),
        ("verify", "two.onnx", "low.vnnlib"),
        ("worst", "--model", "two.onnx", "--data", "corners.npz", "--radius", "0.1", "--out", "run", *SEARCH),
    )
    for command in commands:
        said = ask(*command)
        assert said.code == 2, said
        assert "2 outputs, h (any x 2), y (any x 2)" in said.err
        assert "--output NAME" in said.err
    assert not (two / "run").exists()


def test_inspect_lists_the_outputs_and_says_which_is_looked_at(two: Path, ask: Ask) -> None:
    said = ask("inspect", "two.onnx", "--output", "y")
    assert said.code == 0, said
    assert "the file has 2 outputs, h (any x 2), y (any x 2); y is measured" in said.out


def test_verify_speaks_of_the_output_that_is_named(two: Path, ask: Ask) -> None:
    """onnxruntime, which judges counterexamples, is asked for the same output."""
    assert ask("verify", "two.onnx", "low.vnnlib", "--output", "h").out.startswith("unsat")
    said = ask("verify", "two.onnx", "low.vnnlib", "--output", "y", "--out", "run")
    assert said.out.startswith("sat"), said
    with Store.read("run") as store:
        assert store.question.model.prepared["output"] == "y"


def test_a_run_about_one_output_is_not_a_run_about_another(two: Path, ask: Ask) -> None:
    for output in "hy":
        asked = (
            "radius",
            "--model",
            "two.onnx",
            "--data",
            "corners.npz",
            "--output",
            output,
            "--out",
            f"run-{output}",
            *SEARCH,
        )
        assert ask(*asked).code == 0
    with Store.read("run-h") as h, Store.read("run-y") as y:
        assert h.question.model.fingerprint != y.question.model.fingerprint
        assert h.question.fingerprint != y.question.fingerprint


def test_a_bundle_about_one_output_is_verified_about_that_output(two: Path, ask: Ask) -> None:
    asked = ("--model", "two.onnx", "--data", "corners.npz")
    made = ask(
        "radius",
        *asked,
        "--output",
        "y",
        "--out",
        "run",
        "--seconds",
        "20",
        "--certificates",
        "--domain=-1,1",
        "--executor",
        "here",
    )
    assert made.code == 0, made
    assert ask("bundle", "run", "-o", "run.zip", "--with-model").code == 0
    said = ask("verify-bundle", "run.zip", *asked)
    assert "proofs: ok, 2 of 2 were proved again" in said.out, said
    assert "differs" not in said.out
