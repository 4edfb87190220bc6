"""A radius question as VNN-LIB files, for other verifiers: one file for each input, and a list of instances.

Input k with class c and radius r becomes the box { x : |x_i - x_k,i| <= r, lowest <= x_i <= highest } and the
forbidden outputs "Y_j >= Y_c for some j != c". Every number is written in full, so the file states exactly this box
around the stored input, without rounding.
"""

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.errors import BadInput
from holdfast.foreign_text import printable
from holdfast.question import Question
from holdfast.store import Store, StoredInput

INSTANCES = "instances.csv"
SECONDS = 60  # Time for each instance in the list, which other tools expect (chosen by hand).
# Questions that are such boxes: these fields of a request, and no others.
OF_A_BALL = {"norm", "radius"}
OUTPUTS = "Y"


def write_vnnlib(
    store: Store, folder: str | Path, *, at: float, outputs: int, model: str | None = None
) -> list[Path]:
    """Write one file for each input of a run, and instances.csv; return the paths.

    Args:
        at: the radius.
        outputs: the number of outputs of the network.
        model: the path of the .onnx file that the list names. None: the model of the run, if it is one.
    """
    question = store.question
    check_question(question, at)
    if outputs < 2:
        raise BadInput(f"the network has {outputs} outputs, so there is no other class.")
    lowest, highest = _domain(question)
    given = model or question.model.name
    if not given.endswith((".onnx", ".onnx.gz")):
        raise BadInput(
            f"the model of the run is {printable(given)}, and VNN-LIB is about .onnx files: export it, and name the "
            "file with --model."
        )
    target = Path(folder)
    try:
        target.mkdir(parents=True)
    except FileExistsError:
        raise BadInput(f"{target} exists already; name another folder.") from None
    except OSError as error:
        raise BadInput(f"{target}: cannot be written ({error}).") from error
    written, lines = [], []
    for stored in store.stream_inputs():
        label = stored.prediction if stored.label is None else stored.label
        if not isinstance(label, int) or not 0 <= label < outputs:
            raise BadInput(f"input {stored.index} has the class {label}, and the network {outputs} outputs.")
        path = target / f"input_{stored.index}.vnnlib"
        path.write_text(_file(stored, label, at, outputs, lowest, highest))
        written.append(path)
        lines.append(f"{given},{path.name},{SECONDS}\n")
    (target / INSTANCES).write_text("".join(lines))
    return [*written, target / INSTANCES]


def check_question(question: Question, at: float) -> None:
    """Raise BadInput unless the question is about the class in balls of the norm inf."""
    asked = {name for name, value in vars(question.asked).items() if value not in (None, False, (), "", {})}
    other = asked - OF_A_BALL - {"property", "domain"}
    if question.command not in ("radius", "worst") or question.asked.norm != "inf" or other:
        raise BadInput(
            "only runs of 'holdfast radius' in the norm inf, about the class and without further options of the "
            f"question, are boxes{f'; this run has {chr(44).join(sorted(other))}' if other else ''}."
        )
    changed = set(question.model.prepared) - {"domain", "black_box", "unbatched", "constants"}
    if changed:
        raise BadInput(
            f"the run prepares its inputs ({', '.join(sorted(changed))}), which no VNN-LIB file can say: put it "
            "into the network, and measure that."
        )
    if not at > 0 or math.isinf(at):
        raise BadInput(f"--at {at}: give the radius, a positive number.")


def _domain(question: Question) -> tuple[Any, Any]:
    options: Any = question.options.get("network") or {}
    text = options.get("domain") if isinstance(options, dict) else None
    if text is None and question.model.domain not in (None, "unbounded"):
        raise BadInput(
            f"the run has the domain {question.model.domain}, which only runs of the command line store in full."
        )
    if text is None:
        return None, None
    low, high = (Fraction(float(part)) for part in str(text).split(","))
    return low, high


def _file(stored: StoredInput, label: int, at: float, outputs: int, lowest: Any, highest: Any) -> str:
    x, radius = stored.x.reshape(-1).astype(np.float64), Fraction(at)
    declared = [f"(declare-const X_{i} Real)" for i in range(len(x))]
    declared += [f"(declare-const {OUTPUTS}_{j} Real)" for j in range(outputs)]
    box = []
    for i, value in enumerate(x.tolist()):
        low, high = Fraction(value) - radius, Fraction(value) + radius
        low, high = (
            (low if lowest is None else max(low, lowest)),
            (high if highest is None else min(high, highest)),
        )
        box += [f"(assert (>= X_{i} {_decimal(low)}))", f"(assert (<= X_{i} {_decimal(high)}))"]
    others = " ".join(f"(and (>= {OUTPUTS}_{j} {OUTPUTS}_{label}))" for j in range(outputs) if j != label)
    head = f"; Input {stored.index}: does its class, {label}, hold within {at!r} in the norm inf? unsat: it does."
    return "\n".join([head, *declared, *box, f"(assert (or {others}))", ""])


def _decimal(value: Fraction) -> str:
    """A dyadic number in full: its denominator is a power of two, so its decimals end."""
    digits = max(value.denominator.bit_length() - 1, 0)
    scaled = value.numerator * 5**digits  # value = scaled / 10^digits
    text = str(abs(scaled)).rjust(digits + 1, "0")
    whole, part = (text[:-digits], text[-digits:]) if digits else (text, "0")
    return f"{'-' if scaled < 0 else ''}{whole}.{part.rstrip('0') or '0'}"
