"""Recurrent ONNX models against onnxruntime: every cell, direction and layout, and what torch's exporters write."""

import io
import warnings
from typing import Any

import numpy as np
import onnx
import onnx.reference
import pytest
import torch
from onnx import TensorProto, helper
from onnx_truth import Array, agrees, close, floats, integers, model_of, run, truth
from torch import nn

from holdfast.errors import UnsupportedLayer
from holdfast.network.onnx import import_onnx
from sizes import combinations, some

TIME, BATCH, WIDTH, HIDDEN = 5, 3, 4, 6
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
WHOLE = {"RNN": "aten.rnn_tanh.input", "LSTM": "aten.lstm.input", "GRU": "aten.gru.input"}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


def layer(
    cell: str,
    direction: str = "forward",
    *,
    bias: bool = True,
    states: bool = False,
    lengths: Array | None = None,
    peepholes: bool = False,
    layout: int = 0,
    **attributes: Any,
) -> tuple[onnx.ModelProto, list[Array]]:
    """A model of one recurrent node with all its outputs, and inputs for it; time and batch are free."""
    directions = 2 if direction == "bidirectional" else 1
    rows = GATES[cell] * HIDDEN
    constants = {"W": floats(directions, rows, WIDTH) / 2, "R": floats(directions, rows, HIDDEN) / 2}
    inputs = {"X": floats(BATCH, TIME, WIDTH) if layout else floats(TIME, BATCH, WIDTH)}
    names = ["X", "W", "R", "", "", "", "", ""]
    if bias:
        constants["B"] = floats(directions, 2 * rows)
        names[3] = "B"
    if lengths is not None:
        constants["lengths"] = lengths.astype(np.int32)
        names[4] = "lengths"
    outputs = ["Y", "Y_h", "Y_c"] if cell == "LSTM" else ["Y", "Y_h"]
    if states:
        for position, name in list(enumerate(("h", "c"), 5))[: len(outputs) - 1]:
            inputs[name] = floats(BATCH, directions, HIDDEN, seed=position)
            inputs[name] = inputs[name] if layout else inputs[name].swapaxes(0, 1).copy()
            names[position] = name
    if peepholes:
        constants["P"] = floats(directions, 3 * HIDDEN)
        names[7] = "P"
    while not names[-1]:
        names.pop()
    settings = {
        "hidden_size": HIDDEN,
        "direction": direction,
        **attributes,
        **({"layout": layout} if layout else {}),
    }
    node = helper.make_node(cell, names, outputs, name="layer", **settings)
    return model_of([node], inputs, outputs, constants), list(inputs.values())


