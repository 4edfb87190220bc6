"""Networks in: the user's model is copied and never changed, asked as it wants to be asked, and refused in words."""

import copy
import functools
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
import truth
from holdfast.errors import BadInput, UnreadableFile, UnsupportedLayer
from holdfast.network import Network
from holdfast.network.trace import BatchSizeBranch, layers


def small(seed: int = 0, inputs: int = 4, outputs: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, outputs)).eval()


def answers(model: nn.Module, *x: Tensor) -> Tensor:
    with torch.no_grad():
        out = model(*x)
    assert isinstance(out, Tensor)
    return out


# ---------------------------------------------------------------- the user's module stays as it is


class Busy(nn.Module):
    """Dropout, batch norm with statistics, a hook and a parameter that wants gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def test_the_users_module_is_copied_and_never_changed() -> None:
    model = Busy().train()
    handle = model.layers[0].register_forward_hook(lambda *_: None)
    before = copy.deepcopy(model.state_dict())
    with pytest.warns(
        UserWarning, match="Busy is in training mode; holdfast measures a copy in evaluation mode"
    ):
        net = Network.from_torch(model)
    x = torch.randn(8, 4)
    hf.radius(net, x, net(x).argmax(-1), norm=2, methods=[hf.attacks.PGD(rounds=1, steps=3)])
    net.program(x)
    net.double(x)
    assert model.training
    assert all(m.training for m in model.modules())
    assert all(p.requires_grad and p.grad is None for p in model.parameters())
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert list(model.layers[0]._forward_hooks) == [handle.id]
    assert "was in training mode" in net.notes[0]
    with torch.no_grad():
        model.layers[0].weight.zero_()
    assert not torch.equal(net(x), net(torch.zeros(8, 4)))  # what the user does later does not reach the copy


def test_evaluation_mode_is_measured_without_a_warning() -> None:
    model = Busy().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = Network.from_torch(model)
    x = torch.randn(8, 4)
    assert torch.equal(net(x), answers(model, x))
    assert net.notes == ()
    assert not model.training


def test_fingerprints_tell_models_apart() -> None:
    assert Network.from_torch(small(0)).fingerprint == Network.from_torch(small(0)).fingerprint
    assert Network.from_torch(small(0)).fingerprint != Network.from_torch(small(1)).fingerprint
    relu = nn.Sequential(*[nn.ReLU() if isinstance(m, nn.Tanh) else m for m in small(0)])
    assert Network.from_torch(relu.eval()).fingerprint != Network.from_torch(small(0)).fingerprint


# ---------------------------------------------------------------- how the model wants its inputs


def test_normalisation_is_part_of_the_network() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 2)).eval()
    x = torch.rand(3, 3, 2, 2)
    mean, std = [0.1, 0.2, 0.3], [0.5, 2.0, 4.0]
    column = torch.tensor(mean)[:, None, None], torch.tensor(std)[:, None, None]
    truth_ = answers(model, (x - column[0]) / column[1])
    assert torch.allclose(Network.from_torch(model, mean=mean, std=std, shape=(3, 2, 2))(x), truth_)
    assert torch.allclose(Network.from_torch(model, mean=column[0], std=column[1])(x), truth_)
    assert torch.allclose(Network.from_torch(model, mean=0.5, std=0.25)(x), answers(model, (x - 0.5) / 0.25))
    assert torch.allclose(Network.from_torch(model, std=2.0)(x), answers(model, x / 2))


class Sequence3(nn.Module):
    """(batch, frames, 3) -> (batch, 2), every number with a weight of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch.arange(1, 1 + x.shape[1] * 3, dtype=x.dtype).reshape(-1, 3)
        total = (weight * x).flatten(1).sum(1)
        return torch.stack([total, -total], 1)


MEAN, STD = [500.0, 15.0, 1.0], [100.0, 5.0, 0.5]


def test_one_number_for_each_feature_is_for_features_of_a_sequence() -> None:
    model = Sequence3().eval()
    mean, std = torch.tensor(MEAN), torch.tensor(STD)
    for frames in (2, 5):
        x = mean + torch.rand(4, frames, 3)
        net = Network.from_torch(model, shape=(frames, 3), mean=MEAN, std=STD)
        assert torch.equal(net(x), model((x - mean) / std))
    x = mean + torch.rand(4, 3, 3)
    either = {"mean": mean[None], "std": std[None]}
    assert torch.equal(Network.from_torch(model, shape=(3, 3), **either)(x), model((x - mean) / std))
    column = {"mean": mean[:, None], "std": std[:, None]}
    assert torch.equal(
        Network.from_torch(model, shape=(3, 3), **column)(x), model((x - mean[:, None]) / std[:, None])
    )
    every = {"mean": MEAN * 3, "std": STD * 3}  # as a command line can say it
    assert torch.equal(Network.from_torch(model, shape=(3, 3), **every)(x), model((x - mean) / std))


