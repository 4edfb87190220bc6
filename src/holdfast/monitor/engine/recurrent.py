"""White-box view of a network with one recurrent layer between a front and a head.

The layer is found in the user's module. The code before it (an embedding, scaling) and after it (any head)
stays the user's own and runs with the layer replaced. That these parts are the network, for every sequence,
is derived from the module's code (`structure`); a module that cannot be analysed is not opened. Prefixes are
then compared to measure the difference between the two arithmetics, and to detect a module with hidden
behaviour.
"""

import copy
import threading
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.monitor.engine.cells import RecurrentWeights, layers_of
from holdfast.monitor.engine.rerun import ROUNDING_TOLERANCE, find_inconsistency, full_precision, query
from holdfast.monitor.structure.marks import UnreadableError
from holdfast.monitor.structure.structure import read_structure
from holdfast.network import Network

# Lengths of the random prefixes on which the view is compared with the network.
PREFIX_LENGTHS = (1, 2, 3, 7, 19, 101)
PREFIXES_PER_LENGTH = 6  # Number of random prefixes of each length (chosen by hand).
TABLE_BYTES = 2**29  # Limit for the table of input products over a vocabulary (chosen by hand).
ROWS_PER_CALL = 4096  # Number of tokens or frames in one call of the user's code (chosen by hand).
# Scale of the states that measure a head's weights, so that its bias does not hide them (a power of two).
PROBE_SCALE = 1024.0
# Safety factor on the largest difference that was seen between the two arithmetics (chosen by hand).
SAFETY_FACTOR = 32


