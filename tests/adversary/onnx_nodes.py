"""The cases that ONNX ships for its own operators, each put to the importer: right, refused by name, or wrong."""

import copy
import functools
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test.case.node
import onnx.backend.test.loader
import torch
from onnx import TensorProto, numpy_helper
from torch import Tensor

from holdfast.errors import HoldfastError, UnsupportedLayer
from holdfast.network.onnx import OnnxModule, import_onnx
from holdfast.network.onnx.tensors import as_torch

TOLERANCES = {torch.bfloat16: 2e-2, torch.float16: 2e-3}
TOLERANCE = 1e-5
"""Relative to the value and to the largest of the case; of halves, a unit or two in their last place."""

ROUNDED = {"test_averagepool_2d_ceil_last_window_starts_on_pad": 1e-3}
"""Whose answers are written down with four digits."""

FULL = (torch.float32, torch.float64)
QUANTISED = {"QuantizeLinear", "QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"}
FOLDERS = ("simple", "pytorch-operator", "pytorch-converted")


@dataclass(frozen=True)
class Case:
    """A model, inputs by name (None: something that is no tensor of numbers) and what it should answer."""

    name: str
    model: onnx.ModelProto
    inputs: Mapping[str, Tensor | None]
    outputs: Sequence[Tensor | None]

    @property
    def operators(self) -> set[str]:
        return {node.op_type for node in self.model.graph.node}


@dataclass
class Counts:
    """What became of the cases; `wrong` says of each what was wrong."""

    right: int = 0
    refused: int = 0
    wrong: dict[str, str] = field(default_factory=dict)
    right_of: Counter[str] = field(default_factory=Counter)  # by operator
    reasons: dict[str, str] = field(default_factory=dict)  # of what is refused, by case


@functools.cache
def counts() -> Counts:
    """Walks all cases. Each is asked three times: with every input free, with its settings held, with all but the first input held."""
    found = Counts()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for case in cases():
            _judge(case, found)
    finally:
        torch.set_num_threads(threads)
    return found


def _judge(case: Case, found: Counts) -> None:
    answered = False
    for held in _held(case):
        try:
            _compare(case, held)
            answered = True
        except HoldfastError as error:
            found.reasons[case.name] = f"{type(error).__name__}: {error}"
        except Exception as error:
            found.wrong[case.name] = f"with {sorted(held)} held: {type(error).__name__}: {str(error)[:300]}"
    if case.name in found.wrong:
        return
    if answered:
        found.right += 1
        found.right_of.update(case.operators)
        found.reasons.pop(case.name, None)
    else:
        found.refused += 1


def _held(case: Case) -> list[list[str]]:
    """The inputs that are made constants: what a network holds in its file, a case of ONNX feeds."""
    later = list(case.inputs)[1:]
    settings = [
        name for name in later if (value := case.inputs[name]) is not None and not value.is_floating_point()
    ]
    return [list(choice) for choice in dict.fromkeys([(), tuple(settings), tuple(later)])]


def _compare(case: Case, held: list[str]) -> None:
    """Raises where the module, or its float64 twin, answers anything but what the case says."""
    if any(value is None for value in (*case.inputs.values(), *case.outputs)):
        _refuses(case)
    module = import_onnx(case.model, case.name, constants={name: case.inputs[name] for name in held})
    given = [value for name, value in case.inputs.items() if name not in held and value is not None]
    _agree(case, module, given)
    if all(value.dtype == torch.float32 for value in given):
        _agree(case, copy.deepcopy(module).double(), [value.double() for value in given], twin=True)


def _refuses(case: Case) -> None:
    """Of values that no tensor of numbers can hold, nothing can be right: the file itself must be refused."""
    import_onnx(case.model, case.name)
    raise AssertionError("imported, although it takes or answers something that is no tensor of numbers")


def _agree(case: Case, module: OnnxModule, given: list[Tensor], *, twin: bool = False) -> None:
    answers = module(*given)
    answers = answers if isinstance(answers, tuple) else (answers,)
    for mine, wanted in zip(answers, case.outputs, strict=True):
        assert wanted is not None
        # Floats come in the type that the module works in, and so do the integers of a quantised tensor.
        held = any(node.op_type in QUANTISED for node in case.model.graph.node)
        kinds = FULL if wanted.dtype in FULL else [*FULL, torch.float16] if held else [wanted.dtype]
        assert mine.dtype in kinds, f"answers {mine.dtype} instead of {wanted.dtype}"
        assert mine.dtype == torch.float64 or not twin or mine.dtype not in FULL, (
            "the float64 twin works in float32"
        )
        assert mine.shape == wanted.shape, f"answers {tuple(mine.shape)} instead of {tuple(wanted.shape)}"
        if not wanted.dtype.is_floating_point:
            assert torch.equal(mine.double(), wanted.double()), (
                f"answers {mine.flatten()[:8].tolist()} instead of {wanted.flatten()[:8].tolist()}"
            )
            continue
        tolerance = ROUNDED.get(case.name, TOLERANCES.get(wanted.dtype, TOLERANCE))
        finite = wanted[wanted.isfinite()].double().abs()
        slack = tolerance * min(float(finite.max()) if finite.numel() else 0.0, 1.0)
        np.testing.assert_allclose(mine.detach().double(), wanted.double(), rtol=tolerance, atol=slack)


def cases() -> Iterator[Case]:
    """Those of single operators, in all operator sets, and those of small models that lie on disk beside them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        collected = onnx.backend.test.case.node.collect_testcases(None)
    for one in collected:
        for number, (inputs, outputs) in enumerate(one.data_sets or []):
            yield _case(f"{one.name}{f'/{number}' if number else ''}", one.model, inputs, outputs)
    for folder in FOLDERS:
        for one in onnx.backend.test.loader.load_model_tests(kind=folder):
            yield from _on_disk(folder, one)


def _on_disk(folder: str, one: Any) -> Iterator[Case]:
    place = Path(one.model_dir)
    model = onnx.load(place / "model.onnx")
    for data in sorted(place.glob("test_data_set_*")):
        sides = [
            [TensorProto.FromString(path.read_bytes()) for path in sorted(data.glob(f"{side}_*.pb"))]
            for side in ("input", "output")
        ]
        yield _case(f"{folder}/{one.name}", model, *sides)


def _case(name: str, model: onnx.ModelProto, inputs: Sequence[Any], outputs: Sequence[Any]) -> Case:
    names = [port.name for port in model.graph.input]
    return Case(
        name,
        model,
        dict(zip(names, map(_tensor, inputs), strict=False)),
        [_tensor(value) for value in outputs],
    )


def _tensor(value: Any) -> Tensor | None:
    """None where it is no tensor of a type that torch knows."""
    try:
        if isinstance(value, TensorProto):
            return as_torch(value, "case")
        return (
            as_torch(numpy_helper.from_array(np.asarray(value)), "case")
            if isinstance(value, np.ndarray | np.generic)
            else None
        )
    except (UnsupportedLayer, NotImplementedError, RuntimeError, KeyError):
        return None


if __name__ == "__main__":
    found = counts()
    print(
        f"right {found.right}, refused {found.refused}, wrong {len(found.wrong)}; {len(found.right_of)} operators"
    )
    for case_name, reason in {**found.wrong, **(found.reasons if "-v" in sys.argv else {})}.items():
        print(f"  {case_name}: {' '.join(reason.split())}")
