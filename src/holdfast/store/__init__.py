"""Runs on disk: a folder with one SQLite file that survives a kill at any moment and can be resumed."""

from holdfast.store.database import FILE, VERSION
from holdfast.store.input_table import SALIENCY
from holdfast.store.provenance import provenance
from holdfast.store.rows import Event, StoredInput
from holdfast.store.run import Store

__all__ = ["FILE", "SALIENCY", "VERSION", "Event", "Store", "StoredInput", "provenance"]