class Recurrent:
    """State (n, d) with h and c of all layers: [h_0, c_0, h_1, c_1, ...]; d is `width`.

    slack: a label decided by less than this may differ between this view and the user's module. Then the
    module is queried.
    """

    def __init__(self, net: Network) -> None:
        """Raises any error of the user's module; use `of`."""
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
            or self.dtype not in ROUNDING_TOLERANCE
        ):
            raise UnreadableError("its layer is of another kind")
        self.frame = (
            None if self.tokens is not None else tuple(self._example().shape[1:])
        )  # shape of one frame
        generator = torch.Generator().manual_seed(0)
        self._structure = read_structure(
            whole, lambda count, length: self._random(count, length, generator).to(self.device)
        )
        self._rnn.forward = self._splice_state
        self.layers: list[RecurrentWeights] = layers_of(self._rnn)
        self.width = sum(layer.width for layer in self.layers)
        self._lock = threading.RLock()  # streams of several threads share one view
        self._given: Tensor | None = None  # the state that the replaced layer returns
        self._entered: tuple[Tensor, Any] | None = None
        self._first: Tensor | None = None
        self._table: Tensor | None = None
        self.head: tuple[Tensor, Tensor] | None = None  # weights (o, d) and bias, where the head is affine
        self.relative = self.slack = 0.0
        self.reach = 0.0  # the largest number in a frame that was compared
        self.seen = max(PREFIX_LENGTHS)  # the longest sequence on which the view was compared

    @staticmethod
    def of(net: Network, sequences: Sequence[Tensor] = ()) -> "Recurrent | None":
        """Open the network; None if it is not one recurrent layer between an element-wise front and head.

        Examples of the latter: bidirectional layers, sums over time, attention, black boxes. sequences:
            prefixes of these are
        compared in addition to random ones.
        """
        try:
            view = Recurrent(net)
            with torch.no_grad():
                return view if view._agrees(sequences) else None
        except (
            Exception
        ):  # the user's module may raise anything when it is taken apart; then it stays a black box
            return None

    # ---- stepping

    def start(self, count: int) -> Tensor:
        """Return the initial state, (count, d)."""
        if self._first is None:
            self._entry(self._example())
        assert self._first is not None
        return self._first.expand(count, -1).clone()

    def gates(self, elements: Tensor) -> Tensor:
        """ids (m,) or frames (m, ...) -> (m, G) in fresh memory: their contribution to the first layer."""
        table = self.products()
        if table is not None:
            return table.index_select(0, elements.to(self.device))
        layer = self.layers[0]
        return torch.addmm(layer.b_in, self._entry(elements), layer.w_in.T)

    def layer_inputs(self, elements: Tensor) -> Tensor:
        """ids (m,) or frames (m, ...) -> (m, inputs): what the first layer reads of them."""
        return self._entry(elements)

    def products(self) -> Tensor | None:
        """Return (words, G): the input products of the whole vocabulary, if they fit into TABLE_BYTES."""
        layer = self.layers[0]
        if self.tokens is None:
            return None
        if self._table is None and self.tokens * len(layer.w_in) * layer.w_in.element_size() <= TABLE_BYTES:
            words = torch.arange(self.tokens, device=self.device)
            self._table = torch.cat(
                [
                    torch.addmm(layer.b_in, self._entry(part), layer.w_in.T)
                    for part in words.split(ROWS_PER_CALL)
                ]
            )
        return self._table

    def recall(self, state: Tensor) -> Tensor:
        """(n, d) -> (n, R): contributions of the states, for all layers.

        They are shared by all mutants of the next element.
        """
        parts, at = [], 0
        for layer in self.layers:
            h = state[:, at : at + layer.size]
            parts.append(
                h @ layer.w_rec.T if layer.b_rec is None else torch.addmm(layer.b_rec, h, layer.w_rec.T)
            )
            at += layer.width
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def step(self, gates: Tensor, recalled: Tensor, state: Tensor) -> Tensor:
        """(m, G), (m, R), (m, d) -> (m, d): the states after the element. Overwrites `gates`."""
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
        """(n, d), n elements -> (n, d): the states after the elements."""
        return self.step(self.gates(elements), self.recall(state), state)

    def outputs(self, state: Tensor) -> Tensor:
        """(m, d) -> (m, o): the network's outputs in these states."""
        if self.head is not None:
            return torch.addmm(self.head[1], state, self.head[0].T)
        return torch.cat([self._head(part) for part in state.split(ROWS_PER_CALL)])

    # ---- the user's own code, with the layer replaced

    def _splice_state(self, x: Tensor, hx: Any = None) -> Any:
        """Replaces the layer: records its input, and returns the given state."""
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
        with self._lock, torch.no_grad(), full_precision(self.device):
            for part in elements.split(ROWS_PER_CALL):
                self._given = None
                self._module(part[:, None].clone())  # the user's code may modify its input
                assert self._entered is not None
                parts.append(self._entered[0].clone())
        if self._first is None:
            self._first = self._initial(self._entered[1])  # type: ignore[index]
        return torch.cat(parts)

    def _initial(self, hx: Any) -> Tensor:
        """(1, d): the initial state of the user's module; zero by default."""
        if hx is None:
            return torch.zeros(1, self.width, dtype=self.dtype, device=self.device)
        parts = hx if isinstance(hx, tuple) else (hx,)
        return torch.cat([part[depth, :1] for depth in range(len(self.layers)) for part in parts], 1).to(
            self.dtype
        )

    def _head(self, state: Tensor) -> Tensor:
        """(m, d) -> (m, o), computed by the user's module."""
        example = self._example()
        with self._lock, torch.no_grad(), full_precision(self.device):
            self._given = state
            try:
                answer: Tensor = self._module(example.expand(len(state), *example.shape[1:])[:, None].clone())
            finally:
                self._given = None
        return answer

    def _example(self) -> Tensor:
        """Return one element, (1,) or (1, features)."""
        if self.tokens is not None:
            return torch.zeros(1, dtype=torch.int64, device=self.device)
        shape = self.net.shape[1:] if self.net.shape is not None else (self._rnn.input_size,)
        return torch.zeros(1, *(d or 1 for d in shape), dtype=self.dtype, device=self.device)

    # ---- comparison with the network

    def _agrees(self, sequences: Sequence[Tensor]) -> bool:
        generator = torch.Generator().manual_seed(0)
        given = [
            sequence[: max(PREFIX_LENGTHS)][None]
            for sequence in list(sequences)[:PREFIXES_PER_LENGTH]
            if len(sequence)
        ]
        prefixes = (
            [self._random(PREFIXES_PER_LENGTH, length, generator) for length in PREFIX_LENGTHS]
            + given
            + self._extreme(generator)
        )
        self.reach = max(float(prefix.abs().max()) for prefix in prefixes)
        if not all(find_inconsistency(self.net, prefix[0]) is None for prefix in prefixes):
            return False
        reached = [self._run(prefix) for prefix in prefixes]
        truth = torch.cat([query(self.net, prefix) for prefix in prefixes])
        close, size = ROUNDING_TOLERANCE[self.dtype], truth.abs().amax(1)
        # Short prefixes only: the outputs of a layer with ReLU may grow without limit.
        usual = float(size[: PREFIXES_PER_LENGTH * (len(PREFIX_LENGTHS) - 1)].max())
        if self._structure.affine:
            self._find_affine_head(torch.cat(reached), close)
        apart = (torch.cat([self.outputs(state) for state in reached]).cpu() - truth).abs().amax(1)
        seen = float((apart / size.clamp_min(usual)).max())
        self.relative = max(close, SAFETY_FACTOR * seen)
        self.slack = self.relative * usual
        return seen <= 10 * close

    def _extreme(self, generator: torch.Generator) -> list[Tensor]:
        """Prefixes with the words that have the largest input products, where rounding errors are largest."""
        if self.tokens is None:
            return []
        weights, words = self.layers[0].w_in.abs().T, torch.arange(self.tokens, device=self.device)
        sums = torch.cat([(self._entry(part).abs() @ weights).amax(1) for part in words.split(ROWS_PER_CALL)])
        largest = sums.topk(min(PREFIXES_PER_LENGTH, len(sums))).indices.cpu()
        prefixes = [self._random(len(largest), length, generator) for length in (1, 2, 7)]
        for place, prefix in zip((0, 0, 3), prefixes, strict=True):
            prefix[:, place] = largest
        return prefixes

    def covers(self, sequence: Tensor, values: Tensor) -> bool:
        """Compare again on longer sequences and larger frames: rounding errors may be larger."""
        if len(sequence) > self.seen:
            if not self._right(sequence[None]):
                return False
            self.seen = len(sequence)
        if self.tokens is None and len(values):
            sizes = values.abs().flatten(1).amax(1)
            if float(sizes.max()) > self.reach:
                largest = values[sizes.topk(min(PREFIXES_PER_LENGTH, len(sizes))).indices]
                before = sequence[:1].expand(len(largest), *sequence.shape[1:]).to(largest.dtype)
                if not self._right(largest[:, None]) or not self._right(
                    torch.stack([before, largest, before], 1)
                ):
                    return False
                self.reach = float(sizes.max())
        return True

    @torch.no_grad()
    def _right(self, prefixes: Tensor) -> bool:
        truth = query(self.net, prefixes)
        apart = (self.outputs(self._run(prefixes)).cpu() - truth).abs().amax(1)
        return bool((apart <= self.doubt(truth)).all())

    def doubt(self, outputs: Tensor) -> Tensor:
        """(n, o) -> (n,): a label with a margin of at most this is undecided."""
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
                count == PREFIXES_PER_LENGTH
            ):  # the first and last token often have a special meaning: padding, the unknown word
                drawn[0, -1] = 0
                drawn[1, 0] = 0
                drawn[2, length // 2] = 0
                drawn[3, -1] = self.tokens - 1
                drawn[4] = 0
            return drawn
        return torch.randn((count, length, *self._example().shape[1:]), generator=generator, dtype=self.dtype)

    def _find_affine_head(self, states: Tensor, close: float) -> None:
        """Measure the weights of an affine head, so that one product replaces the user's code.

        The head is known to be affine. If the measured weights are too inaccurate, for example because of a
        large bias, the user's code stays in use.
        """
        bias = self._head(torch.zeros(1, self.width, dtype=self.dtype, device=self.device))
        large = PROBE_SCALE * torch.eye(self.width, dtype=self.dtype, device=self.device)
        weights = (torch.cat([self._head(part) for part in large.split(ROWS_PER_CALL)]) - bias) / PROBE_SCALE
        truth = self._head(states)
        apart = (states @ weights + bias - truth).abs().amax(1)
        if bool((apart <= close * truth.abs().amax(1).clamp_min(float(bias.abs().max()))).all()):
            self.head = (weights.T.contiguous(), bias[0])
