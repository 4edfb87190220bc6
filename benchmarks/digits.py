"""The three embedded networks on digits: how wide are the brackets, what do they cost, and which search finds the closest witness?"""

import time
from dataclasses import dataclass

import torch

import holdfast as hf
from holdfast.datasets import digits
from holdfast.datasets.digits_networks import digits_cnn, digits_gru, digits_lstm

NETWORKS = {"cnn": (digits_cnn, (1, 8, 8)), "lstm": (digits_lstm, (8, 8)), "gru": (digits_gru, (8, 8))}
METHODS = {"certified": hf.certify.Certify(), "PGD": hf.attacks.PGD(), "C&W": hf.attacks.CarliniWagner(), "corners": hf.attacks.Corners()}


@dataclass(frozen=True)
class Answer:
    mean: float
    seconds: float  # of one core, for each input


def measure(net: hf.Network, x: torch.Tensor, y: torch.Tensor, norm: float, name: str) -> Answer:
    began = time.process_time()
    brackets = hf.radius(net, x, y, norm=norm, methods=[METHODS[name]])
    seconds = (time.process_time() - began) / len(x)
    ends = [b.lower.value if name == "certified" else b.upper.value for b in brackets]
    return Answer(sum(ends) / len(ends), seconds)


def main(count: int = 50) -> None:
    torch.set_num_threads(1)
    data = digits("test")
    print("| network | norm | certified (s) | PGD (s) | C&W (s) | corners (s) | certified / best witness |")
    print("|---|---|---|---|---|---|---|")
    for network, (factory, shape) in NETWORKS.items():
        net = hf.Network.from_torch(factory(), domain=(0, 1))
        x, y = data.x[:count].reshape(count, *shape), data.y[:count]
        for norm in (torch.inf, 2.0, 1.0):
            found = {name: measure(net, x, y, norm, name) for name in METHODS}
            best = min(answer.mean for name, answer in found.items() if name != "certified")
            cells = " | ".join(f"{a.mean:.4f} ({a.seconds:.2f})" for a in found.values())
            print(f"| {network} | {norm:g} | {cells} | {found['certified'].mean / best:.2f} |", flush=True)


if __name__ == "__main__":
    main()
