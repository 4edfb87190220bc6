"""The one way in which a check ends early."""


class Rejected(Exception):
    """The first step of a proof that does not hold, or that this checker cannot follow. Nothing is accepted after it."""


def require(holds: object, what: str) -> None:
    """Like assert, which Python can be told to leave out."""
    if not holds:
        raise Rejected(what)
