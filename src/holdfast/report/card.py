"""A fragment of a model card: what is known of a network's robustness, in Markdown that stands beside its accuracy."""

from holdfast.report.markdown import table, text
from holdfast.report.pairing import Run, load, usual_radii
from holdfast.report.question import hashes, headline
from holdfast.report.sources import sources
from holdfast.report.standard import properties_of
from holdfast.report.summary import about, at_least, at_most, totals_of
from holdfast.report.verdict import right, tally
from holdfast.store import Store

MEANING = (
    "Certified: proved for every point of the region. Broken: a concrete input shows it, replayed through the model. Unknown: neither; it "
    "counts as not certified."
)


def render(store: Store) -> str:
    run = load(store)
    count = len(run.rows) + run.silent
    parts = [
        "## Robustness",
        text(headline(run.question, count)),
        _ends(run, count),
        MEANING,
        _at_radii(run, count),
        _methods(store),
        _facts(run),
    ]
    return "\n\n".join(parts) + "\n"


def _ends(run: Run, count: int) -> str:
    totals = totals_of(run.rows)
    what = "score" if run.scores else "radius"
    rows = [
        ["inputs", str(count)],
        ["right", f"{sum(map(right, run.rows))} of {count}"],
        [f"mean {what}", f"{at_least(totals.mean_lower)} (proved) to {at_most(totals.mean_upper)} (witnessed)"],
        [f"median {what}", f"{at_least(totals.median_lower)} to {at_most(totals.median_upper)}"],
        ["unbreakable", f"{totals.unbreakable}, left out of the mean"],
        ["without a witness", str(totals.open_above)],
        ["timed out, interrupted, unanswered", f"{totals.stopped}, {totals.interrupted}, {run.silent}"],
    ]
    return table(["", ""], rows)


def _at_radii(run: Run, count: int) -> str:
    found = [tally(run.rows, at, scores=run.scores, silent=run.silent) for at in usual_radii(run.question, [(row,) for row in run.rows])]
    rows = [[about(t.at), *(f"{n} of {count}" for n in (t.certified, t.broken, t.unknown))] for t in found]
    return table(["score above" if run.scores else "radius", "certified", "broken", "unknown"], rows)


def _methods(store: Store) -> str:
    rows = [
        [text(part) for part in (s.role, s.kind, s.method, s.settings, s.seed, s.assumptions, str(s.tags))] + [str(count)]
        for s, count in sources(store.records())
    ]
    return table(["end", "kind", "method", "settings", "seed", "assumes", "ISO/IEC 24029-2 attributes", "numbers"], rows)


def _facts(run: Run) -> str:
    named = ", ".join(f"{p.name} (clause {p.clause})" for p in properties_of(run.question))
    known = [f"- {name}: {text(value)}" for name, value in run.provenance.items() if value is not None]
    return "\n".join(
        [f"- evidence of: {named}", *(f"- hash of the {part}: `{text(value)}`" for part, value in hashes(run.question)), *known]
    )
