"""Two torch modules that can answer differently never share a fingerprint: hashed wholly, or not at all and never known again."""

import functools
import itertools
import types
import weakref
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import holdfast as hf
from holdfast.errors import StoreError
from holdfast.network import callable_fingerprint
from holdfast.network.callable_fingerprint import hash_callable, of_value
from holdfast.store import Store

FACTOR = 1.0


class Held(nn.Module):
    """A module that keeps something under a name, and a function that says what of it counts."""

    def __init__(self, held: Any = None, name: str = "held") -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        with torch.no_grad():
            self.layer.weight.fill_(0.5)
            self.layer.bias.fill_(0.25)
        self.__dict__[name] = held

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)  # type: ignore[no-any-return]


class Bag:
    def __init__(self, weight: Any) -> None:
        self._weight = weight


class Slotted:
    __slots__ = ("_weight", "rest")

    def __init__(self, weight: Any) -> None:
        self._weight = weight


class Listed(list[Any]):
    pass


class Mapped(dict[Any, Any]):
    pass


class Worded(str):
    __slots__ = ("weight",)


class Numbered(float):
    weight: Any


Pair = namedtuple("Pair", "left right")


@dataclass
class Settings:
    weight: float
    name: str = "a"


def closing_over(weight: float) -> Callable[[Any], Any]:
    return lambda x: x * weight


def with_default(weight: float) -> Callable[..., Any]:
    def scaled(x: Any, by: float = weight) -> Any:
        return x * by

    return scaled


def kinded(weight: float) -> type:
    return type("Kind", (), {"weight": weight})


def of_kind(weight: float) -> Any:
    return kinded(weight)()


def with_attribute(weight: float) -> Callable[[Any], Any]:
    def scaled(x: Any) -> Any:
        return x

    scaled.weight = weight  # type: ignore[attr-defined]
    return scaled


def worded(weight: float) -> Worded:
    made = Worded("same")
    made.weight = weight  # type: ignore[attr-defined]
    return made


def numbered(weight: float) -> Numbered:
    made = Numbered(1.0)
    made.weight = weight
    return made


def listed(weight: float) -> Listed:
    made = Listed([1])
    made.weight = weight  # type: ignore[attr-defined]
    return made


def circle(weight: float) -> Any:
    found: list[Any] = [weight]
    found.append({"again": found})
    return found


def tagged(weight: float) -> Tensor:
    made = torch.ones(2)
    made.weight = weight  # type: ignore[attr-defined]
    return made


def strewn(weight: float) -> Tensor:
    return torch.stack([torch.full((3,), weight), torch.arange(3.0)], 1)[:, 0]


def colour(weight: float) -> Any:
    return Enum("Colour", {"RED": weight, "BLUE": 7.0}).RED  # type: ignore[attr-defined]


def shared(weight: float) -> Any:
    part = Bag(weight)
    return [part, weakref.ref(part)]


