"""Models and data as a user has them, and the command line in a copy of this process."""

import os
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

SOURCE = Path(__file__).resolve().parents[2] / "src"
FRAMES, FEATURES, CLASSES = 3, 2, 3
WORDS = ("<pad>", "the", "film", "was", "good", "bad", "fine", "great", "awful")
OWN_CODE = """
import numpy as np
import torch
from torch import nn

def pooled():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8, 3)).eval()

class Sinc(nn.Module):
    def forward(self, x):
        return torch.sinc(x)

def waving():
    return nn.Sequential(nn.Linear(4, 5), Sinc(), nn.Linear(5, 3))

def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 3))

class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = linear()

    def forward(self, x):
        answer = self.inner(x)
        return {"scores": answer, "less": -answer}

def named():
    return Named()

def broken_weights():
    made = nn.Linear(6, 3)
    with torch.no_grad():
        made.bias[1] = float("nan")
    return made

def black_box():
    return lambda x: np.stack([x.sum((1, 2)), -x.sum((1, 2))], -1)

def network():
    import holdfast as hf
    return hf.Network.from_torch(linear(), domain=(0, 1))

def fails():
    raise ValueError("my own mistake")

class Greedy(list):
    def __iter__(self):
        yield torch.empty(2**50)

def greedy():
    return {"x": Greedy([1]), "y": [0]}

def bug():
    class Bug(dict):
        def __contains__(self, key):
            raise LookupError("nobody saw this coming")
    return Bug()

def inputs():
    return {"x": torch.rand(2, 3, 2), "y": [0, 1], "names": ["a", "b"], "classes": ["ant", "bee", "cow"]}
"""


class Recurrent(nn.Module):
    """The user's own LSTM classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(FEATURES, 4, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.lstm(x)[0][:, -1])
        return answer


class Reader(nn.Module):
    """Reads token ids."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(len(WORDS), 4)
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.head(self.lstm(self.table(tokens))[0][:, -1])
        return answer


def make_workshop(folder: Path) -> None:
    torch.manual_seed(3)
    model, reader = Recurrent().eval(), Reader().eval()
    x = torch.rand(6, FRAMES, FEATURES)
    y = model(x).argmax(-1)
    free = ({0: torch.export.Dim.DYNAMIC},)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters warn of their own doings
        torch.export.save(torch.export.export(model, (x,), dynamic_shapes=free), folder / "lstm.pt2")
        torch.onnx.export(
            model,
            (x,),
            folder / "lstm.onnx",
            dynamo=False,
            input_names=["x"],
            dynamic_axes={"x": {0: "batch"}},
        )
        tokens, axes = torch.zeros(2, 4, dtype=torch.int64), {"t": {0: "batch", 1: "length"}}
        torch.onnx.export(
            reader, (tokens,), folder / "reader.onnx", dynamo=False, input_names=["t"], dynamic_axes=axes
        )
    np.savez(folder / "data.npz", x=x.numpy(), y=y.numpy())
    wrong = y.clone()
    wrong[0] = (wrong[0] + 1) % CLASSES
    np.savez(folder / "wrong.npz", x=x.numpy(), y=wrong.numpy())
    (folder / "words.txt").write_text("\n".join(WORDS) + "\n")
    sentences = ["the film was good", "The film was awful", "good film"]
    with torch.no_grad():
        said = [
            int(reader(torch.tensor([[WORDS.index(w.lower()) for w in s.split()]])).argmax())
            for s in sentences
        ]
    (folder / "text.tsv").write_text(
        "".join(f"{label}\t{text}\n" for label, text in zip(said, sentences, strict=True)) + "\n"
    )
    (folder / "substitutes.json").write_text('{"good": ["fine", "great"], "awful": ["bad"]}')
    (folder / "cli_own_code.py").write_text(OWN_CODE)


def forked(work: Callable[[], int]) -> int:
    """A copy of this process, which has torch and its tracer at hand, does the work and ends with its answer: the number of the copy."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # Python's, of threads beside a fork: the copy uses nothing that they hold
        child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


Ask = Callable[..., Said]
