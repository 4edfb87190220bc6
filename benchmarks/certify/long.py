"""Long and deep recurrent networks: certified radii of single frames, and the cost of one pass of bounds.

python -m benchmarks.certify long --rounds 8 --deep 0 --frames --layers     ten images, about three minutes of CPU time
python -m benchmarks.certify long --images 1 --rounds 8                     one image, seven layers, and the cost
python -m benchmarks.certify long --images 0 --frames 7 28 --layers 1 2     the cost alone, a few seconds

The network is cert-rnn's LSTM of MNIST rows (Du et al. 2021, in the data of cert-rnn-py): 28 frames, two layers
of 32. One frame moves in the maximum norm, the others stay, no pixel domain, all other classes. The radius of an
image is the smallest of its 28 frames: frame 0 is searched first, then all others are certified at the radius found,
and those that are not are searched too. With --each every frame is searched. A stack of more layers repeats the
weights of the second layer; nobody has trained it, so its answers mean nothing, but its depth is that of the published
networks of seven layers.

The cost of a pass is the CPU time of a bound of the score over one region in which the first frame moves. It is
measured against the number of frames (the image repeated), and of layers; the network is traced before. The
exponents are fitted to the larger half of the sizes.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.cost import exponent
from benchmarks.certify.data import shared
from benchmarks.certify.table import Table
from holdfast.bounding.first_bounds import plan_forms
from holdfast.bounding.graph.problem_graph import graph_of
from holdfast.certify.certify import proved_score
from holdfast.region import Frames
from holdfast.result import Key

PUBLISHED_RADIUS = 0.01724  # cert-rnn-py, the mean of the first 10 images (SOURCE.txt of the data).
FRAMES_OF_A_STACK = (0, 14)  # The first frame passes through the whole network; the other half of it.
RADIUS_OF_A_PASS = 0.001  # Small enough for a bound of every size measured (chosen by hand).


@dataclass(frozen=True)
class Digits:
    """Weights of an LSTM of two layers, by name as in the file, and images (n, frames, pixels) with labels."""

    weights: dict[str, Tensor]
    x: Tensor
    y: Tensor

    @classmethod
    def read(cls, file: Path) -> "Digits":
        with np.load(file, allow_pickle=False) as arrays:
            found = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
        weights = {name: value.float() for name, value in found.items() if name[0] in "WRb"}
        return cls(weights, found["x"].float(), found["y"].long())


class LstmStack(nn.Module):
    """An LSTM with the weights of two layers, the second of which is repeated up to `layers`."""

    def __init__(self, weights: dict[str, Tensor], layers: int) -> None:
        super().__init__()
        (_, pixels), (_, hidden), (classes, _) = (weights[name].shape for name in ("W0", "R0", "Wfc"))
        self.lstm = nn.LSTM(pixels, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)
        state = {"head.weight": weights["Wfc"], "head.bias": weights["bfc"]}
        for layer in range(layers):
            k = min(layer, 1)
            state[f"lstm.weight_ih_l{layer}"] = weights[f"W{k}"]
            state[f"lstm.weight_hh_l{layer}"] = weights[f"R{k}"]
            state[f"lstm.bias_ih_l{layer}"] = weights[f"b{k}"]
            state[f"lstm.bias_hh_l{layer}"] = torch.zeros_like(weights[f"b{k}"])
        self.load_state_dict(state)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.lstm(x)[0][:, -1])
        return found


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--images", type=int, default=10, help="images whose radii are certified")
    parser.add_argument("--rounds", type=int, default=24, help="radii tried for each frame at most")
    parser.add_argument(
        "--deep", type=int, default=7, help="layers of the stack whose radii are certified; 0: none"
    )
    parser.add_argument("--each", action="store_true", help="search the radius of every frame of two layers")
    parser.add_argument("--frames", nargs="*", type=int, default=[7, 14, 28, 56, 112, 224])
    parser.add_argument("--layers", nargs="*", type=int, default=[1, 2, 3, 4, 6, 8])
    parser.add_argument("--out", type=Path, help="folder where the tables are written")


def main(chosen: argparse.Namespace) -> None:
    digits = Digits.read(shared("recurrent", chosen.data) / "certrnn_lstm_2x32.npz")
    if chosen.images:
        certify_images(digits, chosen)
    if chosen.frames or chosen.layers:
        measure_passes(digits, chosen)


def certify_images(digits: Digits, chosen: argparse.Namespace) -> None:
    table = Table(
        ["layers", "image", "frames", "smallest certified radius", "at frame", "CPU-s"],
        chosen.out,
        "long-radii",
    )
    smallest: list[float] = []
    for layers in [2, chosen.deep] if chosen.deep else [2]:
        net = hf.Network.from_torch(LstmStack(digits.weights, layers).eval())
        for image in range(min(chosen.images, len(digits.x))):
            x = digits.x[image]
            moved = list(range(len(x))) if layers == 2 else [k for k in FRAMES_OF_A_STACK if k < len(x)]
            began = time.process_time()
            if chosen.each:
                radii = certified_radii(net, x, moved, chosen.rounds)
                frame, radius = moved[int(radii.argmin())], float(radii.min())
            else:
                frame, radius = smallest_radius(net, x, moved, chosen.rounds)
            spent = time.process_time() - began
            table.add(layers, image, len(moved), radius, frame, spent)
            smallest += [radius] * (layers == 2)
    mean = sum(smallest) / len(smallest)
    table.say(
        f"Two layers: mean {mean:.5f} over {len(smallest)} images; published, over the first 10: "
        f"{PUBLISHED_RADIUS}."
    )


def smallest_radius(net: hf.Network, x: Tensor, moved: list[int], rounds: int) -> tuple[int, float]:
    """The frame with the smallest certified radius, and that radius, at which every frame is certified.

    The first frame is searched, then every frame that is not certified at the radius found, which becomes smaller.
    """
    frame, radius = moved[0], float(certified_radii(net, x, moved[:1], rounds))
    rest = moved[1:]
    while rest and radius > 0:
        scores = proved_score(single_frames(net, x, rest, radius))
        rest = [k for k, score in zip(rest, scores.tolist(), strict=True) if not score > 0]
        if rest:
            worst = rest.pop(int(scores[~(scores > 0)].argmin()))
            own = float(certified_radii(net, x, [worst], rounds))
            frame, radius = (worst, own) if own < radius else (frame, radius)
    return frame, radius


def certified_radii(net: hf.Network, x: Tensor, moved: list[int], rounds: int) -> Tensor:
    """(frames,): a certified radius of each of the frames `moved`, the others being fixed."""
    records = hf.solve([single_frames(net, x, moved, 0.0)], [hf.certify.Certify(rounds=rounds)])
    return torch.tensor([record.bracket.lower.value for record in records])


def single_frames(net: hf.Network, x: Tensor, moved: list[int], radius: float) -> hf.Problem:
    """How far each of the frames `moved` may change alone before the network's own answer changes."""
    mask = torch.zeros((len(moved), len(x)), dtype=torch.bool)
    mask[range(len(moved)), moved] = True
    radii = torch.full((len(moved),), radius, dtype=torch.float64)
    family = Frames(x.expand(len(moved), -1, -1), radii, torch.inf, net.domain, mask=mask)
    answer = net(x[None]).argmax(1).expand(len(moved))
    return hf.Problem(net, family, hf.Robustness(answer), "radius", tuple(Key(k) for k in range(len(moved))))


