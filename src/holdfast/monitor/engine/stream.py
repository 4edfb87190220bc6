"""Scores element by element: the stream holds the state."""

from typing import TYPE_CHECKING, Any

from holdfast.monitor.engine.engines import BatchEngine, Engine, EstimateEngine, RerunEngine
from holdfast.monitor.engine.numpy_stream import NumpyEngine
from holdfast.monitor.engine.recurrent import Recurrent
from holdfast.monitor.engine.sampled import Drawn, interval
from holdfast.monitor.mutation.choices import Mutation, Still
from holdfast.monitor.score import Score

if TYPE_CHECKING:
    from holdfast.monitor.monitor import Monitor


class Stream:
    """A stream with its own state.

    Memory does not grow with its length; a black box keeps up to max_length elements.
    """

    def __init__(self, monitor: "Monitor") -> None:
        self.monitor = monitor
        self.evidence = monitor.evidence(0)
        self.engine = self._engine()

    def reset(self) -> None:
        # Sampling starts with the same random numbers again.
        self.engine = self._engine() if self.monitor.settings.mode == "sampled" else self.engine
        self.engine.reset()

    def _engine(self) -> Engine:
        monitor, s = self.monitor, self.monitor.settings
        view, outputs, mutation = monitor.view, monitor.outputs, monitor.mutation
        if s.mode == "sampled":
            mutation = Drawn(mutation, s.samples, monitor.generator())
        if s.mode == "exact" and monitor.quick is not None:
            return monitor.quick.fresh()
        followed: Mutation = Still() if s.fitted else mutation
        if view is None:
            engine: NumpyEngine | BatchEngine | RerunEngine = RerunEngine(
                monitor.net, followed, outputs, s.max_length, apart=s.mode == "exact"
            )
        elif s.fitted and isinstance(view, Recurrent) and NumpyEngine.fits(view, followed, outputs):
            engine = NumpyEngine(view, followed)
        else:
            engine = BatchEngine(view, followed, outputs)
        return EstimateEngine(engine, mutation, monitor.tree) if s.fitted else engine

    def step(self, element: Any) -> Score | None:
        """Score an element now. None if it is unknown and unknown elements are skipped."""
        monitor = self.monitor
        known = monitor.reader.one(element)
        if known is None:
            return None
        value, low, high, label, support = self.engine.step(known)
        if monitor.settings.mode == "sampled":
            support = monitor.settings.samples
            low = float(interval(round(low * support), support, monitor.settings.confidence)[0])
            high = float(interval(round(high * support), support, monitor.settings.confidence)[1])
        return Score(value, low, high, label, support, self.evidence)
