"""Hashes of many rows at once are those of one row at a time, so that runs are known again."""

from collections.abc import Callable
from fractions import Fraction

import pytest
import torch

from holdfast.network.callable_fingerprint import hash_callable, of_rows, of_value
from holdfast.network.fingerprint import combine_hashes, of_output, of_tensors
from holdfast.network.model_identity import named_by


def test_rows_are_hashed_as_each_alone_would_be() -> None:
    rows = [
        torch.randn(4, 3, 2),
        torch.arange(4),
        torch.rand(4, 2) > 0.5,
        torch.randn(4, dtype=torch.float64),
        torch.zeros(4, 0),
    ]
    rows += [torch.ones(1).expand(4, 1), torch.ones(2).expand(4, 2)]
    assert of_rows("asked", rows) == [of_value(["asked", *(part[row] for part in rows)]) for row in range(4)]
    assert of_rows("asked", [part.flip(0) for part in rows]) == of_rows("asked", rows)[::-1]
    assert len({*of_rows("asked", rows), *of_rows("other", rows)}) == 8


@pytest.mark.parametrize(
    ("digest", "stored"),
    [
        (lambda: named_by("version 1"), "20bd32ac9487819e"),
        (lambda: of_tensors({"w": torch.arange(3.0)}, begin="x"), "189d5d4a243f78c0"),
        (lambda: combine_hashes("a", "b", ""), "7e18f737311b2dc3"),
        (lambda: of_output("logits"), "6264465f7d598a20"),
        (
            lambda: of_value({"a": [1, -2, "x"], "b": (None, 2.5, Fraction(1, 3)), "c": torch.arange(4)}),
            "765b2ba0ab757e65",
        ),
        (
            lambda: hash_callable([{1, 2}, {"k": bytearray(b"z")}, torch.arange(4.0).expand(2, 4)])[0],
            "10c79da8ed1b5efc",
        ),
    ],
)
def test_digests_are_those_of_stored_runs(digest: Callable[[], str], stored: str) -> None:
    """A run that was stored by an earlier version can be resumed only if its hashes do not change."""
    assert digest().startswith(stored)
