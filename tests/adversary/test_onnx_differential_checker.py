"""The same slice for holdfast-check, whose reading of a file is what an accepted proof speaks of."""

import pytest

pytest.importorskip("onnxruntime")

from benchmarks.onnx_differential.__main__ import run, smallest, table


def test_the_checker_reads_a_file_as_onnxruntime_runs_it_or_refuses() -> None:
    tally = run(seed=31, cases=480, targets=["checker"])
    assert not tally.differences, "\n\n".join(smallest(tally))
    assert sum(counts["agreed"] for counts in tally.outcomes.values()) > 20, table(tally)
