"""Perturbation sets: one module for each, with the same operations on a whole batch (see `base`)."""

from holdfast.region.ball import Ball
from holdfast.region.base import Domain, Family, Region
from holdfast.region.box import Box
from holdfast.region.columns import Column, Columns
from holdfast.region.drift import Drift
from holdfast.region.edits import EditedTexts, EditRules
from holdfast.region.features import Features
from holdfast.region.frames import Frames
from holdfast.region.patch import Patch
from holdfast.region.rows import ChangedColumns, Rows
from holdfast.region.sparse import Sparse
from holdfast.region.words import Words

__all__ = [
    "Ball",
    "Box",
    "ChangedColumns",
    "Column",
    "Columns",
    "Domain",
    "Drift",
    "EditRules",
    "EditedTexts",
    "Family",
    "Features",
    "Frames",
    "Patch",
    "Region",
    "Rows",
    "Sparse",
    "Words",
]
