"""Networks that are no classifiers, on the command line: bands, thresholds and drift; what is kept of them, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
from cli_workshop import Ask

from holdfast.report import write_report
from holdfast.report.claim_list import listed_claims
from holdfast.store import Store

CODE = """
import torch
from torch import nn

def two():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 2)).eval()

def one():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 1)).eval()
"""
HERE = ("--executor", "here", "--out", "run")


@pytest.fixture
def forecasts(workshop: Path) -> None:
    (workshop / "forecasts.py").write_text(CODE)
    x = np.random.default_rng(0).random((2, 3, 2)).astype(np.float32)
    np.savez("x.npz", x=x, classes=["warmth in K", "wind in m/s"])
    np.savez("y.npz", x=x, y=[0, 1])
    np.savez("real.npz", x=x, y=[0.5, 1.5])


def test_a_forecast_needs_no_labels_and_is_shown_with_its_band(ask: Ask, forecasts: None) -> None:
    said = ask("radius", "-m", "forecasts:two", "-d", "x.npz", "--within", "0.5,50%", "--drift", *HERE)
    assert said.code == 0, said.err
    assert "label" not in said.out
    with Store.read("run") as store:
        [first, _] = store.stream_inputs()
        assert first.label is None
        assert first.prediction is None
        assert (store.question.asked.within, store.question.asked.drift) == ("0.5,50%", True)
    shown = ask("show", "run", "--input", "0")
    assert shown.code == 0
    for words in ("warmth in K", "wind in m/s", "band", "at the witness"):
        assert words in shown.out
    assert "share" not in shown.out
    assert ask("resume", "run", "--trust", "--executor", "here").code == 0
    assert ask("report", "run").code == 0
    assert "further than 0.5,50% from its forecast" in Path("run/report.html").read_text()


def test_a_single_score_has_two_classes(ask: Ask, forecasts: None) -> None:
    said = ask("radius", "-m", "forecasts:one", "-d", "y.npz", "--threshold", "0", *HERE)
    assert said.code == 0, said.err
    with Store.read("run") as store:
        kept, broken = (
            list(store.stream_inputs()),
            [record.bracket.upper.value == 0 for record in store.stream()],
        )
    assert [stored.label for stored in kept] == [0, 1]
    assert {stored.prediction for stored in kept} <= {0, 1}
    assert broken == [stored.label != stored.prediction for stored in kept]
    assert any(broken)


def test_outputs_that_each_say_yes_or_no_are_kept_as_sets(ask: Ask, forecasts: None) -> None:
    x = np.load("x.npz")["x"]
    np.savez("labels.npz", x=x, y=[[1, 0], [1, 1]], classes=["rain", "storm"])
    asked = ("radius", "-m", "forecasts:two", "--threshold", "0", *HERE)
    assert ask(*asked, "-d", "labels.npz").code == 0
    with Store.read("run") as store:
        kept, broken = (
            list(store.stream_inputs()),
            [record.bracket.upper.value == 0 for record in store.stream()],
        )
    assert [stored.label for stored in kept] == [(0,), (0, 1)]
    assert all(isinstance(stored.prediction, tuple) for stored in kept)
    assert broken == [stored.label != stored.prediction for stored in kept]
    assert ask("report", "run").code == 0
    page = Path("run/report.html").read_text()
    assert "<td>rain</td>" in page
    assert "<td>rain + storm</td>" in page
    assert ask("export", "run", "records.csv").code == 0
    assert "rain + storm" in Path("records.csv").read_text()
    assert (
        ask("check", "run", "--sample", "0").code == 2
    )  # no proof was asked for, and nothing else is missing
    assert "differs" not in ask("check", "run", "--sample", "0").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("radius", "-m", "forecasts:one", "-d", "y.npz"), "1 output, so there is no class to change"),
        (("radius", "-m", "forecasts:two", "-d", "real.npz"), "labels must be integers, got torch.float64"),
        (("radius", "-m", "forecasts:two", "-d", "x.npz", "--within", "ten"), "10%, a number above 0"),
        (("radius", "-m", "forecasts:two", "-d", "x.npz", "--within", "1", "--threshold", "0"), "give one"),
        (("radius", "-m", "forecasts:two", "-d", "y.npz", "--outputs", "0"), "it needs --within"),
        (
            (
                "worst",
                "-m",
                "forecasts:two",
                "-d",
                "x.npz",
                "--radius",
                "1",
                "--within",
                "1",
                "--property",
                "tie",
            ),
            "use one of them",
        ),
        (
            (
                "worst",
                "-m",
                "forecasts:two",
                "-d",
                "y.npz",
                "--radius",
                "1",
                "--drift",
                "--patch",
                "0,0,1",
                "--within",
                "1",
            ),
            "drift both say",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_any_work(
    refused: Ask, forecasts: None, arguments: tuple[str, ...], message: str
) -> None:
    assert message in refused(*arguments, *HERE).err


def test_features_of_windows_have_names_on_the_page_and_in_claims(ask: Ask, forecasts: None) -> None:
    """The data name the two features of a window once; its numbers are these features in each frame."""
    x = np.linspace(0.1, 0.9, 10).reshape(1, 5, 2).astype(np.float32)
    np.savez("named.npz", x=x, classes=["warmth in K", "wind in m/s"], columns=["warmth (K)", "wind"])
    Path("five_frames.py").write_text(CODE.replace("Linear(6, 2)", "Linear(10, 2)"))
    said = ask("radius", "-m", "five_frames:two", "-d", "named.npz", "--within", "0.5", *HERE)
    assert said.code == 0, said.err
    with Store.read("run") as store:
        [claim] = listed_claims(store)[0]
        write_report(store, Path("page.html"))
    page = Path("page.html").read_text()
    assert "warmth (K)" in page
    assert "channel 0" not in page
    assert "1 of 1 input keeps its forecast" in page  # a window, not a row of a table
    for frame in (0, 4):
        assert f"warmth_K_step_{frame} " in claim.sentence
        assert f"wind_step_{frame} " in claim.sentence
    assert "X_" not in claim.sentence
    np.savez("wrong.npz", x=x, columns=["a", "b", "c"])
    refused = ask("radius", "-m", "five_frames:two", "-d", "wrong.npz", "--within", "0.5", *HERE)
    assert refused.code == 2
    assert "x has 10 numbers in an input, columns has 3" in refused.err


SCALERS = """
from sklearn.preprocessing import MinMaxScaler, StandardScaler

