"""hf.harden: a copy holds further, the module given stays as it was, and every bad input is told before long work."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import holdfast as hf
from clocks import TestClock
from holdfast.api import harden as harden_module
from holdfast.errors import BadInput, StoreError, UnsupportedLayer
from holdfast.hardening import Epoch, Recipe, losses, training
from holdfast.hardening.evaluation import Outcome, RobustnessResult, proved_increase
from holdfast.hardening.recipe import select_recipe

QUICK = Recipe("intervals", epochs=15, batch=16, weight=1.0, warm=(0.0, 0.5), rate=0.05)


def blobs(count: int = 80, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two classes, apart in the first feature by more than the third, in which they are apart by a little: a lure for a network."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 2
    x = 0.5 + 0.02 * torch.randn(count, 3, generator=generator)
    x[:, 0] += 0.25 * (2 * y - 1)
    x[:, 2] += 0.04 * (2 * y - 1)
    return x.clamp(0, 1), y


def leaning() -> nn.Module:
    """Right everywhere, by the feature that holds least."""
    module = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))
    with torch.no_grad():
        for p in module.parameters():
            p.mul_(0.1)
        module[0].weight[0, 2], module[0].bias[0] = 6.0, -3.0  # type: ignore[index, operator, union-attr]
        module[0].weight[1, 2], module[0].bias[1] = -6.0, 3.0  # type: ignore[index, operator, union-attr]
        module[2].weight[:, :2] = torch.tensor([[-4.0, 4.0], [4.0, -4.0]])
    return module.eval()


@pytest.fixture
def net() -> hf.Network:
    torch.manual_seed(0)
    return hf.Network.from_torch(leaning(), domain=(0, 1))


def asked(net: Any, **options: Any) -> Any:
    x, y = blobs()
    return hf.harden(
        net, x, y, **{"radius": 0.1, "recipe": QUICK, "validation": 0.25, "measured": 20, **options}
    )


def test_more_is_proved_and_the_module_given_is_never_changed(net: hf.Network) -> None:
    module = leaning()
    before = [p.detach().clone() for p in module.parameters()]
    found = asked(hf.Network.from_torch(module, domain=(0, 1)), test=blobs(seed=1))
    assert all(torch.equal(a, b) and a.grad is None for a, b in zip(module.parameters(), before, strict=True))
    assert found.before.accuracy > 0.9
    assert found.before.certified < 0.2
    assert found.better
    assert found.after.certified > 0.5
    assert found.measured_on == "test"
    assert found.verdict.startswith("hardened")
    # The numbers are the engine's: hf.radius says the same of the same inputs.
    x, y = blobs(seed=1)
    brackets = hf.radius(found.network, x[:20], y[:20])
    assert sum(b.lower.value >= 0.1 for b in brackets) == round(20 * found.after.certified)
    assert torch.equal(found.module(x), found.network(x))
    assert found.network.fingerprint != net.fingerprint
    assert len(repr(found)) < 300


def test_the_same_seed_gives_the_same_network(net: hf.Network) -> None:
    one, two, other = asked(net), asked(net), asked(net, seed=1)
    assert one.network.fingerprint == two.network.fingerprint != other.network.fingerprint
    assert [e.loss for e in one.history] == [e.loss for e in two.history]


@pytest.mark.parametrize("name", ["standard", "pgd", "intervals", "small boxes", "mixed", "crown-ibp"])
def test_every_recipe_trains(net: hf.Network, name: str) -> None:
    recipe = Recipe(name, epochs=2, batch=16, attack=2, tight=0.1, jacobian=0.1, warm=(0.0, 0.4))  # type: ignore[arg-type]
    found = asked(net, recipe=recipe)
    assert len(found.history) == 2
    assert found.recipe == recipe
    assert found.ended == "finished"


@pytest.mark.parametrize("how", [{"norm": 1.0}, {"frames": [0, 1]}, {"frames": "all", "norm": 2.0}])
def test_other_regions_and_auto_say_what_was_picked(how: dict[str, Any]) -> None:
    torch.manual_seed(0)

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(2, 4, batch_first=True), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(self.rnn(x)[0][:, -1])
            return logits

    y = torch.arange(60) % 2
    x = torch.rand(60, 3, 2, generator=torch.Generator().manual_seed(0)) * 0.2 + 0.6 * y[:, None, None]
    found = hf.harden(
        hf.Network.from_torch(Last().eval()), x, y, radius=0.05, epochs=2, validation=0.25, measured=10, **how
    )
    assert found.recipe.name == ("small boxes" if how.get("norm") else "intervals")
    assert found.after.inputs == 10


def test_sentences_with_all_words_free() -> None:
    """The hull of the substitutes holds every sentence; the vectors are trained, the model of tokens has them, and the engine agrees."""
    torch.manual_seed(0)

    class Bag(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Embedding(8, 3), nn.Linear(3, 2)

        def forward(self, tokens: Tensor) -> Tensor:
            logits: Tensor = self.head(torch.tanh(self.table(tokens)).mean(1))
            return logits

    module = Bag().eval()
    net = hf.Network.from_torch(module, tokens=True)
    tokens = torch.randint(2, 5, (60, 3), generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 2
    tokens = tokens + 3 * y[:, None]
    sets = {2: [3], 3: [2, 4], 5: [6, 7], 7: [6]}
    found = hf.harden(net, tokens, y, substitutes=sets, recipe=QUICK, validation=0.25, measured=15)
    assert not torch.equal(found.module.table.weight, module.table.weight)  # type: ignore[union-attr, arg-type]
    assert torch.allclose(found.module(tokens), found.network(found.network.embed(tokens)), atol=1e-5)
    assert found.after.certified >= found.before.certified
    kept = hf.harden(
        net, tokens, y, substitutes=sets, recipe=QUICK, validation=0.25, measured=15, freeze=("embedding",)
    )
    assert torch.equal(kept.module.table.weight, module.table.weight)  # type: ignore[union-attr, arg-type]


class WordClassifier(nn.Module):
    """A GRU that reads five words; class 1 if it has learned to see word 1 anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer, self.head = (
            nn.Embedding(8, 3),
            nn.GRU(3, 6, batch_first=True),
            nn.Linear(6, 2),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.layer(self.table(tokens))[0][:, -1])
        return logits


