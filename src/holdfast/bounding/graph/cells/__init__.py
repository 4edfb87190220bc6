"""Recurrent layers, unrolled over time into affine maps and gates: one module per cell."""

from holdfast.bounding.graph.cells import gru, lstm, rnn

__all__ = ["gru", "lstm", "rnn"]
