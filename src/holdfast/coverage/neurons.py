"""The hidden neurons of a network, read from its traced graph: torch modules, exported programs and ONNX
files alike.

A layer is an activation function or a recurrent layer, a neuron is one number of its output. An inactive ReLU
is 0 however far its pre-activation is from 0, and a search needs that distance. So every neuron has a
*value*, which criteria refer to, and a *drive*: the value where the layer does not clip it, else the value
plus the part that the layer clips.
"""

import contextlib
import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn

from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.network import Network
from holdfast.network.adapter import Adapter
from holdfast.network.fingerprint import combine_hashes, of_text
from holdfast.network.trace import as_plain_module, where
from holdfast.process_state import cudnn_flags

Per = Literal["element", "channel"]
# Called with values (part, neurons) and the index of the first of these rows.
Watch = Callable[[Tensor, int], None]
# Operators that clip their input, so that the drive differs from the value.
CLIPS = frozenset({"relu", "relu6", "hardtanh", "clamp", "clamp_min", "clamp_max"})
# Activation functions whose outputs count as hidden neurons by default.
ACTIVATIONS = CLIPS | {
    "celu",
    "elu",
    "gelu",
    "glu",
    "hardsigmoid",
    "hardswish",
    "leaky_relu",
    "log_sigmoid",
    "mish",
    "prelu",
    "selu",
    "sigmoid",
    "silu",
    "softplus",
    "tanh",
    "threshold",
}
# Recurrent layers, and operators that only reshape their input.
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
RESHAPES = frozenset({"flatten", "view", "reshape", "unsqueeze", "squeeze", "contiguous", "clone", "dropout"})
ELEMENTS_PER_CALL = 2**23  # Largest number of activations alive at once in a forward pass (chosen by hand).


