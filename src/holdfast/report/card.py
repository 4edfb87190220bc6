"""A model card fragment in Markdown: the robustness of a network, next to its accuracy."""

from dataclasses import replace

from holdfast.formatting import capitalise, format_bounds, format_nearest, format_range
from holdfast.question_text import describe_question
from holdfast.report.answer_sentence import answer_of, decisive_radius
from holdfast.report.evidence_sources import sources
from holdfast.report.markdown import SENTENCE, table, text
from holdfast.report.pairing import Run, load, usual_radii
from holdfast.report.population import population_sentence
from holdfast.report.question import hashes
from holdfast.report.standard import properties_of
from holdfast.report.summary import DEEPTRE_NOTE, totals_of
from holdfast.report.verdict import VERDICTS, is_correct, tally, verdict_text
from holdfast.report.wording import RADIUS
from holdfast.store import Store

MEANING = (
    "Certified: proved for every point of the region. Broken: shown by a concrete input, replayed "
    "through the model. "
    "Unknown: neither; counts as not certified."
)


def render(store: Store) -> str:
    """Return the fragment, with the answer and the question of the run first."""
    run = load(store)
    parts = [
        "## Robustness",
        text(answer_of(store), SENTENCE),
        text(describe_question(run.question), SENTENCE),
    ]
    for part in (run.part, *run.others):
        one = replace(run, part=part)
        count = len(one.rows) + one.silent
        parts += [
            *([f"### {capitalise(part.heading)}"] if run.others else []),
            _ends(one, count),
            _at_radii(one, count),
            *_population(one),
        ]
    parts += [MEANING, _methods(store), _facts(run)]
    return "\n\n".join(parts) + "\n"


def _ends(run: Run, count: int) -> str:
    totals, sense = totals_of(run.rows), run.sense
    what = sense.quantity
    lower, upper = format_bounds(totals.mean_lower, totals.mean_upper)
    low, high = ("proved", sense.shown) if sense.rises else (sense.shown, "proved")
    mean = lower if totals.mean_lower == totals.mean_upper else f"{lower} ({low}) to {upper} ({high})"
    rows = [
        ["inputs", str(count)],
        ["failed, refuted", f"{totals.failed}, {totals.refuted}"],
        *([["right", f"{sum(map(is_correct, run.rows))} of {count}"]] if run.labelled else []),
        [f"mean {what} of {totals.averaged}", mean],
        *(
            [
                [
                    "centre and radius",
                    f"{format_nearest(totals.deeptre_interval[0])} ± {format_nearest(totals.deeptre_interval[1])} ({DEEPTRE_NOTE})",
                ]
            ]
            if totals.deeptre_interval
            else []
        ),
        [f"median {what}", format_range(totals.median_lower, totals.median_upper)],
        ["unbreakable", f"{totals.unbreakable}, left out of the mean"],
        *(
            [
                [
                    "not measured",
                    f"{totals.not_measured}, the run ended too early; left out of means and medians",
                ]
            ]
            if totals.not_measured
            else []
        ),
        *([["nothing may change", f"{totals.still}, left out of the mean"]] if totals.still else []),
        ["without a counterexample", str(totals.open_above)],
        ["timed out, interrupted, unanswered", f"{totals.stopped}, {totals.interrupted}, {run.silent}"],
    ]
    return table(["", ""], rows)


def _at_radii(run: Run, count: int) -> str:
    found = [tally(run.rows, at, silent=run.silent) for at in usual_radii(run.question, run.rows)]
    rows = [
        [
            format_nearest(t.at),
            f"{t.certified} of {count}",
            f"{t.broken} of {count}",
            f"{t.unknown_text} of {count}",
        ]
        for t in found
    ]
    words = [*(verdict_text(said, run.question.command) for said in VERDICTS)]
    return table(
        [run.sense.quantity if run.sense == RADIUS else f"{run.sense.quantity} {run.sense.claim}", *words],
        rows,
    )


def _population(run: Run) -> list[str]:
    """The share certified in the population, where the question names the radius."""
    chosen = decisive_radius(run.question, run.rows)
    if chosen is None:
        return []
    found = tally(run.rows, chosen[0], silent=run.silent)
    told = population_sentence(found.certified, found.count, chosen[1], run.question.command)
    return [told] if told else []


def _methods(store: Store) -> str:
    rows = [
        [text(part) for part in (s.role, s.kind, s.method, s.settings, s.seed, s.assumptions, str(s.tags))]
        + [str(count)]
        for s, count in sources(store.stream(light=True))
    ]
    return table(
        ["bound", "kind", "method", "settings", "seed", "assumes", "ISO/IEC 24029-2 attributes", "numbers"],
        rows,
    )


def _facts(run: Run) -> str:
    named = ", ".join(f"{p.name} (clause {p.clause})" for p in properties_of(run.question))
    known = [f"- {name}: {text(value)}" for name, value in run.provenance.items() if value is not None]
    return "\n".join(
        [
            f"- evidence of: {named}",
            *(f"- hash of the {part}: `{text(value)}`" for part, value in hashes(run.question)),
            *known,
        ]
    )
