"""How much noise changes the decisions of the voice detector silero-vad, in single chunks and in a stream?"""

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from scipy.signal import lfilter

import holdfast as hf
from holdfast.network.onnx import import_onnx, read_onnx

RATE, CHUNK, CONTEXT, HIDDEN = 16000, 512, 64, 128
found = find_spec("silero_vad")
if found is None or found.origin is None:
    sys.exit("this example needs the network that silero-vad ships: pip install --no-deps silero-vad")


class Silero(hf.monitor.Streaming):
    """One chunk of 32 ms per step. The state: the LSTM's, and 64 samples, which precede the next chunk."""

    width = 2 * HIDDEN + CONTEXT

    def __init__(self):
        super().__init__()
        file = Path(found.origin).parent / "data" / "silero_vad.onnx"
        self.model = import_onnx(read_onnx(file), "silero-vad", constants={"sr": RATE})

    def step(self, state, chunk):
        """State (n, width), chunk (n, 512) -> the next state, and the probability of speech (n, 1)."""
        memory = state[:, : 2 * HIDDEN].unflatten(1, (2, HIDDEN)).transpose(0, 1)
        speech, memory = self.model(torch.cat([state[:, 2 * HIDDEN :], chunk], 1), memory)
        return torch.cat([memory.transpose(0, 1).flatten(1), chunk[:, -CONTEXT:]], 1), speech


def recording():
    """Silence, a synthetic voice (glottal pulses through the formants of a vowel), silence: (chunks, 512)."""
    rng, times = np.random.default_rng(0), np.arange(int(0.8 * RATE)) / RATE
    voice = np.diff(np.floor(np.cumsum((120 - 20 * times) / RATE)), prepend=0) + 0.02 * rng.standard_normal(
        len(times)
    )
    for frequency, width in ((730, 80), (1090, 100), (2440, 140)):
        r = np.exp(-np.pi * width / RATE)
        voice = lfilter([1 - r], [1, -2 * r * np.cos(2 * np.pi * frequency / RATE), r * r], voice)
    voice *= np.abs(np.sin(2 * np.pi * 2.5 * times)) ** 0.5
    quiet = np.zeros(int(0.4 * RATE))
    sound = np.concatenate([quiet, 0.1 * voice / voice.std(), quiet]) + 0.003 * rng.standard_normal(
        2 * len(quiet) + len(voice)
    )
    return torch.tensor(sound[: len(sound) // CHUNK * CHUNK].reshape(-1, CHUNK), dtype=torch.float32)


sound = recording()
net = hf.Network.from_torch(Silero().eval(), domain=(-1, 1), name="silero-vad")

# How soft a noise in one chunk, relative to its own sound, changes the decision after the last chunk?
part = sound[18:21]
print(
    f"three chunks of the voice, speech with probability {float(net(part[None])):.2f}; noise in one of them:"
)
# Tier search gives counterexamples only, no certified bounds.
[brackets] = hf.radius(net, part[None], property=hf.Threshold(0.5), norm=2, frames="each", tier="search")
for place, (chunk, b) in enumerate(zip(part, brackets, strict=True)):
    below = -20 * np.log10(b.upper.value / float(chunk.norm()))
    print(f"  chunk {place}: noise {below:.0f} dB below its own sound changes the decision")

# In a stream: the probability that each decision stays if its chunk contains noise of this loudness.
noise = hf.monitor.Noise(radius=0.01 * CHUNK**0.5)
monitor = hf.Monitor.fit(net, [sound], noise, answer=hf.monitor.Bins((0.5,)), samples=20)
scores = [score for chunk in sound if (score := monitor.step(chunk)) is not None]
print("\nthe recording by chunks: # speech, . none; ^ the decision stays in fewer than 90 % of the draws:")
print("  " + "".join("#" if score.label else "." for score in scores))
print("  " + "".join("^" if score.value < 0.9 else " " for score in scores))
