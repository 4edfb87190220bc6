"""The gate: pass-or-fail checks of a run, each with its numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from holdfast.errors import BadInput
from holdfast.formatting import format_lower, format_nearest, format_percent, format_upper
from holdfast.report.pairing import Run, pair_rows
from holdfast.report.population import SAMPLING, certified_share_bound
from holdfast.report.summary import InputRow, bracket_text, mean_of
from holdfast.report.verdict import (
    Verdict,
    VerdictCounts,
    is_correct,
    is_measured,
    tally,
    verdict,
    verdict_text,
)
from holdfast.report.wording import QUANTITIES, Quantity


@dataclass(frozen=True)
class Rules:
    """The requirements on a run. Shares lie between 0 and 1; None means no requirement.

    at             radius (or score, value, probability) at which inputs are certified or broken; default
    for worst scores: 0.
    min_certified  minimum share of all inputs that is certified there; unknown ones are not.
    max_broken     maximum share that is broken there. Unknown inputs count as broken unless `max_unknown`
    is given.
    max_unknown    maximum share that is unknown there, and of a baseline, not measured.
    min_accuracy   minimum share of correctly classified inputs.
    confidence     with min_certified: the share of the population is meant, and its lower confidence bound
    counts.
    slack          allowed loss against a baseline: absolute for shares, relative for the mean radius.
    """

    at: float | None = None
    min_certified: float | None = None
    max_broken: float | None = None
    min_accuracy: float | None = None
    slack: float = 0.0
    max_unknown: float | None = None
    confidence: float | None = None

    def __post_init__(self) -> None:
        for name in ("min_certified", "max_broken", "min_accuracy", "slack", "max_unknown"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise BadInput(
                    f"--{name.replace('_', '-')} {value}: a share must lie between 0 and 1, as in 0.9."
                )
        if self.confidence is not None and not 0 < self.confidence < 1:
            raise BadInput(f"--confidence {self.confidence}: it must lie between 0 and 1, as in 0.95.")
        if self.confidence is not None and self.min_certified is None:
            raise BadInput("--confidence is about a share of a population: give --min-certified too.")
        if self.at is not None and math.isnan(self.at):
            raise BadInput("--at: not a number.")

    @property
    def shares(self) -> bool:
        return self.min_certified is not None or self.max_broken is not None

    @property
    def only_unknown(self) -> bool:
        """Whether `max_unknown` is the only requirement on shares."""
        return self.max_unknown is not None and not self.shares


@dataclass(frozen=True)
class Check:
    """The result of one requirement. details: the inputs that count against the run."""

    name: str
    passed: bool
    wanted: str
    found: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """The checks of a run against its rules."""

    run: Run
    rules: Rules
    checks: tuple[Check, ...]
    tally: VerdictCounts | None
    baseline: Run | None = None

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)


def gate(run: Run, rules: Rules, baseline: Run | None = None) -> Decision:
    """Check a run; raise BadInput without any rule, or if run and baseline cannot be compared."""
    if not run.rows and not run.inputs:
        raise BadInput(f"{run.name}: the run is empty, so nothing can be said for or against it.")
    if (rules.shares or (rules.only_unknown and baseline is None)) and rules.at is None:
        if run.sense != QUANTITIES["worst"]:
            raise BadInput(
                f"a share certified, broken or unknown is one at a {run.sense.quantity}: say "
                "which, as in --at 0.05."
            )
        rules = replace(rules, at=0.0)
    if rules.min_accuracy is not None and not run.labelled:
        raise BadInput(
            f"{run.name}: --min-accuracy asks how often the network says the label, and the run kept none."
        )
    found = None if rules.at is None else tally(run.rows, rules.at, silent=run.silent)
    checks = [*_alone(run, rules, found), *([] if baseline is None else _against(run, baseline, rules))]
    if not checks:
        raise BadInput(
            "nothing to check: give --min-certified with --at, --max-broken, --max-unknown, "
            "--min-accuracy or --against."
        )
    return Decision(run, rules, tuple(checks), found, baseline)


def _alone(run: Run, rules: Rules, found: VerdictCounts | None) -> list[Check]:
    checks, words = [], run.question.command
    if rules.min_certified is not None and found is not None:
        not_certified = _names_of(run, rules, "broken") + _names_of(run, rules, "unknown")
        # 1e-9 absorbs the rounding of the product: 0.9 of 10 inputs are 9.
        passed = found.certified >= rules.min_certified * found.count - 1e-9
        wanted = f"at least {format_percent(rules.min_certified)}"
        share = None
        if rules.confidence is not None and found.count:
            share = certified_share_bound(found.certified, found.count, rules.confidence)
            passed = share >= rules.min_certified
            wanted += f" of the population with confidence {format_percent(rules.confidence)}"
        check = _shares("certified", words, passed, wanted, found, found.certified, not_certified)
        if share is not None:
            told = f"at least {format_lower(100 * share, 3)} % of the population (Clopper and Pearson), {SAMPLING}"
            check = replace(check, found=f"{check.found}; {told}")
        checks.append(check)
    if rules.max_broken is not None and found is not None:
        strict = rules.max_unknown is None
        counted = found.broken + (found.unknown if strict else 0)
        passed = counted <= rules.max_broken * found.count + 1e-9
        details = _names_of(run, rules, "broken") + (_names_of(run, rules, "unknown") if strict else ())
        wanted = f"at most {format_percent(rules.max_broken)}" + (", unknown ones included" if strict else "")
        checks.append(_shares("broken", words, passed, wanted, found, counted, details))
    if rules.max_unknown is not None and found is not None:
        passed = found.unknown <= rules.max_unknown * found.count + 1e-9
        unknown = _names_of(run, rules, "unknown")
        checks.append(
            _shares(
                "unknown",
                words,
                passed,
                f"at most {format_percent(rules.max_unknown)}",
                found,
                found.unknown,
                unknown,
            )
        )
    if rules.min_accuracy is not None:
        correct, count = sum(map(is_correct, run.rows)), len(run.rows) + run.silent
        wrong = tuple(f"{input_name(row)}: misclassified" for row in run.rows if not is_correct(row))
        passed = correct >= rules.min_accuracy * count - 1e-9
        result = f"{correct} of {count} right" + (f", {run.silent} without any answer" if run.silent else "")
        checks.append(
            Check("accuracy", passed, f"at least {format_percent(rules.min_accuracy)}", result, wrong)
        )
    return checks


def _shares(
    what: Verdict,
    command: str,
    passed: bool,
    wanted: str,
    found: VerdictCounts,
    counted: int,
    details: tuple[str, ...],
) -> Check:
    stopped = found.not_measured - found.silent
    missing = [f"{stopped} of these unfinished"] if stopped else []
    missing += [f"{found.silent} of these without any answer"] if found.silent else []
    unanswered = "".join(f", {text}" for text in missing)
    result = (
        f"{format_percent(counted / max(1, found.count))}: {found.certified} {verdict_text('certified', command)}, "
        f"{found.broken} {verdict_text('broken', command)}, {found.unknown} unknown"
        f"{unanswered}, of {found.count}"
    )
    return Check(f"{what} at {format_nearest(found.at)}", passed, wanted, result, details)


def _against(run: Run, baseline: Run, rules: Rules) -> list[Check]:
    pairs = pair_rows([baseline, run])
    missing = len(baseline.rows) - len(pairs)
    checks = [
        Check(
            "same inputs",
            missing == 0,
            f"all {len(baseline.rows)} of {baseline.name}",
            f"{len(pairs)} in both",
        ),
        *([_accuracy_kept(pairs, rules.slack)] if run.labelled and baseline.labelled else []),
    ]
    checks.append(_baseline_measured(baseline, rules))
    checks.append(
        _mean_kept(pairs, rules.slack, run.sense) if rules.at is None else _share_kept(pairs, rules, rules.at)
    )
    return checks


def _baseline_measured(baseline: Run, rules: Rules) -> Check:
    """Check that the baseline was measured; unmeasured inputs of a baseline would let any run pass."""
    if rules.at is None:
        open_rows = [row for row in baseline.rows if not row.measured]
    else:
        open_rows = [row for row in baseline.rows if not is_measured(row, verdict(row, rules.at))]
    count, missing = len(baseline.rows) + baseline.silent, len(open_rows) + baseline.silent
    allowed = rules.max_unknown or 0.0
    details = tuple(f"{input_name(row)}: not measured in {baseline.name} {_ends(row)}" for row in open_rows)
    details += tuple(
        f"input {index}: no answer in {baseline.name}"
        for index in sorted(baseline.inputs - baseline.part.answered)
    )
    wanted = (
        f"at most {format_percent(allowed)} of the baseline not measured"
        if allowed
        else "all of the baseline measured"
    )
    found = f"{count - missing} of {count} measured" + (
        f" ({missing} not measured: resume the baseline)" if missing else ""
    )
    return Check("baseline measured", missing <= allowed * count + 1e-9, wanted, found, details)


def _accuracy_kept(pairs: Sequence[tuple[InputRow, ...]], slack: float) -> Check:
    before, now = (sum(is_correct(pair[k]) for pair in pairs) for k in (0, 1))
    lost = tuple(
        f"{input_name(new)}: was right, is wrong"
        for old, new in pairs
        if is_correct(old) and not is_correct(new)
    )
    passed = now >= before - slack * len(pairs) - 1e-9
    return Check(
        "accuracy kept", passed, _baseline(before / len(pairs), slack), f"{now} of {len(pairs)} right", lost
    )


def _share_kept(pairs: Sequence[tuple[InputRow, ...]], rules: Rules, at: float) -> Check:
    verdicts = [tuple(verdict(row, at) for row in pair) for pair in pairs]
    before, now = (sum(found[k] == "certified" for found in verdicts) for k in (0, 1))
    lost = tuple(
        f"{input_name(pair[1])}: was certified, is {found[1]}"
        for pair, found in zip(pairs, verdicts, strict=True)
        if found[0] == "certified" != found[1]
    )
    passed = now >= before - rules.slack * len(pairs) - 1e-9
    wanted = _baseline(before / len(pairs), rules.slack)
    open_rows = sum(not is_measured(pair[1], found[1]) for pair, found in zip(pairs, verdicts, strict=True))
    result = f"{format_percent(now / len(pairs))}, {now} of {len(pairs)}" + (
        f" ({open_rows} not measured)" if open_rows else ""
    )
    return Check(f"certified at {format_nearest(at)} kept", passed, wanted, result, lost)


def _mean_kept(pairs: Sequence[tuple[InputRow, ...]], slack: float, sense: Quantity) -> Check:
    """Compare mean proved bounds over the inputs where both are finite.

    An input with an infinite bound in the baseline, or with any proved bound, fails the check by itself if
    the run proves nothing comparable.
    """
    up = 1.0 if sense.rises else -1.0  # Sign that makes larger values better.
    ends = [
        (up * sense.proved_bound(old.bracket).value, up * sense.proved_bound(new.bracket).value)
        for old, new in pairs
    ]
    finite = [pair for pair in ends if all(map(math.isfinite, pair))]
    before, now = (mean_of([pair[k] for pair in finite]) if finite else 0.0 for k in (0, 1))
    lost = tuple(
        f"{input_name(pair[1])}: "
        f"{'nothing could break it' if a == math.inf else 'nothing is proved of it any more'}"
        for pair, (a, b) in zip(pairs, ends, strict=True)
        if (math.isinf(a) or math.isinf(b)) and a > b
    )
    (better, down), (worse, upwards) = (("at least", format_lower), ("at most", format_upper))[:: int(up)]
    fell = tuple(
        f"{input_name(new)}: {worse} {upwards(shown)}, was {better} {down(proved)}"
        for old, new in pairs
        for proved, shown in [
            (sense.proved_bound(old.bracket).value, sense.witnessed_bound(new.bracket).value)
        ]
        if up * shown < up * proved
    )
    passed = now >= before - slack * abs(before) and not lost
    wanted = f"the baseline's {down(up * before)}" + (
        f" {'less' if sense.rises else 'and'} {format_percent(slack)} of it" if slack else ""
    )
    open_rows = sum(not new.measured for _, new in pairs)
    result = f"{down(up * now)} over {len(finite)} inputs"
    result += (
        f" ({open_rows} not measured: of these nothing is proved, and that counts against the run)"
        if open_rows
        else ""
    )
    return Check(f"mean proved {sense.quantity} kept", passed, wanted, result, lost + fell)


def _baseline(share: float, slack: float) -> str:
    return f"the baseline's {format_percent(share)}" + (f" less {format_percent(slack)}" if slack else "")


def _names_of(run: Run, rules: Rules, wanted: Verdict) -> tuple[str, ...]:
    assert rules.at is not None
    silent = [f"input {index}: unknown, no answer" for index in sorted(run.inputs - run.part.answered)]
    rows = [row for row in run.rows if verdict(row, rules.at) == wanted]
    word = verdict_text(wanted, run.question.command)
    return (
        *(f"{input_name(row)}: {word} {_ends(row)}" for row in rows),
        *(silent if wanted == "unknown" else ()),
    )


def _ends(row: InputRow) -> str:
    return f"({bracket_text(row.bracket)}, {row.status})"


def input_name(row: InputRow) -> str:
    return f"input {row.name}" + (f" ({row.display_name})" if row.display_name else "")
