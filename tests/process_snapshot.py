"""The state that code in one process shares, as values that can be compared: what a library must leave as its user set it."""

import decimal
import gc
import locale
import logging
import multiprocessing
import os
import random
import resource
import signal
import socket
import sys
import tempfile
import threading
import warnings

import numpy as np
import torch
from threadpoolctl import threadpool_info
from torch import nn
from torch.nn.modules import module as module_hooks

LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_DATA, resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)
PATCHABLE = {
    "torch.lstm": lambda: torch.lstm,
    "torch.nn.utils.rnn._VF": lambda: torch.nn.utils.rnn._VF,  # type: ignore[attr-defined]
    "nn.Module.__call__": lambda: nn.Module.__call__,
    "nn.Module.__getattr__": lambda: nn.Module.__getattr__,
    "nn.LSTM.forward": lambda: nn.LSTM.forward,
}


def of_process() -> dict[str, object]:
    """Name -> value. Objects that must be the very same ones are given by their identity."""
    backends = torch.backends
    found: dict[str, object] = {
        "torch threads": torch.get_num_threads(),
        "torch interop threads": torch.get_num_interop_threads(),
        "gradients enabled": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "float32 products": torch.get_float32_matmul_precision(),
        "deterministic": (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()),
        "random numbers of torch": hash(torch.get_rng_state().numpy().tobytes()),
        "random numbers of numpy": hash(str(np.random.get_state(legacy=False))),
        "random numbers of Python": hash(random.getstate()),
        "cudnn": tuple(getattr(backends.cudnn, name) for name in ("enabled", "benchmark", "deterministic", "allow_tf32")),
        "cuda products": (backends.cuda.matmul.allow_tf32, backends.cuda.matmul.allow_fp16_reduced_precision_reduction),
        "attention kernels": [getattr(backends.cuda, f"{name}_sdp_enabled")() for name in ("flash", "mem_efficient", "math")],
        "mkldnn": backends.mkldnn.enabled,
        "modes of torch": (torch.overrides._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()),
        "functorch": torch._C._functorch.get_dynamic_layer_stack_depth(),
        "hooks of all modules": _global_hooks(),
        "numpy errors": np.geterr(),
        "numpy printing": str(np.get_printoptions()),
        "warning filters": [(a, str(m), c, str(o), n) for a, m, c, o, n in warnings.filters],
        "warning output": warnings.showwarning,
        "logging disabled": logging.root.manager.disable,
        "loggers": _loggers(),
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "blocked signals": signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "timers": signal.getitimer(signal.ITIMER_REAL),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "temporary folder": tempfile.tempdir,
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "processors": os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None,
        "limits": [resource.getrlimit(kind) for kind in LIMITS],
        "import path": list(sys.path),
        "importers": list(map(id, sys.meta_path)),
        "standard streams": (id(sys.stdin), id(sys.stdout), id(sys.stderr)),
        "exception hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
        "recursion": sys.getrecursionlimit(),
        "switching": sys.getswitchinterval(),
        "trace": (sys.gettrace(), sys.getprofile()),
        "garbage": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "locale": locale.setlocale(locale.LC_ALL),
        "decimals": str(decimal.getcontext()),
        "processes": (multiprocessing.get_start_method(allow_none=True), len(multiprocessing.active_children())),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "sockets": socket.getdefaulttimeout(),
        "BLAS threads": sorted((str(lib["filepath"]), lib["num_threads"]) for lib in threadpool_info()),
    }  # fmt: skip
    return found | {name: id(read()) for name, read in PATCHABLE.items()}


def _global_hooks() -> list[int]:
    return [
        len(value)
        for name, value in sorted(vars(module_hooks).items())
        if name.startswith("_global") and isinstance(value, dict)
    ]


def _loggers() -> dict[str, object]:
    """Of every logger: its level, whether it passes records on, its handlers and what filters them."""
    found: dict[str, object] = {
        "last resort": None if logging.lastResort is None else list(map(id, logging.lastResort.filters))
    }
    for name, logger in {"root": logging.root, **logging.root.manager.loggerDict}.items():
        if isinstance(logger, logging.Logger):
            handlers = [(id(handler), handler.level, len(handler.filters)) for handler in logger.handlers]
            found[name] = (logger.level, logger.propagate, logger.disabled, len(logger.filters), handlers)
    return found


def of_module(module: nn.Module) -> dict[str, object]:
    """What a user sees of a module: modes, weights, gradients, hooks, attributes."""
    found: dict[str, object] = {"names": list(module.state_dict())}
    for path, part in module.named_modules():
        hooks = {
            name: list(value)
            for name, value in vars(part).items()
            if name.endswith("_hooks") and value is not None
        }
        own = {name: repr(value) for name, value in vars(part).items() if not name.startswith("_")}
        found[path] = (part.training, hooks, own)
        for name, weight in (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)):
            numbers = weight.detach().numpy().tobytes()
            found[f"{path}.{name}"] = (
                numbers,
                weight.requires_grad,
                weight.grad,
                weight._version,
                id(weight),
                weight.data_ptr(),
            )
    return found


def differences(before: dict[str, object], after: dict[str, object]) -> dict[str, tuple[object, object]]:
    """What is not as it was. Loggers and libraries that were only imported meanwhile are no change."""
    changed = {}
    for name in before:
        old, new = before[name], after[name]
        if name == "loggers":
            assert isinstance(old, dict)
            assert isinstance(new, dict)
            new = {key: new.get(key) for key in old}
        if name == "BLAS threads":
            assert isinstance(new, list)
            new = [one for one in new if one[0] in {path for path, _ in old}]  # type: ignore[attr-defined]
        if old != new:
            changed[name] = (old, new)
    return changed
