"""Spoken digits from the waveform on: recordings proved and attacked at perturbations in decibels.

python -m benchmarks.certify speech                      one recording of each speaker, about two minutes of CPU time
python -m benchmarks.certify speech --step 1             all 120 recordings, about an hour

The network is PROVER's for the Free Spoken Digit Dataset (Ryou et al. 2021): frames of 256 samples every 200, Fourier
transform, powers of ten mel bands, logarithm, a linear layer with ReLU, an LSTM of two layers of 32 over 8 to 37
frames. Every sample moves by at most the peak of the recording times 10^(dB / 20), any other class counts, and
misclassified recordings are left out. A recording is open if it is neither proved nor attacked. The recordings are
every `--step`-th in the order of the file, beginning with number `--first`; the default visits every speaker once.

DeepPrism publishes 91, 89 and 85 % certified at -90, -85 and -80 dB (arXiv 2511.11699, appendix; up to 292 s a
recording), on a sample of recordings of its own.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.data import shared
from benchmarks.certify.table import Table

FRAME, STEP = 256, 200  # Samples of a frame, and from one frame to the next.


class SpokenDigits(nn.Module):
    """PROVER's network: (batch, samples) -> (batch, 10)."""

    def __init__(self, weights: dict[str, Tensor]) -> None:
        super().__init__()
        self.register_buffer("spectrum", weights["spectrum"])
        self.register_buffer("mel", weights["mel"])
        self.linear1, self.linear2 = nn.Linear(10, 40), nn.Linear(32, 10)
        self.lstm = nn.LSTM(40, 32, 2, batch_first=True)
        self.load_state_dict(weights)

    def forward(self, x: Tensor) -> Tensor:
        power = (x.unfold(1, FRAME, STEP) @ self.spectrum) ** 2 @ self.mel
        hidden = torch.relu(self.linear1(torch.log(power + 1e-10)))
        found: Tensor = self.linear2(self.lstm(hidden)[0][:, -1])
        return found


def read_recordings(file: Path) -> dict[str, Tensor]:
    """Waveforms by name (digit_speaker_number), padded as in PROVER's code."""
    found = {}
    with np.load(file, allow_pickle=False) as arrays:
        for name in arrays.files:
            sound = arrays[name].astype(np.float32)
            found[name] = torch.from_numpy(np.pad(sound, (0, STEP if len(sound) % STEP else 0)))
    return found


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--levels", nargs="*", type=float, default=[-90.0, -80.0, -70.0])
    parser.add_argument("--step", type=int, default=22, help="every how many-th recording is taken")
    parser.add_argument("--first", type=int, default=0, help="number of the first recording")
    parser.add_argument("--tier", default="fast")
    parser.add_argument("--seconds", type=float, default=120.0, help="budget of a recording and level")
    parser.add_argument("--out", type=Path, help="folder where the table is written")


def main(chosen: argparse.Namespace) -> None:
    folder = shared("recurrent", chosen.data)
    model = SpokenDigits(load_file(folder / "fsdd_lstm_2x32.safetensors")).eval()
    recordings = list(read_recordings(folder / "fsdd_recordings.npz").items())[chosen.first :: chosen.step]
    table = Table(
        ["recording", "frames", "dB", "proved margin", "margin found", "CPU-s"], chosen.out, "speech"
    )
    outcomes: dict[float, list[tuple[bool, bool, float]]] = {level: [] for level in chosen.levels}
    wrong = []
    for name, sound in recordings:
        x, digit = sound[None], torch.tensor([int(name[0])])
        if int(model(x).argmax(1)) != int(digit):
            wrong.append(name)
            continue
        net = hf.Network.from_torch(model)
        for level in chosen.levels:
            began = time.process_time()
            region = hf.Ball(x, hf.decibels(x, level), torch.inf)
            [found] = hf.worst(
                net, region, hf.Robustness(digit), tier=chosen.tier, seconds=chosen.seconds, progress=False
            )
            spent = time.process_time() - began
            lower, upper = found.lower.value, found.upper.value
            outcomes[level].append((lower > 0, upper <= 0, spent))
            table.add(name, len(sound.unfold(0, FRAME, STEP)), level, lower, upper, spent)
    for level, rows in outcomes.items():
        proved, attacked = sum(row[0] for row in rows), sum(row[1] for row in rows)
        table.say(
            f"{level:g} dB: of {len(rows)} recordings {proved} proved, {attacked} attacked, "
            f"{len(rows) - proved - attacked} open; {sum(row[2] for row in rows) / max(1, len(rows)):.1f} CPU-s each."
        )
    if wrong:
        table.say(f"Left out, since the network misclassifies them: {', '.join(wrong)}.")
