"""Wrong calls of every public function: each is answered by an error that names the argument and says what to do, before long work."""

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf


class Classifier(nn.Module):
    """A small classifier of inputs (3, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


class Bag(nn.Module):
    """The mean of word vectors, then a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(5, 3), nn.Linear(3, 2)

    def forward(self, ids: Tensor) -> Tensor:
        out: Tensor = self.out(self.embedding(ids).mean(1))
        return out


torch.manual_seed(0)
MODEL = Classifier().eval()
X = torch.rand(4, 3, 2)
Y = [0, 1, 2, 0]
BAG = Bag().eval()
WORDS = ["bad", "good", "fine", "film", "the"]
TEXT_NET = hf.Network.from_torch(BAG, vocabulary=WORDS)
BALL = hf.Ball(X, 0.1, math.inf, (0, 1))
BOX = (torch.zeros(1, 3, 2), torch.ones(1, 3, 2))
NAMED = hf.Network.from_torch(MODEL, domain=(0, 1), classes=["cat", "dog", "ship"])


def radius(*arguments: Any, **options: Any) -> Callable[[], Any]:
    given = arguments or (MODEL, X, Y)
    return lambda: hf.radius(*given, **options)


def call(function: Any, *arguments: Any, **options: Any) -> Callable[[], Any]:
    return lambda: function(*arguments, **options)


def forget(name: str, *_: Any) -> None:
    """A function of one argument too many to be a callback."""


