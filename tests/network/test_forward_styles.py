"""Forwards as people write them: packed sequences, attention over time, answers with names, positions, one input at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import holdfast as hf
from holdfast.bounding.graph.equivalence_check import check
from holdfast.bounding.graph.fusion import single_input_network
from holdfast.bounding.graph.graph import build
from holdfast.errors import BadInput, UnsupportedLayer
from holdfast.network import Network


def proved(net: Network, x: Tensor, radius: float = 0.05) -> tuple[Tensor, Tensor]:
    """Bounds of the outputs around x, after the graph was found to be the model, attacked by samples."""
    ball = hf.Ball(x, radius)
    one = single_input_network(net, x)
    check(net, build(one, x), ball, one)
    found = hf.bounds(net, ball)
    generator = torch.Generator().manual_seed(0)
    for _ in range(30):
        said = net(x + radius * (2 * torch.rand(x.shape, generator=generator) - 1)).double()
        assert bool(((found.lower - 1e-6 <= said) & (said <= found.upper + 1e-6)).all())
    return found.lower, found.upper


# ---------------------------------------------------------------- packed sequences

LAYERS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {"batch_first": True}),
    "lstm, time first": (nn.LSTM, {}),
    "both ways": (nn.GRU, {"batch_first": True, "bidirectional": True, "num_layers": 2}),
    "rnn": (nn.RNN, {"batch_first": True}),
}


class Packed(nn.Module):
    """Packs, and answers from its last state and from what it pads again; without packing it is the same network."""

    def __init__(
        self,
        kind: str,
        *,
        packs: bool = True,
        ordered: bool = False,
        total: int | None = None,
        state: bool = False,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer, options = LAYERS[kind]
        self.first = options.get("batch_first", False)
        self.cell = layer(3, 4, **options)
        width = 8 if options.get("bidirectional") else 4
        self.out = nn.Linear(width + 4, 2)
        self.packs, self.ordered, self.total, self.state = packs, ordered, total, state

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        x = x if self.first else x.transpose(0, 1)
        state = torch.full((1, lengths.shape[0], 4), 0.5) if self.state else None
        if self.packs:
            packed = pack_padded_sequence(
                x, lengths.cpu(), batch_first=self.first, enforce_sorted=self.ordered
            )
            answers, last = self.cell(packed, state)
            frames, _ = pad_packed_sequence(
                answers, batch_first=self.first, padding_value=0.25, total_length=self.total
            )
        else:
            frames, last = self.cell(x, state)
            if self.total is not None:
                shape = list(frames.shape)
                shape[1 if self.first else 0] = self.total - 5
                frames = torch.cat([frames, torch.full(shape, 0.25)], 1 if self.first else 0)
        last = last[0] if isinstance(last, tuple) else last
        return self.out(torch.cat([frames.mean(1 if self.first else 0), last[-1]], 1))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("lstm", {}),
        ("lstm, time first", {"ordered": True}),
        ("both ways", {}),
        ("rnn", {"total": 7, "state": True}),
    ],
)
def test_packing_full_sequences_changes_no_bound(kind: str, options: dict[str, Any]) -> None:
    x = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(1))
    packed = proved(Network.from_torch(Packed(kind, **options).eval()), x)
    plain = hf.bounds(Network.from_torch(Packed(kind, packs=False, **options).eval()), hf.Ball(x, 0.05))
    torch.testing.assert_close(packed[0], plain.lower, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(packed[1], plain.upper, rtol=1e-9, atol=1e-12)


class Shorter(nn.Module):
    """Packs with lengths of its own."""

    def __init__(self, lengths: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.out, self.lengths = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2), lengths

    def forward(self, x: Tensor, x_lens: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, self.lengths(x, x_lens), batch_first=True, enforce_sorted=False)
        return self.out(self.cell(packed)[1][-1])


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (lambda x, lengths: lengths - 1, "lengths that are not those of the input"),
        (lambda x, lengths: (x.abs().sum(-1) > 1e-3).sum(1), "there is no bound|truth values|no bound"),
    ],
)
def test_lengths_that_are_not_full_or_not_known_prove_nothing(
    lengths: Callable[[Tensor, Tensor], Tensor], message: str
) -> None:
    net = Network.from_torch(Shorter(lengths).eval())
    x = torch.randn(2, 5, 3)
    with pytest.raises(UnsupportedLayer, match=message):
        build(net, x)
    methods = [hf.attacks.PGD(rounds=1, steps=5), hf.certify.Certify()]
    found = hf.radius(
        net, x, net(x).argmax(-1), norm=2, methods=methods
    )  # the model itself is measured as it packs
    assert all(b.lower.value == 0 < b.upper.value for b in found)


class Looks(nn.Module):
    """Looks at the values of the lengths."""

    def __init__(self, read: Callable[[nn.GRU, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.out, self.read = nn.GRU(3, 4, batch_first=True), nn.Linear(4, 2), read

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        return self.out(self.read(self.cell, x, lengths))


@pytest.mark.parametrize(
    "read",
    [
        lambda cell, x, lengths: cell(
            pack_padded_sequence(x[:, : int(lengths.max())], lengths.tolist(), batch_first=True)
        )[1][-1],
        lambda cell, x, lengths: cell(x)[0][torch.arange(len(x)), lengths - 1],
    ],
)
def test_the_values_of_full_lengths_are_known(read: Callable[[nn.GRU, Tensor, Tensor], Tensor]) -> None:
    x = torch.randn(3, 5, 3, generator=torch.Generator().manual_seed(1))
    found = proved(Network.from_torch(Looks(read).eval()), x)
    plain = hf.bounds(Network.from_torch(Looks(lambda cell, x, _: cell(x)[1][-1]).eval()), hf.Ball(x, 0.05))
    torch.testing.assert_close(found, (plain.lower, plain.upper), rtol=1e-9, atol=1e-12)


# ---------------------------------------------------------------- attention over time


class Attends(nn.Module):
    def __init__(self, pool: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.score, self.out, self.pool = (
            nn.GRU(3, 4, batch_first=True),
            nn.Linear(4, 1),
            nn.Linear(4, 2),
            pool,
        )

    def forward(self, x: Tensor) -> Tensor:
        h, _ = self.cell(x)
        weights = torch.softmax(self.score(torch.tanh(h)), 1)
        return self.out(self.pool(weights, h))


POOLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product and sum": lambda w, h: (w * h).sum(1),
    "bmm": lambda w, h: torch.bmm(w.transpose(1, 2), h).squeeze(1),
    "matmul": lambda w, h: (w.transpose(1, 2) @ h)[:, 0],
    "einsum": lambda w, h: torch.einsum("bt,bth->bh", w.squeeze(-1), h),
    "squeezed everywhere": lambda w, h: (w.squeeze().unsqueeze(-1) * h).sum(-2),
}


def test_attention_over_time_has_one_bound_however_it_is_written() -> None:
    x = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(2))
    bounds = {name: proved(Network.from_torch(Attends(pool).eval()), x) for name, pool in POOLS.items()}
    for found in bounds.values():
        torch.testing.assert_close(found, bounds["product and sum"], rtol=1e-6, atol=1e-9)


# ---------------------------------------------------------------- answers with names


class Answers(nn.Module):
    def __init__(self, answer: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.out, self.answer = nn.Linear(3, 4), nn.Linear(4, 2), answer

    def forward(self, x: Tensor) -> Any:
        h = torch.tanh(self.hidden(x))
        return self.answer(self.out(h), h)


@pytest.mark.parametrize(
    ("answer", "output", "note"),
    [
        (
            lambda a, h: {"hidden": h, "logits": a},
            None,
            "the model answers with hidden, logits; logits is measured",
        ),
        (
            lambda a, h: {"scores": a, "mask": a > 0},
            None,
            "the model answers with scores, mask; scores is measured",
        ),
        (lambda a, h: {"one": h, "two": a}, "two", "the model answers with one, two; two is measured"),
        (
            lambda a, h: ({"two": a}, h),
            "two",
            "the model answers with 2 things; the first of them is measured",
        ),
        (
            lambda a, h: (a, h.unsqueeze(0)),
            None,
            "the model answers with 2 things; the first of them is measured",
        ),
        (
            lambda a, h: (h, a),
            "1",
            "the model answers with 2 things; number 1, counted from 0, of them is measured",
        ),
        (lambda a, h: (None, a), None, "the model answers with 2 things; the first of them is measured"),
    ],
)
def test_the_answer_is_found_by_its_name(
    answer: Callable[[Tensor, Tensor], Any], output: str | None, note: str
) -> None:
    net, plain = (
        Network.from_torch(Answers(answer).eval(), output=output),
        Network.from_torch(Answers(lambda a, h: a).eval()),
    )
    x = torch.randn(2, 3)
    assert net.outputs_for(x) == 2
    assert torch.equal(net(x), plain(x))
    assert net.notes == (note,)
    torch.testing.assert_close(hf.bounds(net, hf.Ball(x, 0.1)).lower, hf.bounds(plain, hf.Ball(x, 0.1)).lower)


def test_an_answer_that_must_be_chosen_is_asked_for() -> None:
    both = Answers(lambda a, h: {"one": h, "two": a}).eval()
    with pytest.raises(BadInput, match=r"several things \(one, two\).*output='one'"):
        Network.from_torch(both)(torch.zeros(1, 3))
    with pytest.raises(BadInput, match="output='three': the model's answer has one, two"):
        Network.from_torch(both, output="three")(torch.zeros(1, 3))


@pytest.mark.parametrize(
    "answer", [lambda a, h: (h, a), lambda a, h: (h[None], a), lambda a, h: ({"two": a}, h)]
)
def test_of_two_tensors_in_a_tuple_none_is_guessed(answer: Callable[[Tensor, Tensor], Any]) -> None:
    """Whether the first or the second is the answer, only its author knows."""
    x = torch.randn(3, 3)
    with pytest.raises(BadInput, match=r"more than one could be meant.*output='0'"):
        hf.bounds(Network.from_torch(Answers(answer).eval()), hf.Ball(x, 0.1))
    with pytest.raises(BadInput, match="counted from 0"):
        Network.from_torch(Answers(answer).eval(), output="2").outputs_for(x)


class TwoLayers(nn.Module):
    """A GRU of two layers that returns its state, whose first axis is as long as a batch of two."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.out = nn.GRU(3, 4, num_layers=2, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        outputs, state = self.layers(x)
        return self.out(outputs[:, -1]), state


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_state_beside_the_answer_is_no_question(count: int) -> None:
    net, x = Network.from_torch(TwoLayers().eval()), torch.randn(count, 5, 3)
    assert net.outputs_for(x) == 2
    assert net.notes == ("the model answers with 2 things; the first of them is measured",)


