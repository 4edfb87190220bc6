"""The errors that users see: each says what is wrong, where, and what to do. The commands exit with 2."""

from holdfast.foreign_text import cut_text

LONGEST_MESSAGE = 8000  # Characters. A message may quote a file or a model, whose text has no limit.


class HoldfastError(Exception):
    """The base of all errors for users. A message has at most LONGEST_MESSAGE characters."""

    def __init__(self, *what: object) -> None:
        super().__init__(*(cut_text(one, LONGEST_MESSAGE) if isinstance(one, str) else one for one in what))


class BadInput(HoldfastError):
    """The model, the data or an argument cannot be used for this request."""


class UnreadableFile(HoldfastError):
    """A file is missing, truncated, of another format than its name says, or would run code when opened."""


class UnsupportedLayer(HoldfastError):
    """A layer cannot be imported, traced or bounded. Black-box methods still work."""


class MissingExtra(HoldfastError):
    """An optional dependency is missing; the message names the extra to install."""


class StoreError(HoldfastError):
    """The run folder cannot be written or read, or belongs to another question."""


class Contradiction(HoldfastError):
    """A proved lower bound exceeds an upper bound from a counterexample: one of the two methods is wrong."""
