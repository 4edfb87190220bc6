"""VNN-LIB 2: files mean what their formulas say, exactly; queries of several networks are decided and replayed; errors have a line."""

import gzip
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import holdfast as hf
from holdfast.certificates.model_file import model_for
from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.verification.combined_network import (
    combine_networks,
    file_inputs,
    match_networks,
    open_declared,
)
from holdfast.verification.instances import read_instances
from holdfast.verification.specification import problem_of
from holdfast.verification.verify import verify
from holdfast.verification.vnnlib import Spec, parse, read_vnnlib

HEAD = "(vnnlib-version <2.0>)\n(declare-network N (declare-input X float32 [1,2]) (declare-output Y float32 [1,2]))\n"
BOX = "(assert (and (>= X[0,0] -1.0) (<= X[0,0] 1.0) (>= X[0,1] 0.0) (<= X[0,1] 0.1)))\n"
TWO = """(vnnlib-version <2.0>)
(declare-network f (declare-input X float32 [1,2]) (declare-output Y float32 [1,2]))
(declare-network g (isomorphic-to f) (declare-input U float32 [1,2]) (declare-output V float32 [1,2]))
(assert (and (>= X[0,0] -1.0) (<= X[0,0] 1.0) (>= X[0,1] -1.0) (<= X[0,1] 1.0)))
"""


def meets(found: Spec, x: list[float], y: list[float]) -> bool:
    """Whether inputs of the file and outputs of its networks are a counterexample, as a replay decides it.

    Only for files whose inputs are searched as they are."""
    assert not found.sources
    values = {("X", i): value for i, value in enumerate(x)} | {("Y", i): value for i, value in enumerate(y)}
    columns = [float(np.prod([values[name] for name in product])) for product in found.columns]
    exact = found.exact_values([*y, *columns])
    return any(case.holds(x) and case.is_violated(exact) for case in found.cases)


