"""Edited texts: exact enumeration, searches, and bounds by a dynamic programme over positions and edits."""

from holdfast.edits.bounds import EditBounds
from holdfast.edits.enumerate import EnumerateEdits
from holdfast.edits.search import EditSearch

__all__ = ["EditBounds", "EditSearch", "EnumerateEdits"]
