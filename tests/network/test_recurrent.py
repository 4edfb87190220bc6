"""Recurrent layers are traced by one frame; the graph is that which torch traces by all of them."""

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import holdfast as hf
from holdfast.errors import UnsupportedLayer
from holdfast.network import recurrent, trace
from holdfast.network.fingerprint import of_program


class Read(nn.Module):
    """A layer, and a view of its answer, for which torch must know how it lies in memory."""

    def __init__(self, layer: nn.RNNBase, *, packed: bool = False) -> None:
        super().__init__()
        self.layer, self.packed = layer, packed

    def forward(self, x: Tensor) -> Tensor:
        frames = x if self.layer.batch_first else x.transpose(0, 1)
        if self.packed:
            lengths = torch.full((x.shape[0],), x.shape[1])
            answer = pad_packed_sequence(
                self.layer(pack_padded_sequence(frames, lengths, self.layer.batch_first))[0]
            )[0]
        else:
            answer = self.layer(frames)[0]
        return (
            answer.transpose(1, 2)
            .reshape(answer.shape[0], answer.shape[2], -1)
            .transpose(1, 2)
            .flatten(1)[:, :2]
        )


class Torn(nn.Module):
    """Its first state is too wide."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.GRU(2, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x.new_zeros(1, x.shape[0], 5))[0].flatten(1)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "rnn": lambda: Read(nn.RNN(2, 3, batch_first=True)),
    "rnn relu, time first": lambda: Read(nn.RNN(2, 3, nonlinearity="relu", bias=False)),
    "gru, two layers": lambda: Read(nn.GRU(2, 3, num_layers=2, batch_first=True)),
    "gru, packed": lambda: Read(nn.GRU(2, 3, batch_first=True), packed=True),
    "lstm, both ways, projected": lambda: Read(
        nn.LSTM(2, 4, bidirectional=True, proj_size=3, batch_first=True)
    ),
    "lstm, time first": lambda: Read(nn.LSTM(2, 3)),
    "lstm, packed": lambda: Read(nn.LSTM(2, 3, batch_first=True), packed=True),
}


def told(program: torch.export.ExportedProgram) -> list[tuple[Any, ...]]:
    """All that is known of every node, the shapes and strides of its answers too."""

    def lie(node: fx.Node) -> list[str]:
        return [
            f"{v.dtype} {v.shape} {v.stride()}"
            for v in torch.utils._pytree.tree_leaves(node.meta.get("val"))
            if isinstance(v, Tensor)
        ]

    return [(node.name, str(node.target), str(node.args), lie(node)) for node in program.graph.nodes]


@pytest.mark.parametrize("name", LAYERS)
def test_the_graph_is_that_of_all_frames(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = LAYERS[name]().eval(), torch.randn(1, 4, 2)
    ours = trace.export(module, x)
    monkeypatch.setattr(recurrent, "_OURS", {})  # torch's own operators, which unroll over all frames
    theirs = trace.export(module, x)
    assert told(ours) == told(theirs)
    assert of_program(ours) == of_program(theirs)
    assert "holdfast" not in str(ours.graph)
    torch.testing.assert_close(ours.module()(x), module(x))


def test_the_time_does_not_grow_with_the_frames() -> None:
    net = hf.Network.from_torch(Read(nn.GRU(2, 3, batch_first=True)).eval())
    net.program(torch.zeros(1, 4, 2))
    begun = time.process_time()
    net.program(torch.zeros(1, 2000, 2))  # unrolled, this takes minutes
    assert time.process_time() - begun < 20


def test_what_torch_refuses_is_refused() -> None:
    with pytest.raises(UnsupportedLayer, match="could not turn the model into a graph"):
        trace.export(Torn(), torch.zeros(1, 4, 2))


@pytest.mark.skipif(not recurrent.COMPARED, reason="with this torch one whole frame is computed")
def test_a_symbolic_batch_is_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shapes come from tensors with a number of rows, which takes less time."""
    seen = []
    found = recurrent._shapes_of_numbers
    monkeypatch.setattr(
        recurrent, "_shapes_of_numbers", lambda *given: seen.append(found(*given)) or seen[-1]
    )
    trace.export(LAYERS["lstm, both ways, projected"]().eval(), torch.zeros(1, 4, 2))
    outputs, hidden, memory = seen[-1]
    assert tuple(outputs) == (1, 2, 6) or tuple(outputs) == (2, 1, 6)
    assert (tuple(hidden), tuple(memory)) == ((2, 2, 3), (2, 2, 4))


# ---- weights in one chunk, as cuDNN wants them


class Last(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.out(self.cell(x)[0][:, -1])
        return answer


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls of recurrent layers whose weights got memory of their own after they were last put together. Without a GPU torch puts nothing
    together, so what it was asked to put together is noted."""
    together: dict[tuple[int, ...], list[Tensor]] = {}
    found: list[str] = []
    flatten, forward = nn.RNNBase.flatten_parameters, nn.LSTM.forward

    def places(layer: nn.RNNBase) -> tuple[int, ...]:
        return tuple(weight.data_ptr() for weight in layer._flat_weights if type(weight) is nn.Parameter)

    def flattened(layer: nn.RNNBase) -> None:
        if not torch.compiler.is_exporting():
            together[places(layer)] = [
                weight for weight in layer._flat_weights if type(weight) is nn.Parameter
            ]
        flatten(layer)

    def called(layer: nn.LSTM, *arguments: Any) -> Any:
        if not torch.compiler.is_exporting() and places(layer) not in together:
            found.append(str(layer))
        return forward(layer, *arguments)

    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", flattened)
    monkeypatch.setattr(nn.LSTM, "forward", called)
    return found


def test_the_weights_of_every_copy_lie_in_one_chunk(apart: list[str]) -> None:
    torch.manual_seed(0)
    module, x = Last().eval(), torch.rand(40, 3, 2)
    y = (x[:, :, 0].mean(1) > 0.5).long()
    net = hf.Network.from_torch(module, domain=(0, 1))
    hf.radius(net, x[:2], y[:2], stop=hf.Stop(queries=60))
    hf.reach(net, (x[:1], x[:1] + 0.01), tolerance=1.0)
    recipe = hf.hardening.Recipe("intervals", epochs=1, batch=8)
    found = hf.harden(net, x, y, radius=0.01, recipe=recipe, validation=0.25, measured=2)
    found.network(x)
    assert net.double(x) is not None
    assert apart == []
