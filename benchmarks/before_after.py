"""Compare two versions of holdfast: the same requests to both in turn, with their bounds and CPU seconds.

python -m benchmarks.before_after BEFORE/src AFTER/src [--repeats 3] [--only words] [--json FILE]

Every request runs in a process of its own, the two versions alternating; the fastest run of each counts.
A result is worse if a certified bound is looser than before by more than rounding. A name that the other
version defines elsewhere is looked up as hf.X, then as hf.<module>.X.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PRELUDE = """
import json, math, time, warnings, torch, holdfast as hf
from holdfast.datasets import digits_networks, helpdesk
from holdfast.datasets.digits import images as _images, rows as _rows
warnings.simplefilter("ignore"); torch.set_num_threads(1); torch.manual_seed(0)
def name(word):
    import importlib
    for module in ("holdfast", "holdfast.attacks", "holdfast.certify", "holdfast.hamming", "holdfast.region",
                 "holdfast.property",
                 "holdfast.monitor", "holdfast.verification", "holdfast.lipschitz", "holdfast.coverage"):
        try:
            return getattr(importlib.import_module(module), word)
        except (ImportError, AttributeError):
            pass
    raise SystemExit("no " + word)
def opened(factory):
    return hf.Network.from_torch(getattr(digits_networks, factory)(), domain=(0, 1))
def dense(function, inputs, width):
    linear = torch.nn.Linear
    layers = linear(inputs, width), function(), linear(width, width), function(), linear(width, 2)
    return hf.Network.from_torch(torch.nn.Sequential(*layers).eval())
def ends(brackets):
    return [[b.lower.value, b.upper.value] for b in brackets]
images, rows = _images(), _rows()
"""
TASKS = {
    "radius, CNN, maximum norm, 16 images": (
        "net = opened('digits_cnn')\nask = lambda: ends(hf.radius(net, images['x'][:16], images['y'][:16]))"
    ),
    "radius, LSTM, norm 2, all rows, 16": (
        "net = opened('digits_lstm')\nask = lambda: ends(hf.radius(net, rows['x'][:16], rows['y'][:16], "
        "norm=2, frames='all'))"
    ),
    "radius, GRU, each row alone, 6": (
        "net = opened('digits_gru')\n"
        "ask = lambda: ends(b for bs in hf.radius(net, rows['x'][:6], rows['y'][:6], norm=2, "
        "frames='each') for b in bs)"
    ),
    "radius, LSTM, tier tight, last row, 2": (
        "net = opened('digits_lstm')\nask = lambda: ends(hf.radius(net, rows['x'][:2], rows['y'][:2], "
        "frames=[7], tier='tight'))"
    ),
    "radius, CNN, changed pixels (L0), 4, 20 s": (
        "net = opened('digits_cnn')\nmethods = [name('Greedy')(), name('Branch')()]\n"
        "ask = lambda: ends(hf.radius(net, images['x'][:4], images['y'][:4], norm=0, methods=methods, "
        "stop=hf.Stop(queries=60000)))"
    ),
    "worst, CNN, robustness at 0.05, 16": (
        "net = opened('digits_cnn')\nregion = name('Ball')(images['x'][:16], 0.05, torch.inf, net.domain)\n"
        "ask = lambda: ends(hf.worst(net, region, name('Robustness')(images['y'][:16])))"
    ),
    "reach, two layers of tanh, 3 inputs": (
        "net = dense(torch.nn.Tanh, 3, 16)\n"
        "ask = lambda: [[r.minimum.lower.value, r.minimum.upper.value] for r in hf.reach(net, "
        "(-torch.ones(3), torch.ones(3)))]"
    ),
    "reach, ReLUs, 5 inputs": (
        "net = dense(torch.nn.ReLU, 5, 32)\nbox = -torch.ones(5), torch.ones(5)\n"
        "ask = lambda: [[r.minimum.lower.value, r.minimum.upper.value] for r in hf.reach(net, box, "
        "tolerance=0.02)]"
    ),
    "risk, CNN, confidence at 0.03, 6": (
        "net = opened('digits_cnn')\n"
        "found = lambda: hf.risk(net, images['x'][:6], 'confidence', y=images['y'][:6], radius=0.03, "
        "queries=600)\n"
        "ask = lambda: [e for r in found() for e in ends([r.worst, r.radius])]"
    ),
    "saliency, CNN, 8": (
        "net = opened('digits_cnn')\n"
        "ask = lambda: [[float(m.nan_to_num().sum())] * 2 for m in hf.saliency(net, images['x'][:8], "
        "images['y'][:8])]"
    ),
    **{
        f"testgen, CNN, {criterion}, 20": (
            "net = opened('digits_cnn')\nask = lambda: [[len(hf.testgen(net, images['x'][:20], "
            f"'{criterion}'))] * 2]"
        )
        for criterion in ("boundary", "multisection")
    },
    "smoothing, CNN, 2,000 draws, 4": (
        "net = opened('digits_cnn')\nmethods = [name('Smoothing')(samples=2000)]\n"
        "ask = lambda: [[b.estimates[0].value] * 2 for b in hf.radius(net, images['x'][:4], "
        "images['y'][:4], norm=2, methods=methods)]"
    ),
    "monitor, help desk, 40 sentences": (
        "net = helpdesk.network()\nsentences = helpdesk.sentences('test').tokens[:40]\n"
        "monitor = name('Monitor').fit(net, [], name('Groups').of_sets(helpdesk.sets(), "
        "vocabulary=net.vocabulary), unknown='unk')\n"
        "ask = lambda: [[float(v)] * 2 for t in sentences for v in torch.as_tensor(monitor.score(t, "
        "k='final').values).flatten().tolist()]"
    ),
}
POSTLUDE = """
began = time.process_time()
found = ask()
seconds = time.process_time() - began
print("RESULT" + json.dumps({"seconds": seconds, "ends": [[repr(float(v)) for v in e] for e in found]}))
"""
ROUNDING = 1e-9


@dataclass
class Side:
    seconds: list[float]
    ends: list[list[float]]


def asked(source: Path, code: str) -> dict[str, object]:
    """Run one request in a process of its own and return its result."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(source.resolve()), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code + POSTLUDE], env=environment, capture_output=True, text=True
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("RESULT")), None)
    if line is None:
        raise SystemExit(f"{source}: {done.stderr[-2000:]}")
    found: dict[str, object] = json.loads(line.removeprefix("RESULT"))
    return found


