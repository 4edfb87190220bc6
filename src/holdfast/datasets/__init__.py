"""Embedded defaults: small data that comes with the dependencies, so that every example runs without a download."""

from holdfast.datasets.digits import Digits, digits

__all__ = ["Digits", "digits"]