def operators_of(module: torch.nn.Module, inputs: list[Array]) -> set[str]:
    program = torch.export.export(module, tuple(torch.from_numpy(value) for value in inputs))
    return {str(node.target) for node in program.graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("cell", GATES)
def test_layers_that_torch_has_stay_whole(cell: str, direction: str, bias: bool, states: bool) -> None:
    extra = {"linear_before_reset": 1} if cell == "GRU" else {}
    model, inputs = layer(cell, direction, bias=bias, states=states, **extra)
    module = agrees(model, *inputs)
    assert WHOLE[cell] in operators_of(module, inputs)
    assert len(list(module.constants.buffers())) == (4 if bias else 2) * (
        2 if direction == "bidirectional" else 1
    )


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_rectified_layers_stay_whole(direction: str) -> None:
    model, inputs = layer("RNN", direction, activations=["Relu"] * (2 if direction == "bidirectional" else 1))
    assert "aten.rnn_relu.input" in operators_of(agrees(model, *inputs), inputs)


@pytest.mark.parametrize(
    ("direction", "bias", "states"),
    combinations(["forward", "reverse", "bidirectional"], [False, True], [False, True], together=2),
)
def test_reset_before_the_product_is_unrolled(direction: str, bias: bool, states: bool) -> None:
    model, inputs = layer("GRU", direction, bias=bias, states=states, linear_before_reset=0)
    assert WHOLE["GRU"] not in operators_of(agrees(model, *inputs), inputs)


def test_the_two_forms_of_reset_differ() -> None:
    before, inputs = layer("GRU", linear_before_reset=0)
    after, _ = layer("GRU", linear_before_reset=1)
    assert np.abs(truth(before, inputs)[0] - truth(after, inputs)[0]).max() > 1e-2


@pytest.mark.parametrize(
    ("cell", "settings"),
    [
        ("LSTM", {"peepholes": True, "states": True}),
        ("LSTM", {"peepholes": True, "direction": "bidirectional"}),
        ("LSTM", {"input_forget": 1}),
        ("LSTM", {"activations": ["Sigmoid", "Relu", "Tanh"]}),
        (
            "LSTM",
            {
                "activations": ["Sigmoid", "Tanh", "Tanh", "Sigmoid", "Tanh", "Relu"],
                "direction": "bidirectional",
            },
        ),
        ("GRU", {"activations": ["Tanh", "Softsign"]}),
        ("GRU", {"clip": 0.4, "linear_before_reset": 1}),
        ("RNN", {"activations": ["Sigmoid"]}),
        ("RNN", {"activations": ["Tanh", "Relu"], "direction": "bidirectional"}),
        ("RNN", {"clip": 0.3}),
    ],
    ids=str,
)
def test_cells_that_torch_lacks_are_unrolled(cell: str, settings: dict[str, Any]) -> None:
    model, inputs = layer(cell, **settings)
    assert WHOLE[cell] not in operators_of(agrees(model, *inputs), inputs)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("cell", GATES)
def test_batch_first_is_the_same_layer_turned(cell: str, direction: str) -> None:
    """onnxruntime refuses layout 1, so the truth is layout 0 with every axis turned by hand."""
    turned, inputs = layer(cell, direction, states=True, layout=1)
    straight, _ = layer(cell, direction, states=True)
    every, *last = truth(straight, [value.swapaxes(0, 1).copy() for value in inputs])
    found = run(import_onnx(turned, "it"), inputs)
    close(found[0], every.transpose(2, 0, 1, 3))
    for mine, theirs in zip(found[1:], last, strict=True):
        close(mine, theirs.swapaxes(0, 1))


def test_batch_first_agrees_with_the_reference_implementation() -> None:
    model, inputs = layer("LSTM", layout=1, states=True)
    try:
        wanted = onnx.reference.ReferenceEvaluator(model).run(None, dict(zip("Xhc", inputs, strict=True)))
    except ValueError as error:
        pytest.skip(f"the reference implementation of onnx {onnx.__version__} fails on layout 1 ({error})")
    for mine, theirs in zip(run(import_onnx(model, "it"), inputs)[:1], wanted[:1], strict=True):
        assert mine.size == theirs.size
        close(mine.reshape(BATCH, TIME, HIDDEN), theirs.reshape(BATCH, TIME, HIDDEN))


def test_full_lengths_are_accepted_and_shorter_refused() -> None:
    model, inputs = layer("LSTM", lengths=integers(TIME, TIME, TIME))
    agrees(model, *inputs)
    shorter, inputs = layer("LSTM", lengths=integers(TIME, 2, TIME))
    with pytest.raises(UnsupportedLayer, match="sequence_lens"):
        run(import_onnx(shorter, "it"), inputs)


def test_lengths_that_are_an_input_are_refused_at_import() -> None:
    node = helper.make_node("GRU", ["X", "W", "R", "", "n"], ["Y"], hidden_size=HIDDEN, name="layer")
    constants = {"W": floats(1, 3 * HIDDEN, WIDTH), "R": floats(1, 3 * HIDDEN, HIDDEN)}
    inputs = {"X": floats(TIME, BATCH, WIDTH), "n": np.full(BATCH, TIME, dtype=np.int32)}
    with pytest.raises(UnsupportedLayer, match="'n'"):
        import_onnx(model_of([node], inputs, ["Y"], constants), "it")


def test_an_activation_without_a_rule_is_named() -> None:
    model, _ = layer("RNN", activations=["ScaledTanh"])
    with pytest.raises(UnsupportedLayer, match="scaledtanh"):
        import_onnx(model, "it")


# ---------------------------------------------------------------- models exported by torch


class Reader(nn.Module):
    """Words to classes: an embedding, a recurrent layer, and its last output or the mean of all."""

    def __init__(self, recurrent: nn.RNNBase, pool: str) -> None:
        super().__init__()
        self.words = nn.Embedding(20, WIDTH)
        self.recurrent = recurrent
        self.pool = pool
        width = recurrent.hidden_size * (2 if recurrent.bidirectional else 1)
        self.head = nn.Linear(width, 3)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        every, _ = self.recurrent(self.words(words))
        return self.head(every[:, -1] if self.pool == "last" else every.mean(1))


RECURRENT: dict[str, Any] = {
    "lstm": lambda: nn.LSTM(WIDTH, HIDDEN, batch_first=True),
    "stacked-lstm": lambda: nn.LSTM(WIDTH, HIDDEN, num_layers=2, batch_first=True),
    "bidirectional-lstm": lambda: nn.LSTM(WIDTH, HIDDEN, num_layers=2, bidirectional=True, batch_first=True),
    "gru": lambda: nn.GRU(WIDTH, HIDDEN, batch_first=True),
    "bidirectional-gru": lambda: nn.GRU(WIDTH, HIDDEN, bidirectional=True, batch_first=True),
    "tanh": lambda: nn.RNN(WIDTH, HIDDEN, batch_first=True),
    "relu": lambda: nn.RNN(WIDTH, HIDDEN, nonlinearity="relu", num_layers=2, batch_first=True),
}
TRACED = {"lstm": WHOLE["LSTM"], "gru": WHOLE["GRU"], "tanh": WHOLE["RNN"], "relu": "aten.rnn_relu.input"}


def exported(network: nn.Module, example: torch.Tensor, dynamo: bool) -> onnx.ModelProto:
    """With free batch, and free time where torch allows: its tracer fixes the time of every recurrent layer."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            shapes = ({0: torch.export.Dim("batch", min=2)},)
            program = torch.onnx.export(
                network, (example,), dynamo=True, dynamic_shapes=shapes, verbose=False
            )
            assert program is not None
            return program.model_proto
        buffer = io.BytesIO()
        free = {"x": {0: "batch", 1: "time"}}
        torch.onnx.export(network, (example,), buffer, dynamo=False, input_names=["x"], dynamic_axes=free)
        return onnx.load_from_string(buffer.getvalue())


@pytest.mark.parametrize(
    ("name", "pool", "dynamo"),
    some(
        [(name, "last", False) for name in RECURRENT]
        + [(name, "mean", False) for name in ("tanh", "bidirectional-lstm")]
        + [(name, "last", True) for name in ("relu", "lstm", "bidirectional-gru")],
        [
            *((name, "last", False) for name in ("relu", "lstm", "bidirectional-gru")),
            ("tanh", "mean", False),
            ("lstm", "last", True),
        ],
    ),
)
def test_exported_readers(name: str, pool: str, dynamo: bool) -> None:
    network = Reader(RECURRENT[name](), pool).eval()
    model = exported(network, torch.randint(20, (2, 7)), dynamo)
    module = import_onnx(model, name)
    assert module.inputs[0].dtype == torch.int64
    for batch, time in ((2, 7), (4, 7 if dynamo else 3)):
        words = np.random.default_rng(0).integers(0, 20, (batch, time))
        agrees(model, words)
        close(run(module, [words])[0], network(torch.from_numpy(words)).detach().numpy())
    shapes = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(module, (torch.randint(20, (2, time)),), dynamic_shapes=shapes)
    close(program.module()(torch.from_numpy(words)).numpy(), truth(model, [words])[0])
    traced = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    layers = sum(node.op_type in GATES for node in model.graph.node)
    assert layers == (
        0 if dynamo and name in ("tanh", "relu") else network.recurrent.num_layers
    )  # torch unrolls those
    assert traced.count(TRACED[name.split("-")[-1]]) == layers
    assert traced.count("aten.embedding.default") == 1


class Stateful(nn.Module):
    """Initial states are inputs, final states outputs: how a model listens to a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(WIDTH, HIDDEN)

    def forward(
        self, data: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        every, (hidden, cell) = self.recurrent(data, (hidden, cell))
        return every, hidden, cell


@pytest.mark.parametrize("dynamo", [False, True])
def test_exported_states(dynamo: bool) -> None:
    example = (torch.randn(TIME, 1, WIDTH), torch.randn(1, 1, HIDDEN), torch.randn(1, 1, HIDDEN))
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if dynamo:
            program = torch.onnx.export(Stateful().eval(), example, dynamo=True, verbose=False)
            assert program is not None
            model = program.model_proto
        else:
            torch.onnx.export(Stateful().eval(), example, buffer, dynamo=False)
            model = onnx.load_from_string(buffer.getvalue())
    agrees(model, floats(TIME, 1, WIDTH), floats(1, 1, HIDDEN), floats(1, 1, HIDDEN, seed=1))


def test_gradients_flow_through_both_forms() -> None:
    for reset in (0, 1):
        model, inputs = layer("GRU", "bidirectional", linear_before_reset=reset)
        module = import_onnx(model, "it").double()
        data = torch.from_numpy(inputs[0]).double().requires_grad_()
        assert torch.autograd.gradcheck(lambda value, module=module: module(value)[1].sum(), data)


def test_the_declared_types_are_kept() -> None:
    model, _ = layer("LSTM")
    module = import_onnx(model, "it")
    assert [port.dtype for port in module.outputs] == [torch.float32] * 3
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