def test_the_place_in_a_tuple_is_part_of_what_a_network_is() -> None:
    model, x = Answers(lambda a, h: (h, a)).eval(), torch.randn(2, 3)
    first, second = (Network.from_torch(model, output=place) for place in "01")
    assert first.outputs_for(x) == 4
    assert second.outputs_for(x) == 2
    assert first.fingerprint != second.fingerprint
    assert first.identity(x) != second.identity(x)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_an_exported_program_with_two_outputs_is_asked_which_is_meant(tmp_path: Path, batch: int) -> None:
    model = Answers(lambda a, h: (h, a)).eval()
    file = tmp_path / "two.pt2"
    shapes = None if batch == 1 else ({0: torch.export.Dim("batch")},)
    torch.export.save(torch.export.export(model, (torch.randn(batch, 3),), dynamic_shapes=shapes), file)
    with pytest.raises(BadInput, match="more than one could be meant"):
        Network.from_export(file, trust=True)
    net, x = Network.from_export(file, trust=True, output="1"), torch.randn(4, 3)
    torch.testing.assert_close(net(x), model(x)[1])
    assert net.outputs_for(x) == 2
    assert "number 1" in net.notes[0]
    assert net.fingerprint != Network.from_export(file, trust=True, output="0").fingerprint


# ---------------------------------------------------------------- positions and segments


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.word, self.place, self.segment = nn.Embedding(9, 4), nn.Embedding(12, 4), nn.Embedding(2, 4)
        self.norm, self.out = nn.LayerNorm(4), nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.size(1), device=tokens.device).unsqueeze(0).expand_as(tokens)
        h = self.word(tokens) + self.place(places) + self.segment(torch.zeros_like(tokens))
        return self.out(torch.tanh(self.norm(h)).mean(1))