def test_what_only_frames_fit_stays_one_number_for_each_frame() -> None:
    model, x = Sequence3().eval(), torch.rand(4, 2, 3)
    net = Network.from_torch(model, shape=(2, 3), mean=[0.5, 0.25])
    assert torch.equal(net(x), model(x - torch.tensor([[0.5], [0.25]])))


@pytest.mark.parametrize(
    ("shape", "count", "words"),
    [
        ((3, 3), 3, r"one for each frame or for each feature.*shape \(1, 3\).*\(3, 1\).*all 9 numbers"),
        ((4, 3), 5, "5 numbers, and inputs are \\(4, 3\\): give one number, one for each feature"),
        ((3, 8, 8), 8, "one for each channel"),
        ((3, 3, 8, 8), 3, "one for each index of axis 0 or for each index of axis 1"),
        ((3,), 2, "one for each feature"),
    ],
)
def test_numbers_that_fit_two_axes_or_none_are_refused(
    shape: tuple[int, ...], count: int, words: str
) -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 2)).eval()
    for what in ("mean", "std"):
        with pytest.raises(BadInput, match=f"{what} has {count} numbers") as told:
            Network.from_torch(module, shape=shape, **{what: [1.0 + k for k in range(count)]})
        assert re.search(words, str(told.value))
    with pytest.raises(BadInput, match="does not broadcast"):
        Network.from_torch(module, shape=shape, mean=torch.ones(7, *shape))


def test_an_array_never_stands_along_the_batch() -> None:
    module = nn.Linear(3, 2).eval()
    net = Network.from_torch(module, mean=torch.rand(4, 3))  # the shape of an input is not known yet
    with pytest.raises(BadInput, match="does not broadcast"):
        net(torch.rand(4, 3))
    assert Network.from_torch(module, mean=torch.rand(1, 3))(torch.rand(4, 3)).shape == (4, 2)


def test_ends_of_the_domain_follow_the_channels_of_an_image() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 2)).eval()
    low, high = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0])
    net = Network.from_torch(module, shape=(3, 4, 4), domain=(low, high))
    inside = (low[:, None, None] + 0.5).expand(1, 3, 4, 4)
    assert bool(net.domain.contains(inside).all())
    assert not bool(net.domain.contains(inside.flip(1)).all())
    square = nn.Sequential(nn.Flatten(), nn.Linear(27, 2)).eval()
    with pytest.raises(BadInput, match=r"domain has 3 numbers.*\(3, 1, 1\)"):
        Network.from_torch(square, shape=(3, 3, 3), domain=(low, high))
    sensors = Network.from_torch(
        Sequence3().eval(), shape=(3, 3), domain=(low, high)
    )  # it broadcasts: the last axis, as ever
    assert bool(sensors.domain.contains((low + 0.5).expand(1, 3, 3)).all())


def test_radii_are_in_the_users_units() -> None:
    """Dividing by std inside makes the model std times flatter in the user's units."""
    known = truth.linear(0)
    plain = Network.from_torch(known.model)
    scaled = Network.from_torch(known.model, std=1 / 255)
    x = known.x / 255
    one = hf.radius(plain, known.x, known.y, norm=2)
    two = hf.radius(scaled, x, known.y, norm=2)
    assert [b.upper.value for b in two] == pytest.approx([b.upper.value / 255 for b in one], rel=0.02)


class Sequence(nn.Module):
    """A recurrent layer and a linear one on its outputs, (batch, time, features) -> (batch, time, 2)."""

    def __init__(self, kind: type[nn.RNNBase], *, batch_first: bool = True, **options: Any) -> None:
        super().__init__()
        self.cell = kind(3, 4, batch_first=batch_first, **options)
        self.out = nn.Linear(8 if options.get("bidirectional") else 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cell(x)[0])


CELLS = [
    pytest.param(kind, options, id=f"{kind.__name__}{'_'.join(['', *options])}")
    for kind in (nn.RNN, nn.LSTM, nn.GRU)
    for options in ({}, {"num_layers": 2}, {"bidirectional": True}, {"num_layers": 2, "bidirectional": True})
]