def texts_with_a_word(count: int) -> tuple[list[Tensor], Tensor]:
    """Texts of three to five words; those of class 1 hold word 1 three times, the others never."""
    draw = random.Random(0)
    y = torch.arange(count) % 2
    texts = []
    for label in y.tolist():
        text = [draw.randrange(2, 8) for _ in range(draw.randrange(3, 6))]
        if label:
            for place in draw.sample(range(len(text)), 2):
                text[place] = 1
        texts.append(torch.tensor(text))
    return texts, y


def test_training_on_edited_copies_raises_the_exact_count_of_texts_that_survive_an_edit() -> None:
    torch.manual_seed(0)
    net = hf.Network.from_torch(WordClassifier().eval(), tokens=True)
    x, y = texts_with_a_word(90)
    recipe = Recipe("edits", epochs=8, batch=16, rate=0.05, attack=4)
    edits = hf.Edits(delete=1, insert=1, swap=1, total=1, insertions=[2, 3])
    found = hf.harden(net, x, y, edits=edits, recipe=recipe, validation=0.25, measured=20)
    assert found.better, found.verdict
    assert found.after.proved.count >= 15
    # What is called proved is proved by asking every edited text of the module that the user gets.
    texts, labels = texts_with_a_word(40)
    brackets = hf.radius(found.network, texts, labels, edits=edits)
    for text, label, bracket in zip(texts, labels, brackets, strict=True):
        if bracket.lower.value >= 1:
            rules = edits.rules(found.network)
            for edited, _ in rules.options(tuple(text.tolist())).texts(1):
                assert int(found.module(torch.tensor([edited])).argmax()) == int(label)


def test_drawn_texts_are_edited_texts() -> None:
    net = hf.Network.from_torch(WordClassifier().eval(), tokens=True)
    rules = hf.Edits(delete=1, insert=2, swap=1, duplicate=1, total=3, insertions=[2, 3]).rules(net)
    options, draw = rules.options((4, 5, 6, 1)), random.Random(0)
    drawn = {options.draw(3, draw) for _ in range(200)}
    assert len(drawn) > 50
    assert drawn <= {text for count in range(4) for text, _ in options.texts(count)}
    assert rules.options((4,)).draw(1, draw) != ()


