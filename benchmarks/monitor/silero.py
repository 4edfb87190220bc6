"""silero-vad, a published streaming voice detector, monitored frame by frame on speech and noise.

Every frame (512 samples, 32 ms) may be perturbed by noise in a norm-2 ball. The score is the probability that
the decision (speech or not, at probability 0.5) stays, from draws with a Clopper-Pearson interval. Speech is
made by espeak-ng and mixed by sox where they are installed (apt-get install espeak-ng sox); otherwise a voice
is synthesised from pulses and formants.
"""

import argparse
import importlib.util
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.io import wavfile
from scipy.signal import lfilter
from torch import Tensor

from holdfast.monitor.engine.streaming import Streaming
from holdfast.monitor.monitor import Monitor
from holdfast.monitor.mutation.mutation import Noise
from holdfast.monitor.outputs import Bins
from holdfast.network import Network
from holdfast.network.onnx import import_onnx, read_onnx, session

RATE, FRAME, CONTEXT, HIDDEN = 16000, 512, 64, 128
SPEECH = 0.5
SENTENCES = (
    ("en+m3", "the monitor listens to every frame of this recording"),
    ("en+f2", "and it says how far the answer can be trusted"),
)
VOWELS = (
    (730, 1090, 2440),
    (270, 2290, 3010),
    (300, 870, 2240),
    (530, 1840, 2480),
    (660, 1720, 2410),
    (490, 1350, 1690),
)
NEAR = 4  # Frames this close to a change of the decision count as near a change.
Sound = NDArray[np.float32]


class Silero(Streaming):
    """silero-vad's own ONNX file.

    A state is [h, c, the last 64 samples], since the next frame begins with these samples.
    """

    width = 2 * HIDDEN + CONTEXT

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.model = import_onnx(read_onnx(path), "silero-vad", constants={"sr": RATE})

    def step(self, state: Tensor, elements: Tensor) -> tuple[Tensor, Tensor]:
        """State (n, 320), frame (n, 512) -> next state (n, 320), probability of speech (n, 1)."""
        memory = state[:, : 2 * HIDDEN].unflatten(1, (2, HIDDEN)).transpose(0, 1)
        said, memory = self.model(torch.cat([state[:, 2 * HIDDEN :], elements], 1), memory)
        return torch.cat([memory.transpose(0, 1).flatten(1), elements[:, -CONTEXT:]], 1), said


def model_file() -> Path | None:
    """Path of silero_vad.onnx inside the installed package, which is never imported."""
    found = importlib.util.find_spec("silero_vad")
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "data" / "silero_vad.onnx"


def network(path: Path) -> Network:
    return Network.from_torch(Silero(path).eval(), shape=(1, FRAME), name="silero-vad")


