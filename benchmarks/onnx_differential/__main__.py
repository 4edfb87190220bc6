"""python -m benchmarks.onnx_differential [--cases 20000] [--seed 0] [--seconds S] [--only OPERATOR ...]

Make random small ONNX models and compare each target's outputs with those of onnxruntime and onnx's
reference. A target may refuse a model with a reason; it must never return another output. Where the
references disagree, onnxruntime counts. The table has a row for each operator; below it is the smallest model
of each kind of difference. The exit status is 1 after any difference, or any exception that is not a
HoldfastError. `--seconds` ends a run early; the completed cases are then the first ones of the seed.
"""

import argparse
import collections
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.onnx_differential.answers import TARGETS
from benchmarks.onnx_differential.cases import make_case, text_of
from benchmarks.onnx_differential.judging import Judged, judge, truth_of

COLUMNS = ("agreed", "refused", "no truth", "not in words", "difference")


@dataclass
class Tally:
    """Counts by operator, disagreements between the references, and the models that gave a difference."""

    cases: int = 0
    outcomes: dict[str, Counter[str]] = field(default_factory=lambda: collections.defaultdict(Counter))
    disputed: Counter[str] = field(default_factory=Counter)
    disputes: dict[str, str] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    differences: list[tuple[str, str, str, str]] = field(
        default_factory=list
    )  # operator, target and outcome, why, the model as text
    crashes: list[str] = field(default_factory=list)

    def add(self, operator: str, disputed: str, judged: list[Judged], number: str, text: str) -> None:
        self.cases += 1
        self.outcomes[operator]["cases"] += 1
        if disputed:
            self.disputed[operator] += 1
            self.disputes[number] = f"{operator} {number}: {disputed}"
        for one in judged:
            self.outcomes[operator][one.outcome] += 1
            if one.outcome in ("difference", "not in words"):
                self.differences.append((operator, f"{one.target}: {one.outcome}", one.why, text))
            if one.outcome == "refused":
                self.reasons[f"{operator}: {one.why[:160]}"] += 1

    @property
    def failed(self) -> bool:
        return bool(self.differences)


def run(
    seed: int, cases: int, targets: list[str], *, seconds: float | None = None, only: list[str] | None = None
) -> Tally:
    """Run all cases in this process.

    A crash of a reference ends it, so `main` runs each part in a child process.
    """
    tally = Tally()
    for operator, disputed, judged, number, text in _results(seed, 0, cases, targets, only or [], seconds):
        tally.add(operator, disputed, judged, number, text)
    return tally


Result = tuple[str, str, list[Judged], str, str]


def _results(
    seed: int, begin: int, end: int, targets: list[str], only: list[str], seconds: float | None = None
) -> Iterator[Result]:
    started = time.monotonic()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="onnx-differential-") as place:
        for number in range(begin, end):
            if seconds is not None and time.monotonic() - started > seconds:
                return
            case = make_case(seed, number)
            if only and case.operator not in only:
                continue
            truth = truth_of(case)
            judged = [judge(case, target, truth, Path(place)) for target in targets]
            bad = any(one.outcome in ("difference", "not in words") for one in judged)
            yield case.operator, truth.disputed, judged, case.number, text_of(case) if bad else ""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=20000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", nargs="+", choices=sorted(TARGETS), default=["engine", "checker"])
    parser.add_argument("--seconds", type=float)
    parser.add_argument(
        "--only", nargs="*", default=[], help="only cases of these operators; case numbers stay the same"
    )
    parser.add_argument(
        "--reasons",
        action="store_true",
        help="list why models were refused, and where the references disagree",
    )
    chosen = parser.parse_args()
    tally = _in_processes(chosen)
    print(table(tally))
    for crash in tally.crashes:
        print(crash)
    if chosen.reasons:
        for reason, count in tally.reasons.most_common():
            print(f"{count:6d} refused  {reason}")
        for dispute in tally.disputes.values():
            print(f"disputed  {dispute}")
    for text in smallest(tally):
        print(f"\n{text}")
    sys.exit(1 if tally.failed else 0)


def _in_processes(chosen: argparse.Namespace) -> Tally:
    """Run the cases in child processes.

    If a model crashes onnxruntime, continue with the next case in a new process.
    """
    tally, context, begin = Tally(), multiprocessing.get_context("fork"), 0
    started = time.monotonic()
    while begin < chosen.cases:
        left = None if chosen.seconds is None else chosen.seconds - (time.monotonic() - started)
        here, there = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(there, chosen, begin, left))
        process.start()
        there.close()
        last = begin - 1
        try:
            while True:
                number, result = here.recv()
                last = number
                if result is not None:
                    tally.add(*result)
        except EOFError:
            process.join()
        if not process.exitcode:
            break
        tally.crashes.append(f"case {chosen.seed}/{last + 1}: the process ended with {process.exitcode}")
        begin = last + 2
    return tally


def _work(pipe: Connection, chosen: argparse.Namespace, begin: int, seconds: float | None) -> None:
    started = time.monotonic()
    for number in range(begin, chosen.cases):
        if seconds is not None and time.monotonic() - started > seconds:
            return
        results = list(_results(chosen.seed, number, number + 1, chosen.targets, chosen.only))
        pipe.send((number, results[0] if results else None))


def table(tally: Tally) -> str:
    head = ("operator", "cases", *COLUMNS, "references disagree")
    rows = [
        [name, counts["cases"], *(counts[column] for column in COLUMNS), tally.disputed[name]]
        for name, counts in sorted(tally.outcomes.items())
    ]
    total = ["all", *(sum(row[place] for row in rows) for place in range(1, len(head)))]
    return "\n".join(
        "| " + " | ".join(map(str, row)) + " |" for row in (head, ["---"] * len(head), *rows, total)
    )


def smallest(tally: Tally) -> list[str]:
    """For each operator and target, the shortest model whose output differs."""
    shortest: dict[tuple[str, str], tuple[str, str]] = {}
    for operator, kind, why, text in tally.differences:
        known = shortest.get((operator, kind))
        if known is None or len(text) < len(known[1]):
            shortest[operator, kind] = (why, text)
    counts = Counter((operator, kind) for operator, kind, _, _ in tally.differences)
    return [
        f"{operator}, {kind} ({counts[operator, kind]} cases): {why}\n{text}"
        for (operator, kind), (why, text) in sorted(shortest.items())
    ]


if __name__ == "__main__":
    main()
