"""`hf.equivalent`: do two networks answer alike over a box of inputs?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from holdfast.api.arguments import (
    ModelLike,
    StopOption,
    as_network,
    check_methods,
    check_number,
    check_search,
    check_stop,
    show,
)
from holdfast.api.progress import ProgressOption, check_progress, progress_display
from holdfast.bounding.branching.subproblem_queue import Branching
from holdfast.errors import BadInput
from holdfast.method import Method
from holdfast.region import Box
from holdfast.result import Evidence
from holdfast.solver import Sink
from holdfast.verification.equivalence import equivalence_query, largest_difference, two_networks
from holdfast.verification.ranges import box_of
from holdfast.verification.reach import reach as reach_ranges
from holdfast.verification.verify import verify as answer_specification
from holdfast.verification.vnnlib import parse

Verdict = Literal["equivalent", "different", "unknown", "timeout", "measured"]
SENTENCES = {
    "equivalent": "Proved: {claim} for every input of the box.",
    "different": "Shown by an input: not everywhere {claim}.",
    "unknown": "Open: whether {claim} for every input of the box was neither proved nor refuted.",
    "timeout": "Open: whether {claim} for every input of the box was neither proved nor refuted in time.",
}


@dataclass(frozen=True, eq=False, repr=False)
class Equivalence:
    """The answer of `hf.equivalent`.

    Attributes:
        answer: "equivalent" (proved), "different" (`witness` shows it), "timeout" or "unknown"; "measured" where
            neither question was given.
        claim: the question in words.
        found: the largest difference of an output that an input attains; nan for a question about classes.
        proved: an upper bound of the difference for every input of the box; infinite if none is known, nan for
            a question about classes.
        witness: the input that shows it, in the shape of an input of the first network, float64; None without.
        outputs: the outputs of both networks there.
        nodes: number of subproblems that were bounded.
    """

    answer: Verdict
    claim: str
    found: float
    proved: float
    witness: Tensor | None
    outputs: tuple[Tensor, Tensor] | None
    nodes: int
    seconds: float
    evidence: Evidence | None
    note: str = ""

    @property
    def equivalent(self) -> bool | None:
        """True if proved, False if refuted, None if open or if no question was given."""
        return {"equivalent": True, "different": False}.get(self.answer)

    def summary(self) -> str:
        """The answer in a sentence."""
        if self.answer == "measured":
            return (
                f"The outputs differ by at most {self.proved:.6g} for every input of the box (proved); an input differs "
                f"by {self.found:.6g}."
            )
        return SENTENCES[self.answer].format(claim=self.claim)

    def __str__(self) -> str:
        lines = [f"{self.answer}: {self.summary()}"]
        if self.answer != "measured" and self.found == self.found:
            proved = "no bound" if self.proved == float("inf") else f"at most {self.proved:.6g}"
            lines.append(f"largest difference: {proved} (proved), {self.found:.6g} (found)")
        if self.witness is not None and self.outputs is not None:
            lines.append(f"input:   {_numbers(self.witness)}")
            lines += [
                f"outputs: {_numbers(part)} ({which} network)"
                for part, which in zip(self.outputs, ("first", "second"), strict=True)
            ]
        return "\n".join([*lines, *([f"note: {self.note}"] if self.note else [])])

    __repr__ = __str__


def _numbers(values: Tensor) -> str:
    shown = values.flatten().tolist()
    more = f", ... ({len(shown)} numbers)" if len(shown) > 8 else ""
    return ", ".join(f"{value:.6g}" for value in shown[:8]) + more


def equivalent(
    net: ModelLike,
    other: ModelLike,
    box: Box | tuple[Tensor, Tensor],
    *,
    within: float | None = None,
    same_class: bool = False,
    margin: float | None = None,
    tolerance: float = 1e-2,
    stop: StopOption = None,
    seconds: float | None = None,
    seed: int = 0,
    methods: Sequence[Method[Any] | Branching[Any] | str] | str | None = None,
    store: Sink | None = None,
    progress: ProgressOption = None,
) -> Equivalence:
    """Prove that two networks answer alike for every input of a box, or find an input where they do not.

    For a model after retraining, pruning, rounding or quantisation, compared with the one before. Give
    `within`, or `same_class`, or neither: then the largest difference is bracketed.

    Args:
        net: a network, a torch module in evaluation mode, or the path of an .onnx file.
        other: the network that it is compared with; of any structure, with as many inputs and outputs.
        box: a hf.Box of one input, or its (lower, upper).
        within: prove that no output differs by more than this.
        same_class: prove that both choose the same class.
        margin: with same_class: only where the class of `net` leads all others by more than this. Default: 0.
            Near a border between two classes, every small change of a network changes the class of some
            input.
        tolerance: without a question: how close the proved and the attained difference have to be.
        stop: when to stop: hf.Stop(seconds=...), or a number of seconds. Without it the search ends when the
            question is settled, which may be never.
        seconds: the same as a number for `stop`.
        seed: decides every random number.
        methods: InputSplit or ActivationSplit, to choose how subproblems are split, as in `hf.verify`.
        store: keeps every record while it is made.
        progress: None: a bar in a terminal or notebook. False: nothing. A function: it is called with every
            report.

    Returns: The answer, with a proved upper bound of the difference and the largest difference that an input
    attains. Proofs are about real arithmetic; a counterexample was replayed through both networks.
    """
    check_search(seed, store)
    check_progress(progress)
    limit, chosen = check_stop(stop, seconds), check_methods(methods, (Method, Branching))
    allowed = None if within is None else check_number("within", within, at_least=0)
    lead = None if margin is None else check_number("margin", margin, at_least=0)
    exactness = check_number("tolerance", tolerance, above=0)
    if within is not None and same_class:
        raise BadInput("give within or same_class, not both: they are two questions.")
    if margin is not None and not same_class:
        raise BadInput("margin belongs to same_class=True: by how much the class has to lead.")
    if not isinstance(box, Box | tuple | list):
        raise BadInput(
            f"box: expected hf.Box.between(lower, upper), or a pair (lower, upper), got {show(box)}."
        )
    one, two = as_network(net), as_network(other, name="other")
    ends = box_of(one, box)
    if len(ends) != 1:
        raise BadInput(f"box: holds {len(ends)} boxes; give one, and call hf.equivalent for each.")
    lower, upper = ends.lower[0], ends.upper[0]
    both, shape, outputs = two_networks(one, two, lower)
    if allowed is None and not same_class:
        rows = torch.cat([torch.eye(outputs), -torch.eye(outputs)], 1)
        with progress_display(progress, "equivalent") as report:
            ranges = reach_ranges(
                both,
                (lower.flatten(), upper.flatten()),
                rows=rows,
                tolerance=exactness,
                stop=limit,
                seed=seed,
                methods=chosen,
                store=store,
                progress=report,
            )
        found = largest_difference(ranges, shape)
        at = both(found.witness.reshape(1, -1).to(both.dtype))[0].double().cpu()
        return Equivalence(
            "measured",
            "",
            found.found,
            found.proved,
            found.witness,
            (at[:outputs], at[outputs:]),
            max(one.nodes for one in ranges),
            sum(one.seconds for one in ranges),
            found.evidence,
            "; ".join(dict.fromkeys(one.note for one in ranges if one.note)),
        )
    query = equivalence_query(
        shape, outputs, lower, upper, within=allowed, margin=None if not same_class else lead or 0.0
    )
    with progress_display(progress, "equivalent") as report:
        verdict = answer_specification(
            {"f": one, "g": two},
            parse(query, "the comparison"),
            stop=limit,
            seed=seed,
            methods=chosen,
            store=store,
            progress=report,
        )
    answers: dict[str, Verdict] = {"sat": "different", "unsat": "equivalent", "timeout": "timeout"}
    witness, pair = None, None
    if verdict.witness is not None and verdict.outputs is not None:
        witness = verdict.witness[: lower.numel()].reshape(shape)
        pair = verdict.outputs[:outputs], verdict.outputs[outputs:]
    nothing = float("nan")
    return Equivalence(
        answers.get(verdict.answer, "unknown"),
        f"the outputs differ by at most {allowed:g}"
        if allowed is not None
        else "both networks choose the same class" + (f" where it leads by {lead:g}" if lead else ""),
        nothing if allowed is None else max(0.0, allowed - verdict.lowest),
        nothing if allowed is None else _compute_proved_tolerance(verdict.answer, allowed, verdict.least),
        witness,
        pair,
        verdict.nodes,
        verdict.seconds,
        verdict.evidence,
        verdict.note,
    )


def _compute_proved_tolerance(answer: str, allowed: float, least: float) -> float:
    """An upper bound of the difference: the question itself if it is proved, else what the margin's bound gives."""
    if answer == "unsat":
        return allowed
    total = allowed - least
    return float(torch.nextafter(torch.tensor(total, dtype=torch.float64), torch.tensor(torch.inf)))
