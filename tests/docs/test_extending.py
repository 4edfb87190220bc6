"""What docs/extending.md shows of the package is the package, and one new file of one's own is enough for what it says."""

import gc
import importlib
import itertools
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
import typer
from torch import nn
from typer.testing import CliRunner

import holdfast as hf
import truth
from holdfast.bounding import relax
from holdfast.bounding.graph.graph import HANDLERS
from holdfast.bounding.relax.base import intercept, planes
from holdfast.cli import main
from holdfast.commands.command import COMMANDS
from holdfast.method import Method, known_methods
from holdfast.problem import Problem
from holdfast.random_streams import RandomStreams
from holdfast.result import Key

ROOT = Path(__file__).parents[2]
BOUNDS = ROOT / "src" / "holdfast" / "bounding"
PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_softplus_is_shown_as_it_is() -> None:
    assert BLOCKS[0] == (BOUNDS / "relax" / "softplus.py").read_text()
    [entry] = re.findall(r"```py\n(.*?)```", PAGE, re.DOTALL)
    assert entry in (BOUNDS / "graph" / "functions.py").read_text()


@pytest.mark.parametrize("block", [0, 1], ids=["softplus", "asinh"])
def test_the_relaxations_of_the_page_are_sound(block: int) -> None:
    """The classes of the page themselves, on boxes of all widths, with their own slopes and with others."""
    names: dict[str, object] = {"__name__": "page"}
    exec(BLOCKS[block].split("@handles")[0], names)
    kind = next(
        v
        for v in names.values()
        if isinstance(v, type) and issubclass(v, relax.Relaxation) and v.__module__ == "page"
    )
    relaxation = kind()
    g = torch.Generator().manual_seed(0)
    centre = 6 * torch.randn(2000, generator=g, dtype=torch.float64)
    width = 10.0 ** (torch.rand(2000, generator=g, dtype=torch.float64) * 8 - 6)
    low, high = centre - width, centre + width
    slope = torch.randn(2000, generator=g, dtype=torch.float64)
    own = planes(relaxation, (low,), (high,))
    below, above = intercept(relaxation, (low,), (high,), (slope,))
    for share in torch.linspace(0, 1, 101, dtype=torch.float64):
        v = (low + share * (high - low)).clamp(low, high)
        f = relaxation.function(v)
        assert (own.lower[0] * v + own.lower_offset <= f + 1e-12).all()
        assert (own.upper[0] * v + own.upper_offset >= f - 1e-12).all()
        assert (slope * v + below <= f + 1e-12).all()
        assert (slope * v + above >= f - 1e-12).all()


# ---------------------------------------------------------------- one file each, from outside the package

TOYS = {
    "command": "class Towards(Command)",
    "activation": "class Asinh",
    "cell": "def mgu_cell",
    "region": "class OneOf",
    "property": "class TopTwo",
    "method": "class Flip",
}


