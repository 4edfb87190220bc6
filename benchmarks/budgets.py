"""How far does each command exceed its time budget (--seconds)?

python -m benchmarks.budgets                       every request below
python -m benchmarks.budgets --only lstm verify    those whose name contains one of these words
python -m benchmarks.budgets --only python pixels lstm28 tokens inspect    Python functions, and large inputs

Every request runs `holdfast` itself in a forked child, so that imports happen once, before. Hooks inside the
child record when the search began and ended, the time that torch.export took to trace the model (which cannot
be interrupted), and which steps of which methods ended after the deadline. Work after the search (outputs at
the counterexamples, pictures, the table) is a column of its own. A busy machine slows everything down, so the
CPU seconds among the seconds over the budget are given as well.
"""

import argparse
import functools
import gzip
import json
import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.kills import _warm
from holdfast import solver
from holdfast.api import methods as _methods  # noqa: F401  imports the methods, whose steps are recorded
from holdfast.cli import main as holdfast
from holdfast.cli import run as _imported  # noqa: F401  before any child is forked
from holdfast.coverage import testgen as _testgen  # noqa: F401
from holdfast.datasets.helpdesk import substitutes
from holdfast.method import Method
from holdfast.network import network
from holdfast.verification import verify as _verify  # noqa: F401

ACAS, MNIST_FC = Path("../shared/data/acasxu"), Path("../shared/data/vnncomp/mnist_fc")
DIGITS = "holdfast.datasets.digits"
PROOF = {"tight": "tighten", "split": "split"}
LIMIT = 300.0  # A child is killed after this many seconds, far beyond every budget below.


# ---------------------------------------------------------------- networks that take long


def _seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().eval()


def deep() -> nn.Module:
    """A network with 784 inputs and six layers of 256 ReLUs."""

    def made() -> nn.Module:
        inner = [part for a, b in pairwise([784, *[256] * 6]) for part in (nn.Linear(a, b), nn.ReLU())]
        return nn.Sequential(nn.Flatten(), *inner, nn.Linear(256, 10))

    return _seeded(made)


class _Block(nn.Module):
    def __init__(self, channels: int, into: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, into, 3, stride, 1)
        self.second = nn.Conv2d(into, into, 3, 1, 1)
        self.beside = nn.Conv2d(channels, into, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.beside(x))


def residual() -> nn.Module:
    """A network for images of CIFAR's size: four residual blocks of 16 and 32 channels."""
    return _seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, 1, 1),
            nn.ReLU(),
            _Block(16, 16, 1),
            _Block(16, 16, 2),
            _Block(16, 32, 1),
            _Block(32, 32, 2),
            nn.Flatten(),
            nn.Linear(32 * 8 * 8, 100),
            nn.ReLU(),
            nn.Linear(100, 10),
        )
    )


class Reader(nn.Module):
    """An LSTM of 32 units that classifies after the last frame."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(features, 32, batch_first=True), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])


def lstm14() -> nn.Module:
    return _seeded(lambda: Reader(56))


def lstm8() -> nn.Module:
    return _seeded(lambda: Reader(98))


def smooth() -> nn.Module:
    """A smooth network with five inputs, which is bounded by Taylor models."""
    return _seeded(
        lambda: nn.Sequential(nn.Linear(5, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(), nn.Linear(50, 3))
    )


def pixels() -> nn.Module:
    """A network for colour images of 224 x 224 pixels."""
    return _seeded(
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3, 1, 1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, 1, 1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 56 * 56, 10),
        )
    )


def lstm28() -> nn.Module:
    """An LSTM over 28 frames."""
    return _seeded(lambda: Reader(28))


WORDS, LENGTH = 100, 200  # Words in the vocabulary, and tokens in a text.


class TextReader(nn.Module):
    """An LSTM over 200 tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.inner = nn.Embedding(WORDS, 16), Reader(16)

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.inner(self.table(tokens))
        return answer


def tokens() -> hf.Network:
    return hf.Network.from_torch(_seeded(TextReader), tokens=True, shape=(LENGTH,), name="tokens")


