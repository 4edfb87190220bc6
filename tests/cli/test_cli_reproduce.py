"""`holdfast reproduce`: every experiment is listed and selected by its own name, bad requests are refused before any work, and finished
commands are not run again."""

from pathlib import Path

import pytest
import torch
from benchmarks import data_files, reproduce
from benchmarks.imagenet import __main__ as imagenet
from benchmarks.reproduce import EXPERIMENTS, PAPERS, SCALES, Experiment

ROOT = Path(__file__).parents[2]
LISTING = Experiment(
    "popqorn",
    "table 99",
    "a quick command",
    ("reproduce --list",),
    ("reproduce --list",),
    (0.1, 0.1),
    "It shows the list.",
)


def test_every_experiment_is_listed_once() -> None:
    keys = [e.key for e in EXPERIMENTS]
    assert len(set(keys)) == len(keys)
    assert {e.name for e in EXPERIMENTS} == set(PAPERS)
    for experiment in EXPERIMENTS:
        assert experiment.title in reproduce.listing()


@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda e: e.key)
def test_every_command_names_a_benchmark_and_every_set_is_documented(experiment: Experiment) -> None:
    for scale in SCALES:
        for command in experiment.commands(scale):
            package, name, *_ = command.split()
            folder = ROOT / "benchmarks" / package
            known = (folder / "__main__.py").read_text() if folder.is_dir() else None
            assert (
                (ROOT / "benchmarks" / f"{package}.py").is_file() if known is None else f'"{name}":' in known
            )
        assert set(experiment.sets(scale)) <= set(data_files.SETS)


@pytest.mark.parametrize(
    ("paper", "item", "found"),
    [
        ("deeptre", "figure 3", "deeptre-figures-1-4"),
        ("deeptre", "figure 6", "deeptre-figures-5-6"),
        ("marble", "table 2", "marble-table-2"),
        ("marble", "figure 4", "marble-table-2"),
        ("deeptre", "figure 12", "deeptre-table-1"),
        ("deepquant", "figure 10", "deepquant-figures-8-11"),
        ("popqorn", "appendix B.1", "popqorn-appendix-B.1"),
    ],
)
def test_an_experiment_is_found_by_table_or_figure(paper: str, item: str, found: str) -> None:
    assert [e.key for e in reproduce.selected(paper, item)] == [found]


def test_the_small_scale_was_measured_and_takes_minutes() -> None:
    assert all(e.minutes[0] > 0 for e in EXPERIMENTS)
    assert sum(e.minutes[0] for e in EXPERIMENTS) < 30


def test_a_paper_is_all_its_experiments() -> None:
    assert len(reproduce.selected("popqorn", "")) == sum(e.name == "popqorn" for e in EXPERIMENTS)


def test_an_unknown_figure_is_refused_with_those_that_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduce.main(["marble", "--figure", "9"]) == 2
    assert "no experiment 'figure 9'. Known: table 1" in capsys.readouterr().err


def test_missing_data_are_named_with_source_and_conversion(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        reproduce.main(["popqorn", "--figure", "6", "--data", str(tmp_path), "--out", str(tmp_path / "out")])
        == 2
    )
    shown = capsys.readouterr().err
    assert str(tmp_path / "trec_qc" / "test.tsv.xz") in shown
    assert "Li and Roth 2002" in shown
    assert not (tmp_path / "out").exists()


def test_the_scale_of_a_paper_needs_a_gpu(tmp_path: Path) -> None:
    slow = [e for e in EXPERIMENTS if e.gpu and not e.sets("paper")]
    assert slow
    with pytest.raises(reproduce.NotPossible, match=r"needs a GPU.*more than a day"):
        reproduce.check(slow, "paper", tmp_path, "cpu")


def test_a_file_with_another_checksum_is_reported(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "mnist.npz").write_bytes(b"other")
    [line] = data_files.problems("mnist", tmp_path)
    assert "SHA-256 differs" in line
    assert data_files.problems("mnist", tmp_path, hashed=False) == []


def test_the_page_of_the_data_is_the_manifest() -> None:
    assert data_files.PAGE.read_text() == data_files.page(), "python -m benchmarks.data_files --write"


def test_a_finished_command_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = reproduce.run(LISTING, "small", tmp_path, tmp_path, "cpu")
    first = capsys.readouterr().out
    assert page.is_file()
    assert "It shows the list." in page.read_text()
    assert "<table>" in page.read_text()
    assert "finished before" not in first
    assert reproduce.run(LISTING, "small", tmp_path, tmp_path, "cpu") == page
    assert "finished before" in capsys.readouterr().out


def test_a_command_that_fails_is_named_and_not_kept_as_finished(tmp_path: Path) -> None:
    broken = Experiment("popqorn", "x", "", ("reproduce nonsense",), (), (0, 0), "")
    with pytest.raises(reproduce.NotPossible, match="exit code 2"):
        reproduce.run(broken, "small", tmp_path, tmp_path, "cpu")
    assert not list(tmp_path.rglob("*.json"))


def test_without_a_paper_experiments_without_data_are_skipped_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs = Experiment("popqorn", "y", "", ("reproduce --list",), (), (0, 0), "", (("mnist",), ()))
    monkeypatch.setattr(reproduce, "EXPERIMENTS", (needs, LISTING))
    assert reproduce.main(["--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 0
    shown = capsys.readouterr().out
    assert "skipped: popqorn-y needs the data mnist" in shown
    assert (tmp_path / "out" / LISTING.key / "small" / "index.html").is_file()


def test_a_file_with_another_checksum_is_refused_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    needs = Experiment("popqorn", "y", "", ("reproduce --list",), (), (0, 0), "", (("mnist",), ()))
    monkeypatch.setattr(reproduce, "EXPERIMENTS", (needs,))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "mnist.npz").write_bytes(b"other")
    words = ["popqorn", "--data", str(tmp_path), "--out", str(tmp_path / "out")]
    assert reproduce.main(words) == 2
    assert "mnist.npz: its SHA-256 differs" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert reproduce.main([*words, "--other-data"]) == 0


def test_a_folder_of_weights_that_does_not_exist_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["deepquant", "--item", "figure 7b", "--weights", str(tmp_path / "none")]
    assert reproduce.main([*words, "--out", str(tmp_path / "out")]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_weights_of_another_architecture_end_a_benchmark_with_a_sentence(tmp_path: Path) -> None:
    torch.save({"layer.weight": torch.zeros(2, 2)}, tmp_path / "alexnet.pth")
    words = ["feature", "--networks", "alexnet", "--weights", str(tmp_path)]
    with pytest.raises(SystemExit, match=r"error: .*alexnet\.pth"):
        imagenet.main("imagenet", imagenet.BENCHMARKS, words)
