"""The verdict on a case: the true output by the references, and the outcome of each target."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.onnx_differential.answers import (
    RAW,
    TARGETS,
    Answer,
    by_onnxruntime,
    by_reference,
    is_missing,
    same,
    same_order,
)
from benchmarks.onnx_differential.building import Case

Outcome = Literal["agreed", "refused", "no truth", "difference", "not in words"]


@dataclass(frozen=True)
class Truth:
    """The true output of a case. `disputed`: the references disagree, and onnxruntime's output counts."""

    answer: Answer
    disputed: str = ""


@dataclass(frozen=True)
class Judged:
    target: str
    outcome: Outcome
    why: str = ""


def truth_of(case: Case) -> Truth:
    """The true output of a case.

    It is onnxruntime's output, since onnxruntime runs models in production (in float32 where it has no
    float64 kernel). Where it has no kernel at all, onnx's own reference counts. A model that onnxruntime
    refuses for another reason has no true output.
    """
    runtime, reference = by_onnxruntime(case), by_reference(case)
    if runtime.values is not None:
        if reference.values is None or (
            runtime.values.shape == reference.values.shape and same(reference.values, runtime.values)
        ):
            return Truth(runtime)
        return Truth(runtime, f"onnxruntime {_brief(runtime)}, onnx's reference {_brief(reference)}")
    if is_missing(runtime):
        return Truth(reference)
    return Truth(Answer(reason=f"onnxruntime: {runtime.reason}"))


def judge(case: Case, target: str, truth: Truth, folder: Path) -> Judged:
    """The worst outcome of this target's entry points; "agreed" if one agrees and the others refuse."""
    path = folder / "case.onnx"
    path.write_bytes(case.content)
    answers = TARGETS[target](case, path)
    outcomes = [_outcome(name, answer, truth) for name, answer in answers]
    for wanted in ("difference", "not in words", "no truth", "agreed", "refused"):
        for outcome, why in outcomes:
            if outcome == wanted:
                return Judged(target, outcome, why)
    raise AssertionError("a target has no answer")


def _outcome(name: str, answer: Answer, truth: Truth) -> tuple[Outcome, str]:
    if answer.values is None:
        said_in_words = not answer.reason.startswith(RAW)
        return (
            "refused" if said_in_words or name in ("importer", "float64") else "not in words"
        ), f"{name}: {answer.reason}"
    if truth.answer.values is None:
        return "no truth", f"{name} answers where {truth.answer.reason}"
    if answer.only_order:
        agreed = same_order(answer.values, truth.answer.values)
    else:
        agreed = same(answer.values, truth.answer.values, finite_only=name in ("float64", "checker"))
    return (
        ("agreed", "") if agreed else ("difference", f"{name} {_brief(answer)}, truth {_brief(truth.answer)}")
    )


def _brief(answer: Answer) -> str:
    if answer.values is None:
        return answer.reason
    numbers = ", ".join(f"{value:.6g}" for value in answer.values.ravel()[:12].tolist())
    return f"{list(answer.values.shape)} [{numbers}{', ...' if answer.values.size > 12 else ''}]"