# what is called, and what the message must say (the argument first, then what to do)
WRONG: list[tuple[Callable[[], Any], str]] = [
    # ---- the model
    (radius(None, X, Y), "net: expected a model, got NoneType. Give a torch module, the path of an .onnx file"),
    (radius(3, X, Y), "net: expected a model, got int"),
    (radius(Classifier, X, Y), "net: Classifier is a class, not a model. Make an instance"),
    (radius(MODEL.state_dict(), X, Y), "net: a OrderedDict holds weights without a network"),
    (radius(lambda x: x, X, Y), r"net: <lambda> is a plain function.*hf.Network.from_callable"),
    (radius("model.pt", X, Y), "net: model.pt is a checkpoint, weights without a network"),
    (radius("model.pt2", X, Y), r"net: opening model.pt2 can run code.*from_export"),
    (radius("model.pkl", X, Y), "net: opening the pickle model.pkl can run code"),
    (radius("nothing.onnx", X, Y), "nothing.onnx: no such file"),
    (radius("resnet18", X, Y), "net: 'resnet18' is no model. Give the path of an .onnx file"),
    (radius("no_such_module_here:make", X, Y), "cannot import no_such_module_here"),
    (radius(nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(6, 3)), X, Y), r"net: Sequential is in training mode.*model.eval\(\)"),
    (radius(BAG, ["good film"], [1]), "net: x holds texts.*tokenizer="),
    (radius(NAMED, X, Y, domain=(0, 1.5)), "domain: Classifier is a Network and has the domain"),
    (radius(domain=5), r"domain: expected the lowest and the highest value of an input, as in \(0, 1\)"),
    (radius(domain=(1, 0)), "domain: .* got 1 and 0"),
    (radius(domain=("a", "b")), "domain: expected two numbers"),
    # ---- inputs
    (radius(X, MODEL, Y), "net: expected a model, got Tensor"),
    (radius(MODEL, None, Y), "x does not hold inputs"),
    (radius(MODEL, MODEL, Y), "x is a model: give the model first"),
    (radius(MODEL, {"x": X}, Y), "x is a dict; give the inputs alone"),
    (radius(MODEL, "good film", Y), "x is a single text: give a list of texts"),
    (radius(MODEL, torch.rand(6), [0]), r"x has shape \(6,\), which has no batch axis.*x\[None\]"),
    (radius(MODEL, [0.1, 0.2], Y), "x is one list of numbers"),
    (radius(MODEL, torch.zeros(0, 3, 2), []), "empty"),
    (radius(MODEL, X * math.nan, Y), "input 0 .*NaN"),
    (radius(MODEL, X * 255, Y, domain=(0, 1)), r"input 0 .*domain"),
    (radius(MODEL, X.long(), Y), "integers"),
    (radius(MODEL, [X[0], "text"], Y), "text"),
    # ---- classes
    (radius(MODEL, X), r"radius needs labels, the class of each input \(y\)"),
    (radius(MODEL, X, [0, 1]), r"labels have shape \(2,\), expected \(4,\): one class for each input"),
    (radius(MODEL, X, 1), "y is one class for 4 inputs"),
    (radius(MODEL, X, ["cat"] * 4), "y holds names.*Classifier has no class names.*classes="),
    (radius(NAMED, X, ["cat", "dogs", "ship", "cat"]), r"label 1.*'dogs' is none of the classes.*Is 'dog' meant\?"),
    (radius(NAMED, X, ["cat"]), "y holds 1 classes for 4 inputs"),
    (radius(MODEL, X, [0.5, 1.0, 2.0, 0.0]), "labels must be integers"),
    (radius(MODEL, X, [0.0, math.nan, 1.0, 2.0]), "y holds NaN"),
    (radius(MODEL, X, torch.eye(3)[Y]), r"y have shape \(4, 3\).*y.argmax\(1\)"),
    (radius(MODEL, X, object()), "y: expected one class for each of the 4 inputs"),
    (radius(targets="dog"), "targets='dog': use 'runner-up', or one class for each input"),
    (radius(targets=[1.5, 0, 0, 0]), "targets must be integers"),
    # ---- options of radius
    (radius(norm="two"), "norm 'two' is unknown: give 1, 2, math.inf"),
    (radius(norm=0.5), "norm 0.5 is no norm"),
    (radius(norm=None), "norm None is no norm"),
    (radius(norm=0), "domain"),
    (radius(tier="tigth"), r"tier 'tigth' is unknown; there are search, fast, tight, split. Did you mean 'tight'\?"),
    (radius(tier=3), "tier 3 is unknown; there are"),
    (radius(mode="proof"), "mode 'proof' is unknown"),
    (radius(arithmetic="float32"), "arithmetic 'float32' is unknown"),
    (radius(methods=["pgdd"]), r"methods: 'pgdd' is unknown; there are .* Did you mean 'pgd'\?"),
    (radius(methods=[]), "methods: the list is empty"),
    (radius(methods=5), "methods: expected a list, as in"),
    (radius(methods=[hf.attacks.PGD]), r"methods: PGD is a class; give an instance: PGD\(\)"),
    (radius(methods=[5]), "methods: 5 is no method"),
    (radius(stop="5s"), "stop: expected a number of seconds"),
    (radius(stop=-1), "stop: expected a number of seconds, at least 0"),
    (radius(seconds="five"), "seconds: expected a number of seconds"),
    (radius(stop=5, seconds=5), "stop and seconds were both given"),
    (radius(seed=0.5), "seed: expected a whole number"),
    (radius(seed="a"), "seed: expected a whole number"),
    (radius(store="runs/first"), r"store: expected a hf.Store.*hf.Store.create\(folder\)"),
    (radius(progress="bar"), "progress: expected True, False or a function"),
    (radius(drift="yes"), "drift: expected True or False"),
    (radius(property="within"), "property: expected hf.Within"),
    (radius(frames="every"), "frames='every': use 'all', 'each'"),
    (radius(frames={"a": 1}), "frames"),
    (radius(shares="a", frames="all"), "shares needs a number for each frame"),
    (radius(unit="pixels", norm=0, domain=(0, 1)), "unit 'pixels' is unknown|unit"),
    (radius(free=5, norm=0, domain=(0, 1)), "free"),
    (radius(values="abc", norm=0, domain=(0, 1)), "values"),
    (radius(lengths=[1.5, 1, 1, 1]), "lengths: expected a whole number"),
    (radius(lengths=5), "lengths: expected one whole number for each input"),
    (radius(substitutes={0: [1]}), "substitutes are sets of words"),
    (radius(TEXT_NET, ["good film"], [1], substitutes={"god": ["bad"]}), r"substitutes: 'god' is not in the vocabulary.*'good'"),
    (radius(TEXT_NET, ["good film"], [1], substitutes={"good": "bad"}), r"substitutes: 'bad' stands alone.*as in \['bad'\]"),
    (radius(TEXT_NET, ["good film"], [1], substitutes=5), "substitutes: expected a dict"),
    (radius(TEXT_NET, torch.tensor([[9, 9]]), [1]), "token id"),
    # ---- the other functions
    (call(hf.worst, MODEL, X, hf.Robustness(torch.tensor(Y))), r"region: hf.worst needs to know how far inputs may move.*hf.Ball\("),
    (call(hf.worst, MODEL, 5, hf.Robustness(torch.tensor(Y))), "region: expected a region such as hf.Ball or hf.Box"),
    (call(hf.worst, MODEL, BALL, "robust"), r"property 'robust' is unknown.*Did you mean 'robustness'\?"),
    (call(hf.worst, MODEL, BALL, hf.Robustness), "property: Robustness is a class; give an instance"),
    (call(hf.worst, MODEL, BALL, hf.Robustness(torch.tensor(Y)), tier="slow"), "tier 'slow' is unknown"),
    (call(hf.bounds, MODEL, X), "region: hf.bounds needs to know how far inputs may move"),
    (call(hf.bounds, "x.csv", BALL), "net: 'x.csv' is no model"),
    (call(hf.risk, MODEL, X, "confidnce", radius=0.1), r"property 'confidnce' is unknown.*Did you mean 'confidence'\?"),
    (call(hf.risk, MODEL, X, "confidence"), "how far may the input move.*radius"),
    (call(hf.risk, MODEL, X, "confidence", radius="big"), "radius: expected a number, got 'big'"),
    (call(hf.risk, MODEL, X, "confidence", radius=-1), "radius -1"),
    (call(hf.risk, MODEL, X, "confidence", radius=0.1, margin="much"), "margin: expected a number"),
    (call(hf.risk, MODEL, X, "confidence", radius=0.1, margin=0.1, epsilon=0.1), "margin and epsilon are the same argument"),
    (call(hf.risk, MODEL, X, "confidence", radius=0.1, norm=0), "norm 0 counts changed units"),
    (call(hf.risk, MODEL, X, "confidence", radius=0.1, queries=0), "queries: expected a whole number, at least 1"),
    (call(hf.risk, MODEL, X, "confidence", radius=0.1, softmax="no"), "softmax: expected True or False"),
    (call(hf.risk, MODEL, X, "confidence", region=BALL, radius=0.1), "leave radius, patch, shares and drift out"),
    (call(hf.saliency, MODEL, X.long(), domain=(0, 1)), r"x holds integers, and here single numbers change.*x.float\(\)"),
    (call(hf.saliency, MODEL, X), "domain"),
    (call(hf.saliency, MODEL, X, domain=(0, 1), levels=1), "levels: expected a whole number, at least 2"),
    (call(hf.saliency, MODEL, X, domain=(0, 1), unit="word"), "unit 'word' is unknown"),
    (call(hf.saliency, MODEL, X, ["cat"] * 4, domain=(0, 1)), "y holds names"),
    (call(hf.saliency, MODEL, X, [0, 1], domain=(0, 1)), r"labels have shape \(2,\), expected \(4,\)"),
    (call(hf.saliency, MODEL, ["good film"], domain=(0, 1)), "x holds texts"),
    (call(hf.verify, MODEL, 5), "spec: expected the path of a VNN-LIB file"),
    (call(hf.verify, MODEL, "nothing.vnnlib"), "nothing.vnnlib"),
    (call(hf.verify, MODEL, "nothing.vnnlib", judges=NAMED), "judges: expected a list of hf.Network"),
    (call(hf.reach, MODEL, X), r"box: expected hf.Box.between\(lower, upper\)"),
    (call(hf.reach, MODEL, (X, X[:1])), "box: .*shapes"),
    (call(hf.reach, MODEL, BOX, tolerance=0), "tolerance: expected a number above 0"),
    (call(hf.reach, MODEL, BOX, outputs="first"), "outputs: expected the number of an output"),
    (call(hf.reach, MODEL, BOX, methods=["splt"]), "methods"),
    (call(hf.testgen, MODEL, X, "neurons", domain=(0, 1)), r"criterion 'neurons' is unknown.*Did you mean 'neuron'\?"),
    (call(hf.testgen, MODEL, X, domain=(0, 1), per="map"), "per 'map' is unknown"),
    (call(hf.testgen, MODEL, X, domain=(0, 1), tests=0), "tests: expected a whole number, at least 1"),
    (call(hf.testgen, MODEL, X, domain=(0, 1), layers="body"), "layers: expected a list of names"),
    (call(hf.testgen, MODEL, X, domain=(0, 1), threshold="high"), "threshold: expected a number"),
    (call(hf.testgen, MODEL, X, domain=(0, 1), train="data.csv"), "train is a single text|train"),
    (call(hf.harden, MODEL, X, Y), "radius None: say how far"),
    (call(hf.harden, MODEL, X, Y, radius=0.1, recipe=5), "recipe: expected the name of a recipe"),
    (call(hf.harden, MODEL, X, Y, radius=0.1, recipe="robust"), "recipe"),
    (call(hf.harden, MODEL, X, Y, radius=0.1, epochs=0), "epochs: expected a whole number, at least 1"),
    (call(hf.harden, MODEL, X, Y, radius=0.1, begin="new"), "begin 'new' is unknown; there are given, afresh"),
    (call(hf.harden, MODEL, X, Y, radius=0.1, freeze="body"), "freeze: expected a list of names"),
    (call(hf.harden, MODEL, X, Y, radius=0.1, validation="half"), "validation: expected a number"),
    (call(hf.harden, MODEL, X, Y, radius="far"), "radius far"),
    (call(hf.smoothed, MODEL, X, sigma=0), "sigma: expected a number above 0"),
    (call(hf.smoothed, MODEL, X, sigma=0.1, confidence=2), "confidence: expected a number between 0 and 1"),
    (call(hf.smoothed, MODEL, X, sigma=0.1, samples=1.5), "samples: expected a whole number"),
    (call(hf.load, (X, Y), 5), "net: expected a model, got int"),
    (call(hf.load, (X, Y), MODEL, limit=0), "limit: expected a whole number, at least 1"),
    (call(hf.load, (X, Y), MODEL, scale="bytes"), "scale: expected a number above 0"),
    (call(hf.load, 5, MODEL), "expected a dict with x and y"),
    (call(hf.load, (X, Y), MODEL, labels=Y), "labels: expected the path of a file"),
    (call(hf.prove, [], [], 5), "folder: expected the path of a folder"),
    (call(hf.prove, 5, [], "proofs"), "problems: expected a list of hf.Problem"),
    (call(hf.prove, [], [5], "proofs"), "records: expected hf.Record objects, got 5"),
    (call(hf.check, "no/such/run"), "no/such/run"),
    (call(hf.check, "no/such/run", data=5), "data"),
    (call(hf.Stop, seconds=-1), "seconds"),
    (call(hf.Ball, X.tolist(), 0.1), "centre"),
    (call(hf.Ball, X, -0.1), "radius"),
    (call(hf.Ball, X, 0.1, "two"), "two"),
    (call(hf.Network.from_torch, "model.onnx"), "from_torch needs a torch.nn.Module, got str"),
]  # fmt: skip


