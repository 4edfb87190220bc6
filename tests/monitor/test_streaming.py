"""Models with their state outside: stepped as they are, they score like the same model opened or run again; silero-vad is one of them."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import wavfile
from scipy.signal import lfilter
from torch import Tensor, nn

from holdfast.errors import BadInput
from holdfast.monitor import Bins, Monitor, Noise, Own
from holdfast.monitor.engine.recurrent import Recurrent
from holdfast.monitor.engine.streaming import OpenedStreaming, Streaming
from holdfast.network import Network
from holdfast.network.onnx import import_onnx, read_onnx

FEATURES, HIDDEN, RATE, FRAME = 3, 6, 16000, 512


class Whole(nn.Module):
    """A plain LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = (
            nn.LSTM(FEATURES, HIDDEN, batch_first=True),
            nn.Linear(HIDDEN, 3, bias=False),
        )  # no class ahead from the start

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.head(self.lstm(x)[0][:, -1])
        return answer


class Stepped(Streaming):
    """The same one, its state in and out."""

    width = 2 * HIDDEN

    def __init__(self, whole: Whole) -> None:
        super().__init__()
        self.lstm, self.head = whole.lstm, whole.head

    def step(self, state: Tensor, elements: Tensor) -> tuple[Tensor, Tensor]:
        h, c = (part[None].contiguous() for part in state.split(HIDDEN, 1))
        outputs, (h, c) = self.lstm(elements[:, None], (h, c))
        return torch.cat([h[0], c[0]], 1), self.head(outputs[:, 0])


class Misshapen(Stepped):
    def step(self, state: Tensor, elements: Tensor) -> tuple[Tensor, Tensor]:
        return state[:, 1:], elements


def mutants(frame: Tensor) -> list[tuple[Tensor, float]]:
    return [(frame, 0.25), (frame + 1, 0.5), (-2 * frame, 0.25)]


def pair() -> tuple[Network, Network]:
    torch.manual_seed(0)
    whole = Whole().eval()
    return (
        Network.from_torch(whole, shape=(4, FEATURES)),
        Network.from_torch(Stepped(whole).eval(), shape=(4, FEATURES)),
    )


def test_a_streaming_model_answers_sequences_like_any_other() -> None:
    whole, stepped = pair()
    x = torch.randn(5, 7, FEATURES)
    assert torch.allclose(whole(x), stepped(x), atol=1e-6)


def test_only_streaming_models_are_opened_so() -> None:
    whole, stepped = pair()
    assert OpenedStreaming.of(whole) is None
    assert isinstance(OpenedStreaming.of(stepped), OpenedStreaming)
    assert Recurrent.of(whole) is not None


@pytest.mark.parametrize("k", [0, 2, "final"])
def test_exact_scores_are_those_of_the_opened_layer(k: int | str) -> None:
    whole, stepped = pair()
    sequences = list(torch.randn(6, 7, FEATURES))
    one, two = (Monitor.fit(net, sequences, Own(mutants)).score_all(sequences, k) for net in (whole, stepped))
    assert any(float(scores.values.nan_to_num(1).min()) < 1 for scores in one)  # something is at stake
    for mine, theirs in zip(two, one, strict=True):
        assert torch.allclose(mine.values, theirs.values, equal_nan=True)
        assert torch.equal(mine.labels, theirs.labels)


def test_a_stream_gives_the_scores_of_the_sequence() -> None:
    _, stepped = pair()
    sequence = torch.randn(9, FEATURES)
    monitor = Monitor.fit(stepped, [sequence], Own(mutants))
    values = [score.value for score in map(monitor.step, sequence) if score is not None]
    assert values == pytest.approx(monitor.score(sequence).values.tolist())


def test_a_network_that_scales_its_input_is_not_stepped_without_the_scale() -> None:
    """It stays a black box, and its scores are those of the network as the user built it."""
    torch.manual_seed(0)
    whole = Whole().eval()
    plain, scaled = (
        Network.from_torch(m, shape=(4, FEATURES), mean=0.3, std=0.5) for m in (whole, Stepped(whole).eval())
    )
    assert OpenedStreaming.of(scaled) is None
    sequence = torch.randn(6, FEATURES)
    one, two = (
        Monitor.fit(net, [sequence], Own(mutants)).score(sequence, "final") for net in (plain, scaled)
    )
    assert torch.allclose(one.values, two.values)