@pytest.mark.parametrize("version", ["<3.0>", "<1.0>", "<>", "20"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(BadInput, match="version"):
        parse(f"; first\n (vnnlib-version {version})")


def test_many_comments_before_the_version_take_no_time() -> None:
    with pytest.raises(BadInput, match="version 7"):
        parse(";   \n   \n" * 20_000 + "(vnnlib-version <7.0>)")


@pytest.mark.parametrize(
    ("body", "inside", "outside"),
    [
        ("(assert (<= Y[0,0] Y[0,1]))", [[1.0, 1.0]], [[1.1, 1.0]]),
        ("(assert (< Y[0,0] 2.5))", [[2.4, 0.0]], [[2.5, 0.0]]),
        ("(assert (> Y [0,1] -0.5))", [[0.0, -0.4]], [[0.0, -0.5]]),
        ("(assert (>= (- (* 2.0 Y[0,0]) Y[ 0 , 1 ] 1.0) 0.0))", [[1.0, 1.0]], [[1.0, 1.1]]),
        ("(assert (<= (+ (- Y[0,0]) (* Y[0,1] 3)) 0))", [[3.0, 1.0]], [[2.9, 1.0]]),
        ("(assert (== Y[0,0] 0.5))", [[0.5, 0.0]], [[0.5000001, 0.0], [0.4999999, 0.0]]),
        ("(assert (!= Y[0,0] 0.5))", [[0.5000001, 0.0], [0.4999999, 0.0]], [[0.5, 0.0]]),
        ("(assert (or (<= Y[0,0] 0.0) (and (<= Y[0,1] 0.0) (<= Y[0,0] 1.0))))", [[0.0, 9.0], [1.0, 0.0]], [[1.0, 1.0]]),
        ("(assert (<= 0.0 Y[0,0] Y[0,1] 1.0))", [[0.25, 0.5], [0.5, 0.5]], [[0.5, 0.25], [-0.1, 0.5], [0.5, 1.5]]),
        ("(assert (<= (* Y[0,0] Y[0,1]) 1.0))", [[0.5, 2.0], [-3.0, 1.0]], [[0.5, 2.5]]),
        ("(assert (>= (* (- Y[0,0] Y[0,1]) (+ Y[0,0] Y[0,1])) 3.0))", [[2.0, 1.0]], [[2.0, 1.5]]),
        ("(assert (< (* Y[0,0] Y[0,0] Y[0,0]) -8.0))", [[-2.5, 0.0]], [[-2.0, 0.0]]),
        ("(assert (<= (+ (* 2.0 X[0,0]) (* X[0,0] Y[0,1])) 1.5))", [[0.0, 1.0]], [[0.0, 1.25]]),
        ("(assert (<= (* X[0,0] X[0,0]) 0.25))", [[0.0, 0.0]], []),
    ],
)  # fmt: skip
def test_what_a_file_means(body: str, inside: list[list[float]], outside: list[list[float]]) -> None:
    found = parse(HEAD + BOX + body)
    assert (found.inputs, found.measured) == (2, 2)
    assert all(meets(found, [0.5, 0.05], y) for y in inside)
    assert not any(meets(found, [0.5, 0.05], y) for y in outside)
    assert not any(meets(found, x, y) for x in ([1.1, 0.0], [0.0, -0.1], [0.0, 0.11]) for y in inside)


def test_products_of_a_counterexample_are_exact() -> None:
    """In float64 the product is 1; exactly it is below."""
    found = parse(HEAD + BOX + "(assert (>= (* Y[0,0] Y[0,1]) 1.0))")
    above, below = 1 + 2.0**-30, 1 - 2.0**-30
    assert above * below == 1.0
    assert Fraction(above) * Fraction(below) < 1
    assert not meets(found, [0.0, 0.0], [above, below])
    assert meets(found, [0.0, 0.0], [above, 1.0])


def test_elements_are_counted_row_by_row_and_numbers_are_exact() -> None:
    head = "(vnnlib-version <2.0>) (declare-network N (declare-input X Real[2,3]) (declare-output Y Real []))"
    box = "".join(
        f"(assert (>= X[{i},{j}] {i}.{j})) (assert (<= X[{i},{j}] {i + 1}.{j}))"
        for i in range(2)
        for j in range(3)
    )
    found = parse(f"{head}{box}(assert (<= Y 0.1))")
    [case] = found.cases
    assert [str(end.value) for end in case.lower] == ["0", "1/10", "1/5", "1", "11/10", "6/5"]
    assert str(case.polytopes[0][0].bound) == "1/10"


def test_decimals_decide_as_they_are_written() -> None:
    found = parse(HEAD + BOX + "(assert (<= (+ (* 0.1 Y[0,0]) (* 0.2 Y[0,1])) 0.3))")
    assert found.rules().matrix.flatten().tolist() == [1.0, 2.0]
    assert float(found.rules().offset) == -3.0
    assert not meets(found, [0.5, 0.1], [1.0, 1.0])  # float64's 0.1 is above one tenth
    assert meets(found, [0.5, 0.0625], [1.0, 1.0])
    assert not meets(found, [0.5, 0.0625], [1.0, 1.0 + 2.0**-52])


def test_both_versions_give_the_same_and_deep_nesting_is_read() -> None:
    one = parse(
        "(declare-const X_0 Real) (declare-const X_1 Real) (declare-const Y_0 Real) (declare-const Y_1 Real)"
        "(assert (and (>= X_0 -1.0) (<= X_0 1.0) (>= X_1 0.0) (<= X_1 0.1))) (assert (or (<= Y_0 Y_1) (<= Y_0 3.0)))",
        "same",
    )
    deep = "(and " * 5000 + "(or (<= Y[0,0] Y[0,1]) (<= Y[0,0] 3.0))" + ")" * 5000
    assert parse(f"{HEAD}{BOX}(assert {deep})", "same") == one


def network_of(text: str) -> str:
    return f"(vnnlib-version <2.0>)\n{text}\n(assert (<= X[0] 1.0))"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (HEAD + "(assert (<= X[0,0] 1.0))", r"f:2: X\[0,0\] has no lower bound"),
        (HEAD + BOX + "(assert (<= Z[0,0] 1.0))", "f:4: Z is not declared"),
        (HEAD + BOX + "(assert (<= X[0,5] 1.0))", r"f:4: X\[0,5\] does not exist.*\[1, 2\].*start at 0"),
        (HEAD + BOX + "(assert (<= X[0] 1.0))", r"f:4: X\[0\] has 1 indices"),
        (HEAD + BOX + "(assert (<= X 1.0))", r"f:4: X has 0 indices"),
        (HEAD + BOX + "(assert (<= X[0,a] 1.0))", "f:4: .*whole numbers"),
        (HEAD + BOX + "(assert (<= X[0,0 1.0))", "f:4: .*no shape|f:4: .*never closed|f:4: "),
        (HEAD + BOX + "(assert (<= Y[0,0] 1.0)", "f:4: this bracket is never closed"),
        (HEAD + BOX + "(assert (=> Y[0,0] 1.0))", "f:4: '=>' is not allowed here"),
        (HEAD + BOX + "(assert (!= Y[0,0] 1.0 2.0))", "f:4: .*compares two terms, found 3"),
        (HEAD + BOX + "(assert ())", "f:4: found empty brackets"),
        (HEAD + BOX + f"(assert (<= (* Y[0,0]{' Y[0,1]' * 16}) 1.0))", "f:4: more than 16 variables"),
        (HEAD + BOX + "(declare-network M (declare-input U Real [1]) (declare-output W Real [1]))", "f:4: .*before the first assertion"),
        (HEAD + "(vnnlib-version <2.0>)", "f:3: .*once, at the beginning"),
        (HEAD + BOX + "(minimise Y[0,0])", "f:4: 'minimise' is not a command"),
        ("(vnnlib-version <2.0>)", "f: declares no network"),
        (network_of("(declare-network N (declare-input X int8 [1]) (declare-output Y Real [1]))"), "f:2: X is of type int8, which cannot be verified"),
        (network_of("(declare-network N (declare-input X float31 [1]) (declare-output Y Real [1]))"), "f:2: .*no element type"),
        (network_of("(declare-network N (declare-input X Real [0]) (declare-output Y Real [1]))"), "f:2: .*holds no element"),
        (network_of("(declare-network N (declare-input X Real [99999999]) (declare-output Y Real [1]))"), "f:2: .*at most"),
        (network_of("(declare-network N (declare-input X Real) (declare-output Y Real [1]))"), r"f:2: expected \(declare-input X"),
        (network_of("(declare-network N (declare-output Y Real [1]) (declare-input X Real [1]))"), "f:2: .*another order"),
        (network_of("(declare-network N (declare-input X Real [1]))"), "f:2: .*at least one input and one output"),
        (network_of("(declare-network N (declare-input X Real [1]) (declare-output X Real [1]))"), "f:2: X is declared twice"),
        (network_of("(declare-network N (declare-input X Real [1]) (declare-hidden H Real [1]) (declare-output Y Real [1]))"), "f:2: expected .*name in the ONNX file"),
        (network_of("(declare-network N (equal-to M) (declare-input X Real [1]) (declare-output Y Real [1]))"), "f:2: .*'M', which is not declared"),
        (network_of('(declare-network N (declare-input X Real [1] "x") (declare-output Y Real [1]))'), "f:2: .*name all, or none"),
        (network_of("(declare-network N (declare-input X Real [1]) (declare-output Y Real [1]))\n"
                    "(declare-network M (equal-to N) (declare-input U Real [2]) (declare-output V Real [1]))"), "f:3: .*other shapes"),
        (network_of("(declare-network N (declare-input X Real [1]) (declare-output Y Real [1]))\n"
                    "(declare-network N (declare-input U Real [2]) (declare-output V Real [1]))"), "f:3: .*declared already"),
        (network_of("(declare-network N (declare-input X Real [1]) (declare-output Y Real [1]))\n"
                    "(declare-network M (equal-to N) (declare-input U Real [1]) (declare-output V Real [1]))\n"
                    "(declare-network L (isomorphic-to M) (declare-input A Real [1]) (declare-output B Real [1]))"), "f:4: .*refers to N itself"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told(text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says):
        parse(text, "f")


def eye(weight: Any = None) -> Network:
    layer = nn.Linear(2, 2).eval()
    layer.load_state_dict(
        {"weight": torch.eye(2) if weight is None else torch.tensor(weight), "bias": torch.zeros(2)}
    )
    return hf.Network.from_torch(layer, shape=(2,))


def test_a_packed_file_is_verified(tmp_path: Path) -> None:
    file = tmp_path / "two.vnnlib.gz"
    for bound, answer in (("-1.5", "unsat"), ("-0.5", "sat")):
        with gzip.open(file, "wt") as packed:
            packed.write(f"; a comment\n{HEAD}{BOX}(assert (<= Y[0,0] {bound}))")
        assert hf.verify(eye(), file).answer == answer
        assert read_vnnlib(file).inputs == 2


def test_the_declared_type_must_be_that_of_the_network() -> None:
    with pytest.raises(BadInput, match="f:2: X is declared as float64, but Linear computes in float32"):
        verify(eye(), parse(HEAD.replace("X float32", "X float64") + BOX + "(assert (<= Y[0,0] 0.0))", "f"))


@pytest.mark.parametrize(
    ("body", "answer"),
    [
        ("(assert (<= (* Y[0,0] Y[0,0]) -0.01))", "unsat"),
        ("(assert (>= (* Y[0,0] Y[0,0]) 0.9))", "sat"),
        ("(assert (>= (* Y[0,0] Y[0,0]) 1.01))", "unsat"),
        ("(assert (>= (* Y[0,0] Y[0,1]) 0.101))", "unsat"),
        ("(assert (>= (* Y[0,0] Y[0,1]) 0.099))", "sat"),
        ("(assert (<= (+ X[0,0] X[0,1]) -0.5)) (assert (>= Y[0,0] -0.4))", "unsat"),
        ("(assert (<= (+ X[0,0] X[0,1]) -0.5)) (assert (>= Y[0,0] -0.7))", "sat"),
        ("(assert (<= (* X[0,0] X[0,0]) 0.25)) (assert (>= Y[0,0] 0.51))", "unsat"),
        ("(assert (<= (* X[0,0] X[0,0]) 0.25)) (assert (>= Y[0,0] 0.49))", "sat"),
        ("(assert (>= Y[0,0] (+ X[0,0] 0.01)))", "unsat"),
    ],
)  # fmt: skip
def test_products_and_relations_of_inputs_are_decided(body: str, answer: str) -> None:
    spec = parse(HEAD + BOX + body)
    found = verify(eye(), spec, stop=hf.Stop(seconds=60))
    assert found.answer == answer
    if found.witness is not None and found.outputs is not None:
        assert meets(spec, found.witness.flatten().tolist(), found.outputs.tolist())
        assert [tensor.name for tensor, _ in found.values] == ["X", "Y"]


def small(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


SAME = "(assert (and (== X[0,0] U[0,0]) (== U[0,1] X[0,1])))"
NEAR = "(assert (and (<= (- U[0,0] X[0,0]) 0.1) (>= (- U[0,0] X[0,0]) -0.1) (== X[0,1] U[0,1])))"


@pytest.mark.parametrize("relation", [SAME, NEAR])
def test_two_networks_are_compared_below_and_above_the_truth(relation: str) -> None:
    """The largest difference of the first outputs over a grid that holds the corners of the pieces nearly."""
    one, other = small(0), small(0)
    with torch.no_grad():
        for weight in other.parameters():
            weight.copy_((weight * 16).round() / 16)
    nets = {"f": hf.Network.from_torch(one, shape=(2,)), "g": hf.Network.from_torch(other, shape=(2,))}
    axis = torch.linspace(-1, 1, 81)
    offsets = torch.linspace(-0.1, 0.1, 9) if relation is NEAR else torch.zeros(1)
    x0, x1, d = (part.flatten() for part in torch.meshgrid(axis, axis, offsets, indexing="ij"))
    with torch.no_grad():
        met = float((one(torch.stack([x0, x1], 1)) - other(torch.stack([x0 + d, x1], 1)))[:, 0].max())
    body = TWO + relation + "(assert (> (- Y[0,0] V[0,0]) {}))"
    above = verify(nets, parse(body.format(f"{met + 0.02:.6f}")), stop=hf.Stop(seconds=60))
    assert above.answer == "unsat"
    spec = parse(body.format(f"{met - 0.01:.6f}"))
    below = verify(nets, spec, stop=hf.Stop(seconds=60))
    assert below.answer == "sat"
    values = {tensor.name: torch.tensor(numbers) for tensor, numbers in below.values}
    assert list(values) == ["X", "Y", "U", "V"]
    assert float(values["X"][1]) == float(values["U"][1])
    assert abs(float(values["X"][0] - values["U"][0])) <= (0.1 if relation is NEAR else 0.0)
    with torch.no_grad():
        assert torch.equal(one(values["X"][None])[0].double(), values["Y"].double())
        assert torch.equal(other(values["U"][None])[0].double(), values["V"].double())
    assert float(values["Y"][0] - values["V"][0]) > met - 0.01


def test_a_difference_of_inputs_is_checked_again_after_rounding() -> None:
    """x + d is rounded to float32, so a counterexample on the very edge may leave the relation; it is not reported then."""
    spec = parse(TWO + NEAR + "(assert (> (- Y[0,0] V[0,0]) 100.0))")
    assert spec.sources == ((0,), (1,), (0, 2), (1,))
    (case,) = spec.cases
    assert len(case.checks) == 2
    x = torch.tensor([0.7, 0.0, 0.1])
    inputs = file_inputs(spec, x.double(), torch.float32)
    gap = Fraction(float(inputs[2])) - Fraction(float(inputs[0]))
    places = {product[0]: spec.measured + k for k, product in enumerate(spec.columns)}
    outputs = [1000.0, 0.0, 0.0, 0.0, *[0.0] * len(spec.columns)]
    outputs[places["X", 0]], outputs[places["X", 2]] = float(inputs[0]), float(inputs[2])
    assert case.is_violated(spec.exact_values(outputs)) == (gap <= Fraction(1, 10))
    outputs[places["X", 2]] = 0.85
    assert not case.is_violated(spec.exact_values(outputs))


def test_a_network_equal_to_another_needs_no_file_of_its_own() -> None:
    text = TWO.replace("isomorphic-to", "equal-to") + SAME + "(assert (> (- Y[0,0] V[0,0]) 0.001))"
    spec, net = parse(text, "f"), hf.Network.from_torch(small(0), shape=(2,))
    assert verify(net, spec, stop=hf.Stop(seconds=60)).answer == "unsat"
    assert match_networks(spec, {"f": net}) == [net, net]
    with pytest.raises(BadInput, match="g is equal-to f, but another network"):
        match_networks(spec, {"f": net, "g": hf.Network.from_torch(small(1), shape=(2,))})
    with pytest.raises(BadInput, match="no network is given for 'f'"):
        match_networks(spec, {"g": net})
    with pytest.raises(BadInput, match="declares no network 'h'; there are f, g"):
        match_networks(spec, {"f": net, "h": net})
    with pytest.raises(BadInput, match="declares the networks f, g; give one for each"):
        match_networks(parse(TWO + SAME + "(assert (> Y[0,0] 1.0))"), net)


@pytest.mark.parametrize("seed", range(6))
def test_the_combined_network_computes_the_parts(seed: int) -> None:
    """Every output of the combined network against the two networks and numpy, at random points."""
    random = Random(seed)
    names = ["X[0,0]", "X[0,1]", "U[0,0]", "Y[0,0]", "Y[0,1]", "V[0,0]", "V[0,1]"]
    terms = [f"(* {' '.join(random.choices(names, k=random.randint(1, 4)))})" for _ in range(6)]
    relation = random.choice([SAME, NEAR])
    spec = parse(TWO + relation + f"(assert (<= (+ {' '.join(terms)}) 0.5))")
    one, other = small(seed), small(seed + 10)
    nets = {"f": hf.Network.from_torch(one, shape=(2,)), "g": hf.Network.from_torch(other, shape=(2,))}
    net = combine_networks(spec, match_networks(spec, nets))
    v = torch.rand(5, spec.inputs, generator=torch.Generator().manual_seed(seed)) - 0.5
    found = net(v)
    assert found.shape == (5, spec.outputs)
    for row in range(5):
        inputs = file_inputs(spec, v[row].double(), torch.float32).float()
        with torch.no_grad():
            y = torch.cat([one(inputs[None, :2])[0], other(inputs[None, 2:])[0]])
        assert torch.allclose(found[row, :4], y, atol=1e-6)
        for k, product in enumerate(spec.columns):
            value = np.prod([float(inputs[n] if kind == "X" else y[n]) for kind, n in product])
            assert abs(float(found[row, 4 + k]) - value) < 1e-5


@pytest.mark.parametrize("relation", [SAME, NEAR])
def test_the_checker_reads_a_combined_network(tmp_path: Path, relation: str) -> None:
    """Its program is compared with the network at sample points before a certificate claims anything."""
    spec = parse(TWO + relation + "(assert (> (- (* Y[0,0] Y[0,0]) V[0,0]) 1.0))")
    nets = {k: hf.Network.from_torch(small(i), shape=(2,)) for i, k in enumerate("fg")}
    problem = problem_of(combine_networks(spec, match_networks(spec, nets)), spec)
    file, opened = model_for(problem, tmp_path, None)
    assert file.name == "model.safetensors"
    assert opened.program.value(np.zeros((1, spec.inputs))).shape[-1] == spec.outputs


def two_inputs(folder: Path, batch: int | str = 1) -> Path:
    """y = relu(a + w b), z = sum of y; a (batch, 3), b (batch, 2, 1)."""
    ports = [
        helper.make_tensor_value_info("a", TensorProto.FLOAT, [batch, 3]),
        helper.make_tensor_value_info("b", TensorProto.FLOAT, [batch, 2, 1]),
    ]
    weight = numpy_helper.from_array(np.array([[1, -1, 0.5], [2, 0, -0.5]], np.float32), "w")
    nodes = [
        helper.make_node("Flatten", ["b"], ["flat"], axis=1),
        helper.make_node("MatMul", ["flat", "w"], ["wb"]),
        helper.make_node("Add", ["a", "wb"], ["sum"], name="adding"),
        helper.make_node("Relu", ["sum"], ["y"]),
        helper.make_node("ReduceSum", ["y"], ["z"], keepdims=1, axes=[1]),
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 3]),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, [batch, 1]),
    ]
    graph = helper.make_graph(nodes, "two", ports, outputs, [weight])
    file = folder / "two.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 11)], ir_version=8), file)
    return file


SEVERAL = """(vnnlib-version <2.0>)
(declare-network N (declare-input A float32 [1,3]{}) (declare-input B float32 [1,2,1]{})
  (declare-hidden H float32 [1,3] "{}") (declare-output Y float32 [1,3]{}) (declare-output Z float32 [1,1]{}))
(assert (and (>= A[0,0] 0.0) (<= A[0,0] 1.0) (>= A[0,1] 0.0) (<= A[0,1] 1.0) (>= A[0,2] 0.0) (<= A[0,2] 1.0)))
(assert (and (>= B[0,0,0] 0.0) (<= B[0,0,0] 1.0) (>= B[0,1,0] 0.0) (<= B[0,1,0] 1.0)))
"""


@pytest.mark.parametrize(
    ("batch", "inner", "names"),
    [(1, "sum", ("", "", "", "")), ("n", "adding", (' "a"', ' "b"', ' "y"', ' "z"'))],
)
def test_several_inputs_outputs_and_inner_values(
    tmp_path: Path, batch: int | str, inner: str, names: tuple[str, ...]
) -> None:
    text = SEVERAL.format(names[0], names[1], inner, names[2], names[3])
    for body, answer in (
        ("(assert (<= H[0,1] -0.9))", "sat"),
        ("(assert (and (<= H[0,1] -0.5) (>= Y[0,1] 0.01)))", "unsat"),
        ("(assert (>= Z[0,0] 5.1))", "unsat"),
    ):
        spec = parse(text + body, "f")
        net = open_declared(two_inputs(tmp_path, batch), spec.networks[0])
        found = verify(net, spec, stop=hf.Stop(seconds=60))
        assert found.answer == answer, body
        if found.answer == "sat":
            values = {tensor.name: torch.tensor(numbers) for tensor, numbers in found.values}
            b = values["B"] @ torch.tensor([[1, -1, 0.5], [2, 0, -0.5]])
            assert torch.allclose(values["H"], values["A"] + b, atol=1e-6)
            assert torch.allclose(values["Z"], values["Y"].sum(), atol=1e-6)


def test_a_declaration_that_does_not_fit_the_file(tmp_path: Path) -> None:
    file = two_inputs(tmp_path)
    for text, says in (
        (SEVERAL.format("", "", "nothing", "", ""), "no node computes 'nothing'"),
        (SEVERAL.format(' "q"', ' "b"', "sum", ' "y"', ' "z"'), "among its inputs .a, b. is no 'q'"),
        (SEVERAL.format("", "", "sum", "", "").replace("A float32 [1,3]", "A float32 [1,4]") + "(assert (== A[0,3] 0.0))", "declared is .1, 4.|declared as .1, 4."),
        (SEVERAL.format("", "", "sum", "", "").replace("(declare-output Z float32 [1,1])", ""), "has 2 outputs .y, z., but 1 are"),
    ):  # fmt: skip
        spec = parse(text + "(assert (<= Y[0,0] 1.0))")
        with pytest.raises(BadInput, match=says):
            open_declared(file, spec.networks[0])


def test_lists_name_several_networks(tmp_path: Path) -> None:
    for name in ("f.onnx", "g.onnx", "p.vnnlib"):
        (tmp_path / name).write_text("")
    listed = tmp_path / "instances.csv"
    listed.write_text("\"[('f', 'f.onnx'), ('g', './g.onnx')]\",p.vnnlib,100\nf.onnx,p.vnnlib,5\n")
    both, one = read_instances(tmp_path)
    assert both.name == ("f+g", "p")
    assert [(name, file.name) for name, file in both.named] == [("f", "f.onnx"), ("g", "g.onnx")]
    assert (one.named, one.name) == ((), ("f", "p"))
    for text, says in (
        ("\"[('f', 'f.onnx'\",p.vnnlib,1", "no list of networks"),
        ("\"[('f', 'f.onnx'), ('f', 'g.onnx')]\",p.vnnlib,1", "named twice"),
        ("\"[('f', '../f.onnx')]\",p.vnnlib,1", "does not exist|leads out"),
        ("[f],p.vnnlib,1", "no list of networks"),
    ):
        listed.write_text(text)
        with pytest.raises(Exception, match=says):
            read_instances(tmp_path)


def drawn(random: Random, depth: int) -> str:
    """A random formula of the standard's grammar over X, U (inputs) and Y, V (outputs)."""
    if depth and random.random() < 0.5:
        parts = " ".join(drawn(random, depth - 1) for _ in range(random.randint(2, 3)))
        return f"({random.choice(['and', 'or'])} {parts})"
    sign = random.choice(["<=", ">=", "<", ">", "==", "!="])
    return f"({sign} {term(random, 2)} {term(random, 2)})"


def term(random: Random, depth: int) -> str:
    if depth and random.random() < 0.6:
        kind = random.choice(["+", "*", "-", "-1"])
        if kind == "-1":
            return f"(- {term(random, depth - 1)})"
        return f"({kind} {' '.join(term(random, depth - 1) for _ in range(random.randint(2, 3)))})"
    variables = [f"{tensor}[0,{k}]" for tensor in "XUYV" for k in range(2)]
    return random.choice([*variables, f"{random.randint(-3, 3)}.{random.choice(['0', '5', '25'])}"])


def value(node: Any, point: dict[tuple[str, int], Fraction]) -> Any:
    """What an expression of the package vnnlib means, in exact arithmetic."""
    kind, parts = type(node).__name__, [value(part, point) for part in node.children()]
    if kind == "Var":
        return point[node.name, node.indices[1]]
    if hasattr(node, "lexeme"):
        return Fraction(node.lexeme)
    meaning = {
        "And": all, "Or": any, "Plus": sum, "Negate": lambda p: -p[0], "Minus": lambda p: p[0] - sum(p[1:]),
        "Multiply": lambda p: np.prod(np.array(p, dtype=object)), "LessThan": lambda p: p[0] < p[1], "LessEqual": lambda p: p[0] <= p[1],
        "GreaterThan": lambda p: p[0] > p[1], "GreaterEqual": lambda p: p[0] >= p[1], "Equal": lambda p: p[0] == p[1],
        "NotEqual": lambda p: p[0] != p[1],
    }  # fmt: skip
    return meaning[kind](parts)


def test_random_queries_mean_what_the_package_of_the_standard_reads() -> None:
    """Random formulas at random points of a coarse grid, so that equalities are met: the same verdict as the package's tree."""
    vnnlib = pytest.importorskip("vnnlib", reason="the package vnnlib is not installed: pip install vnnlib")
    box = "".join(
        f"(assert (and (>= {t}[0,{k}] -2.0) (<= {t}[0,{k}] 2.0)))\n" for t in "XU" for k in range(2)
    )
    head = TWO.partition("(assert")[0] + box
    random, compared = Random(5), 0
    for _ in range(150):
        text = f"{head}(assert {drawn(random, 2)})\n(assert {drawn(random, 1)})"
        try:
            tree = vnnlib.parse_query_string(text)
        except vnnlib.VNNLibException:
            continue  # comparisons without a variable are not well typed for the package
        spec = parse(text)
        for _ in range(12):
            numbers = [Fraction(random.randint(-4, 4), 2) for _ in range(8)]
            point = {(t, k): numbers[2 * i + k] for i, t in enumerate("XUYV") for k in range(2)}
            wanted = all(value(assertion.expr, point) for assertion in tree.assertions)
            if spec.sources:
                continue
            x, y = ([float(n) for n in part] for part in (numbers[:4], numbers[4:]))
            assert meets(spec, x, y) == wanted, (text, numbers)
            compared += 1
    assert compared > 500
