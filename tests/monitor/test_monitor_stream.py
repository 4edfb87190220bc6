"""The monitor as a user has it: whole sequences, streams, draws, unknown words, files, the guard."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from monitor_truth import CLASSES, DIMENSION, WORDS, Reader, some_frames, some_groups, some_sequences, truth
from scipy.stats import beta
from torch import Tensor

import holdfast as hf
from holdfast.monitor import Bins, Groups, Guard, Monitor, Noise, Own, Tolerance, Typos
from holdfast.monitor.engine.engines import BatchEngine, RerunEngine
from holdfast.monitor.engine.numpy_stream import NumpyEngine
from holdfast.monitor.engine.recurrent import Recurrent
from holdfast.monitor.engine.sampled import interval

NAMES = (*(f"word{i}" for i in range(WORDS - 1)), "<unk>")


def named(**settings: Any) -> Monitor:
    net = hf.Network.from_torch(Reader("lstm"), vocabulary=NAMES)
    return Monitor.fit(net, [], some_groups(), **settings)


# ---------------------------------------------------------------- scores


def test_scores_say_what_they_are() -> None:
    module = Reader("gru")
    monitor = Monitor.fit(module.network(), some_sequences(), some_groups())
    (sequence,) = some_sequences([8], seed=5)
    wanted = truth(module, [sequence], some_groups(), "final")
    scores = monitor.score(sequence, k="final")
    assert len(scores) == 8
    assert scores.evidence.kind == "proved"
    assert scores.evidence.dtype == "float32"
    assert "exactly one element is replaced" in scores.evidence.assumptions[0]
    final = int(scores.labels[0])
    assert torch.allclose(scores.values, wanted[:, final], atol=1e-12)
    assert torch.allclose(scores.attack_success, 1 - wanted[:, final], atol=1e-12)
    attackable = [i for i in range(8) if int(sequence[i]) % 4]
    assert scores.attackable.nonzero()[:, 0].tolist() == [
        i for i in range(8) if len(some_groups().choices(int(sequence[i])).values) > 1
    ]
    assert scores.least in attackable
    assert scores.most in attackable
    assert scores.values[scores.least] == scores.values[scores.attackable].min() == scores.lowest
    assert scores.values[scores.most] == scores.values[scores.attackable].max()
    assert [score.value for score in scores] == scores.values.tolist()
    assert scores[0].low == scores[0].value == scores[0].high
    with pytest.raises(hf.errors.BadInput, match="final"):
        _ = monitor.score(sequence).attack_success


def test_places_beyond_the_end_have_no_score() -> None:
    monitor = Monitor.fit(Reader("lstm").network(), [], some_groups())
    scores = monitor.score([1, 2, 3, 5], k=2)
    assert scores.values.isnan().tolist() == [False, False, True, True]
    assert scores.labels[2:].tolist() == [-1, -1]
    assert scores.least in (0, 1, None)
    far = monitor.score([1, 2], k=9)
    assert far.least is None
    assert far.lowest == 1.0
    still = Monitor.fit(Reader("lstm").network(), [], Groups.of_sets({})).score([1, 2])
    assert still.values.tolist() == [1, 1]
    assert still.least is None
    assert still.most is None


def test_few_tokens_take_another_way_to_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monitor, sequences = named(), some_sequences([5] * 12)
    short = [monitor.score(sequence) for sequence in sequences]
    monkeypatch.setattr("holdfast.monitor.monitor.FEW_TOKENS", 0)
    for one, other in zip(short, monitor.score_all(sequences), strict=True):
        for name in ("labels", "support", "attackable"):
            assert torch.equal(getattr(one, name), getattr(other, name))
        assert torch.allclose(one.values, other.values, rtol=0, atol=1e-12)
        assert torch.allclose(one.gamma, other.gamma, rtol=0, atol=1e-12)
        assert (one.evidence, one.words) == (other.evidence, other.words)


def test_many_sequences_score_as_each_alone() -> None:
    monitor = named()
    for k in (0, 1, "final"):
        together = monitor.score_all(some_sequences(), k)
        for scores, sequence in zip(together, some_sequences(), strict=True):
            alone = monitor.score(sequence, k)
            assert torch.equal(scores.values.nan_to_num(-1), alone.values.nan_to_num(-1))
            assert torch.equal(scores.labels, alone.labels)


# ---------------------------------------------------------------- streams


@pytest.mark.parametrize(
    ("cell", "options", "engine"),
    [("lstm", {}, NumpyEngine), ("gru-stacked", {}, NumpyEngine), ("rnn-relu", {}, NumpyEngine), ("lstm-stacked", {"head": "deep"}, BatchEngine),
     ("gru-bidirectional-stacked", {}, RerunEngine)],
)  # fmt: skip
def test_a_stream_scores_as_the_whole_sequence_does(cell: str, options: dict[str, Any], engine: type) -> None:
    monitor = Monitor.fit(Reader(cell, **options).network(), [], some_groups())
    assert isinstance(monitor.stream().engine, engine)
    for sequence in some_sequences():
        monitor.start()
        for score, wanted in zip(map(monitor.step, sequence.tolist()), monitor.score(sequence), strict=True):
            assert score is not None
            assert score.value == pytest.approx(wanted.value, abs=1e-12)
            assert (score.label, score.support, score.low, score.high) == (
                wanted.label,
                wanted.support,
                score.value,
                score.value,
            )
            assert score.evidence == wanted.evidence


@pytest.mark.parametrize("outputs", [Bins((0.0,), output=1), Tolerance(0.2)])
def test_numbers_stream_too(outputs: Any) -> None:
    monitor = Monitor.fit(Reader("gru").network(), [], some_groups(), answer=outputs)
    (sequence,) = some_sequences([12])
    found = [monitor.step(token) for token in sequence.tolist()]
    assert [score.value for score in found if score] == pytest.approx(
        monitor.score(sequence).values.tolist(), abs=1e-12
    )


def test_streams_beside_each_other_do_not_mix() -> None:
    monitor = named()
    one, other = some_sequences([9, 9])
    first, second = monitor.stream(), monitor.stream()
    pairs = [(first.step(a), second.step(b)) for a, b in zip(one.tolist(), other.tolist(), strict=True)]
    assert [a.value for a, _ in pairs if a] == pytest.approx(monitor.score(one).values.tolist())
    assert [b.value for _, b in pairs if b] == pytest.approx(monitor.score(other).values.tolist())


def test_a_long_stream_takes_no_more_memory() -> None:
    stream = named().stream()
    tokens = some_sequences([3000])[0].tolist()
    for token in tokens:
        stream.step(token)
    tracemalloc.start()
    for token in tokens:
        stream.step(token)
    grown = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert grown < 20_000


def test_a_black_box_stream_ends_at_its_limit() -> None:
    monitor = Monitor.fit(Reader("lstm-bidirectional").network(), [], some_groups(), max_length=3)
    for _ in range(2):
        monitor.reset()
        for token in (1, 2, 3):
            assert monitor.step(token) is not None
        with pytest.raises(hf.errors.BadInput, match="reset"):
            monitor.step(4)


def test_close_calls_in_a_stream_widen_the_interval() -> None:
    module = Reader("lstm")
    with torch.no_grad():
        module.head.weight[1], module.head.bias[1] = module.head.weight[0], module.head.bias[0] + 4e-6
    monitor = Monitor.fit(module.network(), [], some_groups())
    (sequence,) = some_sequences([30])
    streamed, exact = [monitor.step(token) for token in sequence.tolist()], monitor.score(sequence)
    assert torch.allclose(exact.gamma, truth(module, [sequence], some_groups(), 0), rtol=0, atol=1e-12)
    assert any(score.low < score.high for score in streamed if score)
    for score, truly in zip(streamed, exact, strict=True):
        assert score is not None
        if score.label == truly.label:
            assert score.low <= truly.value <= score.high


# ---------------------------------------------------------------- draws


def test_the_interval_is_clopper_and_pearsons() -> None:
    hits = torch.arange(0, 21)
    low, high = interval(hits, 20, 0.9)
    for k in range(21):
        assert float(low[k]) == pytest.approx(0.0 if k == 0 else beta.ppf(0.05, k, 20 - k + 1), abs=1e-12)
        assert float(high[k]) == pytest.approx(1.0 if k == 20 else beta.ppf(0.95, k + 1, 20 - k), abs=1e-12)


class Last(Reader):
    """Says whether the first number of the last frame is positive: the truth about noise is a formula."""

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = torch.stack([x[:, -1, 0], -x[:, -1, 0]], 1)
        return outputs


def test_sampled_scores_hold_the_truth() -> None:
    net = hf.Network.from_torch(Last(tokens=False))
    monitor = Monitor.fit(net, [], Noise(1.0, norm=float("inf")), samples=400, confidence=0.99, seed=3)
    frames = torch.zeros(60, DIMENSION)
    frames[:, 0] = torch.linspace(-1.2, 1.2, 60)
    scores = monitor.score(frames)
    wanted = ((frames[:, 0].abs() + 1) / 2).clamp_max(1).double()
    assert scores.evidence.kind == "sampled"
    assert scores.evidence.confidence == 0.99
    assert int(((scores.low > wanted) | (scores.high < wanted)).sum()) <= 3
    assert float((scores.values - wanted).abs().max()) < 0.12
    assert float((scores.high - scores.low).mean()) < 0.15
    assert torch.equal(monitor.score(frames).values, scores.values)  # the seed is kept
    streamed = [monitor.step(frame) for frame in frames]
    assert (
        sum(
            not score.low <= truly <= score.high
            for score, truly in zip(streamed, wanted.tolist(), strict=True)
            if score
        )
        <= 3
    )
    assert {score.support for score in streamed if score} == {400}


@pytest.mark.parametrize("k", [0, 2, "final"])
def test_opened_and_closed_networks_sample_alike(k: Any) -> None:
    net = Reader("gru", tokens=False).network()
    (frames,) = some_frames([9])
    opened = Monitor.fit(net, [], Noise(1.5), samples=600, confidence=0.999)
    closed = Monitor.fit(net, [], Noise(1.5), samples=600, confidence=0.999)
    assert opened.view is not None
    closed.view = None
    one, other = opened.score(frames, k), closed.score(frames, k)
    assert torch.equal(one.labels, other.labels)
    known = ~one.values.isnan()
    assert bool((one.low <= other.high)[known].all())
    assert bool((other.low <= one.high)[known].all())
    assert 0 < float(one.values[known].min()) < 1


@pytest.mark.parametrize("tokens", [True, False])
def test_a_sequence_is_drawn_alike_alone_and_beside_others(
    tokens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation = some_groups() if tokens else Noise(1.5)
    made = Monitor.fit(Reader("gru", tokens=tokens).network(), [], mutation, mode="sampled", samples=40)
    sequences = some_sequences([5, 9, 2, 7]) if tokens else some_frames([5, 9, 2, 7])
    alone = [made.score(sequence) for sequence in sequences]
    for room in (2**24, 40 * 9 * DIMENSION, 40 * DIMENSION):  # all at once, some, and one in parts
        monkeypatch.setattr("holdfast.monitor.monitor.MOST_DRAWN_ELEMENTS", room)
        for one, other in zip(made.score_all(sequences), alone, strict=True):
            assert torch.equal(one.values, other.values)
            assert torch.equal(one.low, other.low)
    assert len({float(scores.values.mean()) for scores in alone}) > 1


def test_large_sets_may_be_sampled() -> None:
    module = Reader("lstm")
    groups = Groups.of_sets({own: range(WORDS) for own in range(WORDS)})
    exact, drawn = (
        Monitor.fit(module.network(), [], groups, mode=mode, samples=500, confidence=0.999)
        for mode in ("exact", "sampled")
    )
    (sequence,) = some_sequences([10])
    truly, scores = exact.score(sequence).values, drawn.score(sequence)
    assert int(((scores.low > truly) | (scores.high < truly)).sum()) == 0
    assert scores.support.tolist() == [500] * 10


def test_callables_are_scored_by_running_them_again() -> None:
    def total(x: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        return np.stack([x.sum((1, 2)), -x.sum((1, 2))], 1)

    net = hf.Network.from_callable(total)
    turned = Own(lambda x: [(x, 0.5), (-x, 0.5)])
    scores = Monitor.fit(net, [], turned).score(torch.tensor([[1.0], [3.0], [-1.0]]), k="final")
    assert scores.values.tolist() == [1.0, 0.5, 1.0]
    assert "same way every time" in scores.evidence.assumptions[1]


# ---------------------------------------------------------------- the abstract model


@pytest.mark.parametrize("cell", ["lstm", "gru-bidirectional-stacked"])
def test_the_abstract_model_estimates_and_says_so(cell: str, tmp_path: Path) -> None:
    module, groups = Reader(cell), some_groups()
    training = some_sequences([8] * 80, seed=7)
    monitor = Monitor.fit(module.network(), training, groups, mode="abstract")
    exact = Monitor.fit(module.network(), [], groups)
    monitor.save(tmp_path)
    again = Monitor.load(tmp_path, module.network())
    errors = []
    for sequence in some_sequences([8] * 20, seed=8):
        scores, truly = monitor.score(sequence), exact.score(sequence)
        assert scores.evidence.kind == "estimated"
        assert torch.equal(scores.labels, truly.labels)
        assert torch.equal(scores.attackable, truly.attackable)
        assert bool((scores.values[~scores.attackable] == 1).all())
        assert torch.equal(again.score(sequence).values, scores.values)
        stream = monitor.stream()
        streamed = [stream.step(token) for token in sequence.tolist()]
        assert [s.value for s in streamed if s] == pytest.approx(scores.values.tolist(), abs=1e-6)
        errors.append((scores.values - truly.values)[scores.attackable])
    assert float(torch.cat(errors).square().mean()) < 0.2
    with pytest.raises(hf.errors.BadInput, match="k=0"):
        monitor.score([1, 2, 3], k=1)
    with pytest.raises(hf.errors.BadInput, match="learns from sequences"):
        Monitor.fit(module.network(), [], groups, mode="abstract")


# ---------------------------------------------------------------- words


def test_unknown_words() -> None:
    text = "word1 word2 nonsense word3"
    with pytest.raises(hf.errors.BadInput, match="word 3: 'nonsense' is not in the vocabulary"):
        named(unknown="error").score(text)
    for policy in ("error", "unk"):  # a number is no word: no token stands for one that does not exist
        with pytest.raises(hf.errors.BadInput, match="40 tokens"):
            named(unknown=policy).score([1, WORDS])
    skipped = named(unknown="skip")
    assert skipped.score(text).words == ("word1", "word2", "word3")
    assert skipped.score(["word1", WORDS, 2]).words == ("word1", "word2")
    assert skipped.step("nonsense") is None
    with pytest.warns(UserWarning, match="1 of 4 words are unknown to the network .*: 'nonsense'"):
        assert named().score(text).words == (
            "word1",
            "word2",
            "<unk>",
            "word3",
        )  # as everywhere, where nothing is said
    assert named(unknown="unk", unk=5).score(text).words == ("word1", "word2", "word5", "word3")
    with pytest.raises(hf.errors.BadInput, match="none of its words is known"):
        skipped.score("nothing known")
    with pytest.raises(hf.errors.BadInput, match="unk="):
        Monitor.fit(Reader("lstm").network(), [], some_groups(), unknown="unk")
    with pytest.raises(hf.errors.BadInput, match="no vocabulary and no tokenizer"):
        Monitor.fit(Reader("lstm").network(), [], some_groups()).score("word1")
    with pytest.raises(hf.errors.BadInput, match="no vocabulary"):
        Monitor.fit(Reader("lstm").network(), [], some_groups()).score(["word1"])


def test_empty_one_and_too_long() -> None:
    monitor = named(max_length=5)
    for empty in ([], "", torch.zeros(0, dtype=torch.int64)):
        with pytest.raises(hf.errors.BadInput, match="empty"):
            monitor.score(empty)
    for one in ([3], "word3", torch.tensor([3])):
        assert len(monitor.score(one)) == 1
        assert monitor.score(one, k="final").values[0] == monitor.score(one).values[0]
    with pytest.raises(hf.errors.BadInput, match="max_length"):
        monitor.score([1] * 6)
    for strange in ([1.5], [None], torch.tensor([0.5])):
        with pytest.raises(hf.errors.BadInput, match="word or a token id"):
            monitor.score(strange)


def test_frames_are_looked_at() -> None:
    monitor = Monitor.fit(Reader("lstm", tokens=False).network(), [], Noise(0.1), samples=10)
    with pytest.raises(hf.errors.BadInput, match="NaN"):
        monitor.score(torch.full((2, DIMENSION), torch.nan))
    with pytest.raises(hf.errors.BadInput):
        monitor.score(torch.zeros(2, DIMENSION + 1))
    with pytest.raises(hf.errors.BadInput):
        monitor.step(torch.zeros(DIMENSION + 1))
    with pytest.raises(hf.errors.BadInput):
        monitor.score("no frames")


@pytest.mark.parametrize(
    "settings",
    [{"mode": "fast"}, {"unknown": "ignore"}, {"confidence": 1.0}, {"samples": 0}, {"max_length": 0},
     {"mode": "exact", "mutation": Noise(1.0)}, {"mutation": Noise(1.0)}, {"mutation": "synonyms"}],
)  # fmt: skip
def test_settings_that_make_no_sense(settings: dict[str, Any]) -> None:
    mutation = settings.pop("mutation", some_groups())
    with pytest.raises(hf.errors.BadInput):
        Monitor.fit(Reader("lstm").network(), [], mutation, **settings)


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("mutation", [some_groups(), Typos(NAMES, unknown=WORDS - 1)])
def test_a_monitor_comes_back(mutation: Any, tmp_path: Path) -> None:
    net = hf.Network.from_torch(Reader("lstm"), vocabulary=NAMES)
    monitor = Monitor.fit(net, [], mutation, answer=Bins((0.0, 1.0)), unknown="unk")
    monitor.save(tmp_path / "deep" / "monitor")
    monitor.save(tmp_path / "deep" / "monitor")
    assert sorted(p.name for p in (tmp_path / "deep" / "monitor").iterdir()) == [
        "monitor.json",
        "monitor.safetensors",
    ]
    again = Monitor.load(tmp_path / "deep" / "monitor", net)
    assert again.settings == monitor.settings
    assert again.outputs == monitor.outputs
    assert again.view is not None
    assert torch.equal(again.score("word1 huh word2").gamma, monitor.score("word1 huh word2").gamma)


def test_noise_comes_back_and_own_functions_do_not(tmp_path: Path) -> None:
    net = Reader("gru", tokens=False).network()
    monitor = Monitor.fit(net, [], Noise(0.5, norm=1), samples=50, seed=4)
    monitor.save(tmp_path)
    (frames,) = some_frames([4])
    assert torch.equal(Monitor.load(tmp_path, net).score(frames).values, monitor.score(frames).values)
    with pytest.raises(hf.errors.BadInput, match="own function"):
        Monitor.fit(net, [], Own(lambda x: [(x, 1.0)])).save(tmp_path / "own")


def test_files_that_are_not_the_monitor_of_this_model(tmp_path: Path) -> None:
    net = Reader("lstm").network()
    monitor = Monitor.fit(net, [], some_groups())
    monitor.save(tmp_path)
    text, numbers = tmp_path / "monitor.json", tmp_path / "monitor.safetensors"
    written, stored = text.read_text(), numbers.read_bytes()
    with pytest.raises(hf.errors.BadInput, match="another model"):
        Monitor.load(tmp_path, Reader("lstm", seed=1).network())
    text.write_text(json.dumps({**json.loads(written), "version": 99}))
    with pytest.raises(hf.errors.BadInput, match="version 99"):
        Monitor.load(tmp_path, net)
    for broken in (
        "",
        written[: len(written) // 2],
        "[]",
        "{}",
        json.dumps({**json.loads(written), "mutation": 3}),
        "null",
        "\x00",
    ):
        text.write_text(broken)
        with pytest.raises(hf.errors.UnreadableFile):
            Monitor.load(tmp_path, net)
    for wrong in (
        {"mutation": {"kind": "typos"}},
        {"settings": {"mode": "exact"}},
        {"outputs": {"kind": "bins", "width": 2}},
    ):
        text.write_text(json.dumps({**json.loads(written), **wrong}))
        with pytest.raises((hf.errors.UnreadableFile, hf.errors.BadInput)):
            Monitor.load(tmp_path, net)
    text.write_text(written)
    numbers.write_bytes(stored[:-5])
    with pytest.raises(hf.errors.UnreadableFile, match="damaged"):
        Monitor.load(tmp_path, net)
    numbers.unlink()
    with pytest.raises(hf.errors.UnreadableFile, match="no such file"):
        Monitor.load(tmp_path, net)
    with pytest.raises(hf.errors.UnreadableFile):
        Monitor.load(tmp_path / "nowhere", net)
    (tmp_path / "file").write_text("")
    with pytest.raises(hf.errors.UnreadableFile):
        monitor.save(tmp_path / "file")


# ---------------------------------------------------------------- the guard


def test_the_guard_steps_aside_where_the_score_is_low() -> None:
    module = Reader("lstm")
    monitor = Monitor.fit(module.network(), [], some_groups())
    x = torch.stack(some_sequences([6] * 12))
    lowest = torch.tensor([monitor.score(row).lowest for row in x], dtype=torch.float64)
    threshold = float(lowest.median()) + 1e-9
    low = lowest < threshold
    assert 0 < int(low.sum()) < 12
    asked: list[Tensor] = []

    def fallback(rows: Tensor) -> Tensor:
        asked.append(rows)
        return torch.full((len(rows), CLASSES), 7.0)

    answer = Guard(module, monitor, threshold, fallback)(x)
    assert torch.equal(asked[0], x[low])
    assert bool((answer[low] == 7).all())
    assert torch.equal(answer[~low], module(x)[~low])
    fixed = Guard(module, monitor, threshold, torch.arange(4.0))(x)
    assert torch.equal(fixed[low], torch.arange(4.0).expand(int(low.sum()), -1))
    never = Guard(module, monitor, 0.0, fallback)(x)
    assert torch.equal(never, module(x))
    assert len(asked) == 1
    assert Guard(module, monitor, 0.5, fallback)(x[:0]).shape == (0, CLASSES)
    with pytest.raises(hf.errors.BadInput, match="other weights"):
        Guard(Reader("lstm", seed=1), monitor, 0.5, fallback)
    with pytest.raises(hf.errors.BadInput, match="threshold"):
        Guard(module, monitor, 1.5, fallback)


def test_two_views_of_one_network_do_not_disturb_it() -> None:
    net = Reader("lstm", head="deep").network()
    x = torch.stack(some_sequences([6] * 3))
    before = net.ask_tokens(x)
    views = [Recurrent.of(net), Recurrent.of(net)]
    for view in views:
        assert view is not None
        view.outputs(view.advance(view.start(3), x[:, 0]))
    assert torch.equal(net.ask_tokens(x), before)
