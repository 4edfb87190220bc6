"""Certificates of every kind: accepted as they are, rejected as soon as they claim something that is not so."""

import io
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.proofs.mutants import mutants
from rich.console import Console
from safetensors.numpy import save
from torch import Tensor, nn
from typer.testing import CliRunner

import holdfast.cli.prove
import holdfast_check
import holdfast_check.__main__
from holdfast.api.prove import prove
from holdfast.attacks import PGD
from holdfast.bounding import crown
from holdfast.bounding.relax import Relaxation, planes
from holdfast.bounding.relax.base import LinearBounds
from holdfast.certificates.claim import pack_proof, request_header
from holdfast.certificates.matching import MatchedActivations
from holdfast.certificates.model_file import model_for
from holdfast.certificates.trained_slopes import search_trained_slopes
from holdfast.certificates.writing import Certificate
from holdfast.certify import Split
from holdfast.cli import app
from holdfast.errors import UnsupportedLayer
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Linear
from holdfast.region import Box
from holdfast.result import Key
from holdfast.solver import Stop, solve
from holdfast_check import Model, check
from holdfast_check.container import read_container
from holdfast_check.planes import StepBounds
from holdfast_check.proof import SCHEMA, Claim
from holdfast_check.region import CheckedRegion
from proof_networks import METHODS, NETWORKS, network, proved
from sizes import some

DRAW = np.random.default_rng(1)


