"""The scripts of the competition: result words, witnesses of both versions, wrong arguments, and that an error is one word."""

import importlib.util
import subprocess
import time
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

SCRIPTS = Path(__file__).parents[2] / "scripts" / "vnncomp"
ONE = "(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real)\n" + "".join(
    f"(assert (>= X_{i} -1)) (assert (<= X_{i} 1))\n" for i in range(2)
)
TWO = """(vnnlib-version <2.0>)
(declare-network f (declare-input X float32 [1,2]) (declare-output Y float32 [1,1]))
(declare-network g (declare-input U float32 [1,2]) (declare-output V float32 [1,1]))
(assert (and (>= X[0,0] -1) (<= X[0,0] 1) (>= X[0,1] -1) (<= X[0,1] 1) (== U[0,0] X[0,0]) (== U[0,1] X[0,1])))
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("run_instance", SCRIPTS / "run_instance.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def write_net(file: Path, slope: float) -> None:
    """y = slope relu(x_0 + x_1)."""
    weights = [
        numpy_helper.from_array(np.array([[1], [1]], np.float32), "w"),
        numpy_helper.from_array(np.array([[slope]], np.float32), "v"),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, s]) for n, s in (("x", 2), ("y", 1))]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), file)


def run(script: ModuleType, folder: Path, network: str, text: str, seconds: str = "60") -> list[str]:
    (folder / "p.vnnlib").write_text(text)
    result = folder / "result.txt"
    code = script.main(
        ["v1", "test", network, str(folder / "p.vnnlib"), str(result), seconds], time.monotonic()
    )
    assert code == 0
    return result.read_text().splitlines()


def test_answers_and_witnesses(script: ModuleType, tmp_path: Path) -> None:
    for name, slope in (("f", 1.0), ("g", 1.25)):
        write_net(tmp_path / f"{name}.onnx", slope)
    f, pair = str(tmp_path / "f.onnx"), str([(n, str(tmp_path / f"{n}.onnx")) for n in ("f", "g")])
    assert run(script, tmp_path, f, ONE + "(assert (>= Y_0 2.5))") == ["unsat"]
    word, *lines = run(script, tmp_path, f, ONE + "(assert (>= Y_0 1.5))")
    assert word == "sat"
    assert lines[0].startswith("((X_0 ")
    values = [float(line.strip("()").split()[1]) for line in lines]
    assert values[2] == max(0.0, np.float32(values[0]) + np.float32(values[1])) >= 1.5
    assert lines[-1].endswith("))")
    assert run(script, tmp_path, pair, TWO + "(assert (> (- V[0,0] Y[0,0]) 0.55))") == ["unsat"]
    word, *lines = run(script, tmp_path, pair, TWO + "(assert (> (- V[0,0] Y[0,0]) 0.4))")
    assert word == "sat"
    heads = [k for k, line in enumerate(lines) if "[" in line]
    assert [lines[k] for k in heads] == [
        "X float32 [1,2]",
        "Y float32 [1,1]",
        "U float32 [1,2]",
        "V float32 [1,1]",
    ]
    assert lines[1:3] == lines[6:8]
    assert float(lines[9]) - float(lines[4]) > 0.4


def test_errors_are_one_word_and_wrong_arguments_an_exit_code(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_net(tmp_path / "f.onnx", 1.0)
    f = str(tmp_path / "f.onnx")
    assert run(script, tmp_path, f, "(assert (<= Z_0 1))") == ["error"]
    assert run(script, tmp_path, str(tmp_path / "none.onnx"), ONE + "(assert (<= Y_0 1))") == ["error"]
    assert script.main(["v2", "test", f, "p", "r", "5"], 0.0) == 1
    assert script.main(["v1", "test", f, "p", str(tmp_path / "r"), "soon"], 0.0) == 1
    assert "expected a number of seconds" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["install_tool.sh", "prepare_instance.sh", "run_instance.sh"])
def test_shell_scripts_refuse_other_versions(name: str) -> None:
    checked = subprocess.run(["bash", "-n", SCRIPTS / name], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr
    if name != "run_instance.sh":  # run_instance.py checks its own.
        refused = subprocess.run(["bash", SCRIPTS / name, "v9"], capture_output=True, text=True)
        assert refused.returncode == 1
        assert "v1" in refused.stderr