HOLDERS: dict[str, Callable[[float], Any]] = {
    "number": lambda w: w,
    "array": lambda w: np.array([w], dtype=np.float32),
    "array_of_objects": lambda w: np.array([Bag(w)], dtype=object),
    "array_of_records": lambda w: np.array([(w, 1)], dtype=[("a", float), ("b", int)]),
    "array_by_steps": lambda w: np.array([[w, 0.0], [1.0, 2.0]])[:, 0],
    "array_spread": lambda w: np.broadcast_to(np.array([w]), (10**9,)),
    "masked": lambda w: np.ma.masked_array([w, 1.0], mask=[False, True]),
    "scalar": np.float32,
    "list": lambda w: [np.array([w])],
    "tuple": lambda w: (1, [w]),
    "set": lambda w: {w, 5.0},
    "dict": lambda w: {"a": {"b": w}},
    "keys": lambda w: {w: 1},
    "ordered": lambda w: OrderedDict(a=w),
    "by_default": lambda w: defaultdict(lambda: w),
    "queue": lambda w: deque([w]),
    "named_tuple": lambda w: Pair(1, w),
    "namespace": lambda w: types.SimpleNamespace(k=w),
    "object": Bag,
    "slots": Slotted,
    "nested": lambda w: Bag([Slotted({"k": Bag(w)})]),
    "class": kinded,
    "of_a_class": of_kind,
    "dataclass": Settings,
    "list_of_its_own": lambda w: Listed([w]),
    "attribute_of_a_list": listed,
    "dict_of_its_own": lambda w: Mapped(a=w),
    "attribute_of_a_word": worded,
    "attribute_of_a_number": numbered,
    "enum": colour,
    "lambda": closing_over,
    "default": with_default,
    "function_attribute": with_attribute,
    "partial": lambda w: functools.partial(np.multiply, w),
    "partial_method": lambda w: functools.partialmethod(with_default(w)),
    "cached": lambda w: functools.lru_cache(closing_over(w)),
    "bound": lambda w: Bag(w).__eq__,
    "vectorized": lambda w: np.vectorize(closing_over(w)),
    "wrapped": lambda w: torch.no_grad()(closing_over(w)),
    "circle": circle,
    "weak": shared,
    "slice": lambda w: slice(0, int(w * 10)),
    "random": lambda w: np.random.default_rng(int(w * 10)),
    "tensor": lambda w: torch.tensor([w]),
    "tensor_by_steps": strewn,
    "tensor_spread": lambda w: torch.tensor([w]).expand(10**9),
    "tensor_attribute": tagged,
    "tensor_conjugate": lambda w: torch.tensor([1 + w * 1j]).conj(),
    "module": lambda w: [nn.Sequential(Held(w))],
    "network": lambda w: hf.Network.from_torch(Held(w).eval()),
}


@pytest.mark.parametrize("name", ["held", "_held"])
@pytest.mark.parametrize("kind", HOLDERS)
def test_whatever_a_module_keeps_counts(kind: str, name: str) -> None:
    prints = [hash_callable(Held(HOLDERS[kind](weight), name)) for weight in (1.0, 0.3, 1.0)]
    for digest, missed in prints:
        assert bool(digest) != bool(missed)
    assert prints[0][0] == "" or prints[0] != prints[1]
    assert prints[0][0] == prints[2][0]  # and the same is known again


def test_what_is_kept_as_the_same_bytes_is_not_the_same() -> None:
    kept = [
        np.zeros(2, np.float32), np.zeros(1, np.float64), np.zeros(2, np.int32), np.zeros((2, 1), np.float32), np.zeros((1, 2), np.float32),
        torch.zeros(2), torch.zeros(1, dtype=torch.float64), torch.zeros(2, 1), torch.zeros(2, dtype=torch.int32),
        torch.zeros(4, dtype=torch.bfloat16), torch.zeros(4, dtype=torch.float16), nn.Parameter(torch.zeros(2)),
        0, 0.0, -0.0, False, None, "0", b"0", [0], (0,), {0}, frozenset([0]), {0: 0}, 0j, 10**5000, "\ud800",
        [[]], [], (), [0, [0]], [[0], 0],
    ]  # fmt: skip
    prints = [hash_callable(Held(one))[0] for one in kept]
    assert all(prints)
    same = [(i, j) for i, j in itertools.combinations(range(len(kept)), 2) if prints[i] == prints[j]]
    assert not same


def with_hook(weight: float) -> nn.Module:
    made = Held()
    made.layer.register_forward_hook(lambda module, given, answer: answer * weight)
    return made


def with_hook_before(weight: float) -> nn.Module:
    made = Held()
    made.register_forward_pre_hook(lambda module, given: (given[0] * weight,))
    return made


def with_keywords(flag: float) -> nn.Module:
    made = Held()
    made.register_forward_pre_hook(lambda module, given, more=None: None, with_kwargs=flag == 1)
    return made