def opened(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    metadata, arrays = read_container(path.read_bytes())
    return json.loads(metadata[SCHEMA]), dict(arrays)


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_kind_of_network_has_certificates_that_are_accepted(kind: str, tmp_path: Path) -> None:
    norm = {"mlp": 2, "lstm": math.inf, "gru": 1}.get(kind, math.inf)
    _problems, _, made = proved(kind, tmp_path, norm=norm)
    proofs = [one for one in made if one.kind == "proof"]
    assert len(proofs) == 2, made
    # The engine proves products of gates with affine forms, which the checker does not have.
    least = 0.97 if kind == "own cell" else 0.99
    assert all(one.file is not None and one.value >= least * one.known for one in proofs), made
    for one in made:
        assert one.file is not None, one
        assert one.model is not None, one
        verdict = check(one.model, one.file)
        assert verdict.accepted, verdict
        assert verdict.margin is not None, verdict
        assert verdict.margin >= 0, verdict
    # Above a witness nothing is provable, whatever else the file says.
    for shown in (one for one in made if one.kind == "witness" and one.file is not None):
        [twin] = [one for one in proofs if one.key == shown.key]
        assert twin.file is not None
        assert twin.model is not None
        header, arrays = opened(twin.file)
        for more in (1.0, 1.001, 1.5):
            header["region"]["radius"] = shown.known * more
            twin.file.write_bytes(pack_proof(header, arrays))
            assert not check(twin.model, twin.file).accepted


@pytest.mark.parametrize("kind", NETWORKS)
def test_bounds_hold_at_every_point_of_the_region(kind: str, tmp_path: Path) -> None:
    net, x, _ = network(kind)
    problem = Problem(
        net,
        Box(x.double(), x.double() - 0.2, x.double() + 0.2),
        Linear.of([1.0] + [0.0] * (len(net(x)[0]) - 1), batch=2),
        "worst",
    )
    _, model = model_for(problem, tmp_path, None)
    centre = x[0].double().numpy().ravel()
    region = CheckedRegion((centre - 0.2)[None], (centre + 0.2)[None])
    outputs = model.program.output.index.size
    bounds = StepBounds(model.program, region)
    least, most = (
        bounds.rows(np.eye(outputs), np.zeros(outputs))[0],
        -bounds.rows(-np.eye(outputs), np.zeros(outputs))[0],
    )
    points = (
        centre + 0.2 * np.sign(DRAW.normal(size=(500, centre.size))) * DRAW.uniform(0, 1, (500, 1)) ** 0.2
    )
    values = model.program.value(points)
    assert (values >= least).all()
    assert (values <= most).all()
    assert ((most - least) < 20 * (values.max(0) - values.min(0))).all(), "a bound that says nothing"


class Written(nn.Module):
    """A function of its input and of one linear layer, with numbers of Python's and constants of other types."""

    def __init__(self, make: Callable[["Written", Tensor], Tensor]) -> None:
        super().__init__()
        self.make, self.layer, self.windows = make, nn.Linear(4, 2), nn.Conv1d(1, 1, 2)
        self.kept = nn.Buffer(torch.tensor([True, False, True, True]))

    def forward(self, x: Tensor) -> Tensor:
        return self.make(self, x)


WRITTEN: dict[str, Callable[[Written, Tensor], Tensor]] = {
    "a factor": lambda m, x: m.layer(0.2 * x),
    "a sum of columns": lambda m, x: torch.cat([x[:, 3:4] + 0.2 * x[:, 1:2], m.layer(x)[:, :1]], 1),
    "a summand": lambda m, x: m.layer(torch.relu(x - 0.1)),
    "a divisor": lambda m, x: m.layer(x / 0.3),
    "truth values": lambda m, x: m.layer(x * m.kept),
    "a leak of a whole number": lambda m, x: nn.functional.leaky_relu(m.layer(x), 2),
    "several images": lambda m, x: m.windows(x.reshape(-1, 1, 2)).reshape(-1, 2) + m.layer(x),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_numbers_in_a_module_are_written_as_they_are(name: str, tmp_path: Path) -> None:
    """0.2 is a number of float64 and not of torch's default type: what is written answers as the network does in real arithmetic."""
    torch.manual_seed(0)
    net = Network.from_torch(Written(WRITTEN[name]).eval(), shape=(4,))
    x = torch.tensor([[22.5, 1.25, 42.5, -4.0]], dtype=torch.float64)
    path, model = model_for(
        Problem(net, Box(x, x - 1, x + 1), Linear.of([1.0, 0.0], batch=1), "worst"), tmp_path, None
    )
    assert path.suffix == ".safetensors"
    twin = net.double(x)
    assert twin is not None
    np.testing.assert_allclose(
        model.program.value(x.numpy()[None])[0], twin(x)[0].detach().numpy(), rtol=1e-12
    )


def test_what_cannot_be_computed_in_float64_is_a_reason_and_no_crash(tmp_path: Path) -> None:
    made = Written(
        lambda m, x: (
            nn.functional.conv1d(x.reshape(-1, 1, 2), torch.ones(1, 1, 2)).reshape(-1, 2) + m.layer(x)
        )
    )
    net, x = Network.from_torch(made.eval(), shape=(4,)), torch.zeros(1, 4, dtype=torch.float64)
    with pytest.raises(UnsupportedLayer, match="float64"):
        model_for(Problem(net, Box(x, x - 1, x + 1), Linear.of([1.0, 0.0], batch=1), "worst"), tmp_path, None)


def test_frames_and_features_that_stay(tmp_path: Path) -> None:
    _, _, made = proved("lstm", tmp_path, norm=2, frames=(1,))
    assert sum(one.kind == "proof" and one.file is not None for one in made) == 2
    header, arrays = opened(next(one.file for one in made if one.file is not None))
    assert arrays["region/shares"].tolist() == [0, 1, 0]
    assert header["region"]["norm"] == "2"


@pytest.mark.usefixtures("cpu_clock")
def test_a_score_and_a_tree_of_halves(tmp_path: Path) -> None:
    """Planes alone do not prove these; the halves of the box do. A tree that misses a leaf, or has one too many, covers nothing."""
    torch.manual_seed(3)
    net = Network.from_torch(
        nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 2)).eval()
    )
    x = torch.zeros(1, 2, dtype=torch.float64)
    lower = net(torch.rand(4000, 2) * 2 - 1).min(0).values.double() - 0.15
    problem = Problem(
        net, Box(x, x - 1, x + 1), Linear(torch.eye(2, dtype=torch.float64)[None], -lower[None]), "worst"
    )
    records = solve([problem], [PGD(restarts=2), Split()], Stop(seconds=8))
    assert records[0].bracket.lower.value > 0
    [one] = [one for one in prove([problem], records, tmp_path) if one.kind == "proof"]
    assert one.file is not None, one
    assert one.model is not None, one
    header, arrays = opened(one.file)
    tree = arrays["tree"].tolist()
    assert len(tree) > 2
    leaf = tree.index(-1)
    for wrong in (
        tree[:-1],
        [*tree, -1],
        tree[:leaf] + tree[leaf + 1 :],
        [-1],
        [],
        [7, -1, -1],
        [-2],
        [0, -1],
    ):
        one.file.write_bytes(pack_proof(header, {**arrays, "tree": np.array(wrong, dtype=np.int8)}))
        assert not check(one.model, one.file).accepted, wrong
    header["above"] = records[0].bracket.upper.value + 1e-6
    one.file.write_bytes(pack_proof(header, arrays))
    assert not check(one.model, one.file).accepted


