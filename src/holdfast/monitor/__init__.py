"""Robustness scores of recurrent networks in real time, exact or with their evidence."""

from typing import TYPE_CHECKING

from holdfast.monitor.engine.stream import Stream
from holdfast.monitor.engine.streaming import Streaming
from holdfast.monitor.guard import Guard
from holdfast.monitor.monitor import Monitor
from holdfast.monitor.mutation.mutation import ElementChoices, Groups, Mutation, Noise, Own, Typos
from holdfast.monitor.outputs import Bins, Classes, Output, Tolerance
from holdfast.monitor.score import Score, Scores

if TYPE_CHECKING:
    from holdfast.monitor.estimator import MonitorEstimator as MonitorEstimator

__all__ = [
    "Bins",
    "Classes",
    "ElementChoices",
    "Groups",
    "Guard",
    "Monitor",
    "MonitorEstimator",
    "Mutation",
    "Noise",
    "Output",
    "Own",
    "Score",
    "Scores",
    "Stream",
    "Streaming",
    "Tolerance",
    "Typos",
]


def __getattr__(name: str) -> object:
    """Import the estimator, and with it scikit-learn, only where it is used."""
    if name == "MonitorEstimator":
        from holdfast.monitor.estimator import MonitorEstimator

        return MonitorEstimator
    raise AttributeError(f"module 'holdfast.monitor' has no attribute {name!r}")
