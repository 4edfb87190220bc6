"""Symbolic check that a module is a recurrent layer between an element-wise front and head, by tracing its
code."""
