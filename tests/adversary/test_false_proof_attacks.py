"""The audit's ways to a false proof, each with the numbers it was found with: right, or refused by name."""

import contextlib
import math
import random
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from judge import Case, Outcome, Trial, Truth, capabilities_of, check_radius, fresh_module
from torch import Tensor, nn
from torch.nn import functional as F

import holdfast as hf
from holdfast.cli import main
from holdfast.store import Store

PROOFS = ("radius inf, proof alone", "radius 0", "worst", "bounds", "reach")


def assert_never_wrong(case: Case, *capabilities: str, entry: str = "from_torch") -> None:
    trial = Trial(entry, case)
    judged = {
        capability: trial.examine(capability) for capability in capabilities or tuple(capabilities_of(case))
    }
    wrong = {capability: found.detail for capability, found in judged.items() if found.verdict == "wrong"}
    assert not wrong, "\n".join(f"{capability}: {detail}" for capability, detail in wrong.items())


def linear(weight: list[list[float]], bias: list[float]) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight))
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight))
        layer.bias.copy_(torch.tensor(bias))
    return layer


def two(score: Tensor) -> Tensor:
    """Class 0 where the score is positive."""
    return torch.stack([score, torch.zeros_like(score)], -1)


# ---------------------------------------------------------------- 1: it writes into its input