GENERATED = {
    "pixels": (3, 224, 224),
    "lstm28": (28, 28),
    "deep": (1, 28, 28),
    "residual": (3, 32, 32),
    "lstm14": (14, 56),
    "lstm8": (8, 98),
    "smooth": (5,),
}


# ---------------------------------------------------------------- requests


@dataclass(frozen=True)
class Asked:
    name: str
    seconds: float
    arguments: tuple[str, ...] = ()
    kept: bool = True  # it takes --out
    executor: bool = True  # it takes --executor
    call: Callable[[hf.Stop], object] | None = None  # a Python function instead of a command


def python_functions(seconds: float) -> Iterator[Asked]:
    """Requests to the Python functions that take a Stop, each with the inputs that take longest."""
    for name in ("pixels", "lstm28"):
        net = hf.Network.from_torch(globals()[name](), domain=(0, 1))
        x = torch.rand((4, *GENERATED[name]), generator=torch.Generator().manual_seed(1))
        y = net(x).argmax(1)
        calls: dict[str, Callable[[hf.Stop], object]] = {
            f"radius {tier}": partial(_radius, net, x, y, tier)
            for tier in ("search", "fast", "tight", "split")
        }
        calls |= {f"risk {tier}": partial(_risk, net, x, tier) for tier in ("search", "fast", "tight")}
        calls["worst"] = partial(_worst, net, x, y)
        calls["reach"] = partial(_reach, net, x)
        calls["testgen"] = partial(_make_tests, net, x)
        for what, call in calls.items():
            yield Asked(f"python {what} {name}", seconds, call=call)
    read = tokens()
    texts = torch.randint(0, WORDS, (4, LENGTH), generator=torch.Generator().manual_seed(1))
    said = read(read.embed(texts)).argmax(1)
    yield Asked("python radius words tokens", seconds, call=partial(_words_of, read, texts, said))
    for tier in ("fast", "tight"):
        yield Asked(f"python radius {tier} tokens", seconds, call=partial(_radius, read, texts, said, tier))


def _radius(net: hf.Network, x: Tensor, y: Tensor, tier: Any, stop: hf.Stop) -> object:
    return hf.radius(net, x, y, norm=2, tier=tier, stop=stop)


def _risk(net: hf.Network, x: Tensor, tier: Any, stop: hf.Stop) -> object:
    return hf.risk(net, x, "robustness", radius=0.01, tier=tier, stop=stop)


def _worst(net: hf.Network, x: Tensor, y: Tensor, stop: hf.Stop) -> object:
    return hf.worst(
        net,
        hf.Ball(x, torch.full((len(x),), 0.01), math.inf, net.domain),
        hf.Robustness(y),
        tier="tight",
        stop=stop,
    )


def _reach(net: hf.Network, x: Tensor, stop: hf.Stop) -> object:
    return hf.reach(net, (x[:1] - 0.001, x[:1] + 0.001), [0], stop=stop)


def _make_tests(net: hf.Network, x: Tensor, stop: hf.Stop) -> object:
    return hf.testgen(net, x, stop=stop)


def _words_of(net: hf.Network, x: Tensor, y: Tensor, stop: hf.Stop) -> object:
    return hf.radius(
        net,
        x,
        y,
        norm=0,
        substitutes={word: [(word + 1) % WORDS, (word + 2) % WORDS] for word in range(WORDS)},
        stop=stop,
    )