def numbers():
    return torch.arange(40.0).reshape(20, 2).numpy()

def inputs():
    return StandardScaler().fit(numbers())

targets = MinMaxScaler().fit(numbers())
"""
CHANNELS = '{"load": {"unit": "MW", "scale": 2}, "heat": {"unit": "K", "scale": 0.5, "low": -5, "high": 5}}'


def test_scalers_quantiles_and_channels_are_options(ask: Ask, forecasts: None) -> None:
    Path("scaled.py").write_text(CODE + SCALERS)
    Path("channels.json").write_text(CHANNELS)
    model = ("radius", "-m", "scaled:two", "-d", "x.npz")
    scaled = (*model, "--input-scaler", "scaled:inputs", "--output-scaler", "scaled:targets")
    frames = ("--frames", "all", "--shares", "0,0.5,1", "--columns", "channels.json")
    said = ask(*scaled, "--within", "5", *frames, *HERE)
    assert said.code == 0, said.err
    assert " MW in load and " in said.out
    assert ask("resume", "run", "--executor", "here").code != 0  # the folder names code
    assert ask("resume", "run", "--trust", "--executor", "here").code == 0
    assert ask("report", "run").code == 0
    page = Path("run/report.html").read_text()
    for words in (
        "scaled by scaled:inputs",
        "the inverse of scaled:targets",
        " K in heat",
        "frame k by its share",
    ):
        assert words in page, words
    median = ("--within", "10%", "--quantiles", "0.1,0.5", "--outputs", "median")
    said = ask(*model, "--output-mean", "1,2", "--output-std", "3", *median, *HERE[:2], "--out", "other")
    assert said.code == 0, said.err
    assert "the median of the quantiles 0.1,0.5" in said.out
    assert "10" in ask("show", "other", "--input", "0").out
    said = ask("worst", "-m", "scaled:two", "-d", "x.npz", "--within", "5", "--radius", "0.5", "--columns", "channels.json", *HERE[:2], "--out", "third")  # fmt: skip
    assert said.code == 0, said.err
    assert "at most 1 MW in load and 0.25 K in heat" in said.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--input-scaler", "scaler.pkl"), "joblib.load('scaler.pkl')"),
        (("--output-scaler", "scaled:nothing"), "has no 'nothing'"),
        (("--output-scaler", "scaled:two"), "Sequential is no scaler"),
        (("--output-scaler", "scaled:targets", "--output-std", "2"), "give one of them"),
        (("--output-std", "0"), "must be positive"),
        (("--output-std", "1,2,3"), "3 numbers, and the model answers with 2"),
        (("--output-mean", "five"), "expected a number"),
        (("--outputs", "median"), "--quantiles 0.1,0.5,0.9"),
        (("--quantiles", "10,50"), "between 0 and 1"),
        (("--quantiles", "0.1,0.5,0.9"), "no multiple"),
        (("--columns", "step.json"), "numbers without steps"),
        (("--columns", "one.json"), "1 channels"),
        (("--columns", "units.json"), "'units'"),
        (("--columns", "channels.json", "--norm", "2"), "maximum norm"),
    ],
)
def test_scalers_quantiles_and_channels_that_do_not_fit_are_refused_in_words(
    ask: Ask, forecasts: None, options: tuple[str, ...], words: str
) -> None:
    Path("scaled.py").write_text(CODE + SCALERS)
    Path("channels.json").write_text(CHANNELS)
    Path("step.json").write_text('{"a": {"step": 1}, "b": {}}')
    Path("one.json").write_text('{"a": {}}')
    Path("units.json").write_text('{"a": {"units": "K"}, "b": {}}')
    said = ask("radius", "-m", "scaled:two", "-d", "x.npz", "--within", "5", *options, *HERE)
    assert said.code != 0
    assert words in " ".join(said.err.split())
