"""Runs in MLflow: what was measured, and nothing that was not. A stand-in has the interface of the package mlflow."""

import json
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.datasets import digits
from holdfast.datasets.digits_networks import digits_cnn
from holdfast.errors import BadInput
from holdfast.question import DataDescription, ModelDescription, Question, Request

DATA = digits("test")
X, Y = DATA.x[:3], DATA.y[:3]


class Client:
    """The three functions of mlflow that are called, with what they were given."""

    def __init__(self) -> None:
        self.params: dict[str, Any] = {}
        self.metrics: dict[str, float] = {}
        self.files: set[str] = set()

    def log_params(self, params: dict[str, Any]) -> None:
        self.params |= params

    def log_metrics(self, metrics: dict[str, float]) -> None:
        self.metrics |= json.loads(json.dumps(metrics, allow_nan=False))

    def log_artifacts(self, local_dir: str, artifact_path: str) -> None:
        self.files |= {
            str(file.relative_to(local_dir)) for file in Path(local_dir).rglob("*") if file.is_file()
        }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three digits, of which the last was not measured."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    net = hf.Network.from_torch(digits_cnn(), domain=(0, 1))
    question = Question(
        model=ModelDescription("digits_cnn"), asked=Request("inf"), data=DataDescription("digits", count=3)
    )
    with hf.Store.create(folder, question) as store:
        store.put_inputs(list(X), Y.tolist(), net(X).argmax(-1).tolist(), [""] * 3, [None] * 3)
        hf.radius(net, X[:2], Y[:2], store=store)
    return folder


def test_metrics_are_those_of_the_run(run: Path) -> None:
    client = Client()
    found = hf.log_to_mlflow(run, at=0.01, client=client)
    assert found == client.metrics
    with hf.Store.read(run) as store:
        brackets = [record.bracket for record in store.records()]
    assert client.metrics["robustness.inputs"] == 3
    assert client.metrics["robustness.inputs_measured"] == 2
    mean = sum(bracket.lower.value for bracket in brackets) / 2
    assert client.metrics["robustness.mean_certified"] == pytest.approx(mean)
    certified = sum(bracket.lower.value >= 0.01 for bracket in brackets)
    assert client.metrics["robustness.certified_share"] == pytest.approx(certified / 3)
    assert client.metrics["robustness.not_measured_share"] == pytest.approx(1 / 3)
    assert client.params["robustness.model"] == "digits_cnn"
    assert client.params["robustness.norm"] == "inf"
    assert {"report.html", "run/run.sqlite"} <= client.files


def test_what_was_not_measured_is_not_logged(tmp_path: Path) -> None:
    """A run that ended before anything was known has counts, and neither means nor shares."""
    with hf.Store.create(tmp_path / "empty", Question(asked=Request("inf"))) as store:
        store.put_inputs(list(X), Y.tolist(), [None] * 3, [""] * 3, [None] * 3)
    client = Client()
    hf.log_to_mlflow(tmp_path / "empty", at=0.01, prefix="r", client=client)
    assert client.metrics["r.inputs"] == 3
    assert client.metrics["r.inputs_measured"] == 0
    assert not {name for name in client.metrics if "mean" in name or "share" in name}


def test_without_the_package_the_extra_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(BadInput, match=r"holdfast\[mlflow\]"):
        hf.log_to_mlflow(run)
