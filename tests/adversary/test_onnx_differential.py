"""A seeded slice of the differential fuzzer: what is not refused is answered as by onnxruntime. benchmarks/RESULTS.md has the long runs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

pytest.importorskip("onnxruntime")

from benchmarks.onnx_differential.__main__ import run, smallest, table
from benchmarks.onnx_differential.building import Case
from benchmarks.onnx_differential.cases import OPERATORS, make_case, text_of
from benchmarks.onnx_differential.judging import judge, truth_of
from benchmarks.onnx_differential.variants import decode, encode

from holdfast.errors import UnsupportedLayer
from holdfast.network.onnx import import_onnx
from holdfast.network.onnx.operators import table as operators


def test_the_importer_answers_as_onnxruntime_or_refuses() -> None:
    tally = run(seed=31, cases=480, targets=["engine"])
    assert not tally.differences, "\n\n".join(smallest(tally))
    assert sum(counts["agreed"] for counts in tally.outcomes.values()) > 300, table(tally)
    assert len(tally.outcomes) == len(OPERATORS)


def test_every_operator_with_a_rule_has_a_generator() -> None:
    known = {name for name in (*operators.OPERATORS, *operators.REWRITES, "If") if onnx.defs.has(name)}
    assert known == set(OPERATORS)


def test_a_case_is_made_again_from_its_number() -> None:
    for number in (0, 7, 1234):
        first, second = make_case(5, number), make_case(5, number)
        assert first.content == second.content
        assert np.array_equal(first.x, second.x)
        assert text_of(first) == text_of(second)
    assert make_case(5, 8).content != make_case(6, 8).content


def test_the_fuzzer_sees_a_wrong_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = operators.OPERATORS["Floor"]
    monkeypatch.setitem(operators.OPERATORS, "Ceil", wrong)
    numbers = [number for number in range(300) if make_case(0, number).operator == "Ceil"]
    found = [
        judge(case, "engine", truth_of(case), Path("/tmp")).outcome
        for case in (make_case(0, number) for number in numbers)
    ]
    assert "difference" in found


def test_protobuf_is_read_and_written_back() -> None:
    content = make_case(0, 3).content
    assert encode(decode(content)) == content


# ---------------------------------------------------------------- what it found in the importer


def case_of(
    nodes: list[onnx.NodeProto], shape: list[int], constants: dict[str, list[int]], opset: int = 13
) -> Case:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [
            helper.make_tensor(name, TensorProto.INT64, [len(values)], values)
            for name, values in constants.items()
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    x = np.arange(1, 1 + int(np.prod(shape)), dtype=np.float32).reshape(shape)
    return Case(nodes[0].op_type, model.SerializeToString(), x)


@pytest.mark.parametrize("start", [-4, -1000, -(2**31), -(2**63)])
@pytest.mark.parametrize("end", [-(2**63), -1000, -4, -3, 0])
@pytest.mark.parametrize("step", [-1, -2])
def test_a_backward_slice_from_before_the_first_element_takes_it(
    start: int, end: int, step: int, tmp_path: Path
) -> None:
    constants = {"starts": [start], "ends": [end], "axes": [1], "steps": [step]}
    nodes = [
        helper.make_node("Slice", ["x", *constants], ["cut"]),
        helper.make_node("Concat", ["x", "cut"], ["y"], axis=1),
    ]
    case = case_of(nodes, [1, 3], constants)
    assert judge(case, "engine", truth_of(case), tmp_path).outcome == "agreed"


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_a_function_that_shadows_an_operator_is_refused(domain: str) -> None:
    """onnxruntime calls its own operator, onnx's reference the function."""
    model = onnx.load_from_string(case_of([helper.make_node("Relu", ["x"], ["y"])], [1, 3], {}).content)
    body = [helper.make_node("Neg", ["a"], ["b"])]
    model.functions.append(
        helper.make_function(domain, "Relu", ["a"], ["b"], body, [helper.make_opsetid("", 13)])
    )
    with pytest.raises(UnsupportedLayer, match="'Relu' has the name of an operator"):
        import_onnx(model, "it")


def test_the_mask_of_an_old_dropout_is_refused_and_its_data_are_not() -> None:
    """Before opset 12 ONNX does not say what the mask is when nothing is dropped; onnxruntime says that all is."""
    nodes = [
        helper.make_node("Dropout", ["x"], ["kept", "mask"], ratio=0.5),
        helper.make_node("Identity", ["kept"], ["y"]),
    ]
    case = case_of(nodes, [1, 3], {}, opset=10)
    module = import_onnx(onnx.load_from_string(case.content), "it")
    assert torch.equal(module(torch.from_numpy(case.x)), torch.from_numpy(case.x))
    nodes[1] = helper.make_node("Cast", ["mask"], ["y"], to=TensorProto.FLOAT)
    with pytest.raises(Exception, match="'mask'"):
        import_onnx(onnx.load_from_string(case_of(nodes, [1, 3], {}, opset=10).content), "it")


def test_a_constant_may_fill_a_shape_without_elements(tmp_path: Path) -> None:
    """As exporters write an empty part of a Concat; an Expand to no elements is refused, since onnxruntime then keeps one."""
    nodes = [
        helper.make_node("ConstantOfShape", ["s"], ["empty"]),
        helper.make_node("Concat", ["x", "empty"], ["y"], axis=1),
    ]
    case = case_of(nodes, [1, 3], {"s": [1, 0]})
    assert judge(case, "engine", truth_of(case), tmp_path).outcome == "agreed"


def test_two_constants_of_one_name_are_refused() -> None:
    model = onnx.load_from_string(
        case_of([helper.make_node("Reshape", ["x", "s"], ["y"])], [1, 4], {"s": [2, 2]}).content
    )
    model.graph.initializer.append(helper.make_tensor("s", TensorProto.INT64, [2], [4, 1]))
    with pytest.raises(Exception, match="two constants of one name"):
        import_onnx(model, "it")
