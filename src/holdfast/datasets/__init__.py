"""Small datasets and networks that need no download."""

from holdfast.datasets.digits import Digits, digits

__all__ = ["Digits", "digits"]