@dataclass(frozen=True)
class NeuronLayer:
    """A layer by its readable name, its operator, and the shape of its neurons for one input."""

    name: str
    operator: str
    shape: tuple[int, ...]

    @property
    def neurons(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class _Tap:
    """How to read a layer's output: its batch axis, the shape of one input's part, and the axis of its
    channels there.

    channels is None if every element is a neuron.
    """

    layer: NeuronLayer
    axis: int
    item: tuple[int, ...]
    channels: int | None

    def read_values(self, pair: tuple[Tensor, Tensor], batch: int) -> tuple[Tensor, Tensor]:
        """Return values and drives (batch, neurons) of a pair: a layer's output, and its input if it clips,
        else its output again.

        The value of a channel is its mean; if all of it is clipped, its drive is that of the element clipped
        least.
        """
        after, before = (part.movedim(self.axis, 0).reshape(batch, *self.item) for part in pair)
        if self.channels is None:
            return after.flatten(1), before.flatten(1)
        after, before = (part.movedim(1 + self.channels, 1).flatten(2) for part in (after, before))
        cut = before - after
        value = after.mean(-1)
        return value, value + cut.clamp_max(0).amax(-1) + cut.clamp_min(0).amin(-1)


@dataclass(frozen=True, eq=False)
class Neurons:
    """All neurons of some layers in one row of numbers: those of the first layer, then those of the second,
    and so on.

    Attributes:
        net: the user's network truncated after these layers. Its outputs are the values of the neurons, so it
            can be queried like any other network, and counts its queries.
    """

    net: Network
    layers: tuple[NeuronLayer, ...]
    notes: tuple[str, ...]
    guided: bool  # gradients of neurons are available
    _read: Callable[[Tensor], tuple[Tensor, Tensor]]  # (n, *shape) -> values, drives, each (n, neurons)
    _weight: int  # number of values computed for one input
    # cuDNN may be used; it needs the weights of recurrent layers in one block, which a traced graph does not
    # keep
    _cudnn: bool = True

    @staticmethod
    def of(net: Network, x: Tensor, layers: Sequence[str] | None = None, per: Per = "element") -> "Neurons":
        """Return the neurons that inputs like x activate.

        Args:
            layers: names as in `holdfast inspect`. Default: every hidden activation function and recurrent
                layer.

        If a network has no graph, its outputs take the place of the neurons, and the notes say so.
        """
        x = x[:2].to(net.device, net.dtype)
        try:
            graph = as_plain_module(net.program(x))
        except UnsupportedLayer as error:
            if layers is not None:
                raise BadInput(f"layers: {net.name} shows no layers, only its outputs. {error}") from error
            why = "is a black box" if not net.differentiable else "cannot be traced"
            return _outputs(
                net,
                x,
                f"{net.name} {why}: its hidden neurons cannot be seen, so its outputs are taken for the "
                "neurons",
            )
        chosen = _select_nodes(graph, layers, net.name)
        if not chosen:
            return _outputs(
                net,
                x,
                f"{net.name} has no hidden activation or recurrent layer, so its outputs are taken for the "
                "neurons",
            )
        module = _tap_graph(graph, [node for node, _ in chosen]).to(net.device)
        taps, notes = _independent_taps(module, chosen, per, x if len(x) > 1 else torch.cat([x, x / 2]))
        if not taps or (layers is not None and notes):
            raise BadInput(f"layers: {notes[0]}.")
        weight = x[0].numel() + sum(4 * math.prod(tap.item) for tap in taps.values())
        found = tuple(tap.layer for tap in taps.values())
        cudnn = not any(_operator(node) in RECURRENT for node in graph.graph.nodes)
        cut = net.around(Adapter(_Values(module, taps, cudnn)).eval())
        cut.token_model, cut.classes, cut.queries = None, None, 0  # Its outputs are neurons.
        cut.fingerprint = combine_hashes(
            net.fingerprint, of_text(str([per, *((layer.name, layer.shape) for layer in found)]))
        )
        return Neurons(cut, found, notes, True, _reader(module, taps), weight, cudnn)

    def read_values(self, x: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield values and drives of all neurons for inputs (n, *shape), (part of n, neurons) each; every row
        counts as one query.
        """
        for part in x.split(max(1, ELEMENTS_PER_CALL // max(self._weight, 1))):
            with torch.no_grad(), cudnn_flags(enabled=self._cudnn, allow_tf32=False):
                values, drives = self._read(part.to(self.net.device, self.net.dtype))
            self.net.queries += len(part)
            yield values, drives

    def at(self, x: Tensor, neuron: Tensor, watch: Watch | None = None) -> tuple[Tensor, Tensor]:
        """Return the value and the drive, (n,) each, of one neuron (n,) of each row of x (n, *shape). `watch`
        receives the values of all neurons.
        """
        found, done = [], 0
        for values, drives in self.read_values(x):
            index = neuron[done : done + len(values), None]
            found.append(torch.stack([values.gather(1, index), drives.gather(1, index)]).squeeze(-1))
            if watch is not None:
                watch(values, done)
            done += len(values)
        both = torch.cat(found, dim=1)
        return both[0], both[1]

    def gradient(self, x: Tensor, neuron: Tensor) -> Tensor:
        """Return the gradient (n, *shape) of the drive of one neuron (n,) of each row of x (n, *shape)."""
        assert self.guided
        found, done = [], 0
        for part in x.split(max(1, ELEMENTS_PER_CALL // max(self._weight, 1))):
            free = part.detach().to(self.net.device, self.net.dtype).requires_grad_(True)
            with torch.enable_grad(), cudnn_flags(enabled=False):  # see Network.score_and_gradient
                drives = self._read(free)[1].gather(1, neuron[done : done + len(part), None])
                gradient = (
                    torch.autograd.grad(drives.sum(), free, allow_unused=True)[0]
                    if drives.requires_grad
                    else None
                )
            self.net.queries += len(part)
            done += len(part)
            found.append(torch.zeros_like(part) if gradient is None else torch.nan_to_num(gradient))
        return torch.cat(found)


def _outputs(net: Network, x: Tensor, note: str) -> Neurons:
    """Return the outputs of the network as its neurons, with a note that says why."""
    count = net.outputs_for(x)

    def read_outputs(rows: Tensor) -> tuple[Tensor, Tensor]:
        outputs: Tensor = net.module(rows)
        return outputs, outputs

    return Neurons(
        net,
        (NeuronLayer("outputs", "outputs", (count,)),),
        (note,),
        net.differentiable,
        read_outputs,
        count + x[0].numel(),
    )


class _Values(nn.Module):
    """A module that maps (n, *shape) to the values of the neurons, (n, neurons)."""

    def __init__(self, module: nn.Module, taps: "dict[int, _Tap]", cudnn: bool) -> None:
        super().__init__()
        self.module, self.taps, self.cudnn = module, taps, cudnn

    def forward(self, x: Tensor) -> Tensor:
        with cudnn_flags(enabled=self.cudnn, allow_tf32=False) if x.is_cuda else contextlib.nullcontext():
            pairs = self.module(x)
        return torch.cat(
            [tap.read_values(pairs[place], len(x))[0] for place, tap in self.taps.items()], dim=1
        )


def _reader(module: nn.Module, taps: dict[int, _Tap]) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return a function that maps inputs to values and drives."""

    def read_taps(x: Tensor) -> tuple[Tensor, Tensor]:
        pairs = module(x)
        values, drives = zip(
            *(tap.read_values(pairs[place], len(x)) for place, tap in taps.items()), strict=True
        )
        return torch.cat(values, dim=1), torch.cat(drives, dim=1)

    return read_taps


# ---- the graph


def _operator(node: fx.Node) -> str:
    """Return the operator's name: relu for aten.relu.default and for aten.relu_.default."""
    return (
        str(node.target).removeprefix("aten.").partition(".")[0].rstrip("_")
        if node.op == "call_function"
        else ""
    )


def _select_nodes(
    graph: fx.GraphModule, names: Sequence[str] | None, model: str
) -> list[tuple[fx.Node, str]]:
    """Return the nodes to read with their names. A name that several nodes share is followed by the node's
    own.
    """
    nodes = [node for node in graph.graph.nodes if _readable(node)]
    shared = [where(node) for node in nodes]
    called = {
        node: f"{at}/{node.name}" if shared.count(at) > 1 and at != node.name else at
        for node, at in zip(nodes, shared, strict=True)
    }
    if names is None:
        last = _output_nodes(graph)
        usual = [node for node in nodes if _operator(node) in ACTIVATIONS or _recurrent(node)]
        return [(node, _display_name(node, usual, called)) for node in usual if node not in last]
    wanted = []
    for name in names:
        found = [node for node in nodes if name in (called[node], where(node), node.name)]
        if not found:
            known = ", ".join(dict.fromkeys(called.values()))
            raise BadInput(f"layers: {model} has no layer {name!r}; it has {known}.")
        wanted += [node for node in found if node not in wanted]
    return [(node, _display_name(node, wanted, called)) for node in nodes if node in wanted]


def _display_name(node: fx.Node, among: list[fx.Node], called: dict[fx.Node, str]) -> str:
    """Return the user's own name if it is unambiguous among these nodes."""
    return where(node) if sum(where(other) == where(node) for other in among) == 1 else called[node]


def _readable(node: fx.Node) -> bool:
    """Whether the node holds numbers that depend on the batch."""
    value = node.meta.get("val")
    if node.op != "call_function" or not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    return _batch_axis(value) is not None and len(node.all_input_nodes) > 0


def _batch_axis(value: Any) -> int | None:
    """Return the only axis of symbolic size; None if there is not exactly one."""
    free = [axis for axis, size in enumerate(value.shape) if not isinstance(size, int)]
    return free[0] if len(free) == 1 else None


def _recurrent(node: fx.Node) -> bool:
    """Whether the node is the first output of a recurrent layer: its state after every step."""
    source = node.all_input_nodes[0]
    return "getitem" in str(node.target) and _operator(source) in RECURRENT and node.args[1:] == (0,)


def _output_nodes(graph: fx.GraphModule) -> set[fx.Node]:
    """Return the nodes of the network's outputs, also before reshaping: they are not hidden."""
    (end,) = (node for node in graph.graph.nodes if node.op == "output")
    found, ahead = set[fx.Node](), list(end.all_input_nodes)
    while ahead:
        node = ahead.pop()
        found.add(node)
        if _operator(node) in RESHAPES:
            ahead.append(node.all_input_nodes[0])
    return found


def _tap(node: fx.Node, name: str, per: Per, output: Tensor, batch: int) -> _Tap:
    axis = _batch_axis(node.meta["val"])
    assert axis is not None
    sizes = tuple(output.movedim(axis, 0).shape)
    # The batch and time axes may be merged.
    item = sizes[1:] if sizes[0] == batch else (sizes[0] // batch, *sizes[1:])
    channels = None
    if per == "channel" and len(item) > 1:
        channels = 0 if _has_channels_first(node) else len(item) - 1
    operator = _operator(node.all_input_nodes[0] if _recurrent(node) else node)
    layer = NeuronLayer(name, operator, item if channels is None else (item[channels],))
    return _Tap(layer, axis, item, channels)


def _has_channels_first(node: fx.Node) -> bool:
    """Whether the channels are the first axis, as after a convolution, or the last, as after a linear or
    recurrent layer.
    """
    while node.all_input_nodes:
        operator = _operator(node)
        if "conv" in operator:
            return True
        if operator in RECURRENT or operator in ("linear", "addmm", "matmul", "mm", "bmm"):
            return False
        node = node.all_input_nodes[0]
    return True


def _tap_graph(graph: fx.GraphModule, nodes: list[fx.Node]) -> fx.GraphModule:
    """Return the graph up to the last layer read; its outputs are pairs: a layer's output, and the input of
    the layer if it clips.
    """
    module = copy.deepcopy(graph)
    twin = {node.name: node for node in module.graph.nodes}
    pairs = []
    for node in (twin[node.name] for node in nodes):
        with module.graph.inserting_before(node):  # Copy the values, because layers may work in place.
            before = (
                module.graph.call_function(torch.ops.aten.clone.default, (node.args[0],))
                if _operator(node) in CLIPS
                else None
            )
        with module.graph.inserting_after(node):
            after = module.graph.call_function(torch.ops.aten.clone.default, (node,))
        pairs.append((after, after if before is None else before))
    (end,) = (node for node in module.graph.nodes if node.op == "output")
    end.args = (tuple(pairs),)
    module.graph.eliminate_dead_code(_has_side_effect)
    module.recompile()
    return module


def _has_side_effect(node: fx.Node) -> bool:
    """Whether the node does anything besides returning its result."""
    schema = getattr(node.target, "_schema", None)
    return node.op in ("placeholder", "output") or (schema is not None and schema.is_mutable)


def _independent_taps(
    module: nn.Module, chosen: list[tuple[fx.Node, str]], per: Per, x: Tensor
) -> tuple[dict[int, _Tap], tuple[str, ...]]:
    """Return the taps by index, and notes on layers that do not treat the inputs of a batch independently."""
    with torch.no_grad():
        together, alone = module(x), [module(row[None]) for row in x]
    kept, notes = {}, []
    for place, (node, name) in enumerate(chosen):
        tap = _tap(node, name, per, together[place][0], len(x))
        drives = tap.read_values(together[place], len(x))[1]
        each = torch.cat([tap.read_values(pairs[place], 1)[1] for pairs in alone])
        if torch.allclose(drives, each, rtol=1e-3, atol=1e-4):
            kept[place] = tap
        else:
            notes.append(f"{name} mixes the inputs of a batch, so no neuron of it belongs to one input")
    return kept, tuple(notes)