def frames(sound: Sound) -> Tensor:
    """(samples,) -> (n, 512); an incomplete last frame is dropped."""
    return torch.from_numpy(sound[: len(sound) // FRAME * FRAME].reshape(-1, FRAME))


# ---- sound


def voice(seconds: float, seed: int = 0) -> Sound:
    """Synthetic syllables: glottal pulses through the formants of a vowel. silero-vad classifies them as
    speech.
    """
    rng, size = np.random.default_rng(seed), int(seconds * RATE)
    parts: list[NDArray[np.float64]] = []
    while sum(map(len, parts)) < size:
        count = int(RATE * rng.uniform(0.12, 0.22))
        pitch = rng.uniform(100, 150) * np.linspace(1, 0.85, count)
        sound = np.diff(np.floor(np.cumsum(pitch / RATE)), prepend=0) + 0.02 * rng.standard_normal(count)
        for frequency, width in zip(VOWELS[rng.integers(len(VOWELS))], (80, 100, 140), strict=True):
            r = np.exp(-np.pi * width / RATE)
            sound = lfilter([1 - r], [1, -2 * r * np.cos(2 * np.pi * frequency / RATE), r * r], sound)
        parts += [
            sound / np.abs(sound).max() * np.sin(np.pi * np.arange(count) / count) ** 0.5,
            np.zeros(int(RATE * 0.03)),
        ]
    return _loud(np.concatenate(parts)[:size], 0.1)


def _loud(sound: NDArray[np.float64], rms: float) -> Sound:
    return (rms * sound / max(1e-9, float(np.sqrt((sound**2).mean())))).astype(np.float32)


def spoken(name: str, text: str) -> Sound:
    """Speech by espeak-ng, resampled to 16 kHz by sox."""
    with tempfile.TemporaryDirectory() as folder:
        raw, ready = Path(folder) / "raw.wav", Path(folder) / "ready.wav"
        subprocess.run(["espeak-ng", "-v", name, "-s", "150", "-w", raw, text], check=True)
        subprocess.run(["sox", raw, "-r", str(RATE), "-c", "1", "-b", "16", ready], check=True)
        return _loud(wavfile.read(ready)[1] / 32768, 0.1)


def recording(seed: int = 0) -> tuple[Sound, str]:
    """Silence, speech, silence, softer speech in hiss, a burst of noise, a tone, silence; and the speech
    synthesiser.
    """
    rng = np.random.default_rng(seed)
    real = all(shutil.which(tool) for tool in ("espeak-ng", "sox"))
    first, second = (spoken(*s) for s in SENTENCES) if real else (voice(3, seed), voice(3, seed + 1))
    tone = _loud(np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE), 0.05)
    burst = _loud(rng.standard_normal(RATE), 0.1)
    hiss = 0.01 * rng.standard_normal(len(second)).astype(np.float32)
    quiet = np.zeros(RATE, dtype=np.float32)
    sound = np.concatenate(
        [quiet, first, quiet, 0.3 * second + hiss, quiet, burst, quiet[: RATE // 2], tone, quiet[: RATE // 2]]
    )
    return sound + 0.002 * rng.standard_normal(len(sound)).astype(
        np.float32
    ), "espeak-ng" if real else "pulses and formants"


# ---- the monitor along the stream


@dataclass(frozen=True)
class Track:
    """The monitor's scores for each frame."""

    rms: float  # Root mean square of the noise.
    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    milliseconds: NDArray[np.float64]


def track(net: Network, sound: Tensor, rms: float, samples: int, seed: int) -> Track:
    """Score every frame under noise of at most this root mean square.

    A uniform draw from a ball in 512 dimensions lies close to its surface, so most draws are almost that
    loud.
    """
    mutation = Noise(radius=rms * FRAME**0.5, norm=2.0)
    monitor = Monitor.fit(
        net, [sound], mutation, answer=Bins((SPEECH,)), mode="sampled", samples=samples, seed=seed
    )
    stream, rows, spent = monitor.stream(), [], []
    for frame in sound:
        began = time.process_time()
        score = stream.step(frame)
        assert score is not None
        spent.append(1e3 * (time.process_time() - began))
        rows.append((score.value, score.low, score.high))
    value, low, high = np.array(rows).T
    return Track(rms, value, low, high, np.array(spent))


@torch.no_grad()
def probabilities(model: Streaming, sound: Tensor) -> NDArray[np.float64]:
    state, said = model.start(1), []
    for frame in sound:
        state, out = model.step(state, frame[None])
        said.append(float(out))
    return np.array(said)


def through_onnxruntime(path: Path, sound: Tensor) -> NDArray[np.float64]:
    """Probabilities of speech by onnxruntime, as a check."""
    run, state, context, said = (
        session(path),
        np.zeros((2, 1, HIDDEN), np.float32),
        np.zeros((1, CONTEXT), np.float32),
        [],
    )
    for frame in sound.numpy():
        out, state = run(np.concatenate([context, frame[None]], 1), state, np.array(RATE, dtype=np.int64))
        context = frame[None, -CONTEXT:]
        said.append(float(out[0, 0]))
    return np.array(said)


def near_change(said: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Frames within NEAR of one where the decision changes."""
    changes = np.flatnonzero(np.diff(said >= SPEECH)) + 1
    return np.array([bool((np.abs(changes - place) <= NEAR).any()) for place in range(len(said))])


def picture(
    sound: Tensor, said: NDArray[np.float64], tracks: Sequence[Track], title: str, path: Path
) -> None:
    """Plot waveform, probability and scores on one time axis."""
    figure = Figure(figsize=(10, 6), layout="constrained")
    wave, probability, score = figure.subplots(3, 1, sharex=True, height_ratios=(1, 1, 1.4))
    times = np.arange(len(said)) * FRAME / RATE
    flat = sound.flatten().numpy()
    wave.plot(np.arange(len(flat)) / RATE, flat, color="0.35", linewidth=0.4)
    wave.set_ylabel("sound")
    wave.set_title(title, fontsize=10)
    probability.plot(times, said, color="C0")
    probability.axhline(SPEECH, color="0.6", linewidth=0.8)
    probability.fill_between(
        times, 0, 1, where=said >= SPEECH, color="C0", alpha=0.12, step="post", linewidth=0
    )
    probability.set_ylabel("probability\nof speech")
    for number, found in enumerate(tracks):
        colour = f"C{number + 1}"
        score.plot(times, found.value, color=colour, linewidth=1.2, label=f"noise rms {found.rms:g}")
        score.fill_between(times, found.low, found.high, color=colour, alpha=0.2, linewidth=0)
    score.set_ylabel("score: probability\nthat the decision stays")
    score.set_xlabel("seconds")
    score.set_ylim(-0.03, 1.05)
    score.legend(loc="lower right", bbox_to_anchor=(1, 1), fontsize=8, ncols=len(tracks), frameon=False)
    figure.savefig(path, dpi=120)


def row(found: Track, said: NDArray[np.float64]) -> str:
    near, speech = near_change(said), said >= SPEECH
    shares = [found.value[chosen].mean() for chosen in (speech & ~near, ~speech & ~near, near)]
    spent = np.percentile(found.milliseconds, (50, 99))
    cells = [
        f"{found.rms:g}",
        *(f"{s:.3f}" for s in shares),
        f"{found.value.min():.2f}",
        f"{(found.value < 0.9).sum()}",
    ]
    return f"| {' | '.join(cells)} | {spent[0]:.1f} / {spent[1]:.1f} |"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=100, help="draws for each frame")
    parser.add_argument(
        "--rms", type=float, nargs="+", default=[0.005, 0.02, 0.05], help="root mean square of the noise"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=Path("docs/monitor-silero.png"), help="file of the figure"
    )


def main(chosen: argparse.Namespace) -> None:
    path = model_file()
    if path is None:
        raise SystemExit("silero-vad is not installed: pip install --no-deps silero-vad")
    made, speaker = recording(chosen.seed)
    sound, net = frames(made), network(path)
    said = probabilities(Silero(path), sound)
    apart = float(np.abs(said - through_onnxruntime(path, sound)).max())
    print(
        f"{len(sound)} frames, {len(sound) * FRAME / RATE:.1f} s; speech by {speaker}, detected in "
        f"{(said >= SPEECH).sum()} frames"
    )
    print(
        f"largest difference to onnxruntime in a probability: {apart:.1e}; {chosen.samples} draws per frame\n"
    )
    print(
        "| noise rms | score in speech | in silence | near a change | smallest | frames below 0.9 | CPU ms "
        "a frame (32 ms), p50 / p99 |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    tracks = []
    for rms in chosen.rms:
        tracks.append(track(net, sound, rms, chosen.samples, chosen.seed))
        print(row(tracks[-1], said), flush=True)
    picture(
        sound, said, tracks, f"silero-vad on speech by {speaker}, a burst of noise and a tone", chosen.out
    )
    print(f"\n{chosen.out}")