def test_a_loader_is_taken_and_layers_can_be_frozen(net: hf.Network) -> None:
    x, y = blobs()
    loader = DataLoader(TensorDataset(x, y), batch_size=32)
    found = hf.harden(net, loader, radius=0.05, recipe=QUICK, validation=0.25, measured=5, freeze=("0",))
    first, head = found.module[0], found.module[2]  # type: ignore[index]
    given = net.module.model
    assert torch.equal(first.weight, given[0].weight)  # type: ignore[index, union-attr]
    assert not torch.equal(head.weight, given[2].weight)  # type: ignore[index, union-attr]


def test_a_loss_that_is_no_number_stops_and_the_last_good_network_is_kept(
    net: hf.Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, real = [0], losses.loss

    def breaking(*args: Any, **more: Any) -> Tensor:
        calls[0] += 1
        return real(*args, **more) * (math.nan if calls[0] > 9 else 1.0)

    monkeypatch.setattr(training, "loss", breaking)
    found = asked(net)
    assert found.ended == "not a number"
    assert len(found.history) == 2
    assert "not finite" in found.verdict
    assert all(bool(p.isfinite().all()) for p in found.module.parameters())


class Interrupted:
    """Presses Ctrl-C after so many epochs."""

    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, epoch: Epoch) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_an_interrupted_run_keeps_the_best_and_goes_on_to_the_same_network(
    net: hf.Network, tmp_path: Path
) -> None:
    whole = asked(net)
    half = asked(net, folder=tmp_path / "run", progress=Interrupted(3))
    assert half.ended == "interrupted"
    assert (tmp_path / "run" / "best-so-far.safetensors").exists()
    with pytest.raises(StoreError, match="another radius"):
        asked(net, folder=tmp_path / "run", radius=0.05)
    rest = asked(net, folder=tmp_path / "run")
    assert rest.network.fingerprint == whole.network.fingerprint
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["harden.json", "hardened.safetensors"]
    with pytest.raises(StoreError, match="already holds"):
        asked(net, folder=tmp_path / "run")


def test_seconds_hold(net: hf.Network, cpu_clock: TestClock) -> None:
    asked(net, recipe="intervals", epochs=1)  # torch's tracer is loaded
    began = cpu_clock()
    found = asked(net, recipe="intervals", stop=hf.Stop(seconds=1.5))
    assert (
        cpu_clock() - began < 1.5 + 3.0
    )  # what two measurements take, more on a machine whose caches others use
    assert found.history[-1].grown == 1.0


def test_no_is_said_where_nothing_is_gained(net: hf.Network) -> None:
    found = asked(net, recipe=Recipe("standard", epochs=1, rate=1e-6))
    assert not found.better
    assert found.verdict.startswith("NOT hardened")


def test_no_is_said_where_all_that_is_proved_is_one_class(net: hf.Network) -> None:
    """At a radius at which no network can tell the classes apart, intervals end in one that always says the same: half of all is proved."""
    recipe = Recipe("intervals", epochs=20, batch=16, weight=1.0, warm=(0.0, 0.3), rate=0.05, decay=0.1)
    found = asked(net, recipe=recipe, radius=0.45)
    assert found.after.certified > found.before.certified
    assert found.after.constant
    assert not found.better
    assert found.verdict.startswith("NOT hardened, the network predicts a single class")


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.strange = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.bessel_j0(self.strange(x))