def _data(folder: Path) -> dict[str, tuple[str, ...]]:
    """Command-line arguments of each network: generated ones with their inputs, then the digits networks."""
    named = {}
    for name, shape in GENERATED.items():
        module, file = globals()[name](), folder / f"{name}.npz"
        x = torch.rand((16, *shape), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            np.savez(file, x=x.numpy(), y=module(x).argmax(1).numpy())
        sizes = ",".join(map(str, shape))
        named[name] = (
            "-m",
            f"benchmarks.budgets:{name}",
            "-d",
            str(file),
            "--shape",
            sizes,
            "--domain",
            "0,1",
        )
    for name, data in (("cnn", "images"), ("lstm", "rows"), ("gru", "rows")):
        named[name] = (
            "-m",
            f"{DIGITS}_networks:digits_{name}",
            "-d",
            f"{DIGITS}:{data}",
            "--domain",
            "0,1",
            "--limit",
            "20",
        )
    return named


def _property(folder: Path, name: str, reach: float) -> Path:
    """Write a VNN-LIB property: some class beats the label within maximum-norm distance `reach` of the first
    input.
    """
    with np.load(folder / f"{name}.npz") as held:
        centre, label = held["x"][0].flatten(), int(held["y"][0])
    file = folder / f"{name}.vnnlib"
    outputs = 3 if name == "smooth" else 10
    lines = [f"(declare-const X_{i} Real)" for i in range(len(centre))] + [
        f"(declare-const Y_{i} Real)" for i in range(outputs)
    ]
    for i, value in enumerate(centre.tolist()):
        lines += [
            f"(assert (>= X_{i} {max(0.0, value - reach):.9f}))",
            f"(assert (<= X_{i} {min(1.0, value + reach):.9f}))",
        ]
    lines.append(
        "(assert (or " + " ".join(f"(and (>= Y_{k} Y_{label}))" for k in range(outputs) if k != label) + "))"
    )
    file.write_text("\n".join(lines))
    return file


def _words(folder: Path) -> Path:
    place = folder / "words.json"
    place.write_text(json.dumps(substitutes()))
    return place


def _unpacked(file: Path, folder: Path) -> str:
    place = folder / file.stem
    place.write_bytes(gzip.decompress(file.read_bytes()))
    return str(place)


def questions(folder: Path, seconds: float) -> Iterator[Asked]:
    nets = _data(folder)

    def ask(name: str, *arguments: str, kept: bool = True) -> Asked:
        return Asked(name, seconds, arguments, kept)

    for net in nets:
        for tier in ("fast", "tight", "split", "search"):
            if net in ("cnn", "lstm", "gru") and tier == "search":
                continue
            for norm in ("inf", "2") if tier != "search" else ("inf",):
                yield ask(f"radius {net} {tier} {norm}", "radius", *nets[net], "--tier", tier, "--norm", norm)
    for net in (
        "lstm8",
        "lstm14",
        "deep",
        "residual",
    ):  # Radii large enough to reach the tiers after closed-form linear bounds.
        for tier in ("tight", "split"):
            yield ask(
                f"radius {net} {tier} one input",
                "radius",
                *nets[net],
                "--tier",
                tier,
                "--limit",
                "1",
                "--methods",
                PROOF[tier],
            )
    for net in ("cnn", "lstm", "deep", "residual", "lstm14"):
        yield ask(
            f"radius {net} norm 0",
            "radius",
            *nets[net],
            "--norm",
            "0",
            "--unit",
            "number" if "lstm" in net else "pixel",
        )
    yield ask("radius deep grid", "radius", *nets["deep"], "--norm", "0", "--unit", "pixel", "--mode", "grid")
    yield ask("radius cnn executed", "radius", *nets["cnn"], "--arithmetic", "executed")
    yield ask("radius lstm14 each frame", "radius", *nets["lstm14"], "--frames", "each")
    yield ask(
        "radius lstm14 each frame tight", "radius", *nets["lstm14"], "--frames", "each", "--tier", "tight"
    )
    yield ask("radius residual saliency", "radius", *nets["residual"], "--saliency")
    yield ask(
        "radius words",
        "radius",
        "-m",
        "holdfast.datasets.helpdesk:network",
        "-d",
        "holdfast.datasets.helpdesk:test",
        "--substitutes",
        str(_words(folder)),
        "--limit",
        "20",
    )
    for net in ("cnn", "lstm", "deep", "residual", "lstm8", "smooth"):
        for tier in ("fast", "tight", "split"):
            yield ask(f"worst {net} {tier}", "worst", *nets[net], "--radius", "0.02", "--tier", tier)
    yield ask(
        "worst lstm uncertainty", "worst", *nets["lstm"], "--radius", "0.02", "--property", "uncertainty"
    )
    for net in ("deep", "residual", "lstm8", "smooth"):
        place, sizes = (
            _property(folder, net, 0.01 if net != "smooth" else 0.3),
            ",".join(map(str, GENERATED[net])),
        )
        yield ask(
            f"verify {net}", "verify", f"benchmarks.budgets:{net}", str(place), "--shape", sizes, kept=False
        )
    for name, packed, rows in (("mnist_fc", MNIST_FC, (15, 45, 75)), ("acas", ACAS, (0, 100))):
        for row in rows if packed.is_dir() else ():
            model, spec = (packed / "instances.csv").read_text().splitlines()[row].split(",")[:2]
            files = [_unpacked(packed / f"{file}.gz", folder) for file in (model, spec)]
            yield ask(f"verify {name} {row}", "verify", *files, kept=False)
    for net in ("cnn", "lstm", "deep", "residual", "lstm8", "smooth"):
        model, *_ = nets[net][1:2]
        shaped = ("--shape", ",".join(map(str, GENERATED[net]))) if net in GENERATED else ()
        yield ask(
            f"reach {net}",
            "reach",
            model,
            "--data",
            nets[net][3],
            "--radius",
            "0.02",
            "--limit",
            "2",
            *shaped,
            "--domain",
            "0,1",
            kept=False,
        )
    for net in ("cnn", "lstm", "deep", "residual", "lstm8", "smooth"):
        yield ask(f"risk {net}", "risk", *nets[net], "--radius", "0.02")
    for net in ("cnn", "deep", "residual", "lstm14"):
        yield ask(f"saliency {net}", "saliency", *nets[net])
        yield ask(f"testgen {net}", "testgen", *nets[net])
        yield ask(f"smoothing {net}", "smoothing", *nets[net], "--sigma", "0.1", "--samples", "100000")
    for net in ("pixels", "lstm28"):
        sizes = ",".join(map(str, GENERATED[net]))
        shaped = (f"benchmarks.budgets:{net}", "--shape", sizes, "--domain", "0,1")
        yield Asked(f"inspect {net}", seconds, ("inspect", *shaped), kept=False, executor=False)
        yield ask(f"saliency {net}", "saliency", *nets[net])
        yield ask(f"testgen {net}", "testgen", *nets[net], "--limit", "4")
        for tier in ("search", "fast"):
            yield ask(
                f"risk {net} {tier}", "risk", *nets[net], "--radius", "0.01", "--tier", tier, "--limit", "4"
            )
    yield from python_functions(seconds)
    yield ask("monitor evaluate", "monitor", "evaluate")


# ---------------------------------------------------------------- measuring


@dataclass
class Seen:
    """Times of the monotonic clock, recorded inside the child."""

    began: float = field(default_factory=time.monotonic)
    search: float = 0.0  # The first search begins.
    ended: float = 0.0  # The first search and those inside it have ended.
    steps: list[tuple[str, float, float]] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)  # CPU time at the deadline, and when the search ended.