@pytest.mark.parametrize(("kind", "options"), CELLS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_recurrent_models_are_asked_as_they_want(
    kind: type[nn.RNNBase], options: dict[str, Any], batch_first: bool
) -> None:
    model = Sequence(kind, batch_first=batch_first, **options).eval()
    x = torch.randn(3, 5, 3)
    steps = answers(model, x) if batch_first else answers(model, x.transpose(0, 1)).transpose(0, 1)
    pooled = {"last": steps[:, -1], "mean": steps.mean(1), "max": steps.amax(1)}
    for pool, expected in pooled.items():
        net = Network.from_torch(model, time_first=not batch_first, pool=pool)
        assert torch.allclose(net(x), expected, atol=1e-6)
        assert net.outputs_for(x) == 2
    twin = net.double(x)
    assert twin is not None
    assert torch.allclose(twin(x), net(x).double(), atol=1e-5)


def test_recurrent_models_can_be_attacked_and_traced() -> None:
    net = Network.from_torch(Sequence(nn.LSTM, num_layers=2, bidirectional=True).eval(), pool="last")
    x = torch.randn(2, 5, 3)
    found = hf.radius(net, x, net(x).argmax(-1), norm=2, frames="all")
    assert all(0 < b.upper.value < math.inf for b in found)
    assert any("lstm" in layer.operator for layer in layers(net.program(x)))


def test_a_bare_lstm_answers_its_outputs() -> None:
    model = nn.LSTM(3, 4, batch_first=True).eval()
    x = torch.randn(2, 5, 3)
    with torch.no_grad():
        outputs, _ = model(x)
    assert torch.equal(Network.from_torch(model, pool="last")(x), outputs[:, -1])
    assert torch.equal(Network.from_torch(model)(x), outputs.flatten(1))


class WithLengths(nn.Module):
    def __init__(self, words: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 3) if words else nn.Identity()
        self.cell = nn.GRU(3, 4, batch_first=True)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embedding(x), lengths, batch_first=True, enforce_sorted=False
        )
        return self.out(self.cell(packed)[1][-1])


def test_models_that_want_lengths_get_full_ones() -> None:
    model = WithLengths().eval()
    net = Network.from_torch(model)
    x = torch.randn(3, 5, 3)
    assert torch.allclose(net(x), answers(model, x, torch.tensor([5, 5, 5])), atol=1e-6)
    padded = torch.cat([x, torch.zeros(3, 2, 3)], 1)
    short = answers(model, padded, torch.tensor([5, 3, 7]))
    found = hf.radius(
        net, padded, short.argmax(-1), norm=2, lengths=[5, 3, 7], methods=[hf.attacks.PGD(rounds=2)]
    )
    assert all(
        b.note == "" and b.upper.value < math.inf for b in found
    )  # a class from padding would be called wrong


def test_token_models_may_want_lengths_too() -> None:
    model = WithLengths(words=True).eval()
    net = Network.from_torch(model, tokens=True)
    tokens = torch.randint(0, 6, (2, 4))
    expected = answers(model, tokens, torch.tensor([4, 4]))
    assert torch.allclose(net(net.embed(tokens)), expected, atol=1e-6)
    assert torch.allclose(net.ask_tokens(tokens), expected, atol=1e-6)


# ---------------------------------------------------------------- tokens


def test_the_embedding_is_split_off() -> None:
    known = truth.sentences()
    net = Network.from_torch(known.model, vocabulary=["a", "b", "c", "d", "e", "f", "g"])
    assert net.vectors is not None
    assert torch.equal(net.vectors, known.model.embedding.weight)
    assert net.shape == (None, 3)
    vectors = net.embed(known.tokens)
    assert vectors.shape == (4, 4, 3)
    assert torch.allclose(net(vectors), answers(known.model, known.tokens), atol=1e-6)
    assert torch.allclose(net.ask_tokens(known.tokens), answers(known.model, known.tokens), atol=1e-6)
    assert net.words(torch.tensor([0, 6, 2])) == ["a", "g", "c"]
    assert Network.from_torch(known.model, tokens=True).words(torch.tensor([0, 6])) == ["0", "6"]


class TimeFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 3)
        self.cell = nn.LSTM(3, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.cell(self.embedding(tokens))[0])


def test_time_first_token_models_that_answer_every_frame() -> None:
    model = TimeFirst().eval()
    net = Network.from_torch(model, tokens=True, time_first=True, pool="last")
    tokens = torch.randint(0, 6, (3, 5))
    expected = answers(model, tokens.t())[-1]
    assert torch.allclose(net(net.embed(tokens)), expected, atol=1e-6)
    assert torch.allclose(net.ask_tokens(tokens), expected, atol=1e-6)
    found = hf.radius(net, tokens, expected.argmax(-1), substitutes={i: range(6) for i in range(6)})
    assert not any("fails at the input" in b.note for b in found)