def test_a_score_by_planes(tmp_path: Path) -> None:
    net, x, _ = network("smooth")
    problem = Problem(
        net,
        Box(x.double(), x.double() - 0.1, x.double() + 0.1),
        Linear.of([1.0, -1.0, 0.0], 0.25, batch=2),
        "worst",
    )
    records = solve([problem], METHODS)
    made = prove([problem], records, tmp_path)
    assert {one.kind for one in made} == {"proof", "witness"}, made
    assert all(one.file is not None for one in made), made
    one = made[0]
    assert one.file is not None
    assert one.model is not None
    assert abs(one.value - one.known) <= 1e-3 * abs(one.known)
    header, arrays = opened(one.file)
    header["above"] = records[0].bracket.upper.value + 1e-6
    one.file.write_bytes(pack_proof(header, arrays))
    assert not check(one.model, one.file).accepted


@pytest.mark.parametrize("kind", some(["mlp", "cnn", "rnn"], ["mlp", "rnn"]))
def test_mutants_are_rejected(kind: str, tmp_path: Path) -> None:
    _, _, made = proved(kind, tmp_path)
    tried, path = 0, tmp_path / "mutant.proof"
    for one in (one for one in made if one.kind == "proof" and one.file is not None):
        shown = next(other.known for other in made if other.kind == "witness" and other.key == one.key)
        assert one.file is not None
        assert one.model is not None
        model = Model.read_file(one.model)
        header, arrays = opened(one.file)
        for changed, other in mutants(header, arrays, shown, DRAW):
            path.write_bytes(pack_proof(changed, other))
            verdict = check(model, path)
            assert not verdict.accepted, (changed, verdict)
            assert verdict.reason, (changed, verdict)
            tried += 1
    assert tried >= 100


def test_slopes_are_free_and_never_trusted(tmp_path: Path) -> None:
    """Any slopes: what they prove is true, mostly less. No slopes prove what a witness excludes."""
    _, _, made = proved("rnn", tmp_path)
    one = next(one for one in made if one.kind == "proof")
    shown = next(other.known for other in made if other.kind == "witness" and other.key == one.key)
    assert one.file is not None
    assert one.model is not None
    model, (header, arrays) = Model.read_file(one.model), opened(one.file)
    functions = [place for place, step in enumerate(model.program.steps) if hasattr(step, "function")]
    held = 0
    for trial in range(12):
        slopes = {
            f"slopes/{place}": DRAW.normal(0.3, 0.2, (1, 2, 1, model.program.steps[place].size))
            for place in functions
        }
        for radius, false in ((one.value * 0.02, False), (shown, True)):
            header["region"]["radius"] = radius
            one.file.write_bytes(pack_proof(header, {**arrays, **slopes}))
            verdict = check(model, one.file)
            assert not (verdict.accepted and false), trial
            held += verdict.accepted
    assert held > 0
    header["region"]["radius"] = one.value
    for strange in (np.nan, np.inf, 1e200):
        one.file.write_bytes(
            pack_proof(header, {**arrays, f"slopes/{functions[0]}": np.full((1, 2, 1, 5), strange)})
        )
        assert not check(model, one.file).accepted


def test_another_model_is_rejected(tmp_path: Path) -> None:
    _, _, made = proved("mlp", tmp_path / "one")
    one = made[0]
    assert one.file is not None
    assert one.model is not None
    data = bytearray(one.model.read_bytes())
    data[-3] ^= 1
    (tmp_path / "other.safetensors").write_bytes(bytes(data))
    verdict = check(tmp_path / "other.safetensors", one.file)
    assert not verdict.accepted
    assert "another model" in verdict.reason


