"""What became of a case: the truth by the references, and the outcome of each target."""

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
    """What the case should be answered. `disputed`: the references answer differently, and onnxruntime's answer is the one that counts."""

    answer: Answer
    disputed: str = ""


@dataclass(frozen=True)
class Judged:
    target: str
    outcome: Outcome
    why: str = ""


def truth_of(case: Case) -> Truth:
    """onnxruntime's answer where there is one, for it is what runs a model in the field: of float64 models for which it has no kernel,
    that in float32. Else that of onnx's own reference; what onnxruntime refuses for another reason has no meaning."""
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
    """The worst that happened to this target; agreed where one of its ways in answers and the others refuse."""
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