@pytest.fixture
def calls() -> Iterator[list[str]]:
    """The modules that are called while a test runs: the queries of the model."""
    seen: list[str] = []
    handle = nn.modules.module.register_module_forward_pre_hook(
        lambda module, _: seen.append(type(module).__name__)
    )
    yield seen
    handle.remove()


@pytest.mark.parametrize(("wrong", "message"), WRONG, ids=[message[:40] for _, message in WRONG])
def test_a_wrong_call_is_answered_in_words_before_any_query(
    wrong: Callable[[], Any], message: str, calls: list[str]
) -> None:
    with pytest.raises(hf.HoldfastError) as caught:
        wrong()
    assert re.search(message, str(caught.value)), str(caught.value)
    assert not calls, f"the model was queried {len(calls)} times first"


def test_the_table_is_long() -> None:
    assert len(WRONG) >= 60


NEEDS_A_QUERY: list[
    tuple[Callable[[], Any], str]
] = [  # how many outputs there are is not known without a query
    (radius(MODEL, X, [0, 1, 2, 3]), "label 3 of input 3"),
    (radius(MODEL, torch.rand(4, 5), Y), r"Classifier refused inputs of shape \(5,\)"),
    (call(hf.testgen, MODEL, X), "domain"),
    (call(hf.bounds, MODEL, BALL, "rows"), "rows: expected a tensor of numbers, got 'rows'"),
    (call(hf.bounds, MODEL, BALL, torch.eye(2)), r"rows have shape \(2, 2\), expected \(rows, 3\)"),
    (call(hf.reach, MODEL, BOX, outputs=[7]), "outputs: .*7"),
    (call(hf.risk, MODEL, X, "targeted", radius=0.1), "property 'targeted' needs a class: name it"),
    (
        call(hf.worst, MODEL, BALL, hf.Robustness(torch.tensor([0]))),
        r"label has shape \(1,\), expected \(4,\)",
    ),
]


