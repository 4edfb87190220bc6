"""CROWN and alpha-CROWN radii of the unrolled networks by auto_LiRPA, where it is installed.

Its newest release on PyPI, 0.3, was written for torch 1.12 and numpy 1; `_fit` restores the four names it
misses. Install it without its dependencies: pip install --no-deps auto_LiRPA appdirs tqdm pyyaml.
"""

import contextlib
import importlib
import io
import sys
import time
import types
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def absent() -> str | None:
    """Why auto_LiRPA cannot be used; None if it can."""
    try:
        _fit()
        importlib.import_module("auto_LiRPA")
    except Exception as error:
        return f"auto_LiRPA: {type(error).__name__}: {error}"
    return None


def radii(
    module: nn.Module,
    frames: Sequence[Tensor],
    y: Tensor,
    targets: Tensor,
    norm: float,
    guess: Tensor,
    method: str,
    steps: int = 10,
) -> tuple[Tensor, float]:
    """Bisect for the largest radius (batch,) at which the margin to the target is proved; CPU seconds for all
    inputs.

    Every frame has its own ball. guess (batch,): a radius of about the right size. The search goes from 0 to
    twice that, and further where that is still proved.
    """
    lirpa = importlib.import_module("auto_LiRPA")
    margin = (torch.eye(10)[y] - torch.eye(10)[targets])[:, None]
    low, high = torch.zeros(len(y)), 2 * guess.float()
    with _quiet():
        bounded = lirpa.BoundedModule(
            module,
            tuple(frames),
            bound_opts={"conv_mode": "matrix", "optimize_bound_args": {"iteration": 20}},
        )
        began = time.process_time()
        for _ in range(steps):
            radius = (low + high) / 2
            ball = lirpa.PerturbationLpNorm(norm=np.inf if norm == torch.inf else norm, eps=radius[:, None])
            inputs = tuple(lirpa.BoundedTensor(f, ball) for f in frames)
            lower, _ = bounded.compute_bounds(x=inputs, C=margin, method=method, bound_upper=False)
            proved = lower.detach().flatten() > 0
            high = torch.where(proved & (radius > 0.95 * high), 2 * high, torch.where(proved, high, radius))
            low = torch.where(proved, radius, low)
    return low, time.process_time() - began


@contextlib.contextmanager
def _quiet() -> Any:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), np.errstate(divide="ignore"):
        warnings.simplefilter("ignore")
        yield


def _fit() -> None:
    if "numpy.lib.arraysetops" not in sys.modules:
        moved = types.ModuleType("numpy.lib.arraysetops")
        moved.isin = np.isin  # type: ignore[attr-defined]
        sys.modules["numpy.lib.arraysetops"] = moved
    settings = importlib.import_module("torch.onnx._internal.torchscript_exporter._globals").GLOBALS
    helper: Any = importlib.import_module("torch.onnx.symbolic_helper")
    helper._set_opset_version = lambda version: setattr(settings, "export_onnx_opset_version", version)
    node: Any = torch._C.Node
    node.__getitem__ = lambda self, key: getattr(self, self.kindOf(key))(key)
    with _quiet():
        whole = importlib.import_module("auto_LiRPA").BoundedModule
    if not hasattr(whole, "_older_members"):
        whole._older_members = whole._named_members
        whole._named_members = lambda self, get, prefix="", recurse=True, **_: self._older_members(
            get, prefix, recurse
        )
