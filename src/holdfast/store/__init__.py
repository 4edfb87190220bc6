"""The run on disk: a folder with one SQLite file that survives a kill at any moment and can be taken up again."""

from holdfast.store.database import FILE, VERSION
from holdfast.store.rows import Event, StoredInput
from holdfast.store.run import SALIENCY, Store, provenance

__all__ = ["FILE", "SALIENCY", "VERSION", "Event", "Store", "StoredInput", "provenance"]