def test_only_the_embedding_that_reads_the_ids_is_split_off() -> None:
    model = Positions().eval()
    net = Network.from_torch(model, tokens=True)
    assert net.vectors is not None
    assert torch.equal(net.vectors, model.word.weight)
    tokens = torch.tensor([[1, 4, 8, 2], [3, 3, 0, 5]])
    with torch.no_grad():
        assert torch.allclose(net(net.embed(tokens)), model(tokens), atol=1e-6)
    proved(net, net.embed(tokens))
    sets = {word: [(word + 1) % 9] for word in range(9)}
    region = hf.region.Words.around(tokens, sets, net.vectors)
    rows = hf.bounds(net, region)
    for place in range(4):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % 9
        said = net.ask_tokens(changed).double()
        assert bool(((rows.lower - 1e-6 <= said) & (said <= rows.upper + 1e-6)).all())


# ---------------------------------------------------------------- one input at a time


class Alone(nn.Module):
    def __init__(self, forward: Callable[[nn.Linear, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.out, self.read = nn.Linear(6, 4), nn.Linear(4, 2), forward

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.read(self.hidden, x)))


@pytest.mark.parametrize(
    "read",
    [
        lambda layer, x: layer(x.reshape(1, 6)),
        lambda layer, x: layer(x.flatten()),
        lambda layer, x: layer(x.squeeze(0).flatten()).unsqueeze(0),
        lambda layer, x: layer(torch.tensor(x.detach().numpy()).reshape(1, 6)) + 0 * layer(x.reshape(1, 6)),
    ],
)
def test_a_model_that_takes_no_batch_is_asked_one_by_one(read: Callable[[nn.Linear, Tensor], Tensor]) -> None:
    model, whole = Alone(read).eval(), Alone(lambda layer, x: layer(x.flatten(1))).eval()
    net, plain = Network.from_torch(model), Network.from_torch(whole)
    x = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(3))
    assert torch.allclose(net(x), plain(x), atol=1e-6)
    assert net.outputs_for(x) == 2
    assert net.notes == ("takes one input at a time, so it is called once for each input",)


