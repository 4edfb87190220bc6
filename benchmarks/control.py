"""Controllers in the loop: four problems of ARCH-COMP (category AINNCS), each decided and its tube compared.

    python -m benchmarks.control [NAMES ...] [--cpu-seconds 60] [--ratio 1.5] [--data FOLDER]

Data: the folder control of the shared data (benchmarks/data.md). For each problem:
the answer to the question and the CPU seconds until then, all reading and tracing included; then boxes are split until
the tube at the end is at most `--ratio` times as wide as simulated states, and 1,000 new trajectories attack the tube.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.data import SHARED
from holdfast.api.loop import LoopAnswer
from holdfast.reachability.search import Search

ATTACKS = 1000  # Trajectories that attack each tube.
ATTACK_STEPS = (
    40  # Runge-Kutta steps of a period in these; their error is far below TOLERANCE on these plants.
)
TOLERANCE = (
    1e-6  # Distance, relative to the largest state, up to which a simulated state may be outside of the tube.
)


@dataclass(frozen=True)
class ControlProblem:
    """One problem: plant, initial states and question, as SOURCE.txt of the data words them."""

    file: str
    plant: Callable[[Tensor, Tensor], Tensor]
    period: float
    steps: int
    start: str
    condition: str
    window: tuple[float, float] | None = None
    inputs: Callable[[Tensor], Tensor] | None = None
    disturbance: tuple[float, ...] | None = None


def cruise(x: Tensor, u: Tensor) -> Tensor:
    """Two cars: position, speed and acceleration of the leader and of the controlled car."""
    _, x2, x3, _, x5, x6 = x.unbind(-1)
    lead, own = -2 * x3 - 4 - 1e-4 * x2**2, -2 * x6 + 2 * u[..., 0] - 1e-4 * x5**2
    return torch.stack([x2, x3, lead, x5, x6, own], -1)


def cruise_inputs(x: Tensor) -> Tensor:
    """Set speed, time gap, own speed, distance and difference of speeds."""
    set_speed, gap = torch.full_like(x[..., 0], 30.0), torch.full_like(x[..., 0], 1.4)
    return torch.stack([set_speed, gap, x[..., 4], x[..., 0] - x[..., 3], x[..., 1] - x[..., 4]], -1)


def pendulum(x: Tensor, u: Tensor) -> Tensor:
    return torch.stack([x[..., 1], 2 * torch.sin(x[..., 0]) + 8 * u[..., 0]], -1)


def tora(x: Tensor, u: Tensor) -> Tensor:
    x1, x2, x3, x4 = x.unbind(-1)
    return torch.stack([x2, -x1 + 0.1 * torch.sin(x3), x4, u[..., 0] - 10], -1)


def unicycle(x: Tensor, u: Tensor) -> Tensor:
    _, _, x3, x4 = x.unbind(-1)
    return torch.stack([x4 * torch.cos(x3), x4 * torch.sin(x3), u[..., 1] - 20, u[..., 0] - 20], -1)


PROBLEMS = {
    "adaptive cruise": ControlProblem(
        "acc.onnx", cruise, 0.1, 50,
        "90 <= x1 <= 110 and 32 <= x2 <= 32.2 and x3 == 0 and 10 <= x4 <= 11 and 30 <= x5 <= 30.2 and x6 == 0",
        "x1 - x4 >= 10 + 1.4 * x5",
        inputs=cruise_inputs,
    ),
    "pendulum": ControlProblem(
        "single_pendulum.onnx", pendulum, 0.05, 20, "1 <= x1 <= 1.175 and 0 <= x2 <= 0.2", "0 <= x1 <= 1", (0.5, 1.0)
    ),
    "TORA": ControlProblem(
        "tora.onnx", tora, 1.0, 20,
        "0.6 <= x1 <= 0.7 and -0.7 <= x2 <= -0.6 and -0.4 <= x3 <= -0.3 and 0.5 <= x4 <= 0.6",
        "-2 <= x1 <= 2 and -2 <= x2 <= 2 and -2 <= x3 <= 2 and -2 <= x4 <= 2",
    ),
    "unicycle": ControlProblem(
        "unicycle.onnx", unicycle, 0.2, 50,
        "9.5 <= x1 <= 9.55 and -4.5 <= x2 <= -4.45 and 2.1 <= x3 <= 2.11 and 1.5 <= x4 <= 1.51",
        "-0.6 <= x1 <= 0.6 and -0.2 <= x2 <= 0.2 and -0.06 <= x3 <= 0.06 and -0.3 <= x4 <= 0.3",
        (10.0, 10.0),
        disturbance=(0.0, 0.0, 0.0, 1e-4),
    ),
}  # fmt: skip


def read_controller(path: Path) -> hf.Network:
    """The network of a file. acc.onnx multiplies arrays of four axes by Gemm in operator set 6, which no runtime of
    today opens; its matrices are read one after the other, as the tools of the competition do.
    """
    import onnx

    graph = onnx.load(path)
    if graph.opset_import[0].version >= 7:
        return hf.Network.from_onnx(path)
    stored = {part.name: torch.tensor(onnx.numpy_helper.to_array(part)) for part in graph.graph.initializer}
    layers: list[nn.Module] = []
    for node in graph.graph.node:
        if node.op_type == "Sub" and not layers:
            shift = stored[node.input[1]].flatten()
            layer = nn.Linear(len(shift), len(shift))
            layer.weight.data, layer.bias.data = torch.eye(len(shift)), -shift
            layers.append(layer)
        elif node.op_type == "Gemm":
            weight, bias = (stored[name] for name in node.input[1:])
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.weight.data, layer.bias.data = weight, bias
            layers.append(layer)
        elif node.op_type == "Relu":
            layers.append(nn.ReLU())
        else:
            raise SystemExit(f"{path}: unexpected operator {node.op_type}")
    return hf.Network.from_torch(nn.Sequential(*layers).eval(), name=path.stem)


def ask(
    problem: ControlProblem, folder: Path, cpu_seconds: float, ratio: float | None
) -> tuple[hf.Loop, LoopAnswer, float]:
    """The loop, the answer, and the CPU seconds that it took."""
    began = time.process_time()
    loop = hf.Loop(
        read_controller(folder / problem.file),
        problem.plant,
        period=problem.period,
        steps=problem.steps,
        inputs=problem.inputs,
        disturbance=problem.disturbance,
    )

    def stop_in_time(search: Search) -> None:
        if time.process_time() - began > cpu_seconds:
            search.until = time.monotonic()

    answer = loop.answer(
        "stay", problem.start, problem.condition, problem.window, width_ratio=ratio, progress=stop_in_time
    )
    return loop, answer, time.process_time() - began


def attack(loop: hf.Loop, answer: LoopAnswer) -> int:
    """How many new trajectories leave the tube."""
    torch.manual_seed(1)
    lower, upper = answer.start
    share = torch.rand(ATTACKS, len(lower), dtype=torch.float64)
    share[::2] = share[::2].round()
    states = loop.model(answer.states).simulate(lower + share * (upper - lower), loop.steps, ATTACK_STEPS)
    assert answer.tube is not None
    slack = TOLERANCE * states.abs().max()
    outside = torch.zeros(ATTACKS, dtype=torch.bool)
    for k in range(loop.steps):
        part = states[:, k * ATTACK_STEPS : (k + 1) * ATTACK_STEPS + 1]
        low, high = answer.tube[k, :, 0] - slack, answer.tube[k, :, 1] + slack
        outside |= ~((part >= low) & (part <= high)).flatten(1).all(1)
    return int(outside.sum())


def main() -> None:
    parser = argparse.ArgumentParser(description="Four problems of ARCH-COMP: controllers in the loop.")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PROBLEMS)}; default: all")
    parser.add_argument("--cpu-seconds", type=float, default=60.0, help="for the tube of each problem")
    parser.add_argument("--ratio", type=float, default=1.5, help="width of the tube beside simulated states")
    parser.add_argument(
        "--data", type=Path, default=SHARED, help="folder of the shared data (benchmarks/data.md)"
    )
    given = parser.parse_args()
    folder = given.data / "control"
    if not folder.is_dir():
        sys.exit(f"{folder}: no data here; benchmarks/data.md says what is needed.")
    print(
        "| problem | answer | CPU-s | boxes | proved margin | margin of simulations | width ratio | "
        f"CPU-s to ratio {given.ratio:g} | boxes | width ratio | trajectories outside |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for name in given.names or PROBLEMS:
        problem = PROBLEMS[name]
        _, first, seconds = ask(problem, folder, given.cpu_seconds, None)
        loop, narrow, more = ask(problem, folder, given.cpu_seconds, given.ratio)
        margin = "-" if first.margin is None else f"{first.margin:.4g}"
        print(
            f"| {name} | {first.verdict} | {seconds:.1f} | {first.boxes} | {margin} | {first.sampled_margin:.4g} | "
            f"{_largest(first)} | {more:.1f} | {narrow.boxes} | {_largest(narrow)} | {attack(loop, narrow)} of {ATTACKS} |",
            flush=True,
        )


def _largest(answer: LoopAnswer) -> str:
    """The largest ratio of widths at the end over all states."""
    ratio = answer.width_ratio
    return "not known" if ratio is None else f"{float(ratio.max()):.2f}"


if __name__ == "__main__":
    main()
