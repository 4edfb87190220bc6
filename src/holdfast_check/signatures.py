"""The signatures of the operators that this checker supports: inputs, outputs and attributes, per version.
Everything else is rejected.

A version is an opset in which the standard changes the definition of an operator. The tables contain every
version in force in the supported opsets, so that a change of meaning cannot go unnoticed (a test compares
them with the standard's own list). Version 0 is the notation of `container`, the file that `holdfast prove`
writes for a model that is not an .onnx file: there, parameters that newer opsets pass as inputs (shapes,
axes, bounds of a clip) are attributes, real numbers may have any width, and the input of Gemm may have any
number of axes.

Inputs are described by one letter each, in order. Inputs after "?" are optional, and "*" repeats the last
one.

    T  real numbers that may depend on the input; all T and W of a node have one type, float32 or float64
    W  the same, but constant
    S  constant real numbers of float32 or float64, whatever the others are
    V  anything, constant or not; several V have the same type
    I  constant int64, a list
    J  constant int64 or int32, a list
    Y  constant int64 or int32, of any shape
    K  constant int32, a list
    B  a constant truth value
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Union

import numpy as np

from holdfast_check.arithmetic import LARGEST, Array
from holdfast_check.errors import Rejected, require
from holdfast_check.steps import StepView

Value = Union[StepView, Array]  # A value that depends on the input, or a constant.
OPSETS = 7, 25  # The first and the last opset that is read.
DESCRIBED = 0  # The version of described models (`container`).


@dataclass(frozen=True)
class Attribute:
    """kind: int, float, text, ints, tensor or numbers. only: the supported values; empty: whatever the
    operator allows.
    """

    kind: str
    only: tuple[Any, ...] = ()
    required: bool = False


@dataclass(frozen=True)
class OperatorSignature:
    """The signature of an operator in some versions. outputs: how many may be named; -1: any number."""

    inputs: str
    attributes: Mapping[str, Attribute]
    outputs: int = 1


Versions = Sequence[int]
INT, REAL, INTS, TENSOR = Attribute("int"), Attribute("float"), Attribute("ints"), Attribute("tensor")
NEEDED, NEEDED_INTS = Attribute("int", required=True), Attribute("ints", required=True)


def _only(*values: Any) -> Attribute:
    """An optional attribute with one of these values; the first is the default."""
    return Attribute("text" if isinstance(values[0], str) else "int", values)


def _forms(
    *entries: tuple[Versions, str, Mapping[str, Attribute]]
    | tuple[Versions, str, Mapping[str, Attribute], int],
) -> dict[int, OperatorSignature]:
    """Signatures by version."""
    return {
        version: OperatorSignature(inputs, attributes, *rest)
        for versions, inputs, attributes, *rest in entries
        for version in versions
    }


NONE: dict[str, Attribute] = {}
AXIS, AXES = {"axis": INT}, {"axes": INTS}
WINDOW = {"auto_pad": _only("NOTSET", "VALID"), "pads": INTS, "strides": INTS, "kernel_shape": INTS}
POOL = WINDOW | {"kernel_shape": NEEDED_INTS}
DILATED = {"dilations": INTS}
CONVOLUTION = WINDOW | DILATED | {"group": INT}
FLOOR = {"ceil_mode": _only(0)}
AVERAGE = POOL | {"count_include_pad": _only(0, 1)}
LARGEST_OF = POOL | {"storage_order": _only(0)}
NORMALISED = {"epsilon": REAL, "momentum": REAL}
PRODUCT = {
    "alpha": Attribute("float", (1.0,)),
    "beta": Attribute("float", (1.0,)),
    "transA": _only(0, 1),
    "transB": _only(0, 1),
}
REDUCED = {"keepdims": _only(1, 0)}
ORDERED = REDUCED | {"noop_with_empty_axes": _only(0)}
CAST = {"to": Attribute("int", (1, 6, 7, 9, 11), required=True)}
PADDED = {"mode": _only("constant")}
VALUE = {"value": TENSOR}
VALUES = VALUE | {
    "value_float": REAL,
    "value_floats": Attribute("floats"),
    "value_int": INT,
    "value_ints": INTS,
}
CELL = {
    "hidden_size": INT,
    "direction": _only("forward", "reverse", "bidirectional"),
    "activations": Attribute("texts"),
}
BATCHED = {"layout": _only(0)}
RESET = {"linear_before_reset": _only(0, 1)}
FREE = {"input_forget": _only(0)}
# The versions in which the standard only added element types to operators that move elements.
SHAPES = 21, 23, 24, 25


FORMS: dict[str, dict[int, OperatorSignature]] = {
    "Identity": _forms(((1, 13, 14, 16, 19, *SHAPES), "V", NONE)),
    "Dropout": _forms(((7, 10), "T", {"ratio": REAL}, 2), ((12, 13, 22), "T?SB", {"seed": INT}, 2)),
    "Cast": _forms(((6, 9, 13), "V", CAST), ((19, *SHAPES), "V", CAST | {"saturate": _only(1)})),
    "Constant": _forms(((1, 9, 11), "", VALUE), ((12, 13, 19, *SHAPES), "", VALUES)),
    "Shape": _forms(((1, 13), "V", NONE), ((15, 19, *SHAPES), "V", {"start": INT, "end": INT})),
    "ConstantOfShape": _forms(((9, 20, *SHAPES), "I", VALUE)),
    "Reshape": _forms(
        ((DESCRIBED,), "V", {"shape": NEEDED_INTS}), ((5, 13), "VI", NONE),
        ((14, 19, *SHAPES), "VI", {"allowzero": _only(0)})
    ),
    "Flatten": _forms(((1, 9, 11, 13, *SHAPES), "V", AXIS)),
    "Transpose": _forms(((DESCRIBED, 1, 13, *SHAPES), "V", {"perm": INTS})),
    "Squeeze": _forms(((1, 11), "V", AXES), ((13, *SHAPES), "V?I", NONE)),
    "Unsqueeze": _forms(((DESCRIBED, 1, 11), "V", {"axes": NEEDED_INTS}), ((13, *SHAPES), "VI", NONE)),
    "Expand": _forms(((8, 13), "VI", NONE)),
    "Gather": _forms(((DESCRIBED, 1, 11, 13), "VY", AXIS)),
    "Slice": _forms(((1,), "V", {"starts": NEEDED_INTS, "ends": NEEDED_INTS, "axes": INTS}),
        ((10, 11, 13), "VJJ?JJ", NONE)),
    "Split": _forms(
        ((2, 11), "V", AXIS | {"split": INTS}, -1), ((13,), "V?I", AXIS, -1),
        ((18,), "V?I", AXIS | {"num_outputs": INT}, -1)
    ),
    "Concat": _forms(((DESCRIBED, 4, 11, 13), "V*", {"axis": NEEDED})),
    "Pad": _forms(
        ((2,), "T", PADDED | {"pads": NEEDED_INTS, "value": REAL}), ((11, 13), "TI?W", PADDED),
        ((18, 19, *SHAPES), "TI?W", PADDED)
    ),
    "Gemm": _forms(((DESCRIBED,), "TT?W", NONE), ((7, 9), "TTW", PRODUCT), ((11, 13), "TT?W", PRODUCT)),
    "MatMul": _forms(((DESCRIBED, 1, 9, 13), "TT", NONE)),
    "Conv": _forms(((DESCRIBED, 1, 11, 22), "TW?W", CONVOLUTION)),
    "AveragePool": _forms(((DESCRIBED, 7), "T", AVERAGE), ((10, 11), "T", AVERAGE | FLOOR),
        ((19, 22), "T", AVERAGE | FLOOR)),
    "GlobalAveragePool": _forms(((1, 22), "T", NONE)),
    "MaxPool": _forms(
        ((DESCRIBED,), "T", POOL | DILATED), ((1,), "T", POOL), ((8,), "T", LARGEST_OF, 2),
        ((10, 11, 12, 22), "T", LARGEST_OF | DILATED | FLOOR, 2),
    ),
    "Max": _forms(((DESCRIBED, 6, 8, 12, 13), "T*", NONE)),
    "Min": _forms(((DESCRIBED, 6, 8, 12, 13), "T*", NONE)),
    "ReduceSum": _forms(((DESCRIBED, 1, 11), "T", REDUCED | AXES), ((13,), "T?I", ORDERED)),
    "ReduceMean": _forms(((DESCRIBED, 1, 11, 13), "T", REDUCED | AXES), ((18,), "T?I", ORDERED)),
    **{op: _forms(((DESCRIBED, 7, 13, 14), "TT", NONE)) for op in ("Add", "Sub", "Mul", "Div")},
    **{op: _forms(((DESCRIBED, 6, 13), "T", NONE)) for op in ("Neg", "Abs", "Sigmoid", "Tanh")},
    **{op: _forms(((DESCRIBED, 6, 13), "T", NONE)) for op in ("Exp", "Log", "Sqrt", "Reciprocal")},
    "Erf": _forms(((DESCRIBED, 9, 13), "T", NONE)),
    "Softplus": _forms(((DESCRIBED, 1, 22), "T", NONE)),
    "Elu": _forms(((DESCRIBED, 6, 22), "T", {"alpha": REAL})),
    "Gelu": _forms(((DESCRIBED, 20), "T", {"approximate": _only("none", "tanh")})),
    "LayerNormalization": _forms(((DESCRIBED, 17), "TW?W", AXIS | {"epsilon": REAL, "stash_type": _only(1)})),
    "Pow": _forms(((7, 12, 13, 15), "TW", NONE)),
    "Relu": _forms(((DESCRIBED, 6, 13, 14), "T", NONE)),
    "LeakyRelu": _forms(((DESCRIBED, 6, 16), "T", {"alpha": REAL})),
    "Clip": _forms(((DESCRIBED, 6), "T", {"min": REAL, "max": REAL}), ((11, 12, 13), "T?WW", NONE)),
    "BatchNormalization": _forms(
        ((DESCRIBED,), "TWWWW", {"epsilon": REAL}), ((7,), "TWWWW", NORMALISED | {"spatial": _only(1)}),
        ((9,), "TWWWW", NORMALISED),
        ((14,), "TWWWW", NORMALISED | {"training_mode": _only(0)}),
        ((15,), "TSSSS", NORMALISED | {"training_mode": _only(0)}),
    ),
    **{op: _forms(((DESCRIBED, 1, 11, 13), "T", AXIS)) for op in ("Softmax", "LogSoftmax")},
    "RNN": _forms(((DESCRIBED, 7), "TWW?WKW", CELL, 2), ((14, 22), "TWW?WKW", CELL | BATCHED, 2)),
    "GRU": _forms(((DESCRIBED, 7), "TWW?WKW", CELL | RESET, 2),
        ((14, 22), "TWW?WKW", CELL | RESET | BATCHED, 2)),
    "LSTM": _forms(((DESCRIBED, 7), "TWW?WKWW", CELL | FREE, 3),
        ((14, 22), "TWW?WKWW", CELL | FREE | BATCHED, 3)),
}  # fmt: skip


def form_of(op: str, opset: int) -> OperatorSignature:
    """The signature in force in this opset."""
    versions = FORMS.get(op, {})
    found = [
        version for version in versions if (version == DESCRIBED) == (opset == DESCRIBED) and version <= opset
    ]
    if not found:
        raise Rejected(
            f"operator {op} is not supported by this checker" + (f" in opset {opset}" if versions else "")
        )
    return versions[max(found)]


def _fits(value: Any, kind: str, opset: int) -> bool:
    """Whether a value is of this kind. In the described notation, which is JSON, a real number may be written
    as an integer.
    """
    if kind == "tensor":
        return isinstance(value, np.ndarray)
    if kind in ("ints", "floats", "texts"):
        return isinstance(value, list) and all(_fits(part, kind[:-1], opset) for part in value)
    if kind == "float":
        return (type(value) is float or (opset == DESCRIBED and type(value) is int)) and abs(value) < LARGEST
    return type(value) is {"int": int, "text": str}[kind]


def check_attributes(form: OperatorSignature, attributes: Mapping[str, Any], opset: int) -> None:
    """Reject an attribute that is unknown, of another type, or has an unsupported value."""
    for name, value in attributes.items():
        require(name in form.attributes, f"attribute {name} is not supported by this checker here")
        expected = form.attributes[name]
        require(_fits(value, expected.kind, opset), f"attribute {name} is not a valid {expected.kind}")
        require(
            not expected.only or value in expected.only,
            f"attribute {name} is {value!r}; this checker supports {expected.only}",
        )
    for name, expected in form.attributes.items():
        require(name in attributes or not expected.required, f"attribute {name} is missing")


REAL_TYPES, INTEGERS = ("<f4", "<f8"), ("<i8", "<i4")  # numpy types
# The element types that a letter of a signature allows.
TYPES_READ = {
    "T": REAL_TYPES,
    "W": REAL_TYPES,
    "S": REAL_TYPES,
    "I": ("<i8",),
    "J": INTEGERS,
    "Y": INTEGERS,
    "K": ("<i4",),
    "B": ("|b1",),
}


def _letters(form: OperatorSignature, many: int) -> tuple[str, int]:
    """A letter for each of `many` inputs, and the number of required inputs."""
    needed, _, more = form.inputs.partition("?")
    if not needed.endswith("*"):
        return needed + more, len(needed)
    return needed[0] * max(many, 1), max(many, 1)


def check_inputs(
    form: OperatorSignature, given: Sequence[Value | None], kinds: Sequence[str], opset: int
) -> str:
    """Reject an input that is missing, superfluous, of another type, or depends on the network's input where
    it must be constant.

    Args:
        kinds: the types of the inputs, "" for an omitted one.

    Returns the type of the node's real outputs.
    """
    letters, least = _letters(form, len(given))
    require(len(given) <= len(letters), f"it has {len(given)} inputs; this checker supports {len(letters)}")
    require(len(given) >= least and all(value is not None for value in given[:least]), "an input is missing")
    same: set[str] = set()
    for place, (letter, value, kind) in enumerate(zip(letters, given, kinds)):
        if value is None:
            continue
        require(
            letter in "TV" or not isinstance(value, StepView),
            f"input {place} depends on the input of the network",
        )
        require(letter not in "IJK" or len(value.shape) == 1, f"input {place} is not a list")
        if opset == DESCRIBED and letter in "TW":
            require(
                kind[1] in "fiu" and _exact(value), f"input {place} has a value that float64 cannot represent"
            )
        else:
            require(kind in TYPES_READ.get(letter, (kind,)), f"input {place} has the type {kind}")
        if letter in "TWV":
            same.add(kind)
    require(len(same) <= 1 or opset == DESCRIBED, f"its inputs have the types {', '.join(sorted(same))}")
    return min(same, default="")


def _exact(value: Value | None) -> bool:
    """Whether integers are small enough to be exact in float64."""
    integers = isinstance(value, np.ndarray) and value.dtype.kind != "f"
    return not integers or bool((np.abs(np.asarray(value).astype(np.float64)) <= 2.0**53).all())
