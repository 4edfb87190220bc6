"""A recurrent network in three parts, in float64: vectors of words, one step of its layer, and the head.

Statement. For a text w_1 ... w_T the network in real arithmetic is head(s_T), s_t = step(s_{t-1}, vector(w_t)), with
the s_0 of its code. That its code has these parts, for every text, is derived from the code (`monitor.structure`);
vectors are constants that it computes from its weights alone. Step and head become graphs, whose bounds `cells` uses.
"""

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from holdfast.bounding.graph import equivalence_check
from holdfast.bounding.graph.graph import Graph, build
from holdfast.errors import HoldfastError
from holdfast.foreign_text import first_line
from holdfast.network import Network
from holdfast.network.output_comparison import same_by_rounding
from holdfast.network.recurrent import copy_module
from holdfast.region import Box
from holdfast.region.edits import Text

if TYPE_CHECKING:
    from holdfast.monitor.engine.recurrent import Recurrent

# Texts on which the parts are compared with the network, in each direction of a test; chosen by hand.
COMPARED_TEXTS = 8

_state: ContextVar[Tensor] = ContextVar("_state")


class _GivenState(nn.Module):
    """Takes the place of the recurrent layer: returns the state that is given."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.hidden_size, self.num_layers, self.batch_first = (
            layer.hidden_size,
            layer.num_layers,
            layer.batch_first,
        )
        self.has_memory = isinstance(layer, nn.LSTM)

    def forward(self, x: Tensor, hx: Any = None) -> Any:
        hidden, memory = split_state(_state.get(), self.num_layers, self.hidden_size, self.has_memory)
        outputs = hidden[-1].unsqueeze(1 if self.batch_first else 0)
        return outputs, (torch.stack(hidden), torch.stack(memory)) if memory else torch.stack(hidden)


def split_state(state: Tensor, layers: int, size: int, has_memory: bool) -> tuple[list[Tensor], list[Tensor]]:
    """(n, width) -> h and c of each layer, (n, size) each; the state is [h_0, c_0, h_1, c_1, ...]."""
    parts = state.split(size, dim=1)
    each = 2 if has_memory else 1
    return list(parts[::each]), list(parts[1::each]) if has_memory else []


class _Head(nn.Module):
    """(n, width) states -> (n, outputs), by the user's code behind the layer."""

    def __init__(self, behind: nn.Module) -> None:
        super().__init__()
        self.behind = behind

    def forward(self, state: Tensor) -> Tensor:
        ids = torch.zeros((state.shape[0], 1), dtype=torch.int64, device=state.device)
        before = _state.set(state)
        try:
            outputs: Tensor = self.behind(ids)
        finally:
            _state.reset(before)
        return outputs


class _Step(nn.Module):
    """(n, width + inputs), a state and the vector of a word -> (n, width), the state after it."""

    def __init__(self, layer: nn.RNNBase, width: int) -> None:
        super().__init__()
        self.layer, self.width = layer, width
        self.has_memory = isinstance(layer, nn.LSTM)

    def forward(self, both: Tensor) -> Tensor:
        layer = self.layer
        state, x = both[:, : self.width], both[:, self.width :]
        hidden, memory = split_state(state, layer.num_layers, layer.hidden_size, self.has_memory)
        before: Any = (torch.stack(hidden), torch.stack(memory)) if memory else torch.stack(hidden)
        _, after = layer(x.unsqueeze(1 if layer.batch_first else 0), before)
        parts = after if self.has_memory else (after,)
        return torch.cat([part[k] for k in range(layer.num_layers) for part in parts], 1)


@dataclass(frozen=True, eq=False)
class OpenedLayer:
    """The parts of a recurrent network in float64."""

    view: "Recurrent"
    step: Graph
    head: Graph

    @property
    def width(self) -> int:
        return self.view.width

    def first(self) -> Tensor:
        """(1, width): the state before the first word."""
        return self.view.start(1)

    def vectors(self, words: Tensor) -> Tensor:
        """(m,) token ids -> (m, inputs): what the layer reads of them."""
        return self.view.layer_inputs(words)


_opened: "WeakKeyDictionary[Network, dict[bool, OpenedLayer | str]]" = WeakKeyDictionary()


def open_layer(net: Network, ranking: bool, texts: list[Text]) -> OpenedLayer | str:
    """The parts of a network, or why it has none. Made once, and compared with the network on these texts.

    ranking: only the order of outputs matters, so a final softmax is left out.
    """
    known = _opened.setdefault(net, {})
    if ranking not in known:
        try:
            known[ranking] = _open(net, ranking, texts)
        except HoldfastError as error:
            known[ranking] = str(error)
        except Exception as error:  # The user's module may raise anything when it is taken apart.
            known[ranking] = f"it cannot be taken apart ({first_line(error)})"
    return known[ranking]


def _open(net: Network, ranking: bool, texts: list[Text]) -> OpenedLayer | str:
    from holdfast.monitor.engine.recurrent import Recurrent  # Only edits need the monitor.

    if net.token_model is None or not net.differentiable:
        return "its layers are not visible"
    module = copy_module(net.token_model).double().cpu()
    layers = [part for part in module.modules() if isinstance(part, nn.RNNBase)]
    if len(layers) != 1:
        return "it is not one recurrent layer between a front and a head"
    precise = Network.from_torch(copy_module(module).eval(), tokens=True)
    view = Recurrent.of(precise)
    if view is None:
        return (
            "it is not one layer, read in one direction, between a front that reads word by word and a head that "
            "reads its last state"
        )
    for text in texts[:COMPARED_TEXTS]:
        tokens = torch.tensor([text])
        if not same_by_rounding(net.ask_tokens(tokens).cpu(), precise.ask_tokens(tokens).to(net.dtype)):
            return "it answers differently in float64"
    names = [name for name, part in module.named_modules() if part is layers[0]]
    behind = copy_module(module)
    behind.set_submodule(names[0], _GivenState(layers[0]))
    states = torch.randn((4, view.width), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    inputs = view.layer_inputs(torch.arange(view.tokens or 1)[:4])
    both = torch.cat([states[: len(inputs)].tanh(), inputs], 1)
    step = _graph(_Step(layers[0], view.width), both, ranking=False)
    head = _graph(_Head(behind), states.tanh(), ranking=ranking)
    return OpenedLayer(view, step, head)


def _graph(module: nn.Module, points: Tensor, *, ranking: bool) -> Graph:
    """The graph of a part, compared with it at random points."""
    net = Network.from_torch(module.eval())
    graph = build(net, points, ranking=ranking)
    radius = torch.ones_like(points)
    equivalence_check.check(net, graph, Box.between(points - radius, points + radius))
    return graph
