"""The exception by which a check ends with rejection."""


class Rejected(Exception):
    """A step of a proof that does not hold, or that this checker does not support. Nothing is accepted after
    it.
    """


class NoBounds(Rejected):
    """The bounds of a step are infinite or exclude each other, so the proof needs other slopes or subproblems."""


def require(holds: object, what: str) -> None:
    """Raise `Rejected` unless the condition holds. Unlike assert, it cannot be disabled by an option of
    Python.
    """
    if not holds:
        raise Rejected(what)
