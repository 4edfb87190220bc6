"""Counters in Prometheus' text format, by hand: a dozen lines need no library."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)  # seconds
TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """What a service has done since it began. Only the event loop's thread writes."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by path and status
        self.failed = 0
        self.elements = 0
        self.streams = 0
        self.seconds = 0.0
        self._buckets = [0] * (len(BUCKETS) + 1)

    def answered(self, path: str, status: int, seconds: float) -> None:
        self.requests[path, status] += 1
        self.failed += status >= 400
        if path == "/score":
            self._buckets[bisect_left(BUCKETS, seconds)] += 1
            self.seconds += seconds

    def text(self) -> str:
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield from _header("holdfast_requests_total", "counter", "Requests answered, by path and status.")
        for (path, status), count in sorted(self.requests.items()):
            yield f'holdfast_requests_total{{path="{path}",status="{status}"}} {count}'
        yield from _header("holdfast_errors_total", "counter", "Answers of status 400 and above, and refused messages of streams.")
        yield f"holdfast_errors_total {self.failed}"
        yield from _header("holdfast_elements_scored_total", "counter", "Elements scored, by request or stream.")
        yield f"holdfast_elements_scored_total {self.elements}"
        yield from _header("holdfast_streams", "gauge", "Streams open now.")
        yield f"holdfast_streams {self.streams}"
        yield from _header("holdfast_score_seconds", "histogram", "Time from the request for a score to its answer.")
        for edge, count in zip((*BUCKETS, "+Inf"), accumulate(self._buckets), strict=True):
            yield f'holdfast_score_seconds_bucket{{le="{edge}"}} {count}'
        yield f"holdfast_score_seconds_sum {self.seconds:.9g}"
        yield f"holdfast_score_seconds_count {sum(self._buckets)}"


def _header(name: str, kind: str, says: str) -> Iterator[str]:
    yield f"# HELP {name} {says}"
    yield f"# TYPE {name} {kind}"
