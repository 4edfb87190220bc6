"""`holdfast loop`: answers, exit codes, the folder, and wrong options."""

import json
import sys
from pathlib import Path

import pytest

from holdfast.cli import main
from holdfast.reachability import search

PLANTS = """
import torch

def controller():
    layer = torch.nn.Linear(1, 1)
    layer.weight.data, layer.bias.data = torch.tensor([[-0.5]]), torch.tensor([0.0])
    return layer.eval()

def plant(x, u):
    return u - torch.sin(x)

def halve(x):
    return 0.5 * x
"""

ASK = ["loop", "--controller", "loop_plants:controller", "--plant", "loop_plants:plant", "--period", "0.5"]
ASK += ["--steps", "4", "--start", "0.5 <= level <= 0.6", "--states", "level", "--units", "m"]


@pytest.fixture(autouse=True)
def _plants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop_plants.py").write_text(PLANTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "loop_plants", raising=False)
    monkeypatch.setattr(search, "SAMPLES", 96)
    monkeypatch.setattr(search, "REFINEMENTS", 1)


def ask(*more: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*ASK, *more])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_each_answer_has_its_exit_code_and_its_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("--stay", "0 <= level <= 0.65", "--memory", "16GB", "--out", "run") == 0
    said = capsys.readouterr().out
    assert said.startswith("Proved: every trajectory satisfies 0 <= level <= 0.65 always.")
    answer = json.loads(Path("run/answer.json").read_text())
    assert answer["answer"] == "proved"
    assert answer["proved_margin"] <= answer["sampled_margin"]
    assert answer["certificate"] is None
    assert answer["why_no_certificate"]
    assert len(answer["ends"]) == 5
    page = Path("run/index.html").read_text()
    assert "level [m]" in page
    assert "no certificate" in page
    assert ask("--avoid", "level <= 0.3", "--controller-inputs", "loop_plants:halve") == 1
    assert "Violated" in capsys.readouterr().out
    assert ask("--reach", "level <= 0.4", "--by", "1", "--disturbance", "0.01") == 0
    assert ask("--reach", "level <= 0.4", "--at", "2", "--seconds", "0.000001") == 3
    assert "Open: it is neither proved nor refuted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ([], "one of --stay"),
        (["--stay", "level <= 1", "--avoid", "level <= 1"], "one of --stay"),
        (["--stay", "level <= 1", "--at", "1"], "--from and --until"),
        (["--reach", "level <= 1", "--from", "1"], "--at or --by"),
        (["--stay", "level <= 1", "--disturbance", "much"], "--disturbance"),
        (["--stay", "height <= 1"], "no state 'height'"),
        (["--stay", "level <= 1", "--until", "3"], "window"),
        (["--stay", "level <= 1", "--order", "9"], "order"),
        (["--stay", "level <= 1", "--controller-inputs", "loop_plants:none"], "has no 'none'"),
    ],
)
def test_wrong_options_are_named(more: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask(*more) == 2
    assert message in " ".join(capsys.readouterr().err.split())
