"""A callable is hashed wholly or not at all: what is read and cannot be hashed is named, and nothing is taken for the same."""

import functools
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from torch import nn

import holdfast as hf
from holdfast.errors import BadInput, StoreError, UnreadableFile
from holdfast.network.callable_fingerprint import hash_callable
from holdfast.question import ModelDescription, Question
from holdfast.result import Key
from holdfast.store import Store
from holdfast.store.merge import merge

WEIGHTS = np.ones((4, 2), np.float32)
MODULE = nn.Linear(4, 2)


def forest(seed: int) -> Any:
    chance = np.random.default_rng(seed)
    x = chance.random((40, 4))
    return RandomForestClassifier(3, random_state=0).fit(x, (x.sum(1) > 2).astype(int))


class Times:
    """An object with state and code of its own."""

    def __init__(self, factor: Any) -> None:
        self.factor = factor

    def __call__(self, x: Any) -> Any:
        return helper(x) * self.factor

    def predict(self, x: Any) -> Any:
        return self(x)


def helper(x: Any) -> Any:
    return x @ WEIGHTS


def inside(x: Any) -> Any:
    return np.stack([(lambda row: row @ WEIGHTS)(row) for row in x])


def through_torch(x: Any) -> Any:
    return MODULE(torch.as_tensor(x)).detach().numpy()


def opens(x: Any) -> Any:
    return len(open("weights.bin").read()) * x


def loads(x: Any) -> Any:
    return x @ np.load("weights.npy")


def imports(x: Any) -> Any:
    import json

    return json.loads("1") * x


def asks(x: Any) -> Any:
    return subprocess.run(["model"], input=x, check=True).stdout


WAITING = (number for number in range(3))


def draws(x: Any) -> Any:
    return next(WAITING) * x


def test_two_fitted_forests_are_two_models() -> None:
    """Their state lies in arrays of an extension type, which no attribute shows."""
    one, again, other = forest(0), forest(0), forest(1)
    assert (
        hash_callable(one.predict_proba)
        == hash_callable(again.predict_proba)
        != hash_callable(other.predict_proba)
    )
    assert hash_callable(one.predict_proba)[0]
    assert hash_callable(one.predict_proba) != hash_callable(one.predict)
    prints = [hf.Network.from_callable(found.predict_proba).fingerprint for found in (one, again, other)]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    "function",
    [helper, inside, Times(1.0), Times(1.0).predict, functools.partial(inside), lambda x: helper(x)],
)
def test_whatever_a_function_reads_is_hashed(function: Any) -> None:
    before = hash_callable(function)
    assert before[0]
    assert hash_callable(function) == before
    WEIGHTS[0, 0] += 1
    try:
        assert hash_callable(function)[0] not in ("", before[0])
    finally:
        WEIGHTS[0, 0] -= 1
    assert hash_callable(function) == before


def test_state_and_weights_count() -> None:
    assert hash_callable(Times(1.0)) != hash_callable(Times(2.0))
    assert hash_callable(Times(forest(0))) != hash_callable(Times(forest(1)))
    assert hash_callable(Times(hf.Network.from_torch(nn.Linear(4, 2).eval())))[0]
    before = hash_callable(through_torch)
    with torch.no_grad():
        MODULE.weight[0, 0] += 1
    assert hash_callable(through_torch)[0] not in ("", before[0])


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (opens, "open"),
        (loads, "numpy.load"),
        (imports, "json"),
        (asks, "subprocess"),
        (draws, "generator"),
        (Times(WAITING).predict, "generator"),
        (np.frompyfunc(lambda v: v, 1, 1), "ufunc"),
        (lambda x: Times(opens)(x) if len(x) else opens(x), "open"),
    ],
)
def test_what_cannot_be_hashed_is_named(function: Any, named: str) -> None:
    digest, missed = hash_callable(function)
    assert digest == ""
    assert named in missed
    net = hf.Network.from_callable(function)
    assert net.fingerprint == ""
    assert any(note.startswith("not hashed") and "fingerprint=" in note for note in net.notes)


def test_a_user_may_say_by_what_a_model_is_known(tmp_path: Path) -> None:
    file, other = tmp_path / "weights.bin", tmp_path / "more.bin"
    file.write_bytes(b"1")
    other.write_bytes(b"2")
    said = [
        hf.Network.from_callable(opens, fingerprint=given)
        for given in ("v1", "v2", [file], [file, other], [other, file])
    ]
    assert len({net.fingerprint for net in said}) == len(said)
    assert not any(note.startswith("not hashed") for net in said for note in net.notes)
    file.write_bytes(b"3")
    assert hf.Network.from_callable(opens, fingerprint=[file]).fingerprint != said[2].fingerprint
    for nothing in ("", []):
        with pytest.raises(BadInput, match="fingerprint"):
            hf.Network.from_callable(opens, fingerprint=nothing)
    with pytest.raises(UnreadableFile):
        hf.Network.from_callable(opens, fingerprint=[tmp_path / "nowhere"])


def black_box(fingerprint: str | None = None) -> hf.Network:
    return hf.Network.from_callable(lambda x: x if len(x) else opens(x), shape=(2,), fingerprint=fingerprint)


def test_what_is_not_hashed_is_not_asked_again_into_a_store(tmp_path: Path) -> None:
    x, y = torch.tensor([[0.0, 1.0], [2.0, 0.0]]), [1, 0]
    unhashed, named = black_box(), black_box("v1")
    assert unhashed.fingerprint == ""
    for net, again in ((named, True), (unhashed, False)):
        with Store.create(tmp_path / net.fingerprint[:4]) as store:
            hf.radius(net, x, y, store=store, stop=hf.Stop(queries=5))
            assert Key(0) in store.load_known([Key(0)])
            if again:
                hf.radius(net, x, y, store=store, stop=hf.Stop(queries=5))
                continue
            with pytest.raises(StoreError, match=r"cannot be hashed.*fingerprint="):
                hf.radius(net, x, y, store=store, stop=hf.Stop(queries=5))


def test_runs_of_what_is_not_hashed_are_not_joined_and_not_one_truth(tmp_path: Path) -> None:
    question = Question(model=ModelDescription(fingerprint=""))
    for name in "ab":
        Store.create(tmp_path / name, question).close()
    assert not question.same_truth(question)
    with pytest.raises(StoreError, match="cannot be hashed"):
        merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    assert merge([tmp_path / "a"], tmp_path / "copy").is_dir()
