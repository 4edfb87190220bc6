"""The white-box view of a network: its recurrent layer opened, so that all mutants of an element share one recurrent product.

The layer is found in the user's module; what stands before it (an embedding, scaling) and behind it (any head) stays the user's own code,
run with the layer cut out. That the parts are the network, for every sequence, is read from what the module's code does (`structure`);
what cannot be read is not opened. Prefixes then only show by how much two arithmetics differ, and catch a module that hid something.
"""

import copy
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.monitor.engine.cells import RecurrentWeights, layers_of
from holdfast.monitor.engine.rerun import CLOSE, alone, ask, in_full
from holdfast.monitor.structure.marks import UnreadableError
from holdfast.monitor.structure.structure import read_structure
from holdfast.network import Network

LENGTHS = (1, 2, 3, 7, 19, 101)  # of the prefixes on which the view must agree with the network
ROWS = 6
TABLE_BYTES = 2**29  # the largest table of input products over a vocabulary
PART = 4096  # tokens or frames sent through the user's code at once
PROBE = 1024.0  # a large state, so that the bias of a head does not blur its weights
MARGIN = 32  # times the largest difference that was seen


class Recurrent:
    """state (n, d) holds h and c of all layers side by side: [h_0, c_0, h_1, c_1, ...]; d is `width`.

    slack: a label decided by less than this may differ between this view and the user's module; the engine then asks the latter.
    """

    def __init__(self, net: Network) -> None:
        """Raises whatever the user's module raises; use `of`."""
        self.net, self.dtype, self.device = net, net.dtype, net.device
        self.tokens = len(net.vectors) if net.vectors is not None else None
        whole = net.token_model if net.token_model is not None else net.module
        shared = {id(tensor): tensor for tensor in (*whole.parameters(), *whole.buffers())}
        self._module = copy.deepcopy(whole, shared)
        (self._rnn,) = (part for part in self._module.modules() if isinstance(part, nn.RNNBase))
        if (
            type(self._rnn) not in (nn.RNN, nn.LSTM, nn.GRU)
            or self._rnn.bidirectional
            or self._rnn.proj_size
            or self.dtype not in CLOSE
        ):
            raise UnreadableError("its layer is of another kind")
        self.frame = None if self.tokens is not None else tuple(self._example().shape[1:])  # the shape of one
        generator = torch.Generator().manual_seed(0)
        self._structure = read_structure(
            whole, lambda count, length: self._random(count, length, generator).to(self.device)
        )
        self._rnn.forward = self._splice_state
        self.layers: list[RecurrentWeights] = layers_of(self._rnn)
        self.width = sum(layer.width for layer in self.layers)
        self._lock = threading.RLock()  # streams of several threads share one view
        self._given: Tensor | None = None  # the state that the cut-out layer pretends to have reached
        self._entered: tuple[Tensor, Any] | None = None
        self._first: Tensor | None = None
        self._table: Tensor | None = None
        self.head: tuple[Tensor, Tensor] | None = None  # weights (o, d) and bias, where the head is affine
        self.relative = self.slack = 0.0
        self.reach = 0.0  # the largest number in a frame, as far as seen
        self.seen = max(LENGTHS)  # the longest sequence on which the view was found to be the network

    @staticmethod
    def of(net: Network, sequences: Sequence[Tensor] = ()) -> "Recurrent | None":
        """The view, or None where the network cannot be read as one recurrent layer with a front and a head that work element by
        element: bidirectional layers, sums over time, attention, black boxes. sequences: some to check it on besides random ones."""
        try:
            view = Recurrent(net)
            with torch.no_grad():
                return view if view._agrees(sequences) else None
        except Exception:  # whatever the user's module says to being taken apart: it stays whole
            return None

    # ---- stepping

    def start(self, count: int) -> Tensor:
        """(count, d): before the first element."""
        if self._first is None:
            self._entry(self._example())
        assert self._first is not None
        return self._first.expand(count, -1).clone()

    def gates(self, elements: Tensor) -> Tensor:
        """ids (m,) or frames (m, ...) -> (m, G), fresh memory: what they bring into the first layer."""
        table = self.products()
        if table is not None:
            return table.index_select(0, elements.to(self.device))
        layer = self.layers[0]
        return torch.addmm(layer.b_in, self._entry(elements), layer.w_in.T)

    def products(self) -> Tensor | None:
        """(words, G): the input products of the whole vocabulary, where there is room for them."""
        layer = self.layers[0]
        if self.tokens is None:
            return None
        if self._table is None and self.tokens * len(layer.w_in) * layer.w_in.element_size() <= TABLE_BYTES:
            words = torch.arange(self.tokens, device=self.device)
            self._table = torch.cat(
                [torch.addmm(layer.b_in, self._entry(part), layer.w_in.T) for part in words.split(PART)]
            )
        return self._table

    def recall(self, state: Tensor) -> Tensor:
        """(n, d) -> (n, R): what the states bring in, all layers side by side. The same for all mutants of the next element."""
        parts, at = [], 0
        for layer in self.layers:
            h = state[:, at : at + layer.size]
            parts.append(
                h @ layer.w_rec.T if layer.b_rec is None else torch.addmm(layer.b_rec, h, layer.w_rec.T)
            )
            at += layer.width
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def step(self, gates: Tensor, recalled: Tensor, state: Tensor) -> Tensor:
        """(m, G), (m, R), (m, d) -> (m, d): the states behind the element. Uses up `gates`."""
        new, at, begin = torch.empty_like(state), 0, 0
        for depth, layer in enumerate(self.layers):
            if depth:
                below = self.layers[depth - 1]
                gates = torch.addmm(
                    layer.b_in, new[:, at - below.width : at - below.width + below.size], layer.w_in.T
                )
            rows, ends = len(layer.w_rec), at + layer.width
            arrays: tuple[Any, ...] = (
                gates,
                recalled[:, begin : begin + rows],
                state[:, at:ends],
                new[:, at:ends],
            )
            if self.device.type == "cpu":
                arrays = tuple(array.numpy() for array in arrays)
            layer.step(arrays[0], arrays[1], arrays[2], arrays[3], layer.size)
            at, begin = ends, begin + rows
        return new

    def advance(self, state: Tensor, elements: Tensor) -> Tensor:
        """(n, d), n elements -> (n, d)."""
        return self.step(self.gates(elements), self.recall(state), state)

    def outputs(self, state: Tensor) -> Tensor:
        """(m, d) -> (m, o): what the network answers in these states."""
        if self.head is not None:
            return torch.addmm(self.head[1], state, self.head[0].T)
        return torch.cat([self._head(part) for part in state.split(PART)])

    # ---- the user's own code, with the layer cut out

    def _splice_state(self, x: Tensor, hx: Any = None) -> Any:
        """In the place of the layer: notes what comes in, answers with the given state as if one element had been read."""
        place = 1 if self._rnn.batch_first else 0
        self._entered = (x.squeeze(place), hx)
        count = len(self._entered[0])
        state = (
            self._given
            if self._given is not None
            else torch.zeros(count, self.width, dtype=self.dtype, device=self.device)
        )
        hidden, memory, at = [], [], 0
        for layer in self.layers:
            hidden.append(state[:, at : at + layer.size])
            memory.append(state[:, at + layer.size : at + layer.width])
            at += layer.width
        final = torch.stack(hidden)
        return hidden[-1].clone().unsqueeze(place), (final, torch.stack(memory)) if isinstance(
            self._rnn, nn.LSTM
        ) else final

    def _entry(self, elements: Tensor) -> Tensor:
        """Elements -> (m, inputs of the layer)."""
        elements = (
            elements.to(self.device) if self.tokens is not None else elements.to(self.device, self.dtype)
        )
        if self._structure.plain and self._first is not None:
            return elements
        parts = []
        with self._lock, torch.no_grad(), in_full(self.device):
            for part in elements.split(PART):
                self._given = None
                self._module(part[:, None].clone())  # the user's code may write into what it is given
                assert self._entered is not None
                parts.append(self._entered[0].clone())
        if self._first is None:
            self._first = self._initial(self._entered[1])  # type: ignore[index]
        return torch.cat(parts)

    def _initial(self, hx: Any) -> Tensor:
        """(1, d): the state the user's module begins with; zero unless it says otherwise."""
        if hx is None:
            return torch.zeros(1, self.width, dtype=self.dtype, device=self.device)
        parts = hx if isinstance(hx, tuple) else (hx,)
        return torch.cat([part[depth, :1] for depth in range(len(self.layers)) for part in parts], 1).to(
            self.dtype
        )

    def _head(self, state: Tensor) -> Tensor:
        """(m, d) -> (m, o) through the user's module."""
        example = self._example()
        with self._lock, torch.no_grad(), in_full(self.device):
            self._given = state
            try:
                answer: Tensor = self._module(example.expand(len(state), *example.shape[1:])[:, None].clone())
            finally:
                self._given = None
        return answer

    def _example(self) -> Tensor:
        """One element, (1,) or (1, features)."""
        if self.tokens is not None:
            return torch.zeros(1, dtype=torch.int64, device=self.device)
        shape = self.net.shape[1:] if self.net.shape is not None else (self._rnn.input_size,)
        return torch.zeros(1, *(d or 1 for d in shape), dtype=self.dtype, device=self.device)

    # ---- is it still the network?

    def _agrees(self, sequences: Sequence[Tensor]) -> bool:
        generator = torch.Generator().manual_seed(0)
        given = [sequence[: max(LENGTHS)][None] for sequence in list(sequences)[:ROWS] if len(sequence)]
        prefixes = (
            [self._random(ROWS, length, generator) for length in LENGTHS] + given + self._extreme(generator)
        )
        self.reach = max(float(prefix.abs().max()) for prefix in prefixes)
        if not all(alone(self.net, prefix[0]) is None for prefix in prefixes):
            return False
        reached = [self._run(prefix) for prefix in prefixes]
        truth = torch.cat([ask(self.net, prefix) for prefix in prefixes])
        close, size = CLOSE[self.dtype], truth.abs().amax(1)
        usual = float(
            size[: ROWS * (len(LENGTHS) - 1)].max()
        )  # of short prefixes: a layer with relu may grow without end
        if self._structure.affine:
            self._find_affine_head(torch.cat(reached), close)
        apart = (torch.cat([self.outputs(state) for state in reached]).cpu() - truth).abs().amax(1)
        seen = float((apart / size.clamp_min(usual)).max())
        self.relative = max(close, MARGIN * seen)
        self.slack = self.relative * usual
        return seen <= 10 * close

    def _extreme(self, generator: torch.Generator) -> list[Tensor]:
        """Prefixes with those words of the whole vocabulary that bring the largest sums into the layer, where rounding is largest."""
        if self.tokens is None:
            return []
        weights, words = self.layers[0].w_in.abs().T, torch.arange(self.tokens, device=self.device)
        sums = torch.cat([(self._entry(part).abs() @ weights).amax(1) for part in words.split(PART)])
        largest = sums.topk(min(ROWS, len(sums))).indices.cpu()
        prefixes = [self._random(len(largest), length, generator) for length in (1, 2, 7)]
        for place, prefix in zip((0, 0, 3), prefixes, strict=True):
            prefix[:, place] = largest
        return prefixes

    def covers(self, sequence: Tensor, values: Tensor) -> bool:
        """Rounding may grow with the length, and with the size of a frame: what lies beyond all so far is asked of the module too."""
        if len(sequence) > self.seen:
            if not self._right(sequence[None]):
                return False
            self.seen = len(sequence)
        if self.tokens is None and len(values):
            sizes = values.abs().flatten(1).amax(1)
            if float(sizes.max()) > self.reach:
                largest = values[sizes.topk(min(ROWS, len(sizes))).indices]
                before = sequence[:1].expand(len(largest), *sequence.shape[1:]).to(largest.dtype)
                if not self._right(largest[:, None]) or not self._right(
                    torch.stack([before, largest, before], 1)
                ):
                    return False
                self.reach = float(sizes.max())
        return True

    @torch.no_grad()
    def _right(self, prefixes: Tensor) -> bool:
        truth = ask(self.net, prefixes)
        apart = (self.outputs(self._run(prefixes)).cpu() - truth).abs().amax(1)
        return bool((apart <= self.doubt(truth)).all())

    def doubt(self, outputs: Tensor) -> Tensor:
        """(n, o) -> (n,): labels decided by no more than this are open; in proportion where outputs are larger than usual."""
        return (outputs.abs().amax(1) * self.relative).clamp_min(self.slack)

    def _run(self, prefix: Tensor) -> Tensor:
        state = self.start(len(prefix))
        for place in range(prefix.shape[1]):
            state = self.advance(state, prefix[:, place])
        return state

    def _random(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        if self.tokens is not None:
            drawn = torch.randint(0, self.tokens, (count, length), generator=generator)
            if (
                count == ROWS
            ):  # the first and the last token often mean something else to a module: padding, the unknown word
                drawn[0, -1], drawn[1, 0], drawn[2, length // 2], drawn[3, -1], drawn[4] = (
                    0,
                    0,
                    0,
                    self.tokens - 1,
                    0,
                )
            return drawn
        return torch.randn((count, length, *self._example().shape[1:]), generator=generator, dtype=self.dtype)

    def _find_affine_head(self, states: Tensor, close: float) -> None:
        """One product instead of the user's code, where that is all it does: that the head is affine is known, here its weights are
        measured. Where they are too coarse, beside a large bias say, the user's code stays."""
        bias = self._head(torch.zeros(1, self.width, dtype=self.dtype, device=self.device))
        large = PROBE * torch.eye(self.width, dtype=self.dtype, device=self.device)
        weights = (torch.cat([self._head(part) for part in large.split(PART)]) - bias) / PROBE
        truth = self._head(states)
        apart = (states @ weights + bias - truth).abs().amax(1)
        if bool((apart <= close * truth.abs().amax(1).clamp_min(float(bias.abs().max()))).all()):
            self.head = (weights.T.contiguous(), bias[0])
