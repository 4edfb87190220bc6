"""Small datasets and networks that come with the package and its dependencies, so that every example runs
offline."""

from holdfast.datasets.digits import Digits, digits

__all__ = ["Digits", "digits"]