@pytest.mark.parametrize(
    ("wrong", "message"), NEEDS_A_QUERY, ids=[message[:40] for _, message in NEEDS_A_QUERY]
)
def test_what_only_the_model_tells_takes_a_few_queries(
    wrong: Callable[[], Any], message: str, calls: list[str]
) -> None:
    with pytest.raises(hf.HoldfastError, match=message):
        wrong()
    assert calls.count("Classifier") <= 24


@pytest.mark.parametrize(
    "function",
    [hf.radius, hf.worst, hf.bounds, hf.risk, hf.verify, hf.reach, hf.testgen, hf.saliency, hf.harden],
)
def test_a_missing_or_unknown_argument_is_a_type_error(function: Any) -> None:
    with pytest.raises(TypeError, match="missing"):
        function()
    with pytest.raises(TypeError, match="'eps'"):
        function(MODEL, X, Y, eps=0.1)


# ---- what is taken


FEW = hf.Stop(queries=60)


def test_norms_by_name() -> None:
    for name, norm in (
        ("inf", math.inf),
        ("Linf", math.inf),
        ("l2", 2),
        ("2", 2),
        ("L1", 1),
        ("euclidean", 2),
        (np.float64(2), 2),
    ):
        found = hf.radius(MODEL, X, Y, norm=name, methods="pgd", stop=FEW)
        assert (
            found.upper.tolist()
            == hf.radius(MODEL, X, Y, norm=norm, methods=["pgd"], stop=FEW).upper.tolist()
        )


