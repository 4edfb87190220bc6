"""`holdfast risk` and `holdfast worst`: what they keep can be looked at and checked, and what a user gets wrong is told before any work."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_workshop import Ask

from holdfast.commands.command import command_of
from holdfast.execution import InProcess
from holdfast.result import Key
from holdfast.store import Store

BASE = ("risk", "-m", "cli_own_code:pooled", "-d", "images.npz", "--domain", "0,1", "-o", "out")


@pytest.fixture
def images(ask: Ask, monkeypatch: pytest.MonkeyPatch, workshop: Path) -> None:
    monkeypatch.syspath_prepend(str(workshop))
    import cli_own_code

    x = torch.rand(3, 1, 6, 6, generator=torch.Generator().manual_seed(0)) * 0.4
    np.savez("images.npz", x=x.numpy(), y=cli_own_code.pooled()(x).argmax(-1).numpy())


def exported(ask: Ask) -> dict[tuple[int, str], dict[str, Any]]:
    """What `holdfast export` says of the run: a record for each input and part."""
    assert ask("export", "out", "found.json").code == 0
    return {(r["input"], r["part"]): r for r in json.loads(Path("found.json").read_text())["records"]}


def test_what_is_kept_holds_up(ask: Ask, images: None) -> None:
    import cli_own_code

    said = ask(*BASE, "--property", "confidence", "--radius", "0.3", "--queries", "60", "--pictures", "1")
    assert said.code == 0, said.err
    assert "worst score" in said.out
    told = exported(ask)
    assert sorted(told) == [(i, part) for i in range(3) for part in ("radius", "steepness", "worst")]
    assert ask("export", "out", "shown.npz").code == 0
    with np.load("shown.npz", allow_pickle=False) as shown, np.load("images.npz") as data:
        for row in range(3):
            metric, worst, radius = (told[row, part] for part in ("steepness", "worst", "radius"))
            assert (metric["lower"]["kind"], metric["upper"]["kind"]) == ("witnessed", "proved")
            assert metric["lower"]["value"] <= metric["upper"]["value"]
            assert worst["lower"]["value"] <= worst["upper"]["value"]
            x, steep = data["x"][row], shown[f"{row}_steepness"]
            scores = [margin(cli_own_code.pooled(), point, int(data["y"][row])) for point in (x, steep)]
            assert abs(scores[1] - scores[0]) / abs(steep - x).max() >= metric["lower"]["value"] * (1 - 1e-4)
            if f"{row}_radius" in shown:
                example = shown[f"{row}_radius"]
                assert margin(cli_own_code.pooled(), example, int(data["y"][row])) <= 1e-6
                assert abs(example - x).max() <= radius["upper"]["value"] * (1 + 1e-6)
    assert Path("out/risk-0000.png").stat().st_size > 1000
    assert not Path("out/risk-0001.png").exists()
    assert ask("resume", "out", "--trust").code == 0


def margin(model: torch.nn.Module, x: Any, label: int) -> float:
    p = model(torch.as_tensor(x)[None]).softmax(-1)[0].detach().double()
    rest = p.clone()
    rest[label] = 0
    return float(p[label] - rest.max())


def test_your_own_score(ask: Ask, images: None, workshop: Path) -> None:
    (workshop / "own_score.py").write_text("def score(z):\n    return z[:, 0] - z[:, 1] + 5\n")
    said = ask(
        *BASE, "--property", "own_score:score", "--radius", "0.05", "--queries", "30", "--pictures", "0"
    )
    assert said.code == 0, said.err
    assert exported(ask)[0, "worst"]["lower"]["kind"] == "proved"
    assert isinstance(exported(ask)[0, "worst"]["lower"]["value"], float)


def test_a_square_of_the_image(ask: Ask, images: None) -> None:
    said = ask(*BASE, "--patch", "0,1,4", "--queries", "30", "--pictures", "0")
    assert said.code == 0, said.err
    assert ask("export", "out", "shown.npz").code == 0
    with np.load("shown.npz") as shown, np.load("images.npz") as data:
        moved = np.stack([shown[f"{row}_worst"] != data["x"][row] for row in range(3)]).any((0, 1))
    assert moved.any()
    moved[0:4, 1:5] = False
    assert not moved.any()


def test_the_worst_score_alone(ask: Ask, images: None) -> None:
    """`worst` asks of the same region and property as `risk`, so their answers agree."""
    options = ("--property", "tie", "--margin", "0.01", "--radius", "0.1")
    assert ask("worst", *BASE[1:], *options).code == 0
    assert ask(*BASE[:-1], "risks", *options, "--queries", "30", "--pictures", "0").code == 0
    with Store.open("out") as worst, Store.open("risks") as risks:
        alone, one = worst.records(), [r for r in risks.records() if r.key.part == "worst"]
    assert [r.key for r in alone] == [Key(i) for i in range(3)]
    for a, b in zip(alone, one, strict=True):
        assert a.bracket.lower.value == b.bracket.lower.value
        assert a.bracket.upper.value >= b.bracket.upper.value  # which also hears what the other parts find


def test_smoothing_on_the_line(ask: Ask, images: None) -> None:
    options = ("smoothing", *BASE[1:-1], "{}", "--sigma", "0.1", "--samples", "1000")
    assert ask(*(o.format("whole") for o in options)).code == 0
    said = ask(*(o.format("out") for o in options), "--seconds", "0")
    assert said.code == 0, said.err
    assert "Inputs with a majority: not measured (3 inputs)" in " ".join(said.out.split())
    with Store.open("out") as store:  # more time, as in a longer run
        question = store.question
        command = command_of(question.command, {**question.options, "seconds": None})
        built = command.build()
        command.solve(store, built, lambda _: None, InProcess())
    with Store.open("whole") as whole, Store.open("out") as out:
        assert [r.bracket.estimates[0].value for r in out.records()] == [
            r.bracket.estimates[0].value for r in whole.records()
        ]
        [guess] = whole.records()[0].bracket.estimates
    assert (guess.evidence.kind, guess.evidence.confidence) == ("sampled", 0.999)
    assert guess.value > 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--property", "robust", "--radius", "0.1"), "property 'robust' is unknown"),
        (("--property", "robustness"), "Give a radius"),
        (("--radius", "0.1", "--norm", "0"), "holdfast radius --norm 0"),
        (("--property", "targeted", "--radius", "0.1"), "name it"),
        (("--property", "reach", "--radius", "0.1", "--targets", "runner-up"), "name a class"),
        (("--patch", "1,2"), "top,left,size"),
        (("--property", "nowhere:score", "--radius", "0.1"), "cannot import nowhere"),
        (("--radius", "0.1", "--queries", "5"), "at least"),
    ],
)
@pytest.mark.parametrize("command", ["risk", "worst"])
def test_bad_input_is_told_at_once(
    ask: Ask, images: None, command: str, options: tuple[str, ...], says: str
) -> None:
    if command == "worst" and "--queries" in options:
        pytest.skip("only the search for Q needs so many")
    said = ask(command, *BASE[1:], *options)
    assert said.code == 2
    assert says in " ".join(said.err.split())
    assert not Path("out").exists()


@pytest.mark.parametrize("method", ["mesh", "mesh-lagrangian"])
def test_mesh_search_alone_measures_all_parts(ask: Ask, images: None, method: str) -> None:
    said = ask(
        *BASE, "--norm", "2", "--radius", "2", "--queries", "60", "--pictures", "0", "--methods", method,
        "--limit", "2", "--property", "confidence",
    )  # fmt: skip
    assert said.code == 0, said.err
    with Store.read("out") as store:
        records = store.records()
    assert {r.key.part for r in records} == {"worst", "radius", "steepness"}
    named = {"mesh": "Mesh", "mesh-lagrangian": "MeshLagrangian"}[method]
    for record in records:
        bounds = (record.bracket.lower, record.bracket.upper)
        methods = {bound.evidence.method for bound in bounds} - {"definition"}
        if record.key.part == "steepness":
            assert methods == {"Steepest"}
            assert bounds[0].evidence.settings["searches"] == "mesh"
        elif record.key.part == "worst":
            assert methods == {named}
            assert bounds[1].evidence.settings["form"] == ("radial" if method == "mesh" else "lagrangian")


def test_parts_that_no_named_method_fits_keep_their_own(ask: Ask, images: None) -> None:
    said = ask(
        *BASE,
        "--radius",
        "0.3",
        "--queries",
        "60",
        "--pictures",
        "0",
        "--methods",
        "pgd",
        "--limit",
        "1",
        "--property",
        "confidence",
    )
    assert said.code == 0, said.err
    found = {part: record for (_, part), record in exported(ask).items()}
    assert found["steepness"]["upper"]["method"] == "Shells"
    assert found["worst"]["lower"]["method"] == "definition"
    assert found["worst"]["upper"]["method"] in ("PGD", "the input itself")


@pytest.mark.parametrize("command", ["risk", "worst"])
def test_uncertainty_is_measured_from_the_distribution_that_is_given(
    ask: Ask, images: None, command: str
) -> None:
    import cli_own_code

    base = (command, *BASE[1:-1])
    more = ("--property", "uncertainty", "--radius", "0.05", "--limit", "1")
    more += ("--queries", "60", "--pictures", "0") if command == "risk" else ("--methods", "mesh")
    q = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    for out, options in (("given", ("--toward", "0.2,0.3,0.5")), ("uniform", ())):
        said = ask(*base, out, *more, *options)
        assert said.code == 0, said.err
    with np.load("images.npz") as data:
        p = cli_own_code.pooled()(torch.from_numpy(data["x"][:1])).detach().double().log_softmax(-1)[0]
    with Store.read("given") as given, Store.read("uniform") as uniform:
        assert given.question.fingerprint != uniform.question.fingerprint
        assert given.question.asked.property == "uncertainty toward 0.2,0.3,0.5"
        for store, target in ((given, q), (uniform, torch.full((3,), 1 / 3, dtype=torch.float64))):
            (worst,) = [r for r in store.records() if r.key.part in ("", "worst")]
            at_input = float((target * (target.log() - p)).sum())
            assert 0 <= worst.bracket.upper.value <= at_input + 1e-6
            assert worst.bracket.upper.value > at_input - 0.5
    said = ask("compare", "given", "uniform")
    assert said.code == 2
    assert "property is" in said.err


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--toward", "0.5,0.5,0"), "no meaning for --property robustness"),
        (("--property", "uncertainty", "--toward", "0.5,0.5"), "has 2 numbers"),
        (("--property", "uncertainty", "--toward", "0.5,0.5,0.5"), "add up to one"),
        (("--property", "uncertainty", "--toward", "0.5,half,0"), "expected a number"),
        (("--property", "uncertainty", "--toward", "nan,0.5,0.5"), "add up to one"),
        (("--methods", "no-such"), "'no-such' is unknown"),
        (("--methods", "grid"), "none of the methods"),
    ],
)
def test_a_wrong_distribution_or_method_is_refused(
    ask: Ask, images: None, options: tuple[str, ...], reason: str
) -> None:
    said = ask(*BASE, "--radius", "0.1", *options)
    assert said.code == 2, said
    assert reason in said.err
    assert not Path("out").exists()