def parametrized(weight: float) -> nn.Module:
    class Times(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.by = weight

        def forward(self, x: Tensor) -> Tensor:
            return x * self.by

    made = Held()
    nn.utils.parametrize.register_parametrization(made.layer, "weight", Times())
    return made


def normed(weight: float) -> nn.Module:
    made = Held()
    nn.utils.parametrizations.weight_norm(made.layer)
    with torch.no_grad():
        made.layer.weight = made.layer.weight * weight
    return made


def buffered(weight: float) -> nn.Module:
    made = Held()
    made.register_buffer("beside", torch.tensor([weight]), persistent=False)
    return made


def by_class(weight: float) -> nn.Module:
    class Own(Held):
        factor = weight

    return Own()


def by_property(weight: float) -> nn.Module:
    class Own(Held):
        @property
        def factor(self) -> float:
            return weight

    return Own()


def by_forward(weight: float) -> nn.Module:
    class Own(Held):
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * weight  # type: ignore[no-any-return]

    return Own()


def by_a_method_behind_a_decorator(weight: float) -> nn.Module:
    class Own(Held):
        @torch.no_grad()
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * weight  # type: ignore[no-any-return]

    return Own()


def by_instance(weight: float) -> nn.Module:
    made = Held()
    made.forward = lambda x: x * weight  # type: ignore[method-assign]
    return made


def traced(weight: float) -> nn.Module:
    return torch.fx.symbolic_trace(by_forward(weight))


def scripted(weight: float) -> nn.Module:
    return torch.jit.script(Scripted(weight).eval())  # type: ignore[no-any-return]


def weighted(weight: float) -> nn.Module:
    made = Held()
    with torch.no_grad():
        made.layer.weight.fill_(weight)
    return made


class Scripted(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def trained(weight: float) -> nn.Module:
    return Held().train(weight == 1)


MADE = [
    with_hook, with_hook_before, with_keywords, parametrized, normed, buffered, by_class, by_property, by_forward,
    by_a_method_behind_a_decorator, by_instance, traced, scripted, weighted, trained,
]  # fmt: skip


@pytest.mark.parametrize("make", MADE)
def test_however_a_module_answers_otherwise_it_is_another(make: Callable[[float], nn.Module]) -> None:
    one, other, again = (hash_callable(make(weight)) for weight in (1.0, 0.3, 1.0))
    assert one[0]
    assert one == again != other


def test_a_global_that_forward_reads_counts() -> None:
    global FACTOR

    class Reads(Held):
        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x) * FACTOR  # type: ignore[no-any-return]

    before = hash_callable(Reads())
    FACTOR = 0.3
    try:
        assert hash_callable(Reads())[0] not in ("", before[0])
    finally:
        FACTOR = 1.0
    assert hash_callable(Reads()) == before


def test_structure_counts() -> None:
    parts = [
        nn.ReLU(),
        nn.Tanh(),
        nn.Linear(2, 2, bias=False),
        nn.LSTM(2, 2),
        nn.GRU(2, 2),
        nn.Identity(),
        nn.LeakyReLU(0.1),
        nn.LeakyReLU(0.2),
    ]
    for part in parts:
        for value in part.parameters():
            value.detach().fill_(0.5)
    prints = [hash_callable(part)[0] for part in parts] + [
        hash_callable(nn.Sequential(*parts))[0],
        hash_callable(nn.Sequential(*parts[::-1]))[0],
    ]
    assert all(prints)
    assert len(set(prints)) == len(prints)


class Hostile:
    """Nothing of it may run."""

    def __init__(self) -> None:
        self.weight = 1.0

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was executed")

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AssertionError("it was pickled")

    __reduce__ = __getstate__ = __deepcopy__ = __reduce_ex__  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise AssertionError("it was written")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("it was compared")

    def __hash__(self) -> int:
        raise AssertionError("it was hashed")

    def __iter__(self) -> Any:
        raise AssertionError("it was read")

    def __len__(self) -> int:
        raise AssertionError("it was measured")

    @property
    def other(self) -> Any:
        raise AssertionError("a property was read")


class HostileModule(Held):
    def __repr__(self) -> str:
        raise AssertionError("it was written")

    def named_parameters(self, *given: Any, **named: Any) -> Any:
        raise AssertionError("it was asked")

    named_modules = named_buffers = modules = children = state_dict = named_parameters


class HostileList(list[Any]):
    def __iter__(self) -> Any:
        raise AssertionError("it was read")

    __len__ = __getitem__ = __reduce_ex__ = __iter__  # type: ignore[assignment]


def test_nothing_of_the_user_s_is_executed() -> None:
    one, other = Hostile(), Hostile()
    other.weight = 0.3
    prints = [
        hash_callable(HostileModule(held)) for held in (one, [one], other, HostileList([1]), HostileList([2]))
    ]
    assert all(digest for digest, _ in prints)
    assert len(set(prints)) == len(prints)


def hidden() -> Any:
    made = Bag(1.0)
    made.__dict__ = Mapped(_weight=1.0)
    return made


NOT_HASHED: dict[str, Callable[[], Any]] = {
    "generator": lambda: (number for number in range(3)),
    "file": lambda: Path(__file__).open(),  # noqa: SIM115
    "path": lambda: Path(__file__),
    "sparse": lambda: torch.eye(2).to_sparse(),
    "meta": lambda: torch.zeros(2, device="meta"),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
    "deep": lambda: functools.reduce(lambda inner, _: [inner], range(3000), [1]),
    "made_by_hand": lambda: types.ModuleType("numpy"),
    "own_module": lambda: __import__("sys").modules[__name__],
    "unpackaged": lambda: __import__("_pytest").config,
    "derived_from_compiled": lambda: type("Own", (deque,), {})([1]),
    "operators_of_its_own": lambda: lambda x: torch.ops.mine.twice(x),
    "dictionary_of_its_own": hidden,
    "tensor_of_its_own": lambda: torch.ones(2).as_subclass(type("Own", (Tensor,), {})),
}


@pytest.mark.parametrize("kind", NOT_HASHED)
def test_what_shows_too_little_is_not_hashed(kind: str) -> None:
    digest, missed = hash_callable(Held(NOT_HASHED[kind]()))
    assert digest == ""
    assert missed


def test_the_walk_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callable_fingerprint, "MOST_OBJECTS", 1000)
    monkeypatch.setattr(callable_fingerprint, "MOST_BYTES", 100_000)
    assert "objects" in hash_callable(Held([[i] for i in range(2000)]))[1]
    assert "GiB" in hash_callable(Held(np.zeros(200_000)))[1]
    assert "GiB" in hash_callable(Held(torch.zeros(200_000)))[1]
    assert hash_callable(Held(torch.zeros(1).expand(10**12)))[0]