def _watched(seen: Seen, seconds: float) -> threading.Timer:
    """Record when searches and steps begin and end."""
    timer = threading.Timer(seconds, lambda: seen.busy.append(time.process_time()))
    timer.daemon = True

    def search(inner: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(inner)
        def watched(*given: Any, **named: Any) -> Any:
            first = not seen.search
            if first:
                seen.search = time.monotonic()
                timer.start()
            try:
                return inner(*given, **named)
            finally:
                if first:
                    seen.ended = time.monotonic()
                    seen.busy.append(time.process_time())

        return watched

    for name in ("ask", "solve", "answer_in_turn"):
        inner = getattr(solver, name)
        outer = search(inner)
        for module in [m for key, m in sys.modules.items() if key.startswith("holdfast")]:
            if vars(module).get(name) is inner:
                setattr(module, name, outer)

    def step(inner: Callable[..., Any], what: str) -> Callable[..., Any]:
        @functools.wraps(inner)
        def watched(method: Method[Any], *given: Any, **named: Any) -> Any:
            began = time.monotonic()
            try:
                return inner(method, *given, **named)
            finally:
                seen.steps.append((f"{method.name}.{what}", began, time.monotonic()))

        return watched

    def trace(module: nn.Module, example: Tensor) -> Any:
        began = time.monotonic()
        try:
            return traced(module, example)
        finally:
            seen.steps.append(("tracing", began, time.monotonic()))

    traced = network.export
    network.export = trace  # type: ignore[assignment]
    waiting: list[type[Any]] = [Method]
    for kind in waiting:
        waiting += kind.__subclasses__()
        for what in ("unfit", "start", "step"):
            if what in vars(kind):
                setattr(kind, what, step(vars(kind)[what], what))
    return timer


def asked_in_a_child(asked: Asked, folder: Path) -> dict[str, Any]:
    """Run a request in a forked child. Returns its measurements, or why it failed."""
    _warm()
    log, report = folder / "log", folder / "report"
    report.unlink(missing_ok=True)
    began, child = time.monotonic(), os.fork()
    if child == 0:
        code = 1
        try:
            out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(out, 1)
            os.dup2(out, 2)
            torch.set_num_threads(1)
            run = folder / f"run-{os.getpid()}"
            said = [
                *asked.arguments,
                "--seconds",
                str(asked.seconds),
                *(["--out", str(run)] if asked.kept else []),
            ]
            said += (
                ["--executor", "here"] if asked.executor else []
            )  # Hooks cannot see steps in other processes.
            seen = Seen()
            timer = _watched(seen, asked.seconds)
            try:
                if asked.call is not None or not asked.executor:  # The whole call counts as search.
                    seen.search = time.monotonic()
                    timer.start()
                if asked.call is not None:
                    asked.call(hf.Stop(seconds=asked.seconds))
                else:
                    holdfast(said)
                code = 0
            except SystemExit as ending:
                code = int(ending.code or 0)
            if not seen.ended:
                seen.ended = time.monotonic()
                seen.busy.append(time.process_time())
            deadline = seen.search + asked.seconds
            busy = seen.busy[1] - seen.busy[0] if len(seen.busy) == 2 and seen.ended > deadline else 0.0
            late = [
                (name, end - deadline) for name, _, end in seen.steps if deadline + 0.05 < end <= seen.ended
            ]
            last = max((end for _, _, end in seen.steps if end <= seen.ended), default=deadline)
            late += (
                [("after the search", seen.ended - deadline)]
                if seen.ended - max(last, deadline) > 0.1
                else []
            )
            found = {
                "build": seen.search - seen.began,
                "over": seen.ended - deadline,
                "after": time.monotonic() - seen.ended,
                "busy": busy,
                "traced": sum(end - began for name, began, end in seen.steps if name == "tracing"),
                "late": ", ".join(f"{name} {seconds:.1f}" for name, seconds in late[:4]),
            }
            report.write_text(json.dumps(found))
        finally:
            os._exit(code)
    while not os.waitpid(child, os.WNOHANG)[0]:
        if time.monotonic() - began > LIMIT:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return {"failed": f"killed after {LIMIT:g} s"}
        time.sleep(0.01)
    if not report.exists():
        return {"failed": log.read_text()[-300:].replace("\n", " ")}
    found: dict[str, Any] = json.loads(report.read_text())
    if found["over"] < -1e6 or found["build"] < 0:
        return {"failed": log.read_text()[-300:].replace("\n", " ")}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", default=[], help="only requests whose name contains one of these"
    )
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--list", action="store_true", help="only list the names")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        print(
            "| request | budget, s | reading | tracing | over | CPU s over | after | steps that ended "
            "after the deadline, seconds late |"
        )
        print("|---|---|---|---|---|---|---|---|")
        for asked in questions(folder, chosen.seconds):
            if chosen.only and not any(word in asked.name for word in chosen.only):
                continue
            if chosen.list:
                print(asked.name, *asked.arguments)
                continue
            found = asked_in_a_child(asked, folder)
            if "failed" in found:
                print(f"| {asked.name} | {asked.seconds:g} | | | | | | {found['failed']} |", flush=True)
            else:
                numbers = " | ".join(
                    f"{found[name]:.1f}" for name in ("build", "traced", "over", "busy", "after")
                )
                print(f"| {asked.name} | {asked.seconds:g} | {numbers} | {found['late']} |", flush=True)


if __name__ == "__main__":
    main()
