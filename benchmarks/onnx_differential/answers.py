"""What a model answers: by the two references, and by the readers under test."""

import contextlib
import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx.reference import ReferenceEvaluator

from benchmarks.onnx_differential.building import Case
from benchmarks.onnx_differential.draw import Array

RELATIVE, ABSOLUTE = 1e-3, 1e-4  # what rounding may change; the numbers in a case are about one and its networks one layer deep


@dataclass(frozen=True)
class Answer:
    """Either values, or the reason why there are none. `only_order`: only the order of the values is that of the model."""

    values: Array | None = None
    reason: str = ""
    only_order: bool = False


def same(a: Array, b: Array, *, finite_only: bool = False) -> bool:
    """Whether two answers agree up to rounding; infinities and NaN must stand in the same places."""
    if a.size != b.size:
        return False
    with np.errstate(all="ignore"):
        p, q = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
        usual = np.isfinite(q)
        if not finite_only and not np.array_equal(np.where(np.isfinite(p), 0, p), np.where(usual, 0, q), equal_nan=True):
            return False
        p, q = p[usual], q[usual]
        slack = ABSOLUTE * min(max(1.0, float(np.abs(q).max())) if q.size else 1.0, 100.0)
        return bool((np.abs(p - q) <= RELATIVE * np.abs(q) + slack).all())


def same_order(a: Array, b: Array) -> bool:
    """Whether no two values of `a`, which are clearly apart, stand in another order than those of `b`."""
    p, q = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    if p.size != q.size or not (np.isfinite(p).all() and np.isfinite(q).all()):
        return False
    ahead = (p[:, None] > p[None] + 1e-3) & (q[:, None] < q[None] - 1e-6)
    return not bool(ahead.any())


def line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


# ---------------------------------------------------------------- references


def by_onnxruntime(case: Case) -> Answer:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        session = onnxruntime.InferenceSession(case.content, options, providers=["CPUExecutionProvider"])
        values = session.run(None, {"x": case.x})[0]
    except Exception as error:  # types of its own, which derive from Exception alone
        return Answer(reason=line(error))
    return Answer(np.asarray(values))


def by_reference(case: Case) -> Answer:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            values = ReferenceEvaluator(onnx.load_from_string(case.content)).run(None, {"x": case.x})[0]
        found = np.asarray(values)
        return Answer(found.astype(np.float64) if found.dtype == bool else found)
    except Exception as error:
        return Answer(reason=line(error))


# ---------------------------------------------------------------- readers under test


def by_engine(case: Case, path: Path) -> list[tuple[str, Answer]]:
    """The importer alone, its float64 twin, and the network that a user gets."""
    from holdfast import Network
    from holdfast.errors import HoldfastError
    from holdfast.network.onnx import import_onnx, read_onnx

    found: list[tuple[str, Answer]] = []

    def ask(name: str, question: Callable[[], torch.Tensor]) -> None:
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.append((name, Answer(question().double().numpy())))
        except HoldfastError as error:
            found.append((name, Answer(reason=line(error))))
        except Exception as error:
            found.append((name, Answer(reason=f"not in words: {line(error)}")))

    x = torch.from_numpy(case.x)
    modules: list[Any] = []

    def imported() -> torch.Tensor:
        modules.append(import_onnx(read_onnx(path), path.name))
        answer: torch.Tensor = modules[0](x)
        return answer

    def twin() -> torch.Tensor:
        answer: torch.Tensor = copy.deepcopy(modules[0]).double()(x.double())
        return answer

    def network() -> torch.Tensor:
        net = Network.from_onnx(path)
        if net.source == "black box":
            raise HoldfastError(f"black box: {' '.join(net.notes)}")
        return net(x)

    ask("importer", imported)
    if found[-1][1].values is not None and case.x.dtype == np.float32:
        ask("float64", twin)
    if found[-1][1].values is not None:
        ask("network", network)
    return found


def by_checker(case: Case, path: Path) -> list[tuple[str, Answer]]:
    """The values that the checker's own program computes at the point."""
    from holdfast_check.errors import Rejected
    from holdfast_check.proof import Model

    try:
        with contextlib.redirect_stdout(None), np.errstate(all="ignore"):
            program = Model.read(path).program
            if int(np.prod(program.input_shape)) != case.x.size:
                return [("checker", Answer(reason=f"Rejected: reads an input of shape {program.input_shape}"))]
            values = program.value(case.x.reshape(1, -1))
        return [("checker", Answer(np.asarray(values), only_order=bool(program.ranked)))]
    except Rejected as error:
        return [("checker", Answer(reason=line(error)))]
    except Exception as error:
        return [("checker", Answer(reason=f"not in words: {line(error)}"))]


TARGETS: dict[str, Callable[[Case, Path], list[tuple[str, Answer]]]] = {"engine": by_engine, "checker": by_checker}