def test_words_are_replayed_through_the_whole_model() -> None:
    """What fails among the vectors only counts if the whole model, tokens in, fails too."""
    known = truth.sentences(1)
    net = known.network()

    class Stubborn(nn.Module):
        """Never changes its mind about tokens, whatever the vectors say."""

        def forward(self, tokens: Tensor) -> Tensor:
            return answers(known.model, known.tokens[row : row + 1]).expand(len(tokens), 2)

    assert net.token_model is not None
    all_ = hf.radius(net, known.tokens, known.y, substitutes=known.substitutes)
    row = next(i for i, bracket in enumerate(all_) if bracket.upper.evidence.kind == "witnessed")
    before = all_[row : row + 1]
    net.token_model = Stubborn()
    after = hf.radius(net, known.tokens[row : row + 1], known.y[row : row + 1], substitutes=known.substitutes)
    assert any(b.upper.evidence.kind == "witnessed" for b in before)
    assert all(b.upper.evidence.kind == "proved" for b in after)


class Masked(nn.Module):
    """Reads the tokens twice: for their vectors and for a padding mask."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 3)
        self.out = nn.Linear(3, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = (tokens != 0).unsqueeze(-1)
        return self.out((self.embedding(tokens) * mask).sum(1))


class TwoTables(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Embedding(6, 3), nn.Embedding(6, 3), nn.Linear(3, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out((self.one(tokens) + self.two(tokens)).sum(1))


def test_a_mask_of_padding_is_taken_along_and_sentences_with_padding_are_refused() -> None:
    """Ids are all one word to the model of vectors, so only sentences may be measured for which that makes no difference."""
    model = Masked().eval()
    net = Network.from_torch(model, tokens=True)
    whole, padded = torch.tensor([[1, 5, 3]]), torch.tensor([[1, 5, 0]])
    assert torch.allclose(net(net.embed(whole)), answers(model, whole), atol=1e-6)
    with pytest.raises(BadInput, match="does not answer the sentence '1 5 0' by its word vectors"):
        hf.radius(net, torch.cat([whole, padded]), [0, 0])
    label = answers(model, whole).argmax(-1)
    problem = functools.partial(
        hf.Problem, net, property=hf.Robustness(label), goal="radius", keys=(hf.result.Key(0),)
    )
    for words, message in (([1, 2], None), ([1, 0], "not all words of the sets give the same result")):
        asked = problem(region=hf.region.Words.around(whole, {1: words}, net.vectors))
        found = hf.certify.Certify().obstacle(asked)
        assert found is None if message is None else message in str(found)


def test_ids_that_go_into_two_tables_have_the_vectors_of_both() -> None:
    model = TwoTables().eval()
    net = Network.from_torch(model, tokens=True)
    assert net.vectors is not None
    assert torch.equal(net.vectors, torch.cat([model.one.weight, model.two.weight], 1))
    tokens = torch.tensor([[1, 2, 5], [0, 3, 3]])
    assert torch.allclose(net(net.embed(tokens)), answers(model, tokens), atol=1e-6)
    found = hf.radius(net, tokens, answers(model, tokens).argmax(-1), norm=2, tier="fast")
    assert all(
        0 < b.lower.value <= b.upper.value < math.inf for b in found
    )  # it is affine: both ends are the distance to a plane
    assert all(b.upper.value - b.lower.value < 1e-3 * b.upper.value for b in found)


def test_token_models_without_a_table_of_their_own_are_refused() -> None:
    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bag, self.out = nn.EmbeddingBag(6, 3), nn.Linear(3, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.out(self.bag(tokens))

    class Odd(TwoTables):
        def __init__(self) -> None:
            super().__init__()
            self.two = nn.Embedding(9, 3)

    class Shifted(nn.Module):
        """Looks up other ids than it is given."""

        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(6, 3), nn.Linear(3, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.out(self.table(tokens[:, 1:]).sum(1))

    for model, message in (
        (Bag(), "bag is an nn.EmbeddingBag"),
        (Odd(), r"tables of different length \(one: 6, two: 9\)"),
        (Shifted(), "token ids go into no nn.Embedding as they are given"),
        (small(), "refused token ids"),
    ):
        with pytest.raises(BadInput, match=message):
            Network.from_torch(model.eval(), tokens=True)


def test_token_errors() -> None:
    net = truth.sentences().network()
    with pytest.raises(BadInput, match="token ids run from 0 to 7, but the embedding has 7 words"):
        net.embed(torch.tensor([[0, 7]]))
    with pytest.raises(BadInput, match="token ids run from -1"):
        hf.radius(net, torch.tensor([[0, -1]]), [0])
    with pytest.raises(BadInput, match="vocabulary has 2 words, but the embedding of Bag has 7 rows"):
        Network.from_torch(truth.sentences().model, vocabulary=["a", "b"])
    with pytest.raises(BadInput, match="If they are token ids, build the network with tokens=True"):
        Network.from_torch(small()).embed(torch.tensor([[1]]))


# ---------------------------------------------------------------- what is refused


def test_weights_that_are_no_numbers_are_refused_by_name() -> None:
    for value in (math.nan, math.inf):
        model = small()
        with torch.no_grad():
            model[2].weight[0, 0] = value
        with pytest.raises(BadInput, match=r"2.weight holds NaN or infinity"):
            Network.from_torch(model)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(BadInput, match=r"needs a torch.nn.Module, got function"):
        Network.from_torch(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="needs a function, got int"):
        Network.from_callable(3)  # type: ignore[arg-type]


def test_normalisation_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(BadInput, match="std holds zero"):
        Network.from_torch(small(), std=0.0)
    with pytest.raises(BadInput, match="mean holds zero, NaN"):
        Network.from_torch(small(), mean=math.nan)
    with pytest.raises(BadInput, match="the shape of an input says whether"):
        Network.from_torch(small(), mean=[0.1, 0.2])
    with pytest.raises(BadInput, match="domain"):
        Network.from_torch(small(), domain=(1, 0))


def test_shapes_that_do_not_fit_are_refused() -> None:
    net = Network.from_torch(small(), shape=(4,))
    with pytest.raises(BadInput, match=r"the inputs have shape \(5,\), Sequential takes 4"):
        net.outputs_for(torch.zeros(2, 5))
    assert net.queries == 0
    with pytest.raises(BadInput, match=r"Sequential refused inputs of shape \(5,\)"):
        Network.from_torch(small()).outputs_for(torch.zeros(2, 5))
    with pytest.raises(BadInput, match=r"expected .batch, outputs."):
        Network.from_torch(nn.Flatten(0).eval()).outputs_for(torch.zeros(2, 5))


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Reversed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flip(0)


@pytest.mark.parametrize(
    ("model", "options", "shape"),
    [
        (Centred(), {}, (3, 4)),
        (Reversed(), {}, (3, 4)),
        (nn.LSTM(3, 4), {"pool": "last"}, (2, 5, 3)),  # time first, and nobody said so
        (nn.LSTM(3, 4), {"pool": "last"}, (1, 5, 3)),
        (nn.GRU(3, 4, batch_first=True), {"pool": "last", "time_first": True}, (2, 5, 3)),
        (nn.RNN(3, 4), {}, (2, 5, 3)),
        (nn.BatchNorm1d(4, track_running_stats=False), {}, (2, 4)),
    ],
    ids=["mean", "flip", "lstm", "lstm_of_one", "gru", "rnn", "batch_norm"],
)
def test_models_that_mix_rows_are_refused(
    model: nn.Module, options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    net = Network.from_torch(model.eval(), **options)
    with pytest.raises(
        BadInput, match=r"answers differently when inputs share a batch|more than 1 value per channel"
    ):
        hf.radius(net, torch.randn(shape), [0] * shape[0])


def test_a_model_that_answers_nan_is_refused() -> None:
    class Log(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.log()

    with pytest.raises(BadInput, match="answers NaN or infinity on the first inputs"):
        Network.from_torch(Log().eval()).outputs_for(-torch.ones(2, 3))


def test_a_gpu_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(BadInput, match="no GPU is visible to torch here"):
        Network.from_torch(small(), device="cuda")
    with pytest.raises(BadInput, match="device 'warp'"):
        Network.from_torch(small(), device="warp")


# ---------------------------------------------------------------- black boxes


def test_a_function_is_a_black_box() -> None:
    seen: list[np.ndarray[Any, Any]] = []

    def function(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        seen.append(x)
        return np.stack([x.sum(1), -x.sum(1)], 1)

    net = Network.from_callable(function, domain=(0, 1))
    assert net(torch.tensor([[0.25, 0.5]])).tolist() == [[0.75, -0.75]]
    assert seen[0].dtype == np.float32
    assert (net.name, net.source, net.differentiable) == ("function", "black box", False)
    assert "black box" in net.notes[0]
    assert net.double(torch.zeros(1, 2)) is None
    with pytest.raises(UnsupportedLayer, match="black box, so nothing about it can be proved"):
        net.program(torch.zeros(1, 2))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: 3.0, r"returned shape \(\)"),
        (lambda x: x[:1].repeat(5, 0), r"returned shape \(5, 2\) for"),
        (lambda x: np.array([["a", "b"]] * len(x)), "expected numbers"),
        (lambda x: 1 / 0, "refused inputs.*division by zero"),
    ],
)
def test_functions_that_answer_nonsense_are_refused(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        hf.radius(Network.from_callable(function), torch.zeros(3, 2), [0, 0, 0])


def test_functions_may_answer_lists_and_integers() -> None:
    net = Network.from_callable(lambda x: [[int(v.sum() > 1), 0] for v in x])
    assert net(torch.tensor([[1.0, 1.0], [0.0, 0.0]])).tolist() == [[1, 0], [0, 0]]


# ---------------------------------------------------------------- float64 twins


class MakesZeros(nn.Module):
    """A recurrent model that makes its own first state, in float32, as many do."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(3, 4)
        self.out = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], 4, dtype=torch.float32)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return self.out(state)