def test_a_wrong_relaxation_of_the_engine_has_no_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The very lie that meets a Contradiction elsewhere: planes too near to each other. The checker does not follow it."""
    net, x, y = network("mlp")
    from holdfast.api.radius import radius_problems

    [problem] = radius_problems(net, x, y)
    honest = {record.key: record.bracket for record in solve([problem], METHODS)}

    def too_high(relaxation: Relaxation, lower: Any, upper: Any) -> LinearBounds:
        found = planes(relaxation, lower, upper)
        return LinearBounds(found.lower, found.lower_offset + 0.35, found.upper, found.upper_offset - 0.35)

    monkeypatch.setattr(crown, "planes", too_high)
    records = solve(
        [problem],
        METHODS[1:],
    )
    lies = [record for record in records if record.bracket.lower.value > honest[record.key].upper.value]
    assert lies
    monkeypatch.undo()
    _, model = model_for(problem, tmp_path, None)
    for record in lies:
        row = problem.keys.index(record.key)
        header, arrays = request_header(problem.take(torch.tensor([row])), record, model, "proof")
        header["region"]["radius"] = min(record.bracket.lower.value, 3.9)
        (tmp_path / "lie.proof").write_bytes(pack_proof(header, arrays))
        assert not check(model, tmp_path / "lie.proof").accepted
    for one in prove([problem], lies, tmp_path):
        assert one.kind != "proof" or one.file is None or one.value < honest[one.key].upper.value


def test_damaged_files_are_told_apart_from_proofs(tmp_path: Path) -> None:
    """Random bytes, cut files, changed headers: a reason, never a traceback or acceptance of something else."""
    _, _, made = proved("mlp", tmp_path)
    one = made[0]
    assert one.file is not None
    assert one.model is not None
    model, whole = Model.read_file(one.model), one.file.read_bytes()
    path = tmp_path / "damaged.proof"
    for trial in range(300):
        data = bytearray(whole)
        if trial % 3 == 0:
            data = data[: int(DRAW.integers(0, len(data)))]
        elif trial % 3 == 1:
            data = bytearray(DRAW.integers(0, 256, int(DRAW.integers(0, 400)), dtype=np.uint8).tobytes())
        else:
            data[int(DRAW.integers(0, 600))] = int(DRAW.integers(0, 256))
        path.write_bytes(bytes(data))
        verdict = check(model, path)
        header = verdict.header
        if verdict.accepted:  # a byte of what is only a name, or of a smaller radius
            assert header["model"]["sha256"] == model.sha256
            assert header["region"]["radius"] <= one.value * 1.0001
        else:
            assert verdict.reason
        other = tmp_path / ("damaged.onnx" if trial % 2 else "damaged.safetensors")
        other.write_bytes(bytes(data))
        assert not check(other, one.file).accepted
    assert not check(one.model, tmp_path / "missing.proof").accepted
    assert not check(tmp_path / "missing.onnx", one.file).accepted
    path.write_bytes(save({"a": np.zeros(1)}, {"x": "y"}))
    assert "no proof" in check(model, path).reason


def test_the_reason_of_every_claim_without_certificate_is_printed() -> None:
    """Those beyond the first few are counted by their reason; nothing is left out."""
    refused = [
        Certificate(
            Key(index=number), "proof", 1.0, reason="a reason" if number < 6 else f"reason {number % 2}"
        )
        for number in range(10)
    ]
    console = Console(record=True, width=200, file=io.StringIO())
    holdfast.cli.prove._show_refused(refused, console)
    told = console.export_text()
    assert told.count("input ") == 5
    counted = [int(count) for count in re.findall(r"(\d+) more claim", told)]
    assert sum(counted) == 5
    assert "1 more claim: no certificate, a reason" in told
    assert "2 more claims: no certificate, reason 0" in told


def test_what_has_no_certificate_is_said(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = Network.from_torch(nn.Sequential(nn.Linear(4, 4), nn.Mish(), nn.Linear(4, 2)).eval())
    x = torch.randn(1, 4)
    from holdfast.api.radius import radius_problems

    problems = list(radius_problems(net, x, net(x).argmax(-1)))
    [one] = prove(problems, solve(problems, METHODS), tmp_path)[:1]
    assert one.file is None
    assert "mish" in one.reason
    net, x, y = network("mlp")
    problems = list(radius_problems(net, x, y))
    records = solve(problems, METHODS)
    for one in prove(problems, records, tmp_path, stop=Stop(seconds=0.0)):
        assert one.file is None
        assert "time" in one.reason


def test_from_a_run_to_accepted_files_by_the_command_line(tmp_path: Path) -> None:
    run, out = str(tmp_path / "run"), tmp_path / "proofs"
    model = "holdfast.datasets.digits_networks:digits_cnn"
    asked = [
        "radius",
        "-m",
        model,
        "-d",
        "holdfast.datasets.digits:images",
        "--domain",
        "0,1",
        "--limit",
        "2",
        "--methods",
        "pgd,certify",
        "--out",
        run,
    ]
    assert CliRunner().invoke(app, asked).exit_code == 0
    again = ["--model", model, "--data", "holdfast.datasets.digits:images"]
    result = CliRunner().invoke(app, ["prove", run, "-o", str(out), "--input", "1", *again])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in out.iterdir()) == ["1.proof", "1.witness", "model.safetensors"]
    found = subprocess.run(
        [sys.executable, "-c", "import sys\nfrom holdfast_check.__main__ import main\ncode = main(sys.argv[1:])\n"
         "assert not [name for name in sys.modules if name.split('.')[0] in ('torch', 'holdfast', 'onnx', 'scipy')]\nsys.exit(code)",
         str(out / "model.safetensors"), str(out / "1.proof"), str(out / "1.witness")], capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert found.returncode == 0, found
    assert "2 of 2 accepted" in found.stdout, found
    (out / "1.proof").write_bytes(b"nonsense")
    assert holdfast_check.__main__.main([str(out / "model.safetensors"), str(out / "1.proof")]) == 1
    assert holdfast_check.__main__.main([str(out / "missing.onnx"), str(out / "1.proof")]) == 2
    assert CliRunner().invoke(app, ["prove", run, "-o", str(out), "--input", "9", *again]).exit_code != 0


def test_a_claim_names_what_it_is_about(tmp_path: Path) -> None:
    problems, records, made = proved("mlp", tmp_path)
    assert made[0].file is not None
    header, arrays = opened(made[0].file)
    assert header["question"] == records[0].question
    assert header["input"] == str(Key(0))
    claim = Claim.read_claim(header, arrays, Model.read_file(made[0].model or "").program)
    assert repr(made[0].value) in claim.numbers.sentence() or made[0].value != header["region"]["radius"]
    assert problems[0].goal == "radius"
    assert "between -2.0 and 2.0" in claim.numbers.sentence()
    smaller = {**arrays, "region/lower": arrays["region/centre"], "region/upper": arrays["region/centre"]}
    assert (
        "in the box"
        in Claim.read_claim(header, smaller, Model.read_file(made[0].model or "").program).numbers.sentence()
    )
    assert (
        "by the shares"
        in Claim.read_claim(
            header,
            {**arrays, "region/shares": np.array([1e-9])},
            Model.read_file(made[0].model or "").program,
        ).numbers.sentence()
    )


def test_slopes_of_single_rows(tmp_path: Path) -> None:
    """Trained ones prove more than the usual ones; no others prove what a witness excludes, and those that fit nothing are refused."""
    problems, _, made = proved("mlp", tmp_path)
    one = made[0]
    shown = next(other.known for other in made if other.kind == "witness" and other.key == one.key)
    assert one.file is not None
    assert one.model is not None
    model, (header, arrays) = Model.read_file(one.model), opened(one.file)
    claim = Claim.read_claim(header, arrays, model.program)
    part = problems[0].take(torch.tensor([0]))
    radius = one.value * 1.02
    match = MatchedActivations.of(part, model.program)
    assert match is not None
    *_, found = search_trained_slopes(
        match, part.family.at(torch.tensor([radius]).double()), claim.matrix, claim.offset
    )
    header["region"]["radius"] = radius
    margins = []
    for slopes_of_rows in ({}, found.arrays):
        asked = Claim.read_claim(header, {**arrays, **slopes_of_rows}, model.program)
        margins.append(StepBounds(model.program, asked.region, asked.slopes).rows(claim.matrix, claim.offset))
    assert (margins[1] >= margins[0] - 5e-3).all()
    slopes = {
        f"rows/{place}": np.zeros((1, len(claim.matrix), model.program.steps[place].size))
        for place in match.preactivations
    }
    points = part.region.centre.numpy().ravel() + radius * DRAW.uniform(
        -1, 1, (300, part.region.centre[0].numel())
    )
    values = model.program.value(np.clip(points, -2, 2)) @ claim.matrix.T
    for _ in range(10):
        drawn = {name: DRAW.uniform(-0.5, 1.5, array.shape) for name, array in slopes.items()}
        bounds = StepBounds(model.program, Claim.read_claim(header, arrays, model.program).region, drawn)
        assert (values >= bounds.rows(claim.matrix, claim.offset)).all()
        header["region"]["radius"] = shown
        one.file.write_bytes(pack_proof(header, {**arrays, **drawn}))
        assert not check(model, one.file).accepted
        header["region"]["radius"] = radius
    header["region"]["radius"] = one.value
    [name, *_] = slopes
    fitting = slopes[name]
    for wrong in (
        fitting[:, :1],
        fitting[..., :-1],
        fitting[0],
        np.concatenate([fitting, fitting]),
        np.full_like(fitting, np.nan),
    ):
        one.file.write_bytes(pack_proof(header, {**arrays, name: wrong}))
        assert not check(model, one.file).accepted
    one.file.write_bytes(pack_proof(header, {**arrays, "rows/0": fitting}))
    assert not check(model, one.file).accepted
    one.file.write_bytes(pack_proof(header, arrays))
    assert check(model, one.file).accepted