def test_methods_by_name_are_those_with_their_usual_settings() -> None:
    by_name = hf.radius(MODEL, X, Y, methods=["pgd", "certify"])
    by_hand = hf.radius(MODEL, X, Y, methods=[hf.attacks.PGD(), hf.certify.Certify()])
    assert by_name.lower.tolist() == by_hand.lower.tolist()
    assert by_name.upper.tolist() == by_hand.upper.tolist()


def test_seconds_stop_a_call_as_a_stop_does() -> None:
    for options in ({"stop": 0}, {"seconds": 0}, {"stop": 0.0}, {"stop": hf.Stop(seconds=0)}):
        found = hf.radius(MODEL, X, Y, **options)
        assert all(not bracket.lower.known for bracket in found)


@pytest.mark.parametrize(
    "y",
    [
        [0.0, 1.0, 2.0, 0.0],
        torch.tensor(Y).float(),
        np.array(Y, dtype=np.float64),
        np.array(Y, dtype=np.int8),
        torch.tensor(Y).byte(),
        ["cat", "dog", "ship", "cat"],
        np.array(["cat", "dog", "ship", "cat"]),
        tuple(Y),
    ],
    ids=[
        "floats",
        "float tensor",
        "float64 array",
        "int8 array",
        "bytes",
        "names",
        "array of names",
        "tuple",
    ],
)
def test_classes_in_every_form(y: Any) -> None:
    expected = hf.radius(NAMED, X, Y, methods=["pgd"]).upper.tolist()
    assert hf.radius(NAMED, X, y, methods=["pgd"]).upper.tolist() == expected
    assert torch.equal(hf.saliency(NAMED, X, y), hf.saliency(NAMED, X, torch.tensor(Y)))


def test_a_single_class_for_a_single_input_and_targets_by_name() -> None:
    assert len(hf.radius(NAMED, X[:1], 0)) == len(hf.radius(NAMED, X[:1], "cat")) == 1
    one = hf.radius(NAMED, X[:1], 0, targets="dog", methods=["pgd"]).upper.tolist()
    assert one == hf.radius(NAMED, X[:1], 0, targets=[1], methods=["pgd"]).upper.tolist()