def test_the_twin_is_the_same_network_in_float64() -> None:
    for model, x in ((small(), torch.randn(3, 4)), (MakesZeros().eval(), torch.randn(3, 5, 3))):
        net = Network.from_torch(model)
        twin = net.double(x)
        assert twin is not None
        assert twin.dtype == torch.float64
        assert twin(x).dtype == torch.float64
        # Written out by hand in float64, nothing rounds to float32 on the way.
        if isinstance(model, MakesZeros):
            state = torch.zeros(3, 4, dtype=torch.float64)
            cell = copy.deepcopy(model.cell).double()
            for step in range(5):
                state = cell(x[:, step].double(), state)
            exact = copy.deepcopy(model.out).double()(state)
        else:
            exact = copy.deepcopy(model).double()(x.double())
        assert torch.allclose(twin(x), exact.detach(), rtol=1e-13, atol=1e-14)
        assert (twin(x) - net(x).double()).abs().max() > 0


def test_a_float64_model_is_its_own_twin() -> None:
    net = Network.from_torch(small().double())
    assert net.dtype == torch.float64
    assert net.double(torch.zeros(1, 4, dtype=torch.float64)) is net


# ---------------------------------------------------------------- gradients and counting


def test_every_row_asked_is_one_query() -> None:
    net = Network.from_torch(small())
    net(torch.zeros(7, 4))
    assert net.queries == 7
    net.score_and_gradient(torch.zeros(5, 4), lambda z: z[:, 0])
    assert net.queries == 12
    net.outputs_for(torch.randn(9, 4))
    assert net.queries == 12 + 6  # two rows together, the same two alone, and together again
    tokens = truth.sentences().network()
    tokens.ask_tokens(torch.zeros(3, 4, dtype=torch.int64))
    assert tokens.queries == 3
    twin = net.double(torch.zeros(2, 4))
    before = net.queries
    assert twin is not None
    twin(torch.zeros(50, 4))
    assert net.queries == before  # the twin counts for itself