@pytest.fixture
def toy(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ModuleType]:
    """The page's example as a module of its own, in a folder of its own; what it adds to tables is taken off again."""
    [block] = [block for block in BLOCKS if TOYS[request.param] in block]
    name = f"toy_{request.param}"
    (tmp_path / f"{name}.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    before = dict(HANDLERS)
    yield importlib.import_module(name)
    HANDLERS.clear()
    HANDLERS.update(before)
    del sys.modules[name]


@pytest.fixture(autouse=True, scope="module")
def _methods_forgotten() -> Iterator[None]:
    """A method is known for as long as its class is there: none that is made here is left to the tests of other files."""
    yield
    gc.collect()
    assert not [kind for kind in known_methods().values() if kind.__module__.startswith("toy_")]


def uses(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("toy", [name], indirect=True)


def test_every_kind_has_one_example() -> None:
    assert all(sum(sign in block for block in BLOCKS) == 1 for sign in TOYS.values())


@uses("activation")
def test_an_activation_is_one_file(toy: ModuleType) -> None:
    """A monotone network of one input: the radius is where the outputs meet, which halving finds."""
    model = nn.Sequential(nn.Linear(1, 1), toy.AsinhLayer(), nn.Linear(1, 2)).double().eval()
    with torch.no_grad():
        for parameter, value in zip(
            model.parameters(), ([[1.5]], [0.2], [[1.0], [-1.0]], [0.3, -0.3]), strict=True
        ):
            parameter.copy_(torch.tensor(value))
    exact = (math.sinh(0.3) + 0.2) / 1.5 + 0.5  # from 0.5 down to where asinh(1.5 v + 0.2) = -0.3
    net, x = hf.Network.from_torch(model), torch.tensor([[0.5]], dtype=torch.float64)
    [b] = hf.radius(net, x, [0], methods=[hf.certify.Certify(), hf.attacks.PGD()])
    assert 0.9 * exact < b.lower.value <= exact * (1 + 1e-9) <= b.upper.value * (1 + 2e-9) < 1.1 * exact
    [tight] = hf.radius(
        net, x, [0], methods=[hf.certify.Tighten()]
    )  # without a curve it keeps what planes prove
    assert tight.lower.value == pytest.approx(b.lower.value, rel=1e-6)
    [risk] = hf.risk(net, x, "robustness", radius=0.1, queries=200)
    assert math.isinf(risk.metric.upper.value)
    assert any("derivative of Asinh" in note for note in risk.notes)


@uses("cell")
def test_a_cell_is_one_file(toy: ModuleType) -> None:
    net = hf.Network.from_torch(toy.Reader(whole=True).eval())
    x = torch.randn(2, 3, 3)
    for b in hf.radius(
        net,
        x,
        net(x).argmax(1),
        norm=2,
        frames="all",
        methods=[hf.certify.Certify(rounds=3), hf.attacks.PGD(rounds=2)],
    ):
        assert 0 < b.lower.value <= b.upper.value < math.inf


@uses("region")
def test_a_region_is_one_file(toy: ModuleType) -> None:
    """Its worst score is that of all its points, one by one."""
    generator = torch.Generator().manual_seed(3)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double().eval()
    x = torch.rand(3, 2, 3, generator=generator, dtype=torch.float64)
    options = torch.stack(
        [x, *(x + 0.3 * torch.randn(x.shape, generator=generator, dtype=torch.float64) for _ in range(3))], 1
    )
    net, region = hf.Network.from_torch(model), toy.OneOf(x, options)
    label = net(x).argmax(1)
    points = region.sample(50, RandomStreams.of(range(len(region)), 3))
    assert region.contains(points).all()
    assert not region.contains(points + 1e-3).any()
    assert torch.equal(region.project(points), points)
    a = torch.randn(3, 4, 2, 3, generator=generator, dtype=torch.float64)
    least = torch.stack([(a * options[:, k : k + 1]).sum((-1, -2)) for k in range(4)]).amin(0)
    assert (region.minimise_linear(a) <= least).all()
    torch.testing.assert_close(region.minimise_linear(a), least)
    answers = torch.stack([hf.Robustness(label).score(net(options[:, k])) for k in range(4)]).amin(0)
    for b, answer in zip(hf.worst(net, region, hf.Robustness(label)), answers.tolist(), strict=True):
        assert b.lower.value <= answer + 1e-12
        assert b.upper.value >= answer - 1e-12
        assert math.isfinite(b.lower.value)
    bounds = hf.bounds(net, region)
    assert all(
        ((bounds.lower <= net(options[:, k])) & (net(options[:, k]) <= bounds.upper)).all() for k in range(4)
    )


@uses("property")
def test_a_property_is_one_file(toy: ModuleType) -> None:
    """A linear network over a box: what is proved holds on a grid, and the radius lies beyond that of the class alone."""
    known = truth.linear(3, shape=(3,), classes=4, batch=3)
    net, prop = known.network(), toy.TopTwo(known.y)
    grid = torch.tensor(list(itertools.product((-0.25, -0.125, 0.0, 0.125, 0.25), repeat=3)))
    seen = torch.stack([prop.score(net(known.x + change)) for change in grid]).amin(0)
    found = hf.worst(net, hf.Ball(known.x, 0.25, math.inf), prop)
    for row, (b, lowest) in enumerate(zip(found, seen.tolist(), strict=True)):
        assert b.lower.value <= min(lowest + 1e-5, b.upper.value)
        assert b.upper.value <= lowest + 0.1
        met = toy.TopTwo(known.y[row : row + 1]).score(net(b.upper.evidence.witness[None]))
        assert float(met) == pytest.approx(b.upper.value, abs=1e-5)
    for r in hf.risk(net, known.x, prop, radius=0.25, queries=200):
        assert r.metric.lower.value <= r.metric.upper.value < math.inf
    ball = hf.Ball(known.x, 0.0, math.inf)
    problem = Problem(net, ball, prop, "radius", tuple(Key(i) for i in range(3)))
    for record, alone in zip(
        hf.solve([problem], [hf.certify.Certify(), hf.attacks.PGD()]),
        known.radius(math.inf).tolist(),
        strict=True,
    ):
        assert record.bracket.lower.value >= 0.99 * alone
        assert record.bracket.lower.value <= record.bracket.upper.value
    with pytest.raises(hf.errors.BadInput, match="every class is among"):
        toy.TopTwo(torch.tensor([0])).check(1, 2)


@uses("method")
def test_an_attack_is_one_file(toy: ModuleType, tmp_path: Path) -> None:
    """Its witnesses are replayed, carry its name, and are kept with it in a run."""
    assert issubclass(toy.Flip, Method)
    x = torch.tensor([[0.9, 0.8, 0.1, 0.2]])
    label = toy.net(x).argmax(1)
    with hf.Store.create(tmp_path / "run") as store:
        [b] = hf.radius(toy.net, x, label, norm=2, methods=[toy.Flip(), hf.certify.Certify()], store=store)
        [record] = store.records()
    assert b.upper.value == pytest.approx(1.4, rel=1e-6)
    assert torch.equal(b.upper.evidence.witness, x[0].flip(0))
    assert b.upper.evidence.method == record.bracket.upper.evidence.method == "Flip"
    assert 0 < b.lower.value <= b.upper.value
    assert known_methods()["flip"] is toy.Flip
    assert (toy.Flip.finds, toy.Flip.help) == ("witnesses", "the input upside down")


@uses("command")
def test_a_command_is_one_file(toy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It measures, keeps a run, and the run is resumed, reported and exported by what knows nothing of it."""
    monkeypatch.setitem(COMMANDS, "towards", toy.Towards)
    app = typer.Typer()
    app.command("other")(lambda: None)
    toy.register(app)
    network, data = "holdfast.datasets.digits_networks:digits_cnn", "holdfast.datasets.digits:images"
    given = [
        "towards",
        "-m",
        network,
        "-d",
        data,
        "--domain",
        "0,1",
        "--label",
        "3",
        "--limit",
        "2",
        "--seconds",
        "20",
    ]
    done = CliRunner().invoke(app, [*given, "-o", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    with hf.Store.open(tmp_path / "run") as store:
        assert (store.question.command, store.question.asked.targets) == ("towards", "3")
        assert [r.bracket.lower.value > 0 for r in store.records()] == [True, True]
    for command in (["resume"], ["report"], ["gate", "--at", "0", "--min-certified", "1"]):
        with pytest.raises(SystemExit) as ending:
            main([command[0], str(tmp_path / "run"), *command[1:]])
        assert not ending.value.code
    assert (tmp_path / "run" / "report.html").stat().st_size > 10_000
