"""Engines of a stream, except for the numpy engine: opened networks, black boxes, estimates."""

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.monitor.engine.numpy_stream import CACHED_CHOICES, Numbers, NumpyEngine, Step, compute_score
from holdfast.monitor.engine.rerun import check_consistency, query
from holdfast.monitor.engine.state_view import StateView
from holdfast.monitor.mutation.choices import Mutation
from holdfast.monitor.outputs import Output
from holdfast.network import Network


class BatchEngine:
    """An opened network: all values or draws of the element in one batch from the current state."""

    def __init__(self, view: StateView, mutation: Mutation, output: Output) -> None:
        self.view, self.mutation, self.output = view, mutation, output
        self.reset()

    def reset(self) -> None:
        self.state = self.view.start(1)
        self.margin = 0.0

    @property
    def after(self) -> Numbers:
        return self.state[0].cpu().numpy()

    @torch.no_grad()
    def step(self, element: Any) -> Step:
        found = self.mutation.choices(element)
        count = len(found.values)
        recalled = self.view.recall(self.state).expand(count, -1)
        new = self.view.step(self.view.gates(found.values), recalled, self.state.expand(count, -1))
        self.state = new[:1].clone()
        outputs = self.view.outputs(new).cpu()
        reference = outputs[:1].expand(count, -1)
        margins = self.output.margins(outputs, reference)
        self.margin = float(margins[0])
        close = ~(margins > self.view.doubt(outputs))
        said, label = self.output.labels(outputs, reference), int(self.output.own(outputs[:1])[0])
        return compute_score(label, said.numpy(), close.numpy(), found.probability.numpy())


class RerunEngine:
    """A black box: the sequence so far is kept, up to `longest` elements, and rerun at every step."""

    def __init__(
        self, net: Network, mutation: Mutation, output: Output, longest: int, *, apart: bool
    ) -> None:
        self.net, self.mutation, self.output, self.longest, self.apart = net, mutation, output, longest, apart
        self.reset()

    def reset(self) -> None:
        self.past: list[Tensor] = []
        self.after: Numbers = np.zeros(0)  # its outputs, used as the state
        self.margin = 0.0

    def step(self, element: Any) -> Step:
        if len(self.past) >= self.longest:
            raise BadInput(
                f"a stream of more than {self.longest} elements: {self.net.name} is a black box, so every "
                "step reruns all of "
                f"them. Call reset() for a new stream, or raise max_length."
            )
        found = self.mutation.choices(element)
        self.past.append(found.values[0])
        prefixes = (
            torch.stack(self.past).expand(len(found.values), len(self.past), *found.values.shape[1:]).clone()
        )
        prefixes[:, -1] = found.values
        if len(self.past).bit_count() == 1:  # at lengths 1, 2, 4, 8, ...: the cost stays small
            check_consistency(self.net, prefixes[0])
        outputs = query(self.net, prefixes, apart=self.apart)
        reference = outputs[:1].expand(len(outputs), -1)
        self.after, self.margin = outputs[0].numpy(), float(self.output.margins(outputs[:1], outputs[:1])[0])
        said, label = self.output.labels(outputs, reference), int(self.output.own(outputs[:1])[0])
        return compute_score(label, said.numpy(), np.zeros(len(said), dtype=bool), found.probability.numpy())


class EstimateEngine:
    """The network makes its own step; the abstract model estimates the effect of mutants of the element."""

    def __init__(
        self, engine: NumpyEngine | BatchEngine | RerunEngine, mutation: Mutation, tree: Any
    ) -> None:
        self.engine, self.tree = engine, tree

        def ready(token: int) -> tuple[int, bool]:
            return int(mutation.abstract(torch.tensor([token]))[0]), not mutation.finite or len(
                mutation.choices(token).values
            ) > 1

        self._ready, self._mutation = lru_cache(maxsize=CACHED_CHOICES)(ready), mutation

    def reset(self) -> None:
        self.engine.reset()

    def step(self, element: Any) -> Step:
        before = self.engine.after
        label = self.engine.step(element)[3]
        group, attackable = (
            self._ready(element)
            if isinstance(element, int)
            else (int(self._mutation.abstract(element[None])[0]), True)
        )
        if not attackable:
            return 1.0, 1.0, 1.0, label, 1
        state = before if self.tree.needs_state_before else self.engine.after
        value, support, low, high = self.tree.single(state, group, label, float(self.engine.margin))
        return value, low, high, label, int(support)


Engine = NumpyEngine | BatchEngine | RerunEngine | EstimateEngine
