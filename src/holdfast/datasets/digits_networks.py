"""Three small networks for the digits, stored in the package; scripts/train_digits.py trained them."""

from importlib.resources import as_file, files

from torch import Tensor, nn

from holdfast.process_state import own_random_numbers

# The sizes with which scripts/train_digits.py trained the stored weights; other values cannot load them.
CLASSES = 10
PIXELS_PER_ROW = 8
HIDDEN = 32


class DigitsCNN(nn.Module):
    """(batch, 1, 8, 8) -> (batch, 10) logits."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(x)
        return logits


class DigitsLSTM(nn.Module):
    """(batch, 8, 8) -> (batch, 10) logits, reading the image row by row from the top."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(PIXELS_PER_ROW, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.recurrent(x)
        logits: Tensor = self.head(outputs[:, -1])
        return logits


class DigitsGRU(nn.Module):
    """(batch, 8, 8) -> (batch, 10) logits, reading the image row by row from the top."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(PIXELS_PER_ROW, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.recurrent(x)
        logits: Tensor = self.head(outputs[:, -1])
        return logits


def digits_cnn() -> nn.Module:
    """Return the trained DigitsCNN, in eval mode."""
    return _load_trained(DigitsCNN, "digits_cnn")


def digits_lstm() -> nn.Module:
    """Return the trained DigitsLSTM, in eval mode."""
    return _load_trained(DigitsLSTM, "digits_lstm")


def digits_gru() -> nn.Module:
    """Return the trained DigitsGRU, in eval mode."""
    return _load_trained(DigitsGRU, "digits_gru")


def _load_trained(architecture: type[nn.Module], name: str) -> nn.Module:
    """Return a new module with its stored weights, in eval mode."""
    from safetensors.torch import load_file  # imported here, so that the classes do not need safetensors

    with own_random_numbers(0):  # initial weights are replaced: keep the caller's random state
        module = architecture()
    with as_file(files("holdfast.datasets") / "weights" / f"{name}.safetensors") as path:
        module.load_state_dict(load_file(path))
    return module.eval()