class Loading(Held):
    """What no answer calls may read files."""

    def __init__(self, path: str = "") -> None:
        super().__init__()
        self.found = [line for line in open(path)] if path else []  # noqa: C416, SIM115

    def saved(self, path: str) -> None:
        torch.save(self, path)
        Path(path).with_suffix(".txt").write_text("done")

    @classmethod
    def restored(cls, path: str) -> Any:
        return torch.load(path)


class Calling(Loading):
    def forward(self, x: Tensor) -> Tensor:
        return x * len(self.restored("weights"))


class CallingByText(Loading):
    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, "re" + "stored")("weights")  # type: ignore[no-any-return]


def test_a_method_that_no_answer_calls_may_read_files() -> None:
    assert hash_callable(Loading())[0]
    for calls in (Calling, CallingByText):
        digest, missed = hash_callable(calls())
        assert digest == ""
        assert "load" in missed or "Path" in missed


def made_inside() -> nn.Module:
    import torch as inner

    class Net(inner.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = inner.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return inner.relu(self.layer(x))

    return Net()


def test_a_closure_over_a_library_is_its_name_and_version(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module = made_inside().eval()
    digest, _ = hash_callable(module)
    assert digest
    net = hf.Network.from_torch(module, domain=(0, 1))
    x = torch.rand(1, 2)
    [bracket] = hf.radius(net, x, module(x).argmax(1))
    assert bracket.lower.value > 0
    monkeypatch.setattr(callable_fingerprint, "package_version", lambda name: "another")
    assert hash_callable(module)[0] not in ("", digest)


def test_a_library_that_is_kept_reads_no_files() -> None:
    class Reads(Held):
        def forward(self, x: Tensor) -> Tensor:
            return x * torch.from_numpy(self.held.load("weights.npy"))  # type: ignore[attr-defined,no-any-return]

    assert ".load" in hash_callable(Reads(np))[1]
    assert hash_callable(Held(np))[0]


def test_operators_of_torch_itself_are_known() -> None:
    assert hash_callable(lambda x: torch.ops.aten.relu(x))[0]


class Slots(Held):
    __slots__ = ("factor",)


def test_slots_of_a_module_count() -> None:
    prints = []
    for factor in (1.0, 0.3):
        module = Slots()
        Slots.factor.__set__(module, factor)  # type: ignore[attr-defined]
        prints.append(hash_callable(module))
    assert prints[0][0]
    assert prints[0] != prints[1]


def test_an_estimator_with_another_predict_is_hashed_with_it() -> None:
    """Its scores are its own, whatever its predict closes over."""
    tables = np.random.default_rng(0).normal(size=(2, 40, 2))
    models = [LogisticRegression().fit(table, table[:, 0] > 0) for table in tables]
    for model in models:
        model.predict = lambda rows: np.zeros(len(rows), dtype=bool)
    one, other = (hf.Network.from_sklearn(model).fingerprint for model in models)
    assert one
    assert one != other


class Sentiment(nn.Module):
    """Torch cannot trace it, and its factor is an attribute of an object."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.words = nn.Embedding(4, 1)
        self.words.weight.data = torch.tensor([[0.0], [1.0], [0.9], [0.2]])
        self._kept = Bag(factor)

    def forward(self, tokens: Tensor) -> Tensor:
        mood = self.words(tokens).sum(1).detach().numpy() * self._kept._weight
        return torch.cat([torch.from_numpy(mood.astype(np.float32)), torch.full((len(tokens), 1), 0.5)], 1)


def test_a_store_does_not_answer_for_another_module(tmp_path: Path) -> None:
    x, words = torch.tensor([[1, 1, 1]]), {1: [2, 3]}
    one, other = (hf.Network.from_torch(Sentiment(factor).eval(), tokens=True) for factor in (1.0, 0.3))
    with Store.create(tmp_path / "run") as store:
        [found] = hf.radius(one, x, [0], substitutes=words, store=store)
        assert found.lower.value > 0
        with pytest.raises(StoreError, match="another question"):
            hf.radius(other, x, [0], substitutes=words, store=store)
        assert hf.radius(one, x, [0], substitutes=words, store=store) == [found]


def test_a_module_that_is_not_hashed_says_so_and_is_not_resumed(tmp_path: Path) -> None:
    module = Held(iter([1])).eval()
    module.__dict__["held"] = Path("weights")
    net = hf.Network.from_torch(module)
    assert net.fingerprint == ""
    assert any(note.startswith("not hashed") for note in net.notes)
    named = hf.Network.from_torch(module, fingerprint="v1")
    assert named.fingerprint
    assert not any(note.startswith("not hashed") for note in named.notes)
    x = torch.zeros(1, 2)
    with Store.create(tmp_path / "run") as store:
        hf.radius(net, x, [0], store=store, stop=hf.Stop(queries=5))
        with pytest.raises(StoreError, match="cannot be hashed"):
            hf.radius(net, x, [0], store=store, stop=hf.Stop(queries=5))


def test_questions_about_functions_and_objects_are_told_apart() -> None:
    """A property or a tokenizer that is a function: by all that it reads, or never known again."""
    assert of_value(closing_over(1.0)) == of_value(closing_over(1.0)) != of_value(closing_over(0.3))
    assert of_value(Bag(1.0)) != of_value(Bag(0.3))
    assert of_value(np.zeros(2, np.float32)) != of_value(np.zeros(1))
    opens = Path("weights").read_text
    assert of_value(opens) == of_value(opens) != of_value(Path("weights").read_text)
    assert of_value(with_default(1.0)) != of_value(with_default(0.3))