def test_a_step_of_the_wrong_shape_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(BadInput, match="step returned a state"):
        Monitor.fit(Network.from_torch(Misshapen(Whole()).eval(), shape=(4, FEATURES)), [], Noise(0.1))


def test_a_monitor_of_a_streaming_model_is_saved_and_needs_the_shape_of_its_frames(tmp_path: Path) -> None:
    _, stepped = pair()
    sequence = torch.randn(5, FEATURES)
    made = Monitor.fit(stepped, [sequence], Noise(0.5), samples=30)
    made.save(tmp_path / "kept")
    again = Monitor.load(tmp_path / "kept", stepped)
    assert torch.equal(again.score(sequence, "final").values, made.score(sequence, "final").values)
    shapeless = Network.from_torch(Stepped(Whole()).eval())
    assert isinstance(OpenedStreaming.of(shapeless, [sequence]), OpenedStreaming)
    with pytest.raises(BadInput, match="Give the network the shape"):
        OpenedStreaming.of(shapeless)


# ---- silero-vad


class Silero(Streaming):
    """State: h, c, and the last 64 samples, which the next frame begins with."""

    width = 2 * 128 + 64

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.model = import_onnx(read_onnx(path), "silero-vad", constants={"sr": RATE})

    def step(self, state: Tensor, elements: Tensor) -> tuple[Tensor, Tensor]:
        memory = state[:, :256].unflatten(1, (2, 128)).transpose(0, 1)
        said, memory = self.model(torch.cat([state[:, 256:], elements], 1), memory)
        return torch.cat([memory.transpose(0, 1).flatten(1), elements[:, -64:]], 1), said


def generated(path: Path) -> Tensor:
    """0.6 s of quiet, 0.8 s of a voice (pulses through formants), 0.6 s of quiet, written as a wav file and read again, in frames."""
    rng = np.random.default_rng(0)
    times = np.arange(int(0.8 * RATE)) / RATE
    voice = np.diff(np.floor(np.cumsum((120 - 20 * times) / RATE)), prepend=0) + 0.02 * rng.standard_normal(
        len(times)
    )
    for frequency, width in ((730, 80), (1090, 100), (2440, 140)):
        r = np.exp(-np.pi * width / RATE)
        voice = lfilter([1 - r], [1, -2 * r * np.cos(2 * np.pi * frequency / RATE), r * r], voice)
    voice *= np.abs(np.sin(2 * np.pi * 2.5 * times)) ** 0.5
    quiet = np.zeros(int(0.6 * RATE))
    sound = np.concatenate([quiet, 0.1 * voice / voice.std(), quiet])
    wavfile.write(
        path,
        RATE,
        (32767 * (sound + 0.003 * rng.standard_normal(len(sound)))).clip(-32768, 32767).astype(np.int16),
    )
    read = wavfile.read(path)[1].astype(np.float32) / 32768
    return torch.from_numpy(read[: len(read) // FRAME * FRAME].reshape(-1, FRAME))


def test_silero_is_sure_within_speech_and_silence_and_shaky_between(tmp_path: Path) -> None:
    found = importlib.util.find_spec("silero_vad")
    if found is None or not found.submodule_search_locations:
        pytest.skip("silero_vad is not installed: pip install --no-deps silero-vad")
    path = Path(found.submodule_search_locations[0]) / "data" / "silero_vad.onnx"
    net, sound = Network.from_torch(Silero(path).eval(), shape=(1, FRAME)), generated(tmp_path / "voice.wav")
    noise = Noise(radius=0.01 * FRAME**0.5)
    monitor = Monitor.fit(net, [sound], noise, answer=Bins((0.5,)), samples=40)
    scores = [score for score in map(monitor.step, sound) if score is not None]
    assert len(scores) == len(sound)
    assert {score.evidence.kind for score in scores} == {"sampled"}
    assert all(score.low <= score.value <= score.high and score.support == 40 for score in scores)
    labels = np.array([score.label for score in scores])
    assert labels[25:40].mean() > 0.8  # it hears the voice
    assert labels[:15].max() == 0
    changes = np.flatnonzero(np.diff(labels))
    near = np.array([np.abs(changes - place).min() <= 2 for place in range(len(labels))])
    values = np.array([score.value for score in scores])
    assert values[~near].mean() > 0.97
    assert values[near].min() < values[~near].min()
