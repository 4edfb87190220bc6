"""The three embedded digits networks: width and cost of the radius bounds, and the closest counterexample.

python -m benchmarks.digits
python -m benchmarks.digits --networks cnn --norms inf 2 --count 8 --tiers tight split --seconds 60

The second command measures the same images with each tier.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

import holdfast as hf
from holdfast.datasets import digits
from holdfast.datasets.digits_networks import digits_cnn, digits_gru, digits_lstm

NETWORKS = {"cnn": (digits_cnn, (1, 8, 8)), "lstm": (digits_lstm, (8, 8)), "gru": (digits_gru, (8, 8))}
METHODS = {
    "certified": hf.certify.Certify(),
    "PGD": hf.attacks.PGD(),
    "C&W": hf.attacks.CarliniWagner(),
    "corners": hf.attacks.Corners(),
}
TIERS = {"tight": hf.certify.Tighten(), "split": hf.certify.Split()}


@dataclass(frozen=True)
class Answer:
    mean: float
    seconds: float  # CPU seconds of one core for each input.


def measure(
    net: hf.Network, x: torch.Tensor, y: torch.Tensor, norm: float, name: str, seconds: float = torch.inf
) -> Answer:
    began = time.process_time()
    stop = hf.Stop(seconds=None if seconds == torch.inf else seconds * len(x))
    brackets = hf.radius(net, x, y, norm=norm, methods=[{**METHODS, **TIERS}[name]], stop=stop)
    ends = [b.lower.value if name in ("certified", *TIERS) else b.upper.value for b in brackets]
    return Answer(sum(ends) / len(ends), (time.process_time() - began) / len(x))


def main(
    count: int = 50,
    networks: Sequence[str] = tuple(NETWORKS),
    norms: Sequence[float] = (torch.inf, 2.0, 1.0),
    tiers: Sequence[str] = (),
    seconds: float = torch.inf,
) -> None:
    torch.set_num_threads(1)
    data = digits("test")
    columns = [*METHODS, *tiers]
    print(
        f"| network | norm | {' | '.join(f'{name} (s)' for name in columns)} |"
        " best lower bound / best counterexample |"
    )
    print("|---" * (len(columns) + 3) + "|")
    for network in networks:
        factory, shape = NETWORKS[network]
        net = hf.Network.from_torch(factory(), domain=(0, 1))
        x, y = data.x[:count].reshape(count, *shape), data.y[:count]
        for norm in norms:
            found = {name: measure(net, x, y, norm, name, seconds) for name in columns}
            best = min(answer.mean for name, answer in found.items() if name not in ("certified", *tiers))
            proof = max(found[name].mean for name in ("certified", *tiers))
            cells = " | ".join(f"{a.mean:.4f} ({a.seconds:.2f})" for a in found.values())
            print(f"| {network} | {norm:g} | {cells} | {proof / best:.2f} |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=50, help="images")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--norms", nargs="+", type=float, default=[torch.inf, 2.0, 1.0])
    parser.add_argument(
        "--tiers", nargs="+", choices=list(TIERS), default=[], help="tiers in addition to fast"
    )
    parser.add_argument("--seconds", type=float, default=torch.inf, help="limit for one image in one column")
    main(**vars(parser.parse_args()))
