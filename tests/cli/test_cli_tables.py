"""Estimators and tables on the command line."""

import os
import sys
from pathlib import Path

import pytest
from cli_workshop import Ask

CODE = """
import os
import numpy as np
import pandas as pd
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression

draw = np.random.default_rng(0)
people = pd.DataFrame({"age": draw.integers(18, 80, 100), "debt": draw.normal(50, 15, 100).round(1)})
people = people.assign(**{f"job_{job}": (np.arange(100) % 3 == k).astype(float) for k, job in enumerate(["baker", "smith", "clerk"])})
granted = np.where(people.age + people.debt + 9 * people.job_smith > 100, "yes", "no")

def forest():
    return RandomForestClassifier(3, max_depth=4, random_state=int(os.environ.get("FOREST", "0"))).fit(people, granted)

fitted = LogisticRegression(max_iter=1000).fit(people, granted)

def rows():
    return {"x": people[:3], "y": granted[:3]}
"""
COLUMNS = """
{"age": {"step": 1, "low": 18, "high": 80, "scale": 10}, "debt": {"low": 0, "high": 150, "scale": 10},
 "job": {"one_of": ["job_baker", "job_smith", "job_clerk"]}}
"""
ASKED = ("-d", "bank:rows", "--columns", "columns.json", "--executor", "here")


@pytest.fixture(autouse=True)
def bank(workshop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bank", raising=False)
    (workshop / "bank.py").write_text(CODE)
    (workshop / "columns.json").write_text(COLUMNS)


def test_a_forest_over_a_table_names_its_columns_and_classes(ask: Ask) -> None:
    said = ask("radius", "-m", "bank:forest", *ASKED, "--norm", "0", "-o", "run")
    assert said.code == 0, said.err
    assert "3 trees" in said.out
    assert "yes" in said.out or "no" in said.out
    assert " → " in said.out
    shown = ask("show", "run", "--input", "0").out
    assert "column" in shown
    for name in ("age", "debt", "job"):
        assert name in shown
    assert "job_" in shown  # the word, by its own name


def test_a_run_with_one_forest_is_not_resumed_with_another(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask("radius", "-m", "bank:forest", *ASKED, "--norm", "0", "-o", "run").code == 0
    assert ask("resume", "run", "--trust", "--executor", "here").code == 0
    monkeypatch.setitem(os.environ, "FOREST", "1")
    said = ask("resume", "run", "--trust", "--executor", "here")
    assert said.code != 0
    assert "the model is not what this run was begun with" in said.err


def test_a_fitted_estimator_in_a_module_will_do(ask: Ask) -> None:
    said = ask("radius", "-m", "bank:fitted", *ASKED, "--norm", "0", "-o", "run")
    assert said.code == 0, said.err
    assert "read as a torch module" in said.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-m", "forest.joblib", *ASKED), ("'forest.joblib'", "runs code when it is opened", "joblib.load")),
        (("-m", "forest.pkl", *ASKED), ("--model models:fitted",)),
        (("-m", "bank:forest", "--mean", "0.5", *ASKED), ("--mean has no effect here", "an estimator")),
        (("-m", "bank:forest", "-d", "bank:rows", "--columns", "missing.json"), ("missing.json",)),
        (
            ("-m", "bank:forest", "-d", "bank:rows", "--norm", "0"),
            ("norm 0 needs bounds", "'age' has none"),
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    refused: Ask, options: tuple[str, ...], words: tuple[str, ...]
) -> None:
    said = refused("radius", *options, "-o", "run")
    for word in words:
        assert word in said.err
