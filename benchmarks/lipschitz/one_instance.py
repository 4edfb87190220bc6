"""One verification instance in a process of its own, for `practice`: python -m benchmarks.lipschitz.one_instance ...

The arguments are the network, the property, the budget in seconds, the device, the time at which the process was
started, and the clock of the budget. The budget counts from that start, so imports, reading and tracing are part of it.
With the clock `cpu` it counts the processor time of this process, so other programs on the machine do not matter: the
monotonic clock, which all deadlines of the library read, is replaced by that time. The answer is one line of JSON.
"""

import json
import resource
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import holdfast as hf


def answer_one(
    model: str, spec: str, seconds: float, device: str, begun: float, clock: str
) -> dict[str, object]:
    """The answer of `hf.verify` with what it cost; an error of the library is an answer of its own."""
    if clock == "cpu":
        time.monotonic = time.process_time
    import holdfast as hf
    from holdfast.errors import HoldfastError
    from holdfast.verification.vnnlib import read_vnnlib

    hf.Network, hf.verify  # noqa: B018  # the package loads its modules, torch included, on first use
    imported = time.process_time()
    found: dict[str, object] = {"answer": "error", "least": None, "lowest": None, "nodes": 0, "note": ""}
    try:
        asked = read_vnnlib(spec)
        net = open_fitting(model, asked.inputs, device)
        spent = time.process_time() if clock == "cpu" else time.time() - begun
        left = max(0.0, seconds - spent)
        verdict = hf.verify(net, asked, seconds=left, progress=False)
        found |= {
            "answer": verdict.answer,
            "least": verdict.least,
            "lowest": verdict.lowest,
            "nodes": verdict.nodes,
            "note": verdict.note,
        }
    except HoldfastError as error:
        found["note"] = str(error)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return found | {
        "imports": imported,
        "cpu": usage.ru_utime + usage.ru_stime,
        "gigabytes": usage.ru_maxrss / 2**20,
    }


def open_fitting(model: str, inputs: int, device: str) -> "hf.Network":
    """The network, without a batch axis if only then it takes as many inputs as the property has."""
    import holdfast as hf
    from holdfast.errors import BadInput
    from holdfast.verification.specification import input_shape

    try:
        net = hf.Network.from_onnx(model, device=device)
        input_shape(net, inputs)
    except BadInput:
        net = hf.Network.from_onnx(model, device=device, batched=False)
    return net


if __name__ == "__main__":
    given_model, given_spec, given_seconds, given_device, started, given_clock = sys.argv[1:]
    answer = answer_one(
        given_model, given_spec, float(given_seconds), given_device, float(started), given_clock
    )
    print(json.dumps(answer))