class Writes(nn.Module):
    def __init__(self, write: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.write, self.out = write, linear([[1.0, 1.0], [0.0, 0.0]], [0.35, 0.0])

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.out(self.write(x))
        return answer


def times(x: Tensor) -> Tensor:
    x *= 0.1
    return x


WRITES: dict[str, Callable[[Tensor], Tensor]] = {
    "leaky relu": lambda x: F.leaky_relu(x, 0.1, inplace=True),
    "times": times,
    "leaky relu, default slope": lambda x: F.leaky_relu(x, inplace=True),
}


@pytest.mark.parametrize("write", WRITES)
def test_a_model_that_writes_into_its_input(write: str) -> None:
    x = torch.tensor([[1.0, 1.0], [2.0, 2.0], [-1.9, -1.0]])
    case = Case(write, lambda: Writes(WRITES[write]).eval(), x, (0, 0, 0))
    assert_never_wrong(case, *PROOFS, "radius inf", "verify", "risk", "saliency")


def test_the_users_data_stay_as_they_are() -> None:
    x = torch.tensor([[1.0, 1.0], [-1.9, -1.0]])
    given = x.clone()
    for ask in (
        lambda net: net(given),
        lambda net: hf.radius(net, given, [0, 0], norm=0, stop=hf.Stop(seconds=1)),
        lambda net: hf.worst(
            net, hf.Ball(given, 0.3, math.inf, (-2, 2)), hf.Robustness(torch.tensor([0, 0]))
        ),
        lambda net: hf.saliency(net, given, torch.tensor([0, 0])),
    ):
        with contextlib.suppress(hf.HoldfastError):
            ask(hf.Network.from_torch(Writes(WRITES["leaky relu"]).eval(), domain=(-2, 2)))
        assert torch.equal(given, x)


# ---------------------------------------------------------------- 2: the token model is never asked


class Reader(nn.Module):
    """Class 0 while the first numbers of all words are together above some number."""

    def __init__(
        self, table: nn.Embedding, change: Callable[[Tensor], Tensor] | None = None, above: float = -1.0
    ) -> None:
        super().__init__()
        self.table, self.change = table, change
        self.out = linear([[1.0, 0.0], [0.0, 0.0]], [-above, 0.0])

    def forward(self, tokens: Tensor) -> Tensor:
        read = tokens if self.change is None else self.change(tokens)
        answer: Tensor = self.out(self.table(read).sum(1))
        return answer


def vectors() -> Tensor:
    """Word 0 is bad, all others are good."""
    table = torch.ones(40, 2)
    table[0] = -3.0
    return table


class Tampered(nn.Embedding):
    """Some rows are not what the table says."""

    def forward(self, tokens: Tensor) -> Tensor:
        found = super().forward(tokens)
        return torch.where((tokens == 37).unsqueeze(-1), torch.full_like(found, -3.0), found)


def tampered() -> nn.Embedding:
    table = Tampered(40, 2)
    table.weight.data.copy_(vectors())
    return table


def renormalised() -> nn.Embedding:
    """Long rows count for as much as short ones, once they have been read."""
    values = torch.tensor([9.0, 0.0]).repeat(40, 1)
    values[37] = 0.0
    table = nn.Embedding(40, 2, max_norm=1.0)
    table.weight.data.copy_(values)
    return table


def plain() -> nn.Embedding:
    return nn.Embedding.from_pretrained(vectors())


def bigram(tokens: Tensor) -> Tensor:
    """Two good words that are bad together."""
    both = ((tokens == 37).any(1) & (tokens == 12).any(1)).unsqueeze(1)
    return torch.where(both, torch.zeros_like(tokens), tokens)


def in_python(tokens: Tensor) -> Tensor:
    return torch.tensor([[0 if word == 37 else word for word in sentence] for sentence in tokens.tolist()])


READERS: dict[str, Callable[[], nn.Module]] = {
    "a word replaced before the table": lambda: Reader(
        plain(), lambda t: torch.where(t == 37, torch.zeros_like(t), t)
    ),
    "a word replaced in python": lambda: Reader(
        plain(), lambda t: torch.tensor([[0 if v == 37 else v for v in row] for row in t.tolist()])
    ),
    "max_norm": lambda: Reader(renormalised(), above=1.5),
    "a subclass of the embedding": lambda: Reader(tampered()),
    "two words that are bad together": lambda: Reader(plain(), bigram),
    "modulo": lambda: Reader(plain(), lambda t: t % 37),
    "clamped": lambda: Reader(plain(), lambda t: torch.where(t > 36, t - 37, t)),
}


def words(make: Callable[[], nn.Module], name: str = "words") -> Case:
    x = torch.tensor([[1, 2, 3], [5, 6, 5], [12, 3, 3]])
    return Case(
        name, make, x, (0, 0, 0), substitutes={1: (37, 12), 2: (37,), 3: (37, 1), 5: (37, 7), 6: (37, 12)},
        options={"tokens": True},
    )  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_word_certificates_ask_the_token_model(reader: str) -> None:
    assert_never_wrong(words(lambda: READERS[reader]().eval()), "words")


@pytest.mark.parametrize(
    "reader", ["a word replaced before the table", "two words that are bad together", "max_norm"]
)
def test_word_certificates_of_files_ask_the_file(reader: str) -> None:
    assert_never_wrong(words(lambda: READERS[reader]().eval()), "words", entry="from_export")


# ---------------------------------------------------------------- 4: a store answers another question


def steep(slope: float) -> nn.Module:
    return nn.Sequential(linear([[slope, 0.0], [0.0, 0.0]], [0.0, 0.0])).eval()


def asked_again(
    store: Store, model: nn.Module, x: Tensor, norm: float = math.inf, **options: Any
) -> list[float]:
    net = hf.Network.from_torch(model, domain=(-2, 2))
    return [
        b.lower.value
        for b in hf.radius(net, x, [0], norm=norm, store=store, methods=[hf.certify.Certify()], **options)
    ]


X = torch.tensor([[1.0, 1.0]])
PROOF: list[hf.Method[Any]] = [hf.certify.Certify()]
AGAIN: dict[str, tuple[Callable[[Store], list[float]], float]] = {
    "another network": (lambda store: asked_again(store, nn.Sequential(linear([[1.0, 0.0], [0.0, 0.0]], [-0.75, 0.0])).eval(), X), 0.25),
    "another network without weights": (lambda store: asked_again(store, Threshold(0.75), X), 0.25),
    "another input": (lambda store: asked_again(store, steep(1.0), torch.tensor([[0.25, 1.0]])), 0.25),
    "another norm": (lambda store: asked_again(store, sums(), torch.tensor([[1.0, 1.0]]), norm=math.inf), 1.0),
    "another label": (lambda store: [hf.radius(net_of(steep(1.0)), X, [1], store=store, methods=PROOF)[0].lower.value], 0.0),
    "another domain": (lambda store: asked_in(store, (0.5, 2)), math.inf),
    "another target": (lambda store: asked_again(store, three(), X, targets=[1]), 0.25),
    "the worst score": (
        lambda store: [
            hf.worst(
                net_of(steep(0.1)), hf.Ball(X, 0.5, math.inf, (-2, 2)), hf.Robustness(torch.tensor([0])), store=store,
                methods=[hf.certify.Certify()],
            )[0].lower.value
        ],
        0.05,
    ),
}  # fmt: skip


class Threshold(nn.Module):
    """All that it knows stands in its code and in a number that is no tensor."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at = at

    def forward(self, x: Tensor) -> Tensor:
        return two(x[:, 0] - self.at)


def net_of(model: nn.Module, domain: tuple[float, float] = (-2, 2)) -> hf.Network:
    return hf.Network.from_torch(model, domain=domain)


def asked_in(store: Store, domain: tuple[float, float]) -> list[float]:
    return [
        b.lower.value
        for b in hf.radius(net_of(steep(1.0), domain), X, [0], store=store, methods=[hf.certify.Certify()])
    ]


def sums() -> nn.Module:
    return nn.Sequential(linear([[1.0, 1.0], [0.0, 0.0]], [0.0, 0.0])).eval()


def three() -> nn.Module:
    """From 1, class 1 is reached at 0.75 and class 2 at 0."""
    return nn.Sequential(linear([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]], [0.0, 0.75, 0.0])).eval()


@pytest.mark.parametrize("change", AGAIN)
def test_a_store_answers_no_other_question(change: str, tmp_path: Path) -> None:
    first: dict[str, Callable[[Store], object]] = {
        "another norm": lambda store: asked_again(store, sums(), torch.tensor([[1.0, 1.0]]), norm=1),
        "another target": lambda store: asked_again(store, three(), X, targets=[2]),
        "another network without weights": lambda store: asked_again(store, Threshold(0.0), X),
    }
    ask, truth = AGAIN[change]
    with Store.create(tmp_path / "run") as store:
        first.get(change, lambda store: asked_again(store, steep(1.0), X))(store)
        try:
            [lower] = ask(store)
        except hf.HoldfastError:
            return
    assert lower <= truth + 1e-6


@pytest.mark.parametrize("change", ["another network", "another input"])
def test_an_unfinished_store_gives_no_head_start_to_another_question(change: str, tmp_path: Path) -> None:
    ask, truth = AGAIN[change]
    with Store.create(tmp_path / "run") as store:
        net = net_of(steep(1.0))
        hf.radius(
            net,
            X,
            [0],
            store=store,
            methods=[hf.certify.Certify(), hf.attacks.PGD()],
            stop=hf.Stop(queries=60),
        )
        try:
            [lower] = ask(store)
        except hf.HoldfastError:
            return
    assert lower <= truth + 1e-6


def test_the_same_question_is_answered_from_the_store(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run") as store:
        first = asked_again(store, steep(1.0), X)
        again = asked_again(store, steep(1.0), X)
    assert first == again
    assert 0.99 < first[0] <= 1.0


CODE = """
import torch
from torch import nn

LIMIT = {limit}

class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.at = {at}

    def forward(self, x):
        score = x[:, 0] - self.at{minus}
        return torch.stack([score, torch.full_like(score, LIMIT)], -1)

def model():
    return Own().eval()
"""
HONEST = {"limit": 0.0, "at": 0.0, "minus": ""}
CHANGED = {
    "forward code": {"minus": " - 0.75"},
    "an attribute": {"at": 0.75},
    "a constant of the module": {"limit": 0.75},
}


@pytest.mark.parametrize("change", CHANGED)
def test_resume_knows_a_changed_model(
    change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The truth is 1 before and 0.25 after; a run that is resumed must be refused, or right about the new
    model.
    """
    import json
    import sys

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    np.savez(tmp_path / "data.npz", x=np.array([[1.0, 1.0]], dtype=np.float32), y=np.array([0]))
    module = f"adversary_own_{list(CHANGED).index(change)}"
    file = tmp_path / f"{module}.py"
    file.write_text(CODE.format(**HONEST))

    def ask(*arguments: str) -> int:
        monkeypatch.delitem(sys.modules, module, raising=False)
        with pytest.raises(SystemExit) as ending:
            main(list(arguments))
        return int(ending.value.code or 0)

    assert (
        ask(
            "radius",
            "-m",
            f"{module}:model",
            "-d",
            "data.npz",
            "--domain",
            "-2,2",
            "--methods",
            "certify",
            "-o",
            "run",
        )
        == 0
    )
    file.write_text(CODE.format(**(HONEST | CHANGED[change])))
    if ask("resume", "run", "--trust") == 0:
        assert ask("export", "run", "records.json") == 0
        [record] = json.loads(Path("records.json").read_text())["records"]
        assert record["lower"]["value"] <= 0.25 + 1e-6
    capsys.readouterr()


# ---------------------------------------------------------------- 5: data that the network's arithmetic cannot hold


class Since(nn.Module):
    """Time since a moment, in the network's own arithmetic."""

    start: Tensor

    def __init__(self, start: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("start", torch.tensor(start, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        return two((x - self.start)[:, 0])


ROUNDED = {
    "float64 data in a float32 network": (1.7e9, torch.float32, 70.0, torch.float64),
    "float32 data in a float16 network": (2048.0, torch.float16, 3.0, torch.float32),
    "float64 data in a bfloat16 network": (256.0, torch.bfloat16, 3.0, torch.float64),
}


@pytest.mark.parametrize("norm", [math.inf, 2, 1])
@pytest.mark.parametrize("trap", ROUNDED)
def test_data_are_not_rounded_in_silence(trap: str, norm: float) -> None:
    start, dtype, truth, given = ROUNDED[trap]
    x = torch.tensor([[start + truth]], dtype=given)
    assert float(x) == start + truth
    try:
        net = hf.Network.from_torch(Since(start, dtype).eval(), domain=(0, 4 * start))
        [bracket] = hf.radius(
            net, x, [0], norm=norm, methods=[hf.attacks.PGD(rounds=1), hf.certify.Certify()]
        )
    except hf.HoldfastError:
        return
    assert bracket.lower.value <= truth * (1 + 1e-6)
    assert bracket.upper.value >= truth * (1 - 1e-6)


@pytest.mark.parametrize("trap", ROUNDED)
def test_regions_are_not_rounded_in_silence(trap: str) -> None:
    """In a box of half the truth nothing breaks by more than the rest; beyond it, it does."""
    start, dtype, truth, given = ROUNDED[trap]
    x = torch.tensor([[start + truth]], dtype=given)
    label = torch.tensor([0])
    try:
        net = hf.Network.from_torch(Since(start, dtype).eval(), domain=(0, 4 * start))
        [bracket] = hf.worst(
            net,
            hf.Ball(x, truth * 1.2, math.inf, (0, 4 * start)),
            hf.Robustness(label),
            methods=[hf.certify.Certify()],
        )
        ranges = hf.reach(net, (x - 1.2 * truth, x + 0.2), stop=hf.Stop(seconds=1))
    except hf.HoldfastError:
        return
    assert bracket.lower.value <= -0.2 * truth + 1e-6 * truth
    assert (
        ranges[0].minimum.lower.value <= -0.2 * truth + 1e-4 * truth
    )  # the ends of the box are float32 in one of the traps


# ---------------------------------------------------------------- 6: views that the schema hides


class Hidden(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x[:, None, None] * 1.0
        skip = torch.einsum("bchw->bhwc", y)
        F.relu(y, inplace=True)
        return two(skip.flatten(1).sum(-1) + 0.5)


def test_an_einsum_that_is_a_view() -> None:
    """relu(a) + relu(b) + 0.5 never falls below 0.5; without the view it does, and the other way round."""
    case = Case(
        "einsum", lambda: Hidden().eval(), torch.tensor([[1.0, 1.0], [-0.2, -0.1], [0.3, -1.0]]), (0, 0, 0)
    )
    assert_never_wrong(case, *PROOFS)


# ---------------------------------------------------------------- 7: chance


class Chance(nn.Module):
    """Mostly the same; now and then another class. Only who looks for chance itself will find it."""

    def __init__(self, draw: Callable[["Chance"], Any]) -> None:
        super().__init__()
        self.draw, self.out = draw, linear([[1.0, 0.0], [0.0, 0.0]], [0.5, 0.0])
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.out(x) * self.draw(self)
        return answer


def signed(flag: bool) -> float:
    return 1.0 if flag else -1.0


DRAWS: dict[str, Callable[[Chance], Any]] = {
    "dropout of a weight": lambda m: F.dropout(torch.ones(1), 0.04, training=True) * 2 - 1,
    "alpha dropout of a weight": lambda m: F.alpha_dropout(torch.ones(1), 0.04, training=True).sign(),
    "rrelu of a constant": lambda m: F.rrelu(torch.full((1,), -1.0), -0.9, 0.05, training=True).sign(),
    "python": lambda m: signed(random.random() > 0.04),
    "numpy": lambda m: signed(np.random.rand() > 0.04),
    "torch": lambda m: torch.rand(()).sub(0.04).sign(),
    "torch, as a number": lambda m: signed(torch.rand(()).item() > 0.04),
    "bernoulli of a constant": lambda m: torch.bernoulli(torch.full((1,), 0.96)) * 2 - 1,
    "bernoulli in place": lambda m: torch.zeros(1).bernoulli_(0.96) * 2 - 1,
    "normal of a constant": lambda m: torch.normal(torch.full((1,), 2.0), 1.0).sign(),
    "multinomial": lambda m: torch.multinomial(torch.tensor([0.04, 0.96]), 1) * 2.0 - 1,
    "permutation": lambda m: torch.ones(30).index_fill(0, torch.tensor([0]), -1.0)[torch.randperm(30)][:1],
    "a generator of its own": lambda m: torch.rand((), generator=m.generator).sub(0.04).sign(),
    "fresh entropy": lambda m: float(np.random.default_rng().random()) - 0.1,
    "time": lambda m: time.perf_counter_ns() % 1000 / 1000 - 0.1,
}


@pytest.mark.parametrize("draw", DRAWS)
def test_chance_is_no_constant(draw: str) -> None:
    case = Case(
        draw, lambda: Chance(DRAWS[draw]).eval(), torch.tensor([[1.0, 1.0], [1.5, 0.0]]), (0, 0), repeats=150, coarse=True,
    )  # fmt: skip
    random.seed(0)
    np.random.seed(0)
    assert_never_wrong(case, "radius inf, proof alone", "bounds", "reach")


# ---------------------------------------------------------------- 9: the graph is not the module


class Elsewhere(nn.Module):
    """Answers otherwise under a condition that a tracer sees only once, or never: everywhere, or only away
    from the inputs.
    """

    def __init__(self, condition: Callable[["Elsewhere", Tensor], bool], away: bool) -> None:
        super().__init__()
        self.condition, self.away, self.calls = condition, away, 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        score = x[:, 0] + 0.5
        if self.condition(self, x):
            return two(score - 3 * torch.relu(0.2 - x[:, 0]) if self.away else score - 0.6)
        return two(score)


CONDITIONS: dict[str, Callable[[Elsewhere, Tensor], bool]] = {
    "a single input": lambda m, x: x.shape[0] == 1,
    "a large batch": lambda m, x: x.shape[0] > 100,
    "an odd batch": lambda m, x: x.shape[0] % 2 == 1,
    "after many calls": lambda m, x: m.calls > 40,
    "every seventh call": lambda m, x: m.calls % 7 == 0,
    "not while it is compiled": lambda m, x: not torch.compiler.is_compiling(),
    "not while it is exported": lambda m, x: not torch.compiler.is_exporting(),
    "outside of tracing tensors": lambda m, x: type(x) is Tensor,
    "without gradients": lambda m, x: not torch.is_grad_enabled() and x.shape[0] > 4,
    "in float32": lambda m, x: x.dtype == torch.float32 and not torch.compiler.is_compiling(),
}


@pytest.mark.parametrize("away", [False, True], ids=["everywhere", "away"])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_graph_is_what_the_module_does(condition: str, away: bool) -> None:
    x = torch.tensor([[1.0, 1.0], [0.25, 0.0]])
    case = Case(
        condition,
        lambda: Elsewhere(CONDITIONS[condition], away).eval(),
        x,
        (0, 0),
        width=0.6,
        repeats=60,
        coarse=True,
        alone=True,
    )
    assert_never_wrong(case, "radius inf, proof alone", "radius 0", "worst", "bounds")


class Counts(nn.Module):
    """Tired after twenty calls; the count is a buffer, where a tracer can see it move."""

    count: Tensor

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place = in_place
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.in_place:
            self.count += 1
        else:
            self.count = self.count + 1
        return two(x[:, 0] + 0.5 - (self.count > 20).to(x))


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "replaced"])
def test_a_buffer_that_moves_is_no_constant(in_place: bool) -> None:
    x = torch.tensor([[1.0, 1.0], [0.6, 0.0]])
    case = Case("count", lambda: Counts(in_place).eval(), x, (0, 0), repeats=30, coarse=True)
    assert_never_wrong(case, "radius inf, proof alone", "radius 0", "worst", "bounds", "reach")


def test_the_judge_itself_is_awake() -> None:
    """A bracket that lies is called wrong, one that holds is not: else nothing here would mean anything."""
    case = Case("awake", lambda: steep(1.0), torch.tensor([[1.0, 1.0]]), (0,))
    truth = Truth.seen(case, fresh_module(case))
    for lower, wrong in ((0.999, 0), (1.2, 1), (math.inf, 1)):
        outcome = Outcome()
        end = hf.Bound(lower, hf.Evidence("proved", "Test"))
        check_radius(
            truth,
            0,
            hf.Bracket(end, hf.Bound(math.inf, hf.Evidence("proved", "definition"))),
            math.inf,
            outcome,
        )
        assert len(outcome.wrong) == wrong
    lies = hf.Bound(0.5, hf.Evidence("witnessed", "Test", witness=torch.tensor([0.5, 1.0])))
    outcome = Outcome()
    check_radius(
        truth, 0, hf.Bracket(hf.Bound(0.0, hf.Evidence("proved", "definition")), lies), math.inf, outcome
    )
    assert len(outcome.wrong) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Trial("from_torch", case).examine("radius inf, proof alone").detail == "proved"