def measure_passes(digits: Digits, chosen: argparse.Namespace) -> None:
    table = Table(
        ["against", "size", "bounds used first", "noise symbols", "proved score", "CPU-s", "CPU-s / size"],
        chosen.out,
        "long-cost",
    )
    length = digits.x.shape[1]
    sizes = {
        "frames": [(count, 2, count) for count in chosen.frames],
        "layers": [(length, count, count) for count in chosen.layers],
    }
    for name, cases in sizes.items():
        spent = []
        for frames, layers, size in cases:
            x = digits.x[0].repeat(-(-frames // length), 1)[:frames]
            net = hf.Network.from_torch(LstmStack(digits.weights, layers).eval())
            kind, noise, score, seconds = measure_pass(single_frames(net, x, [0], RADIUS_OF_A_PASS))
            spent.append(seconds)
            table.add(name, size, kind, noise, score, seconds, seconds / size)
        if len(cases) > 2:
            other = "2 layers" if name == "frames" else f"{length} frames"
            table.say(
                f"Fitted exponent in the number of {name}: {exponent(getattr(chosen, name), spent):.2f} ({other})."
            )


def measure_pass(problem: hf.Problem) -> tuple[str, int | None, float, float]:
    """What is used first, its noise symbols, the bound of the score, and the CPU seconds of one pass."""
    plan = plan_forms(graph_of(problem))
    kind = "backward passes" if plan is None else "affine forms" + " and backward passes" * plan.walks
    began = time.process_time()
    score = float(proved_score(problem))
    return kind, None if plan is None else plan.noise, score, time.process_time() - began
