"""Outputs of a model by the two references and by the readers under test."""

import contextlib
import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from benchmarks.onnx_differential.building import Case
from benchmarks.onnx_differential.draw import Array

RAW = "not in words"
RELATIVE, ABSOLUTE = (
    1e-3,
    1e-4,
)  # Tolerances for rounding: the numbers in a case are about one and its networks one layer deep.


@dataclass(frozen=True)
class Answer:
    """Output values, or the reason why there are none.

    `only_order`: only the order of the values must match the model.
    """

    values: Array | None = None
    reason: str = ""
    only_order: bool = False


def same(a: Array, b: Array, *, finite_only: bool = False) -> bool:
    """Whether two outputs agree up to rounding, with infinities and NaN at the same indices."""
    if a.size != b.size:
        return False
    with np.errstate(all="ignore"):
        p, q = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
        usual = np.isfinite(q)
        if not finite_only and not np.array_equal(
            np.where(np.isfinite(p), 0, p), np.where(usual, 0, q), equal_nan=True
        ):
            return False
        p, q = p[usual], q[usual]
        slack = ABSOLUTE * min(max(1.0, float(np.abs(q).max())) if q.size else 1.0, 100.0)
        return bool((np.abs(p - q) <= RELATIVE * np.abs(q) + slack).all())


def same_order(a: Array, b: Array) -> bool:
    """Whether all values of `a` that clearly differ have the same order as in `b`."""
    p, q = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    if p.size != q.size or not (np.isfinite(p).all() and np.isfinite(q).all()):
        return False
    ahead = (p[:, None] > p[None] + 1e-3) & (q[:, None] < q[None] - 1e-6)
    return not bool(ahead.any())


def line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


# ---------------------------------------------------------------- references


def by_onnxruntime(case: Case) -> Answer:
    """Output of onnxruntime; in float32 where it has no float64 kernel, which is exact enough for these
    cases.
    """
    answer = _by_onnxruntime(case)
    if is_missing(answer) and case.x.dtype == np.float64:
        return _by_onnxruntime(replace(case, content=in_float32(case.content), x=case.x.astype(np.float32)))
    return answer


def is_missing(answer: Answer) -> bool:
    """Whether a runtime accepts the model but has no kernel for it."""
    return "NotImplemented" in answer.reason or "NOT_IMPLEMENTED" in answer.reason


def in_float32(content: bytes) -> bytes:
    """The same model with float32 wherever it has float64."""
    model = onnx.load_from_string(content)
    for tensor in model.graph.initializer:
        _round(tensor)
    for port in (*model.graph.input, *model.graph.output):
        kind = port.type.tensor_type
        kind.elem_type = TensorProto.FLOAT if kind.elem_type == TensorProto.DOUBLE else kind.elem_type
    bodies = [model.graph.node, *(function.node for function in model.functions)]
    bodies += [
        attribute.g.node
        for node in model.graph.node
        for attribute in node.attribute
        if attribute.HasField("g")
    ]
    for node in (node for body in bodies for node in body):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                _round(attribute.t)
            if attribute.HasField("g"):
                for port in attribute.g.output:
                    port.type.tensor_type.elem_type = TensorProto.FLOAT
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.DOUBLE:
                attribute.i = TensorProto.FLOAT
    return bytes(model.SerializeToString())


def _round(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.DOUBLE:
        tensor.CopyFrom(
            numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name)
        )


def _by_onnxruntime(case: Case) -> Answer:
    import onnxruntime

    onnxruntime.set_seed(0)  # Dropout in training mode is the same in every run.
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    try:
        session = onnxruntime.InferenceSession(case.content, options, providers=["CPUExecutionProvider"])
        values = session.run(None, {"x": case.x})[0]
    except Exception as error:  # onnxruntime's own exception types derive from Exception directly.
        return Answer(reason=line(error))
    return Answer(np.asarray(values))


def by_reference(case: Case) -> Answer:
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            np.random.seed(0)
            values = ReferenceEvaluator(onnx.load_from_string(case.content)).run(None, {"x": case.x})[0]
        found = np.asarray(values)
        return Answer(found.astype(np.float64) if found.dtype == bool else found)
    except Exception as error:
        return Answer(reason=line(error))


# ---------------------------------------------------------------- readers under test


def by_engine(case: Case, path: Path) -> list[tuple[str, Answer]]:
    """Outputs of the importer alone, of its float64 copy, and of the network that a user gets."""
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
            found.append((name, Answer(reason=f"{RAW}: {line(error)}")))

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
    first = found[0][1]
    if first.values is not None and case.x.dtype == np.float32:
        ask("float64", twin)
    if first.values is not None or first.reason.startswith(
        RAW
    ):  # The network turns torch's errors about shapes into a HoldfastError.
        ask("network", network)
    return found


def by_checker(case: Case, path: Path) -> list[tuple[str, Answer]]:
    """Outputs of the checker's own program at the point."""
    from holdfast_check.errors import Rejected
    from holdfast_check.proof import Model

    try:
        with contextlib.redirect_stdout(None), np.errstate(all="ignore"):
            program = Model.read_file(path).program
            if int(np.prod(program.input_shape)) != case.x.size:
                return [
                    ("checker", Answer(reason=f"Rejected: reads an input of shape {program.input_shape}"))
                ]
            values = program.value(case.x.reshape(1, -1))
        return [("checker", Answer(np.asarray(values), only_order=bool(program.ranked)))]
    except Rejected as error:
        return [("checker", Answer(reason=line(error)))]
    except Exception as error:
        return [("checker", Answer(reason=f"{RAW}: {line(error)}"))]


TARGETS: dict[str, Callable[[Case, Path], list[tuple[str, Answer]]]] = {
    "engine": by_engine,
    "checker": by_checker,
}