BAD: dict[str, tuple[Callable[[hf.Network], Any], str]] = {
    "radius 0": (lambda n: asked(n, radius=0), "radius 0: say how far"),
    "radius not said": (lambda n: asked(n, radius=None), "radius None"),
    "radius not a number": (lambda n: asked(n, radius=math.nan), "radius nan"),
    "beyond the data": (lambda n: asked(n, radius=2.0), "beyond the data's range"),
    "no labels": (lambda n: hf.harden(n, blobs()[0], radius=0.1), "labels are missing"),
    "too few": (lambda n: hf.harden(n, *blobs(30), radius=0.1), "too few"),
    "one class": (
        lambda n: hf.harden(n, blobs()[0], torch.zeros(80, dtype=torch.int64), radius=0.1),
        "all labels are 0",
    ),
    "other labels": (lambda n: hf.harden(n, blobs()[0], torch.full((80,), 7), radius=0.1), "out of range"),
    "count of labels": (
        lambda n: hf.harden(n, blobs()[0], blobs()[1][:50], radius=0.1),
        "80 inputs, but 50 labels",
    ),
    "unknown recipe": (lambda n: asked(n, recipe="magic"), "recipe 'magic' is unknown; there are auto"),
    "unknown layer": (lambda n: asked(n, freeze=("nowhere",)), "freeze 'nowhere'"),
    "all frozen": (lambda n: asked(n, freeze=("0", "2")), "no trainable weights"),
    "radius and words": (lambda n: asked(n, substitutes={0: [1]}), "there is no radius"),
    "radius and edits": (lambda n: asked(n, edits=hf.Edits(delete=1)), "with edits there is no radius"),
    "no edits": (lambda n: asked(n, recipe="edits"), "trains on edited texts: give edits"),
    "no seconds": (lambda n: asked(n, stop=hf.Stop(seconds=0.0)), "training needs some"),
    "black box": (
        lambda n: asked(hf.Network.from_callable(lambda x: x[:, :2])),
        "harden trains torch modules",
    ),
    "a forecast": (
        lambda n: hf.harden(n, blobs()[0], torch.rand(80), radius=0.1),
        "no classes, as for a forecast.*hf.Within",
    ),
    "a single score": (
        lambda n: hf.harden(hf.Network.from_torch(nn.Linear(3, 1).eval()), *blobs(), radius=0.1),
        "one output.*two classes",
    ),
    "share of validation": (lambda n: asked(n, validation=1.5), "between 0 and 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_told_before_long_work(
    net: hf.Network, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("training began")

    monkeypatch.setattr("holdfast.api.harden.train", never)
    ask, said = BAD[name]
    with pytest.raises(BadInput, match=said.replace("(", r"\(")):
        ask(net)


def test_a_layer_without_intervals_is_named_before_a_folder_is_made(tmp_path: Path) -> None:
    odd = hf.Network.from_torch(Odd().eval(), domain=(0, 1))
    with pytest.raises(UnsupportedLayer, match=r"bessel_j0.*pgd"):
        asked(odd, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_auto_takes_smaller_steps_over_many_frames_and_lets_them_move_one_by_one() -> None:
    few, many = (select_recipe("auto", recurrent=True, boxed=True, frames=frames) for frames in (8, 14))
    assert (few.name, many.name) == ("intervals", "intervals")
    assert many.rate < few.rate
    assert many.horizon
    assert not few.horizon
    assert select_recipe("auto", recurrent=False, boxed=True, frames=14).name == "mixed"
    assert select_recipe("auto", recurrent=True, boxed=True, frames=14, edited=True).name == "edits"


def standing(*outcomes: Outcome) -> RobustnessResult:
    return RobustnessResult(1.0, outcomes, 0.5)


def test_what_was_not_measured_is_neither_proved_nor_unproved() -> None:
    half = standing("proved", "neither", "not measured", "not measured")
    assert half.certified == 0.5
    assert str(half.proved) == "1 of 2 measured (2 not measured)"
    assert math.isnan(standing("not measured").certified)
    assert str(standing("proved", "broken", "not proved").not_broken) == "1 of 2 measured (1 not measured)"
    assert half.as_json()["proved"] == {"count": 1, "measured": 2, "total": 4}
    assert standing("not measured").as_json()["certified"] is None


@pytest.mark.parametrize(
    ("before", "after", "least", "most"),
    [
        (("neither", "neither"), ("proved", "neither"), 1, 1),
        (("not measured", "not measured"), ("proved", "proved"), 0, 2),
        (("neither", "neither"), ("not measured", "proved"), 1, 2),
        (("proved", "not measured"), ("proved", "broken"), -1, 0),
    ],
)
def test_the_gain_counts_unmeasured_inputs_both_ways(
    before: tuple[Outcome, ...], after: tuple[Outcome, ...], least: int, most: int
) -> None:  # fmt: skip
    assert proved_increase(standing(*before), standing(*after)) == (least, most)


def test_no_gain_is_claimed_over_a_network_that_was_not_measured(
    net: hf.Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(harden_module._Time, "part", lambda self, share: 0.0)  # no time for the network given
    found = asked(net, folder=tmp_path / "run")
    assert found.before.outcomes == ("not measured",) * 20
    assert math.isnan(found.before.certified)
    assert found.after.proved.measured == 20
    assert found.after.proved.count > 0
    assert not found.better
    assert found.verdict.startswith("NOT KNOWN whether hardened")
    assert "before: not measured (20 inputs)" in found.verdict
    told = json.loads((tmp_path / "run" / "harden.json").read_text())
    assert told["before"]["certified"] is None
    assert told["better"] is False