def test_words_replace_words() -> None:
    ids = hf.radius(TEXT_NET, ["good film", "bad film"], [1, 0], substitutes={1: [0, 2], 0: [1]})
    words = hf.radius(
        TEXT_NET, ["good film", "bad film"], [1, 0], substitutes={"good": ["bad", "fine"], "bad": ["good"]}
    )
    each = hf.radius(TEXT_NET, ["good film"], [1], substitutes=[[["bad", "fine"], []]])
    assert words.lower.tolist() == ids.lower.tolist()
    assert words.upper.tolist() == ids.upper.tolist()
    assert each.upper.tolist() == ids.upper.tolist()[:1]


def test_margin_is_the_new_name_of_epsilon() -> None:
    new, old = (
        hf.risk(MODEL, X[:1], "confidence", radius=0.1, queries=50, **{name: 0.1})
        for name in ("margin", "epsilon")
    )
    assert new[0].score == old[0].score
    assert new[0].worst.lower.value == old[0].worst.lower.value


# ---- every kind of model


class Config:
    """What a Hugging Face model carries."""

    id2label = {0: "negative", 1: "positive"}  # noqa: RUF012


def test_a_module_a_file_a_factory_and_a_network_give_the_same(tmp_path: Path) -> None:
    plain = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))  # in training mode, which changes nothing here
    file = tmp_path / "model.onnx"
    torch.onnx.export(
        plain.eval(),
        (X[:1],),
        str(file),
        dynamo=False,
        dynamic_axes={"input": {0: "n"}},
        input_names=["input"],
    )
    plain.train()
    y = plain(X).argmax(1)
    networks = (plain, hf.Network.from_torch(plain.eval()), str(file), file)
    found = [hf.radius(net, X, y, norm=2, methods=["certify"]).lower for net in networks]
    for other in found[1:]:
        assert torch.allclose(found[0], other, rtol=1e-6)
    for net in networks:
        assert len(hf.worst(net, BALL, hf.Robustness(y))) == 4
        assert hf.bounds(net, BALL).lower.shape == (4, 3)
        assert len(hf.risk(net, X[:1], "robustness", radius=0.1, queries=50)) == 1
        assert (
            hf.saliency(net, X, y, domain=None if isinstance(net, hf.Network) else (0, 1)).shape == X.shape
            if not isinstance(net, hf.Network)
            else True
        )
        assert len(hf.reach(net, BOX, outputs=0)) == 1
    assert (
        len(
            hf.radius(
                "holdfast.datasets.digits_networks:digits_cnn", torch.rand(1, 1, 8, 8), [0], methods=["pgd"]
            )
        )
        == 1
    )


def test_an_estimator_is_taken_as_it_is() -> None:
    sklearn = pytest.importorskip("sklearn.linear_model")
    rows = np.random.default_rng(0).normal(size=(60, 4))
    fitted = sklearn.LogisticRegression().fit(rows, np.where(rows[:, 0] > 0, "yes", "no"))
    labels = fitted.predict(rows)
    found = hf.radius(fitted, rows[:3], labels[:3])
    assert (found.lower > 0).all()
    assert {row["class"] for row in found.frame_rows()} <= {"yes", "no"}
    with pytest.raises(hf.HoldfastError):
        hf.radius(sklearn.LogisticRegression(), rows[:3], labels[:3])


def test_a_model_of_tokens_is_recognised_by_its_integers_and_names_its_classes() -> None:
    model = Bag().eval()
    model.config = Config()  # type: ignore[assignment]
    ids = torch.tensor([[1, 3], [0, 3]])
    said = model(ids).argmax(1)
    by_number = hf.radius(model, ids, said, substitutes={1: [0], 0: [1]})
    names = [Config.id2label[int(k)] for k in said]
    by_name = hf.radius(model, ids, names, substitutes={1: [0], 0: [1]})
    assert by_number.lower.tolist() == by_name.lower.tolist()
    assert [row["class"] for row in by_name.frame_rows()] == names
    assert hf.Network.from_torch(model, tokens=True).classes == ("negative", "positive")
    assert hf.Network.from_torch(model, tokens=True, classes=["no", "yes"]).classes == ("no", "yes")
