"""Can the forbidden happen? VNN-LIB questions, answered by a counterexample that was replayed or by a proof that there is none.

The smallest score of every case is asked for until its sign is known: one that is not positive was witnessed (sat), or all are proved to be
positive (unsat).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from holdfast.bounding.branching.subproblem_queue import Branching
from holdfast.errors import BadInput
from holdfast.method import Method
from holdfast.network import Network
from holdfast.result import Evidence, Record
from holdfast.solver import Progress, Sink, Stop, solve
from holdfast.verification.branch_and_bound import BranchAndBound
from holdfast.verification.search import Scatter
from holdfast.verification.specification import problem_of
from holdfast.verification.vnnlib import Spec, read_vnnlib

Answer = Literal["sat", "unsat", "unknown", "timeout"]
TOUCHES = "an input was met whose outputs are forbidden by less than float64 rounds, which a proof excludes for real arithmetic"


@dataclass(frozen=True)
class Verdict:
    """sat: `witness` is a counterexample, replayed. unsat: proved that there is none. timeout: the budget ran out before either.
    unknown: nothing more can be tried, or the search was interrupted. A proof and a counterexample that exclude each other are neither:
    they raise Contradiction.

    The score is positive exactly where nothing forbidden happens. least <= its smallest value <= lowest: the first is proved, the
    second was met by the network itself.
    """

    answer: Answer
    witness: Tensor | None  # (*shape) float64
    outputs: Tensor | None  # what the network says there
    least: float
    lowest: float
    nodes: int  # parts of the region that were bounded
    seconds: float
    evidence: Evidence | None
    note: str = ""

    @property
    def gap(self) -> float:
        """What is left to prove or to find; zero where the answer is known."""
        return 0.0 if self.answer in ("sat", "unsat") else self.lowest - self.least


def verify(
    net: Network,
    spec: Spec | str | Path,
    *,
    stop: Stop | None = None,
    seed: int = 0,
    methods: Sequence[Method[Any] | Branching[Any]] | None = None,
    judges: Sequence[Network] = (),
    store: Sink | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Verdict:
    """Can anything that the property describes happen?

    spec     a VNN-LIB file, or what `read_vnnlib` made of one.
    stop     its seconds end the search with `timeout`. Without any it ends when the question is settled, which may be never.
    methods  InputSplit or ActivationSplit, to say how parts are cut: by default, by inputs where few of them move. Or any methods.
    judges   the same network on other machinery: a counterexample counts only where they agree.
    store    where records are kept, one for each case, and found again.
    """
    limit = stop or Stop()
    if limit.queries is not None or limit.gap:
        raise BadInput("a verification stops after seconds only: leave queries and gap out of stop.")
    asked = spec if isinstance(spec, Spec) else read_vnnlib(spec)
    records = answer_instance(
        net, asked, limit, methods, judges=judges, seed=seed, store=store, progress=progress
    )
    return verdict(records, net, cases=len(asked.cases))


def answer_instance(
    net: Network,
    spec: Spec,
    stop: Stop,
    methods: Sequence[Method[Any] | Branching[Any]] | None = None,
    *,
    judges: Sequence[Network] = (),
    index: int = 0,
    seed: int = 0,
    store: Sink | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Record]:
    """One record for each case; none where no input meets what the file asks of inputs. index: of the instance, in the keys."""
    if not spec.cases:
        return []
    problem, chosen = problem_of(net, spec, judges=judges, index=index), ways(methods, Scatter(), None)
    return solve(
        [problem],
        chosen,
        replace(stop, sign=True),
        seed=seed,
        batch=len(problem),
        store=store,
        progress=progress,
    )


def ways(
    given: Sequence[Method[Any] | Branching[Any]] | None, first: Method[Any], gap: float | None
) -> list[Method[Any]]:
    """Methods as they are given; a way to cut is branch and bound after the usual first search."""
    if given is None:
        return [first, BranchAndBound(gap=gap)]
    cuts = [BranchAndBound(cut, gap) for cut in given if isinstance(cut, Branching)]
    own = [method for method in given if isinstance(method, Method)]
    return [*([first] if cuts else []), *own, *cuts]


def verdict(records: Sequence[Record], net: Network | None = None, *, cases: int | None = None) -> Verdict:
    """What the records of all cases say together. With the network: also its outputs at the counterexample.

    cases  how many cases the property has. `unsat` needs a proof for each of them: a case without a record is an open one. None: not known
           here; then records of a run that was interrupted are never `unsat`, since other cases may have none.
    """
    if cases == 0:
        nobody = Evidence(
            "proved", "definition", assumptions=("no input meets what the property asks of inputs",)
        )
        return Verdict("unsat", None, None, math.inf, math.inf, 0, 0.0, nobody)
    if not records:
        return Verdict(
            "timeout", None, None, -math.inf, math.inf, 0, 0.0, None, "no case of the property was answered"
        )
    worst = min(records, key=lambda record: record.bracket.upper.value)
    open_ = min(records, key=lambda record: record.bracket.lower.value)
    lower, upper = open_.bracket.lower, worst.bracket.upper
    met = [end.executed for end in (record.bracket.upper for record in records) if end.executed is not None]
    interrupted = any(record.status == "interrupted" for record in records)
    complete = not interrupted if cases is None else len({record.key for record in records}) == cases
    answer: Answer = "unknown"
    witness, evidence, note = None, None, "; ".join(reasons(records))
    if upper.value <= 0:
        answer, witness, evidence = "sat", upper.evidence.witness, upper.evidence
        note = TOUCHES if worst.bracket.closed and worst.bracket.lower.evidence.kind == "proved" else ""
    elif lower.value > 0 and complete:
        answer, evidence, note = "unsat", lower.evidence, ""
    elif any(record.status == "stopped" for record in records):
        answer, note = "timeout", ""
    outputs = (
        net(witness[None])[0].double().flatten().cpu() if net is not None and witness is not None else None
    )
    return Verdict(
        answer, witness, outputs, lower.value, min(met, default=math.inf), parts(records), sum(record.seconds for record in records),
        evidence, "interrupted" if interrupted else note,
    )  # fmt: skip


def reasons(records: Sequence[Record]) -> list[str]:
    """Why methods went no further, once each."""
    return list(dict.fromkeys(reason.partition(": ")[2] for record in records for reason in record.skipped))


def parts(records: Sequence[Record]) -> int:
    """That were bounded for these, as far as their proofs say."""
    counts = [record.bracket.negate() if record.goal == "largest" else record.bracket for record in records]
    return max((int(bracket.lower.evidence.settings.get("parts") or 0) for bracket in counts), default=0)
