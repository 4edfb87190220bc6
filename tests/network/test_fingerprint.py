"""Hashes of many rows at once are those of one row at a time, so that runs are known again."""

import torch

from holdfast.network.callable_fingerprint import of_rows, of_value


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
