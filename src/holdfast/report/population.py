"""What a count of inputs says about the population that they were drawn from (Clopper and Pearson 1934).

Statement. If n inputs are independent draws from a population and k of them are certified, then

    L = the (1 - c) quantile of Beta(k, n - k + 1),   0 for k = 0,

is at most the share of the population that is certified, with probability at least c over the draws. The interval uses
(1 - c) / 2 on each side. Assumptions: the inputs were drawn independently, before anything about them was known, and
the radius was not chosen by looking at the same inputs; holdfast cannot check either. Inputs whose answer is unknown
count as not certified.

Reference: Clopper, Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial",
Biometrika 26 (1934).
"""

from scipy.special import betaincinv

from holdfast.formatting import format_lower, format_upper
from holdfast.report.answer_sentence import NAMED

CONFIDENCE = 0.95  # Of the interval on pages and cards (chosen by hand).
SAMPLING = (
    "if the inputs were drawn independently from that population, before anything about them was known, and the "
    "radius was not chosen by looking at them"
)
BY_SIGN = "the property holds where its score is positive"  # As `decisive_radius` says it.


def certified_share_bound(certified: int, count: int, confidence: float) -> float:
    """A lower bound of the certified share of the population, at this confidence (one-sided)."""
    if not 0 < confidence < 1 or not 0 <= certified <= count or count == 0:
        raise ValueError("a confidence between 0 and 1, and a count of at most all inputs")
    return float(betaincinv(certified, count - certified + 1, 1 - confidence)) if certified else 0.0


def certified_share_interval(certified: int, count: int, confidence: float) -> tuple[float, float]:
    """An interval of the certified share of the population, at this confidence (two-sided)."""
    outside = (1 - confidence) / 2
    low = certified_share_bound(certified, count, 1 - outside)
    high = 1.0 if certified == count else float(betaincinv(certified + 1, count - certified, 1 - outside))
    return low, high


def population_sentence(certified: int, count: int, at_origin: str, command: str) -> str:
    """The interval in words; empty where it would not hold.

    It would not hold if the radius was chosen from this run, or if the rows are no inputs (instances of a list).

    Args:
        at_origin: where the radius comes from, as `decisive_radius` says it.
        command: the command of the run.
    """
    if at_origin not in (NAMED, BY_SIGN) or command.split(" ")[0] not in ("radius", "worst") or count < 2:
        return ""
    low, high = certified_share_interval(certified, count, CONFIDENCE)
    return (
        f"{certified} of {count} certified: between {format_lower(100 * low, 3)} % and {format_upper(100 * high, 3)} % "
        f"of the population with confidence {100 * CONFIDENCE:g} % (Clopper and Pearson), {SAMPLING}."
    )
