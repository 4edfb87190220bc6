"""Charts that tests share: a chart of the same numbers is not drawn again.

Drawing takes 40 to 60 ms, and tests of pages and of bundles draw the charts of one run many times. The first time that
a chart is needed again it is drawn again, and both must be equal: pages of one run have the same bytes.
"""

import functools
import pickle
from collections.abc import Callable
from types import ModuleType

from holdfast.report.plots import band, canvas, convergence, curves, intervals, sampled, share, times

MODULES: tuple[ModuleType, ...] = (band, convergence, curves, intervals, sampled, share, times)
MOST_CHARTS = 300  # Charts of each kind that are kept, 10 to 60 kB each (chosen by hand).


def share_drawings() -> None:
    """Replace the drawing function of each kind of chart by one that remembers."""
    for module in MODULES:
        module.draw = draw_once(module.draw)  # type: ignore[attr-defined]


def draw_once(draw: Callable[..., str]) -> Callable[..., str]:
    known: dict[bytes, str] = {}
    compared = set[bytes]()

    @functools.wraps(draw)
    def remembered(*given: object, **options: object) -> str:
        try:
            key = pickle.dumps((canvas.LAYOUT, given, sorted(options.items())))
        except (
            Exception
        ):  # What cannot be pickled, such as a record with a function of a test, is drawn every time.
            return draw(*given, **options)
        if key in known and compared:
            return known[key]
        drawn = draw(*given, **options)
        if key in known:
            assert drawn == known[key], f"{draw.__module__}: the same numbers give two charts"
            compared.add(key)
        elif len(known) < MOST_CHARTS:
            known[key] = drawn
        return drawn

    return remembered