def worse(before: list[list[float]], after: list[list[float]]) -> tuple[int, int]:
    """How many bounds are worse, and how many better, by more than rounding."""
    pairs = [
        (a, b)
        for one, two in zip(before, after, strict=True)
        for a, b in ((one[0], two[0]), (-one[1], -two[1]))
    ]
    gains = [b - a if a != b else 0.0 for a, b in pairs]
    sizes = [ROUNDING * (1 + (abs(a) if abs(a) < 1e300 else 0)) for a, _ in pairs]
    return sum(g < -s for g, s in zip(gains, sizes, strict=True)), sum(
        g > s for g, s in zip(gains, sizes, strict=True)
    )


def compared(before: Path, after: Path, repeats: int, only: list[str]) -> Iterator[tuple[str, Side, Side]]:
    for task, code in TASKS.items():
        if only and not any(word in task for word in only):
            continue
        sides = Side([], []), Side([], [])
        for _ in range(repeats):
            for side, source in zip(sides, (before, after), strict=True):
                found = asked(source, code)
                side.seconds.append(float(found["seconds"]))  # type: ignore[arg-type]
                side.ends = [[float(v) for v in pair] for pair in found["ends"]]  # type: ignore[attr-defined]
        yield task, *sides


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    kept = []
    print(
        "| request | CPU s before | after | ratio | bounds worse | better | of "
        "|\n|---|---|---|---|---|---|---|"
    )
    for task, one, two in compared(given.before, given.after, given.repeats, given.only):
        lost, won = worse(one.ends, two.ends)
        best = min(one.seconds), min(two.seconds)
        print(
            f"| {task} | {best[0]:.2f} | {best[1]:.2f} | {best[1] / best[0]:.2f} | {lost} | {won} | "
            f"{2 * len(one.ends)} |",
            flush=True,
        )
        kept.append({"question": task, "before": vars(one), "after": vars(two)})
    if given.json:
        given.json.write_text(json.dumps(kept, indent=1))


if __name__ == "__main__":
    main()
