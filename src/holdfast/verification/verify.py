"""Verify VNN-LIB specifications: a replayed counterexample (sat), or a proof that there is none (unsat).

The margin of a case is positive iff no forbidden output occurs. The smallest margin of every case is bounded
until its sign is known: one non-positive margin that was attained gives sat, positive certified lower bounds
for all cases give unsat.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from holdfast import time_limit
from holdfast.bounding.branching.subproblem_queue import Branching
from holdfast.errors import BadInput
from holdfast.method import Method
from holdfast.network import Network
from holdfast.result import Evidence, Record
from holdfast.solver import Progress, Sink, Stop, solve
from holdfast.verification.branch_and_bound import BranchAndBound
from holdfast.verification.combined_network import (
    combine_networks,
    declared_values,
    file_inputs,
    match_networks,
)
from holdfast.verification.declared_networks import DeclaredTensor
from holdfast.verification.search import Scatter
from holdfast.verification.specification import problem_of
from holdfast.verification.vnnlib import Spec, read_vnnlib

Answer = Literal["sat", "unsat", "unknown", "timeout"]
UNREAD = "the budget ended while the property was read: give more seconds"
TOUCHES = (
    "the outputs at the counterexample are forbidden by less than float64 rounding; "
    "a proof excludes them in real arithmetic"
)


@dataclass(frozen=True)
class Verdict:
    """Result of a verification.

    sat: `witness` is a replayed counterexample. unsat: a proof that there is none. timeout: the budget ran
    out first. unknown: no method can make progress, or the search was interrupted. A proof and a
    counterexample that exclude each other raise Contradiction.

    The margin is positive iff no forbidden output occurs. least <= its minimum <= lowest: `least` is a
    certified lower bound, `lowest` was attained by the network as executed.
    """

    answer: Answer
    # (*shape) float64; of a property that relates inputs, the inputs of its file one after the other.
    witness: Tensor | None
    outputs: Tensor | None  # the network's outputs at the witness
    least: float
    lowest: float
    nodes: int  # subproblems that were bounded
    seconds: float
    evidence: Evidence | None
    note: str = ""
    # Of a counterexample of VNN-LIB 2: its declared tensors and their numbers, in the order of the file.
    values: tuple[tuple[DeclaredTensor, list[float]], ...] = ()

    @property
    def gap(self) -> float:
        """Difference of the upper and lower bound; zero if the answer is known."""
        return 0.0 if self.answer in ("sat", "unsat") else self.lowest - self.least


def verify(
    net: Network | Mapping[str, Network],
    spec: Spec | str | Path,
    *,
    stop: Stop | None = None,
    seed: int = 0,
    methods: Sequence[Method[Any] | Branching[Any]] | None = None,
    judges: Sequence[Network | Mapping[str, Network]] = (),
    store: Sink | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Verdict:
    """Decide whether the network can violate the specification.

    Args:
        net: the network; for a property of several networks, by the names that it declares.
        spec: a VNN-LIB file, or the result of `read_vnnlib`.
        stop: `stop.seconds`, from the call on, ends reading and search with `timeout`. Without it the search ends when the question is
            decided, which may be never.
        methods: InputSplit or ActivationSplit select how branch and bound splits (default: inputs where few
            of them vary). Other methods are used as given.
        judges: the same network on other runtimes; a counterexample only counts if all agree.
        store: keeps one record for each case and finds it again.
    """
    limit = stop or Stop()
    limit = limit.begin() if limit.began is None else limit
    if limit.queries is not None or limit.gap:
        raise BadInput("verify stops after seconds only: leave queries and gap out of stop.")
    asked = read_in_time(spec, limit)
    if asked is None:
        return unread_verdict(limit)
    nets = [combine_networks(asked, match_networks(asked, one)) for one in (net, *judges)]
    records = answer_instance(nets, asked, limit, methods, seed=seed, store=store, progress=progress)
    return verdict(records, nets[0], cases=len(asked.cases), spec=asked)


def read_in_time(spec: Spec | str | Path, limit: Stop | None) -> Spec | None:
    """The property; None if it is a file and the budget ends while it is read."""
    if isinstance(spec, Spec):
        return spec
    left = None if limit is None else limit.remaining_seconds()
    with time_limit.within(math.inf if left is None else time.monotonic() + left):
        return time_limit.in_time(lambda: read_vnnlib(spec), None)


def unread_verdict(limit: Stop | None) -> Verdict:
    """The answer if the budget ended while the property was read: nothing was bounded."""
    spent = 0.0 if limit is None or limit.began is None else time.monotonic() - limit.began
    return Verdict("timeout", None, None, -math.inf, math.inf, 0, spent, None, UNREAD)


def answer_instance(
    nets: Sequence[Network],
    spec: Spec,
    stop: Stop,
    methods: Sequence[Method[Any] | Branching[Any]] | None = None,
    *,
    index: int = 0,
    seed: int = 0,
    store: Sink | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> list[Record]:
    """Solve one instance: one record for each case, none if no input is allowed.

    Args:
        nets: the network, then the same network on other runtimes, which must agree on a counterexample.
        index: the instance in the keys.
    """
    if not spec.cases:
        return []
    net, *judges = nets
    problem, chosen = (
        problem_of(net, spec, judges=judges, index=index),
        select_methods(methods, Scatter(), None),
    )
    return solve(
        [problem],
        chosen,
        replace(stop, sign=True),
        seed=seed,
        batch=len(problem),
        store=store,
        progress=progress,
    )


def select_methods(
    given: Sequence[Method[Any] | Branching[Any]] | None, first: Method[Any], gap: float | None
) -> list[Method[Any]]:
    """Select methods: those given, and branch and bound (after `first`) for each branching rule."""
    if given is None:
        return [first, BranchAndBound(gap=gap)]
    cuts = [BranchAndBound(cut, gap) for cut in given if isinstance(cut, Branching)]
    own = [method for method in given if isinstance(method, Method)]
    return [*([first] if cuts else []), *own, *cuts]


def verdict(
    records: Sequence[Record],
    net: Network | None = None,
    *,
    cases: int | None = None,
    spec: Spec | None = None,
) -> Verdict:
    """Combine the records of all cases; with the network, add its outputs at the counterexample.

    Args:
        cases: the number of cases of the property. `unsat` needs a proof for each, and a case without a
            record is open. None means that the number is unknown; then records of an interrupted run never
            give `unsat`.
        spec: with it a counterexample has the inputs and outputs of the file.
    """
    if cases == 0:
        nobody = Evidence(
            "proved", "definition", assumptions=("no input satisfies the property's input constraints",)
        )
        return Verdict("unsat", None, None, math.inf, math.inf, 0, 0.0, nobody)
    if not records:
        return Verdict(
            "timeout", None, None, -math.inf, math.inf, 0, 0.0, None, "no case of the property was decided"
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
        unread = any(record.bracket.note == UNREAD for record in records)
        answer, note = "timeout", UNREAD if unread else ""
    outputs = (
        net(witness[None])[0].double().flatten().cpu() if net is not None and witness is not None else None
    )
    values: list[tuple[DeclaredTensor, list[float]]] = []
    if spec is not None and witness is not None and net is not None and outputs is not None:
        outputs = outputs[: spec.measured]
        witness = witness if spec.is_plain else file_inputs(spec, witness, net.dtype)
        values = declared_values(spec, witness.flatten(), outputs)
    return Verdict(
        answer,
        witness,
        outputs,
        lower.value,
        min(met, default=math.inf),
        count_subproblems(records),
        sum(record.seconds for record in records),
        evidence,
        "interrupted" if interrupted else note,
        tuple(values),
    )


def reasons(records: Sequence[Record]) -> list[str]:
    """List why methods stopped early, without duplicates."""
    return list(dict.fromkeys(reason.partition(": ")[2] for record in records for reason in record.skipped))


def count_subproblems(records: Sequence[Record]) -> int:
    """Return the number of subproblems that were bounded, as recorded in the proofs."""
    counts = [record.oriented for record in records]
    return max((int(bracket.lower.evidence.settings.get("parts") or 0) for bracket in counts), default=0)
