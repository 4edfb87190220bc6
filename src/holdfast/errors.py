"""Every error a user can meet says what, where and what to do. The command line prints it and exits with 2."""

from holdfast.foreign_text import cut_text

LONGEST_MESSAGE = 8000  # characters: a message may quote what a file or a model says, which may have no end


class HoldfastError(Exception):
    """Anything holdfast refuses to do, or cannot do, told to the person who asked. Its message has at most LONGEST_MESSAGE characters."""

    def __init__(self, *what: object) -> None:
        super().__init__(*(cut_text(one, LONGEST_MESSAGE) if isinstance(one, str) else one for one in what))


class BadInput(HoldfastError):
    """The model, the data or an option is not what the question needs."""


class UnreadableFile(HoldfastError):
    """A file is missing, truncated, not what its name says, or would run code when opened."""


class UnsupportedLayer(HoldfastError):
    """A layer that cannot be imported, traced or bounded. Black-box methods still work."""


class MissingExtra(HoldfastError):
    """An optional dependency is needed; the message names the extra to install."""


class StoreError(HoldfastError):
    """The run directory cannot be written, read, or does not belong to this question."""


class Contradiction(HoldfastError):
    """A proved lower bound lies above a witnessed upper bound: one of the two methods is wrong."""
