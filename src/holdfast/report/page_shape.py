"""Which sections the page of a command has: a table of radii is the wrong picture of ranges, coverage items
or saliency maps.
"""

from dataclasses import dataclass

from holdfast.question import Question


@dataclass(frozen=True)
class PageShape:
    """The sections of one kind of page.

    rows      what one row of the inputs' table is, singular.
    plots     names of the plots of each part, in their order.
    means     whether the tiles with mean, median and the number of certified inputs make sense: they do
    where all rows hold the same
              kind of number on one scale.
    folded    whether each part starts folded, because a table above (see `answers`) already gives the
    answer row by row.
    bounds    whether a row has lower and upper bounds: randomised smoothing has estimates only.
    """

    row: str = "input"
    plots: tuple[str, ...] = ("band", "share", "convergence", "times")
    means: bool = True
    folded: bool = False
    bounds: bool = True

    @property
    def contents(self) -> str:
        """What the folded part holds of every row."""
        return "numbers, charts and the bounds" if self.bounds else "the estimate and its cost"

    @property
    def rows(self) -> str:
        return f"{self.row}s"


SHAPES = {
    "verify": PageShape(row="instance", plots=("times",), means=False, folded=True),
    "reach": PageShape(row="output", plots=("times",), means=False, folded=True),
    "risk": PageShape(plots=("band", "share"), folded=True),
    "saliency": PageShape(plots=("times",), means=False, folded=True),
    "smoothing": PageShape(plots=(), means=False, folded=True, bounds=False),
    "testgen": PageShape(row="coverage item", plots=("times",), means=False, folded=True),
}


def shape_of(question: Question) -> PageShape:
    """The sections for the command of this run; `radius`, `worst`, `monitor` and programs share the usual
    ones.
    """
    return SHAPES.get(question.command.split(" ")[0], PageShape())
