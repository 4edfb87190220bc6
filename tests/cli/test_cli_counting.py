"""`holdfast radius --norm 0` and `holdfast saliency`."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_workshop import Ask

from holdfast.cli.views.pictures import draw_saliency
from holdfast.result import Key
from holdfast.store import Store

BASE = (
    "-m",
    "holdfast.datasets.digits_networks:digits_cnn",
    "-d",
    "holdfast.datasets.digits:images",
    "--domain",
    "0,1",
)


@pytest.fixture(autouse=True)
def masks(ask: Ask) -> None:
    half = np.zeros((8, 8), dtype=bool)
    half[:, :4] = True
    np.save("half.npy", half)
    np.save("each.npy", np.stack([half] * 5))
    np.save("none.npy", np.zeros((8, 8), dtype=bool))
    np.save("numbers.npy", np.zeros((8, 8)))
    np.savez("archive.npz", half)


def ends(ask: Ask, run: str, *options: str, limit: int = 1) -> list[tuple[float, float]]:
    said = ask("radius", *BASE, "--norm", "0", "--limit", limit, "--seconds", "20", "-o", run, *options)
    assert said.code == 0, said.err
    assert ask("export", run, f"{run}.json").code == 0
    records = json.loads(Path(f"{run}.json").read_text())["records"]
    found = [(float(r["lower"]["value"]), float(r["upper"]["value"])) for r in records]
    assert all(lower <= upper for lower, upper in found)
    return found


def test_changed_pixels_are_counted_and_fewer_may_change_under_a_mask(ask: Ask) -> None:
    whole = ends(ask, "whole", limit=2)
    assert all(0 <= lower <= upper < 10 for lower, upper in whole)
    for mask, limit in (("half.npy", 1), ("each.npy", 2)):
        for (_, upper), (_, masked) in zip(
            whole, ends(ask, f"with-{mask}", "--free", mask, limit=limit), strict=limit == 2
        ):
            assert masked >= upper
    assert ends(ask, "none", "--free", "none.npy") == [(np.inf, np.inf)]


def test_a_mask_enters_the_question_by_what_its_file_holds(ask: Ask) -> None:
    """Two masks by the same name are two questions, and runs with them are not laid side by side."""
    quick = ("radius", *BASE, "--norm", "0", "--limit", "1", "--methods", "corners", "--free", "mask.npy")
    for run, other in (("first", "half.npy"), ("second", "none.npy")):
        Path("mask.npy").write_bytes(Path(other).read_bytes())
        said = ask(*quick, "-o", run)
        assert said.code == 0, said.err
        assert "only units that mask.npy leaves free (hash " in said.out
    with Store.read("first") as first, Store.read("second") as second:
        assert first.question.fingerprint != second.question.fingerprint
    said = ask("compare", "first", "second")
    assert said.code == 2
    assert "free is" in said.err


def test_a_grid_is_an_estimate(ask: Ask) -> None:
    assert all(lower == 0 for lower, _ in ends(ask, "grid", "--mode", "grid", "--values", "0,0.5,1"))


def test_the_settings_of_a_grid_are_those_of_the_method(ask: Ask) -> None:
    options = ("--mode", "grid", "--t", "1", "--levels", "3", "--rule", "confidence", "--limit", "2")
    said = ask("radius", *BASE, "--norm", "0", "-o", "run", *options)
    assert said.code == 0, said.err
    with Store.read("run") as store:
        estimates = [e for record in store.records() for e in record.bracket.estimates]
    assert estimates
    for estimate in estimates:
        settings = estimate.evidence.settings
        assert (settings["t"], settings["levels"], settings["rule"]) == (1, 3, "confidence")
        assert estimate.value <= 2  # sets of one unit: at most one unit is known to be harmless


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--free", "missing.npy"), "missing.npy"),
        (("--free", "numbers.npy"), "expected truth values"),
        (("--free", "archive.npz"), "cannot be read as .npy"),
        (("--values", "0:x"), "use whole numbers as in 0:255"),
        (("--values", "0,2"), "but the domain is [0, 1]"),
        (("--unit", "voxel"), "unit 'voxel' is unknown"),
        (("--mode", "guess"), "mode 'guess' is unknown"),
        (("--t", "1"), "--t is a setting of --mode grid"),
        (("--mode", "grid", "--levels", "3", "--methods", "grid"), "--levels is a setting of --mode grid"),
        (("--mode", "grid", "--levels", "3", "--values", "0,1"), "give one of them"),
        (("--mode", "grid", "--rule", "size"), "rule 'size' is unknown"),
    ],
)
def test_what_makes_no_sense_is_told_before_any_work(ask: Ask, options: tuple[str, ...], words: str) -> None:
    said = ask("radius", *BASE, "--norm", "0", "-o", "run", *options)
    assert said.code == 2
    assert words in said.err
    assert not Path("run").exists()


def test_maps_are_written_and_drawn(ask: Ask) -> None:
    said = ask("saliency", *BASE, "-o", "maps", "--limit", "3", "--pictures", "2")
    assert said.code == 0, said.err
    with np.load("maps/saliency.npz", allow_pickle=False) as found:
        assert found["saliency"].shape == (3, 1, 8, 8)
        assert (found["saliency"] >= 0).all()
        assert found["saliency"].max() > 0
    assert sorted(p.name for p in Path("maps").glob("*.png")) == ["saliency-0000.png", "saliency-0001.png"]
    again = ask("saliency", *BASE, "-o", "maps")
    assert again.code == 2
    assert "maps already holds a run" in again.err


def test_units_that_were_not_measured_are_counted_and_hatched(ask: Ask) -> None:
    assert ask("saliency", *BASE, "-o", "maps", "--limit", "2", "--pictures", "0").code == 0
    with Store.open("maps") as store:
        [first, second] = [found.clone() for found in store.artefacts("saliency").values()]
        first[..., 4:] = torch.nan
        store.put_artefacts("saliency", {Key(0): first})
        store.write([replace(record, status="stopped") for record in store.records()])
        x = store.inputs()[0].x
    said = ask("resume", "maps", "--seconds", "0")
    told = " ".join(said.out.split())
    assert "32 of 128 units not measured; 'holdfast resume' measures them" in told
    assert "(32 of 64 units measured)" in " ".join(told.replace("│", " ").split())
    with np.load("maps/saliency.npz") as found:
        assert np.isnan(found["saliency"][0]).sum() == 32
        assert (found["measured"] == ~np.isnan(found["saliency"])).all()
    figure = draw_saliency(x, first.numpy(), (0.0, 1.0), "input")
    right = figure.axes[1]
    assert "hatched: 32 of 64" in right.get_title()
    assert right.patch.get_hatch()
    drawn = right.images[0].get_array()
    assert drawn is not None
    assert np.ma.masked_invalid(drawn).mask.sum() == 32
    assert "not measured" not in draw_saliency(x, second.numpy(), (0.0, 1.0), "input").axes[1].get_title()


def test_a_run_of_maps_has_records_and_goes_on_where_its_time_was_up(ask: Ask) -> None:
    command = ("saliency", *BASE, "--limit", "3", "--pictures", "1", "--batch", "1")
    assert ask(*command, "-o", "whole").code == 0
    said = ask(*command, "-o", "maps", "--seconds", "0")
    assert said.code == 0, said.err
    assert "not measured yet" in said.out
    assert "inf" not in said.out.replace("info", "")  # nobody knows the lowest margin either
    with Store.open("maps") as store:
        assert {r.status for r in store.records()} == {"stopped"}
    assert np.load("maps/saliency.npz")["saliency"].shape[0] == 0
    said = ask("resume", "maps", "--seconds", 600)
    assert said.code == 0, said.err
    with Store.open("maps") as store, Store.open("whole") as whole:
        for one, two in zip(store.records(), whole.records(), strict=True):
            assert (one.goal, one.bracket.lower.value, one.status) == ("worst", -np.inf, "finished")
            assert one.bracket.upper == two.bracket.upper
            assert one.bracket.upper.evidence.kind == "witnessed"
        for first, second in zip(store.inputs(), whole.inputs(), strict=True):
            np.testing.assert_array_equal(first.saliency, second.saliency)  # type: ignore[arg-type]
    assert ask("report", "maps").code == 0
