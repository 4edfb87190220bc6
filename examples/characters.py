"""Which characters of a Chinese sentence decide the reading of one of them? g2pM, a bidirectional LSTM."""

import io
import pickle
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from torch import nn

import holdfast as hf

# "I want to buy a book". 要 is read yào here (to want), and yāo where it means to demand.
SENTENCE, TARGET = "我要买书", 1

found = find_spec("g2pM")
if found is None or found.origin is None:
    sys.exit("this example needs the weights that g2pM ships: pip install --no-deps g2pM")


class Arrays(pickle.Unpickler):
    """The weights are a pickle. This unpickler reads arrays, texts and numbers only, so no code can run."""

    def find_class(self, module, name):
        if (module, name) == ("numpy.core.multiarray", "_reconstruct"):
            return np.empty(0).__reduce__()[0]
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not part of an array")


def shipped(name):
    return Arrays(io.BytesIO((Path(found.origin).parent / name).read_bytes())).load()


class Readings(nn.Module):
    """Vectors of characters (batch, characters, 64) -> logits of the readings of one of them."""

    def __init__(self, weights, place):
        super().__init__()
        self.place = place
        self.lstm = nn.LSTM(64, 32, batch_first=True, bidirectional=True)
        self.logit_layer = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 876))
        self.load_state_dict(
            {name: value for name, value in weights.items() if not name.startswith("embedding")}
        )

    def forward(self, x):
        return self.logit_layer(self.lstm(x)[0][:, self.place])


number = shipped("char2idx.pkl")
readings = {place: name for name, place in shipped("class2idx.pkl").items()}
weights = {
    name: torch.from_numpy(np.array(value, dtype=np.float32))
    for name, value in shipped("np_ckpt.pkl").items()
}
characters = ["시", *SENTENCE, "끝"]  # With the package's marks for start and end.
x = weights["embedding.weight"][[number[c] for c in characters]][None]

net = hf.Network.from_torch(Readings(weights, TARGET + 1).eval(), name="g2pM")
reading = net(x).argmax(1)
print(f"{SENTENCE[TARGET]} in {SENTENCE} is read {readings[int(reading)]}, one of {len(readings)} readings")

# The l2 radius of each character's vector, perturbed alone, within which the reading stays.
[brackets] = hf.radius(net, x, reading, norm=2, frames="each")
for character, vector, b in zip(["(start)", *SENTENCE, "(end)"], x[0], brackets, strict=True):
    upper = "none found" if b.upper.value == float("inf") else f"{b.upper.value:.2f}"
    print(
        f"{character}: certified up to {b.lower.value:.2f}, counterexample at: {upper}, "
        f"length of the vector: {float(vector.norm()):.2f}"
    )
