"""g2pM, a published bidirectional LSTM that gives the reading of a Chinese character with several readings.

python -m benchmarks.certify g2pm --sentence 我要买很多东西 --place 1

Which characters of the sentence decide? For each character the table gives the bounds of the l2 radius of its
embedding within which the reading stays, and the distance to the nearest other character. The weights come
from the wheel g2pM on PyPI (Apache-2.0; pip install --no-deps g2pM). They are a pickle, which is read by an
unpickler that allows three names of numpy and nothing else; no code of the package runs.
"""

import argparse
import io
import math
import pickle
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.table import Table

START, END, UNKNOWN = "시", "끝", "<UNK>"  # The package's marks for start, end and unknown.


class Arrays(pickle.Unpickler):
    """Dictionaries, strings, numbers and numpy arrays; anything else is refused."""

    allowed = frozenset({("numpy.core.multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")})

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"{module}.{name} is not part of an array")
        return np.empty(0).__reduce__()[0] if name == "_reconstruct" else getattr(np, name)


class Readings(nn.Module):
    """(batch, characters, dimension) -> (batch, readings) of the character at `place`."""

    def __init__(self, weights: dict[str, Tensor], place: int) -> None:
        super().__init__()
        self.place = place
        read, keep = weights["lstm.weight_ih_l0"], weights["lstm.weight_hh_l0"]
        first, last = weights["logit_layer.0.weight"], weights["logit_layer.2.weight"]
        self.lstm = nn.LSTM(read.shape[1], keep.shape[1], batch_first=True, bidirectional=True)
        self.logit_layer = nn.Sequential(
            nn.Linear(first.shape[1], first.shape[0]), nn.ReLU(), nn.Linear(last.shape[1], last.shape[0])
        )
        self.load_state_dict(
            {key: value for key, value in weights.items() if not key.startswith("embedding")}
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.logit_layer(self.lstm(x)[0][:, self.place])
        return logits


def read(name: str) -> Any:
    found = find_spec("g2pM")
    if found is None or found.origin is None:
        raise SystemExit("this benchmark needs the files of g2pM: pip install --no-deps g2pM")
    return Arrays(io.BytesIO((Path(found.origin).parent / name).read_bytes())).load()


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sentence", default="我要买很多东西")
    parser.add_argument(
        "--place", type=int, default=1, help="index of the character whose reading is certified, from 0"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    number, readings = read("char2idx.pkl"), {place: name for name, place in read("class2idx.pkl").items()}
    weights = {
        key: torch.from_numpy(np.array(value, dtype=np.float32)) for key, value in read("np_ckpt.pkl").items()
    }
    embedding = weights["embedding.weight"]
    characters = [START, *chosen.sentence, END]
    ids = torch.tensor([number.get(c, number[UNKNOWN]) for c in characters])
    net = hf.Network.from_torch(Readings(weights, chosen.place + 1).eval(), device=chosen.device, name="g2pM")
    x = embedding[ids][None]
    label = net(x).argmax(1).cpu()
    began, wall = time.process_time(), time.perf_counter()
    (brackets,) = hf.radius(net, x, label, norm=2, frames="each")
    seconds, wall = time.process_time() - began, time.perf_counter() - wall
    table = Table(
        ["character", "length", "nearest other", "proved", "witnessed", "proved / witnessed"],
        chosen.out,
        "g2pm",
    )
    for c, token, b in zip(characters, ids.tolist(), brackets, strict=True):
        # The zero vector is the padding.
        others = (embedding[embedding.norm(dim=1) > 0] - embedding[token]).norm(dim=1)
        nearest = float(others[others > 0].min())
        seen = (
            ["none found", None]
            if math.isinf(b.upper.value)
            else [b.upper.value, b.lower.value / b.upper.value]
        )
        name = {START: "(start)", END: "(end)"}.get(c, c)
        table.add(name, float(embedding[token].norm()), nearest, b.lower.value, *seen)
    asked = characters[chosen.place + 1]
    hidden = weights["lstm.weight_hh_l0"].shape[1]
    table.say(
        f"{asked} is read {readings[int(label)]}, one of {len(readings)} readings; {hidden} hidden units "
        "each way."
    )
    table.say(f"{len(ids)} characters in {seconds:.1f} CPU-s, {wall:.1f} s.")