def test_gradients_are_those_of_autograd() -> None:
    model = small()
    x = torch.randn(4, 4)
    values, slopes = Network.from_torch(model).score_and_gradient(x, lambda z: z[:, 0] - z[:, 2])
    leaf = x.clone().requires_grad_(True)
    expected = model(leaf)[:, 0] - model(leaf)[:, 2]
    (gradient,) = torch.autograd.grad(expected.sum(), leaf)
    assert torch.allclose(values, expected.detach())
    assert torch.allclose(slopes, gradient)


def test_a_model_without_a_slope_is_flat_and_no_crash() -> None:
    class Step(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            side = (x.sum(1) > 0).float()
            return torch.stack([side, 1 - side], 1)

    net = Network.from_torch(Step().eval())
    _, slopes = net.score_and_gradient(torch.ones(2, 3), lambda z: z[:, 0])
    assert (slopes == 0).all()
    [b] = hf.radius(net, torch.full((1, 3), 0.1), [0])
    assert b.upper.value >= 0.1 - 1e-6


def test_large_batches_are_split_and_joined() -> None:
    import holdfast.network.network as home

    net = Network.from_torch(small())
    x = torch.randn(100, 4)
    whole = net(x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(home, "ELEMENTS_PER_CALL", 4 * 7)
        assert torch.allclose(net(x), whole, atol=1e-6)


# ---------------------------------------------------------------- exported programs


def exported(model: nn.Module, example: Tensor, path: Path, *, free_batch: bool = True) -> Path:
    dynamic = ({0: torch.export.Dim.DYNAMIC},) if free_batch else None
    program = torch.export.export(model, (example,), dynamic_shapes=dynamic, strict=False)
    torch.export.save(program, path)
    return path


def test_an_exported_program_needs_trust(tmp_path: Path) -> None:
    path = exported(small(), torch.zeros(3, 4), tmp_path / "m.pt2")
    with pytest.raises(UnreadableFile, match=r"can run code that it contains.*trust=True"):
        Network.from_export(path)


EXPORTED: list[tuple[str, Callable[[], nn.Module], tuple[int, ...], bool]] = [
    ("free batch", small, (3, 4), True),
    ("batch of one", small, (1, 4), False),
    ("lstm", lambda: nn.Sequential(nn.LSTM(3, 4, batch_first=True)).eval(), (3, 5, 3), True),
    ("lstm of one", lambda: MakesZeros().eval(), (1, 5, 3), False),
]


@pytest.mark.parametrize(
    ("build", "shape", "free"), [pytest.param(b, s, f, id=name) for name, b, s, f in EXPORTED]
)
def test_exported_programs_answer_as_their_modules(
    build: Callable[[], nn.Module], shape: tuple[int, ...], free: bool, tmp_path: Path
) -> None:
    class First(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            out = self.model(x)
            return out[0][:, -1] if isinstance(out, tuple) else out

    torch.manual_seed(0)
    model = First(build()).eval()
    net = Network.from_export(
        exported(model, torch.randn(shape), tmp_path / "m.pt2", free_batch=free), trust=True
    )
    assert net.source == "export"
    assert net.name == "m.pt2"
    x = torch.randn(4, *shape[1:])
    expected = answers(model, x)
    assert torch.allclose(net(x), expected, atol=1e-5)
    values, slopes = net.score_and_gradient(x, lambda z: z[:, 0])
    assert torch.allclose(values, expected[:, 0], atol=1e-5)
    assert slopes.abs().max() > 0
    twin = net.double(x)
    assert twin is not None
    assert torch.allclose(twin(x), expected.double(), atol=1e-5)
    found = hf.radius(net, x, expected.argmax(-1), norm=2, methods=[hf.attacks.PGD(rounds=2)])
    assert all(0 < b.upper.value < math.inf for b in found)


def test_an_exported_token_model_is_recognised(tmp_path: Path) -> None:
    known = truth.sentences()
    net = Network.from_export(exported(known.model, known.tokens, tmp_path / "t.pt2"), trust=True)
    assert net.vectors is not None
    assert torch.equal(net.vectors, known.model.embedding.weight)
    expected = answers(known.model, known.tokens)
    assert torch.allclose(net(net.embed(known.tokens)), expected, atol=1e-6)
    assert torch.allclose(net.ask_tokens(known.tokens), expected, atol=1e-6)
    for bracket, answer in zip(
        hf.radius(net, known.tokens, known.y, substitutes=known.substitutes), known.radius(), strict=True
    ):
        assert bracket.lower.value <= answer <= bracket.upper.value


def test_an_exported_token_model_with_a_mask_is_refused(tmp_path: Path) -> None:
    path = exported(Masked().eval(), torch.zeros(3, 4, dtype=torch.int64), tmp_path / "t.pt2")
    with pytest.raises(BadInput, match="token ids are also used by"):
        Network.from_export(path, trust=True)


def test_files_that_are_no_programs_are_refused(tmp_path: Path) -> None:
    path = exported(small(), torch.zeros(3, 4), tmp_path / "m.pt2")
    half = tmp_path / "half.pt2"
    half.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(UnreadableFile, match=r"torch.export cannot read it"):
        Network.from_export(half, trust=True)
    (tmp_path / "text.pt2").write_text("not a program")
    with pytest.raises(UnreadableFile, match=r"torch.export cannot read it"):
        Network.from_export(tmp_path / "text.pt2", trust=True)
    with pytest.raises(UnreadableFile, match="no such file"):
        Network.from_export(tmp_path / "none.pt2", trust=True)
    with pytest.raises(UnreadableFile, match="is a folder"):
        Network.from_export(tmp_path, trust=True)


def test_a_module_that_cannot_be_traced_still_runs() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.stack([x.sum(1) * (2 if x.sum().item() > 1e9 else 1), x[:, 0]], 1)

    net = Network.from_torch(Odd().eval())
    with pytest.raises(
        UnsupportedLayer,
        match=r"could not turn the model into a graph.*Attacks and all black-box methods still work",
    ):
        net.program(torch.zeros(2, 3))
    assert net.double(torch.zeros(2, 3)) is not None


def test_an_exported_program_that_compares_the_rows_of_its_fixed_batch_is_refused(tmp_path: Path) -> None:
    class Compared(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0, keepdim=True)

    file = tmp_path / "compared.pt2"
    torch.export.save(torch.export.export(Compared(), (torch.zeros(5, 3),)), file)
    with pytest.raises(BadInput, match="exactly 5 inputs"):
        Network.from_export(file, trust=True)


class ByBatch(nn.Module):
    """Another answer for more inputs at once than a kernel of torch's own takes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.norm(x)
        return found if x.shape[0] <= 65535 else -found


def test_a_choice_by_the_size_of_the_batch_is_refused_at_the_limit_of_a_kernel_too() -> None:
    with pytest.raises(BatchSizeBranch, match="size of the batch <= 65535"):
        Network.from_torch(ByBatch().eval()).program(torch.rand(1, 3))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no graphics card")
def test_batch_norm_on_a_graphics_card_is_no_choice_of_the_models() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)
    ).eval()
    assert Network.from_torch(model, device="cuda").program(torch.rand(1, 1, 4, 4)).graph.nodes


def test_sentences_are_asked_in_full_float32_as_vectors_are() -> None:
    """cuDNN shortens the products of a batch (TF32) unless it is told not to, and a sentence alone would be answered otherwise."""

    class Reader(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.lstm, self.head = (
                nn.Embedding(6, 3),
                nn.LSTM(3, 4, batch_first=True),
                nn.Linear(4, 2),
            )

        def forward(self, tokens: Tensor) -> Tensor:
            logits: Tensor = self.head(self.lstm(self.table(tokens))[0][:, -1])
            return logits

    shortened: list[bool] = []
    model = Reader().eval()
    net = Network.from_torch(model, tokens=True)
    tokens = torch.tensor([[0, 1, 2], [3, 4, 5]])
    asked = {"by ids": lambda: net.ask_tokens(tokens), "by vectors": lambda: net(net.embed(tokens))}
    assert net.token_model is not None
    for whole in (net.token_model, net.module):
        for part in whole.modules():
            if isinstance(part, nn.LSTM):
                part.register_forward_pre_hook(lambda *_: shortened.append(torch.backends.cudnn.allow_tf32))
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        for name, ask in asked.items():
            shortened.clear()
            ask()
            assert shortened, name
            assert not any(shortened), name
        assert torch.backends.cudnn.allow_tf32  # and what the user chose stands


class Saturated(nn.Module):
    """The rows of a batch meet in a tanh that hides it, unless their sum is near -500."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(500 + x.sum(0, keepdim=True))


def test_rows_of_a_fixed_batch_that_meet_behind_a_saturated_function_are_not_apart(tmp_path: Path) -> None:
    x = torch.full((2, 3), -250.0)
    assert not torch.allclose(Saturated()(x)[:1], Saturated()(x[:1]))
    with pytest.raises(BadInput, match="exactly 2 inputs"):
        Network.from_export(
            exported(Saturated().eval(), x, tmp_path / "two.pt2", free_batch=False), trust=True
        )
    apart = nn.Sequential(nn.Linear(3, 4), nn.Tanh()).eval()
    net = Network.from_export(exported(apart, x, tmp_path / "apart.pt2", free_batch=False), trust=True)
    torch.testing.assert_close(net(x), apart(x))


def test_the_float64_network_of_a_program_keeps_casts_to_half(tmp_path: Path) -> None:
    """A program that ends in float16 answers 2050 where its sum is 2049.5; nothing else may be reported."""

    class Halved(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x.sum(1, keepdim=True) + 2048).half()

    example = torch.tensor([[0.5, 1.0], [0.5, 1.0]])
    exported = torch.export.export(Halved(), (example,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    torch.export.save(exported, tmp_path / "halved.pt2")
    network = Network.from_export(tmp_path / "halved.pt2", trust=True)
    own = network(example)
    precise = network.double(example)
    assert own.tolist() == [[2050], [2050]]
    assert precise is None or precise(example).tolist() == [[2050], [2050]]


def test_a_second_check_is_one_evaluation_and_still_finds_a_model_that_became_random() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.register_buffer("noise", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x)
            return out if float(self.noise) == 0 else out + self.noise * torch.rand_like(out)

    module = Noisy().eval()
    net, x = hf.Network.from_torch(module), torch.rand(2, 3)
    net.outputs_for(x)
    before, module = net.queries, net.module.model
    net.outputs_for(x)
    assert net.queries - before == 2
    module.layer.weight.data.mul_(2)  # Other weights are no error, and are checked in full.
    net.outputs_for(x)
    assert net.queries - before == 2 + 6
    module.noise.fill_(1.0)
    with pytest.raises(BadInput, match="random"):
        net.outputs_for(x)


def test_a_large_buffer_that_calls_change_is_found() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)
            self.seen = torch.zeros(2**15)

        def forward(self, x: Tensor) -> Tensor:
            self.seen = self.seen.clone()
            self.seen[7] = float(x.sum())
            out: Tensor = self.layer(x)
            return out

    with pytest.raises(BadInput, match="remembers"):
        hf.Network.from_torch(Remembers().eval()).outputs_for(torch.rand(2, 3))
