"""Counters in Prometheus' text format, without a library.

Every worker writes one row of a shared array, and only in its event loop. A request for the metrics adds up
all rows.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate, product
from typing import Any

import numpy as np

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)  # Seconds.
SCORES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)  # Upper edges of the histogram of scores.
TYPE = "text/plain; version=0.0.4; charset=utf-8"
PATHS = ("/score", "/health", "/live", "/ready", "/metrics", "other")
# Status codes of HTTP that the service answers with; each has a counter.
STATUSES = (200, 400, 401, 404, 405, 408, 413, 422, 429, 500, 503)
PLACE = {pair: place for place, pair in enumerate(product(PATHS, STATUSES))}
FAILED, ELEMENTS, STREAMS, UP, SECONDS, FIRST = range(len(PLACE), len(PLACE) + 6)
FIRST_SCORE = FIRST + len(BUCKETS) + 1  # The histogram of scores begins here, after that of seconds.
SCORE_SUM = FIRST_SCORE + len(SCORES) + 1
SIZE = SCORE_SUM + 1

Board = np.ndarray[Any, np.dtype[np.float64]]


class Metrics:
    """Counters of a service.

    They contain nothing that a client wrote: unknown paths and statuses are grouped.
    """

    def __init__(self, board: Board | None = None, own: int = 0) -> None:
        """board: (workers, SIZE), shared by the workers; own: this worker's row."""
        self.board = np.zeros((1, SIZE)) if board is None else board
        self.row = self.board[own]
        self.row[[STREAMS, UP]] = 0  # left over from a worker that crashed

    @property
    def streams(self) -> int:
        """Number of open streams of this worker."""
        return int(self.row[STREAMS])

    def count_answer(self, path: str, status: int, seconds: float) -> None:
        path = path if path in PATHS else "other"
        nearest = status if status in STATUSES else 500 if status >= 500 else 400 if status >= 400 else 200
        self.row[PLACE[path, nearest]] += 1
        self.row[FAILED] += status >= 400
        if path == "/score":
            self.row[FIRST + bisect_left(BUCKETS, seconds)] += 1
            self.row[SECONDS] += seconds

    def count_failure(self) -> None:
        self.row[FAILED] += 1

    def count_scores(self, scores: Sequence[float]) -> None:
        """Count elements with their scores, the probabilities that the answer stays."""
        self.row[ELEMENTS] += len(scores)
        for score in scores:
            self.row[FIRST_SCORE + bisect_left(SCORES, score)] += 1
            self.row[SCORE_SUM] += score

    def up(self) -> None:
        """Mark this worker as ready."""
        self.row[UP] = 1

    def count_streams(self, streams: int) -> None:
        self.row[STREAMS] += streams

    def text(self) -> str:
        return "\n".join(self._lines(self.board.sum(0).tolist())) + "\n"

    def _lines(self, total: list[float]) -> Iterator[str]:
        yield from _header("holdfast_requests_total", "counter", "Requests answered, by path and status.")
        for (path, status), place in PLACE.items():
            if total[place]:
                yield f'holdfast_requests_total{{path="{path}",status="{status}"}} {total[place]:.0f}'
        yield from _header(
            "holdfast_errors_total",
            "counter",
            "Answers of status 400 and above, and refused messages of streams.",
        )
        yield f"holdfast_errors_total {total[FAILED]:.0f}"
        yield from _header(
            "holdfast_elements_scored_total", "counter", "Elements scored, by request or stream."
        )
        yield f"holdfast_elements_scored_total {total[ELEMENTS]:.0f}"
        yield from _header("holdfast_streams", "gauge", "Streams open now.")
        yield f"holdfast_streams {total[STREAMS]:.0f}"
        yield from _header(
            "holdfast_workers", "gauge", "Worker processes that came up; all numbers here are their sums."
        )
        yield f"holdfast_workers {total[UP]:.0f}"
        yield from _histogram(
            "holdfast_score_seconds",
            "Time from the request for a score to its answer.",
            BUCKETS,
            total[FIRST:FIRST_SCORE],
            total[SECONDS],
        )
        yield from _histogram(
            "holdfast_score",
            "Scores of elements: the probability that the answer stays.",
            SCORES,
            total[FIRST_SCORE:SCORE_SUM],
            total[SCORE_SUM],
        )


def _histogram(
    name: str, says: str, edges: Sequence[float], counts: Sequence[float], total: float
) -> Iterator[str]:
    """The lines of a histogram. counts: of values up to each edge and above the one before, then above all edges."""
    yield from _header(name, "histogram", says)
    for edge, count in zip((*edges, "+Inf"), accumulate(counts), strict=True):
        yield f'{name}_bucket{{le="{edge}"}} {count:.0f}'
    yield f"{name}_sum {total:.9g}"
    yield f"{name}_count {sum(counts):.0f}"


def _header(name: str, kind: str, says: str) -> Iterator[str]:
    yield f"# HELP {name} {says}"
    yield f"# TYPE {name} {kind}"
