"""Train the three embedded digits networks and write their weights: python scripts/train_digits.py [folder].

Seeds and the thread count are fixed, so a second run on the same machine writes the same bytes. Another
machine or torch release may sum in another order and give slightly different weights of about the same
accuracy. The number of epochs is fixed: the test split is only used to print the accuracy.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from holdfast.datasets import digits
from holdfast.datasets.digits_networks import DigitsCNN, DigitsGRU, DigitsLSTM

WEIGHTS = Path(__file__).parents[1] / "src" / "holdfast" / "datasets" / "weights"
IMAGE = (1, 8, 8)
ROWS = (8, 8)

SEED = 0
EPOCHS = 60
BATCH = 32
LEARNING_RATE = 5e-3
WEIGHT_DECAY = 1e-2
NOISE = 0.1  # Standard deviation of the noise on every pixel; pixels lie in [0, 1].


def train(architecture: type[nn.Module], x: Tensor, y: Tensor) -> nn.Module:
    """Train on x (n, *shape of one input), y (n,); return the module in eval mode."""
    torch.manual_seed(SEED)
    module = architecture()
    optimiser = torch.optim.AdamW(module.parameters(), lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=EPOCHS)
    for _ in range(EPOCHS):
        for chosen in torch.split(torch.randperm(len(x)), BATCH):
            noisy = (x[chosen] + NOISE * torch.randn_like(x[chosen])).clamp(0, 1)
            optimiser.zero_grad()
            cross_entropy(module(noisy), y[chosen]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        schedule.step()
    return module.eval()


@torch.no_grad()
def accuracy(module: nn.Module, x: Tensor, y: Tensor) -> float:
    """Accuracy on x (n, *shape of one input), y (n,)."""
    return float((module(x).argmax(1) == y).double().mean())


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Train the three embedded digits networks and write their weights."
    )
    parser.add_argument(
        "folder", type=Path, nargs="?", default=WEIGHTS, help="folder for the safetensors files"
    )
    folder: Path = parser.parse_args().folder

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    training, test = digits("train"), digits("test")
    folder.mkdir(parents=True, exist_ok=True)
    for name, architecture, shape in (
        ("digits_cnn", DigitsCNN, IMAGE),
        ("digits_lstm", DigitsLSTM, ROWS),
        ("digits_gru", DigitsGRU, ROWS),
    ):
        module = train(architecture, training.x.reshape(-1, *shape), training.y)
        save_file(module.state_dict(), folder / f"{name}.safetensors")
        print(f"{name}: test accuracy {accuracy(module, test.x.reshape(-1, *shape), test.y):.1%}")


if __name__ == "__main__":
    main()
