"""The monitor on the CPU and on a GPU: tokens per second, and whether the scores agree.

python -m benchmarks.monitor_device                                    both, where torch finds a GPU
python -m benchmarks.monitor_device --devices cpu --sequences 256      the CPU alone

Networks with 128 hidden units and random weights read sequences of 64 tokens from a vocabulary of 10,000. Any
token may be replaced by one of four others; in mode sampled, also frames of 16 numbers by noise in a ball.
All sequences form one batch. Times run from the tensor of tokens to the list of scores, on a warm device, and
the best of several rounds counts. The abstract model is learned once, on the CPU, and used on both devices.
The command line of holdfast is not imported, so torch, numpy, scipy and scikit-learn are enough.
"""

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.monitor import Groups, Monitor, Mutation, Noise
from holdfast.monitor.engine.state_view import open_network
from holdfast.monitor.score import Scores
from holdfast.network import Network

WORDS, SET, DIMENSION, HIDDEN, CLASSES, FRAME = 10_000, 5, 64, 128, 4, 16
TOLERANCE = 1e-9  # Allowed difference of a score: the devices sum the same probabilities in another order.
# Share of scores that may differ more: a label or tree branch decided by less than the rounding difference.
OPEN = 1e-4
CELLS = {"LSTM-128": nn.LSTM, "GRU-128": nn.GRU}


class Words(nn.Module):
    """(batch, length) token ids -> (batch, classes)."""

    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.table, self.cell = nn.Embedding(WORDS, DIMENSION), cell(DIMENSION, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.head(self.cell(self.table(tokens))[0][:, -1])
        return answer


class Frames(nn.Module):
    """(batch, length, numbers) -> (batch, classes)."""

    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell, self.head = cell(FRAME, HIDDEN, batch_first=True), nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.cell(x)[0][:, -1])
        return answer


@dataclass(frozen=True)
class Case:
    """One mode of scoring, with a monitor for each device.

    `share`: fraction of the --sequences that it scores.
    """

    name: str
    module: nn.Module
    mutation: Mutation
    frames: bool = False
    mode: Any = "auto"
    k: Any = 0
    share: float = 1.0

    def sequences(self, count: int, length: int) -> list[Tensor]:
        draw = torch.Generator().manual_seed(1)
        count = max(1, int(count * self.share))
        if self.frames:
            return list(torch.randn((count, length, FRAME), generator=draw))
        return list(torch.randint(0, WORDS, (count, length), generator=draw))

    def monitors(self, devices: list[str], chosen: argparse.Namespace) -> dict[str, Monitor]:
        shape: Any = (None, FRAME) if self.frames else None
        nets = {
            device: Network.from_torch(
                self.module, device=device, **({"shape": shape} if self.frames else {"tokens": True})
            )
            for device in devices
        }
        learned = (
            self.sequences(int(chosen.learned / self.share), chosen.length) if self.mode == "abstract" else []
        )
        first, *rest = devices
        made = {
            first: Monitor.fit(nets[first], learned, self.mutation, mode=self.mode, samples=chosen.samples)
        }
        for device in rest:
            made[device] = Monitor(
                nets[device],
                self.mutation,
                made[first].outputs,
                made[first].settings,
                view=open_network(nets[device]),
                tree=made[first].tree,
            )
        return made


def groups() -> Groups:
    """Groups of five words that may replace each other; every word is in one."""
    sets = torch.randperm(WORDS, generator=torch.Generator().manual_seed(0)).reshape(-1, SET).tolist()
    return Groups.of_sets(
        {own: [own, *(other for other in some if other != own)] for some in sets for own in some}
    )


def cases(cells: list[str]) -> list[Case]:
    found = []
    words = groups()
    for name in cells:
        torch.manual_seed(0)
        module, frames = Words(CELLS[name]).eval(), Frames(CELLS[name]).eval()
        found += [
            Case(f"{name}, exact", module, words),
            Case(f"{name}, exact, final", module, words, k="final", share=1 / 16),
            Case(f"{name}, abstract", module, words, mode="abstract"),
            Case(f"{name}, sampled tokens", module, words, mode="sampled", share=1 / 64),
            Case(f"{name}, sampled frames", frames, Noise(0.5), frames=True, share=1 / 64),
        ]
    return found


def best(work: Callable[[], Any], rounds: int) -> float:
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def apart(one: list[Scores], other: list[Scores]) -> tuple[float, float, int, float]:
    """Scores, the share that differs by more than the tolerance, labels that differ, and the largest
    difference.
    """
    pairs = list(zip(one, other, strict=True))
    values = [torch.cat([s.values for s in side]) for side in zip(*pairs, strict=True)]
    difference = (values[0].nan_to_num(-1) - values[1].nan_to_num(-1)).abs()
    labels = sum(int((a.labels != b.labels).sum()) for a, b in pairs)
    return len(difference), float((difference > TOLERANCE).double().mean()), labels, float(difference.max())


def microseconds(monitor: Monitor, tokens: list[Any]) -> float:
    """Microseconds for one step of a single stream."""

    def stream() -> None:
        monitor.start()
        for token in tokens:
            monitor.step(token)

    stream()
    return 1e6 * best(stream, 2) / len(tokens)


def main() -> None:
    there = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", nargs="+", default=there)
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--sequences", type=int, default=32_768, help="sequences on a GPU")
    parser.add_argument(
        "--compared", type=int, default=1024, help="sequences on the CPU, and compared between both devices"
    )
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--learned", type=int, default=200, help="training sequences of the abstract model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", action="store_true", help="profile the first case on the last device")
    chosen = parser.parse_args()
    named = torch.cuda.get_device_name() if "cuda" in chosen.devices else "no GPU"
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {named}\n")
    print(
        "| network, mode | device | sequences | tokens | seconds | tokens/s | us/step | scores that differ "
        "from the first device |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    wrong = 0
    for number, case in enumerate(cases(chosen.cells)):
        monitors, answers = case.monitors(chosen.devices, chosen), {}
        for device, monitor in monitors.items():
            assert monitor.view is not None, f"{case.name} was not opened on {device}"
            few = case.sequences(chosen.compared, chosen.length)
            answers[device] = monitor.score_all(few, case.k)
            asked = few if device == "cpu" else case.sequences(chosen.sequences, chosen.length)
            monitor.score_all(asked, case.k)
            seconds = best(lambda m=monitor, s=asked, k=case.k: m.score_all(s, k), chosen.rounds)  # type: ignore[misc]
            step = microseconds(monitor, list(few[0])) if case.k == 0 else float("nan")
            told = ""
            if device != chosen.devices[0]:
                places, share, labels, largest = apart(answers[chosen.devices[0]], answers[device])
                wrong += share > OPEN
                differing = f"{share * places:.0f} of {places} by more than {TOLERANCE:g}"
                told = f"{differing} (largest {largest:.2g}), {labels} labels"
            tokens = len(asked) * chosen.length
            shown = f"{len(asked)} | {tokens} | {seconds:.3f} | {tokens / seconds:,.0f} | {step:.0f} | {told}"
            print(f"| {case.name} | {device} | {shown} |", flush=True)
        if chosen.profile and not number:
            profiled = cProfile.Profile()
            profiled.runcall(monitor.score_all, asked, case.k)
            pstats.Stats(profiled).sort_stats("cumulative").print_stats(25)
    if "cuda" in chosen.devices:
        print(f"\npeak GPU memory: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")
    if wrong:
        raise SystemExit(
            f"{wrong} cases differ between devices in more than a share {OPEN:g} of their scores"
        )


if __name__ == "__main__":
    main()
