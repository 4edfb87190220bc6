"""Robustness scores of recurrent networks in real time, exact or with their evidence."""

from holdfast.monitor.engine.stream import Stream
from holdfast.monitor.engine.streaming import Streaming
from holdfast.monitor.guard import Guard
from holdfast.monitor.monitor import Monitor
from holdfast.monitor.mutation.mutation import ElementChoices, Groups, Mutation, Noise, Own, Typos
from holdfast.monitor.outputs import Bins, Classes, Output, Tolerance
from holdfast.monitor.score import Score, Scores

__all__ = [
    "Bins",
    "Classes",
    "ElementChoices",
    "Groups",
    "Guard",
    "Monitor",
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
