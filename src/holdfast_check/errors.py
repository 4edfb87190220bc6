"""The one way in which a check ends early."""


class Rejected(Exception):
    """The first step of a proof that does not hold, or that this checker cannot follow. Nothing is accepted after it."""