def test_a_model_that_takes_no_batch_is_proved_as_one_that_does() -> None:
    net = Network.from_torch(Alone(lambda layer, x: layer(x.reshape(1, 6))).eval())
    plain = Network.from_torch(Alone(lambda layer, x: layer(x.flatten(1))).eval())
    x = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(3))
    label = net(x).argmax(-1)
    methods = [hf.attacks.PGD(rounds=2, steps=10), hf.certify.Certify()]
    found, wanted = (hf.radius(n, x, label, norm=2, methods=methods) for n in (net, plain))
    assert [b.lower.value for b in found] == pytest.approx([b.lower.value for b in wanted], rel=1e-4)
    assert all(0 < b.lower.value <= b.upper.value < 1e3 for b in found)
    proved(net, x)


def test_inputs_that_the_model_refuses_are_no_reason_to_ask_one_by_one() -> None:
    class Never(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("not today")

    net = Network.from_torch(Never().eval())
    with pytest.raises(BadInput, match="not today"):
        net.outputs_for(torch.zeros(2, 3))
    assert net.notes == ()


# ---------------------------------------------------------------- Hugging Face


def test_a_bert_is_measured_and_proved() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=4,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=6,
        max_position_embeddings=16,
    )
    model = transformers.BertForSequenceClassification(config).eval()
    for weight in model.parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.3)
    net = Network.from_torch(model, tokens=True)
    tokens = torch.tensor([[5, 9, 17]])
    with torch.no_grad():
        said = model(tokens).logits
    assert torch.allclose(net(net.embed(tokens)), said, atol=1e-5)
    (bracket,) = hf.radius(net, tokens, said.argmax(-1), norm=2, tier="fast")
    assert 0 < bracket.lower.value <= bracket.upper.value
    (words,) = hf.radius(net, tokens, said.argmax(-1), substitutes={5: [6, 7], 9: [10]})
    assert words.lower.evidence.kind == "proved"
