"""Certificates: size, seconds to write and to check, loss to the checker's rounding, and mutants.

python -m benchmarks.proofs --data SHARED            everything
python -m benchmarks.proofs --only claims mutants    the parts that need no data besides this repository

Seconds are CPU seconds of one core. Proving is the engine's search for both bounds. Writing includes the
checker's check of the written file. Checking reads the file and checks the proof again.
"""

import argparse
import csv
import json
import math
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.data import SHARED, shared
from benchmarks.certify.table import Table
from benchmarks.proofs.mutants import broken_signs, mutants, other_signs
from holdfast.api.methods import default_methods
from holdfast.api.prove import prove
from holdfast.api.radius import radius_problems
from holdfast.certificates.claim import pack_proof
from holdfast.certificates.writing import Certificate
from holdfast.datasets.digits import digits as digits_data
from holdfast.datasets.digits_networks import digits_cnn, digits_gru, digits_lstm
from holdfast.problem import Problem
from holdfast_check import Model, check
from holdfast_check.container import read_container
from holdfast_check.proof import SCHEMA

COLUMNS = [
    "network",
    "tier, norm",
    "claims",
    "accepted",
    "CPU s to prove",
    "to write",
    "to check",
    "bytes",
    "of the record's radius",
    "least",
]
SOURCE = Path(__file__).resolve().parents[2] / "src" / "holdfast_check"


class Rnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.RNN(8, 24, batch_first=True), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.last(self.cell(x)[0][:, -1])
        return answer


def trained(module: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    optimiser = torch.optim.Adam(module.parameters(), 5e-3)
    for _ in range(150):
        loss = nn.functional.cross_entropy(module(x), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return module.eval()


def digits(count: int) -> Iterator[tuple[str, hf.Network, Tensor, Tensor]]:
    torch.manual_seed(0)
    found = digits_data("test")
    by_rows, by_images = (found.x.flatten(1, 2), found.y), (found.x, found.y)
    mlp = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10)
    )
    for name, module, data in (
        ("digits LSTM", digits_lstm(), by_rows),
        ("digits GRU", digits_gru(), by_rows),
        ("digits CNN", digits_cnn(), by_images),
        ("digits RNN", trained(Rnn(), *by_rows), by_rows),
        ("digits MLP", trained(mlp, *by_images), by_images),
    ):
        x, y = data[0][: 4 * count], data[1][: 4 * count]
        right = module(x).argmax(1) == y
        yield name, hf.Network.from_torch(module.eval(), domain=(0, 1)), x[right][:count], y[right][:count]


def measured(
    table: Table,
    name: str,
    net: hf.Network,
    problems: list[Problem],
    tier: str,
    norm: str,
    folder: Path,
    *,
    file: Path | None = None,
    seconds: float | None = None,
) -> list[Certificate]:
    goal = problems[0].goal
    began = time.process_time()
    records = hf.solve(problems, default_methods(net, goal, tier), hf.Stop(seconds=seconds))  # type: ignore[arg-type]
    proving = time.process_time() - began
    return counted(table, name, f"{tier}, {norm}", problems, records, proving, folder, file)


def counted(
    table: Table,
    name: str,
    what: str,
    problems: list[Problem],
    records: list[hf.Record],
    proving: float,
    folder: Path,
    file: Path | None,
    stop: hf.Stop | None = None,
) -> list[Certificate]:
    began = time.process_time()
    made = prove(problems, records, folder, file=file, stop=stop)
    writing, proofs = time.process_time() - began, [one for one in made if one.kind == "proof"]
    written = [one for one in proofs if one.file is not None]
    began = time.process_time()
    accepted = sum(
        check(one.model, one.file).accepted for one in made if one.file is not None and one.model is not None
    )
    checking = time.process_time() - began
    shares = [
        one.value / one.known for one in written if one.known and math.isfinite(one.known) and one.value
    ]
    size = sum(one.size for one in written) / max(1, len(written))
    each = [seconds / max(1, len(proofs)) for seconds in (proving, writing, checking)]
    least = (sum(shares) / len(shares), min(shares)) if shares else (None, None)
    table.add(name, what, len(made), accepted, *each, round(size), *least)
    for reason in sorted({one.reason for one in made if one.reason}):
        print(f"  no certificate: {reason}")
    return made


def claims(table: Table, chosen: argparse.Namespace, folder: Path) -> None:
    for name, net, x, y in digits(chosen.count):
        half = len(x) // 2
        for norm, some in ((math.inf, slice(0, half)), (2.0, slice(half, None))):
            problems = list(radius_problems(net, x[some], y[some], norm=norm))
            measured(table, name, net, problems, "fast", f"{norm:g}", folder / name / f"{norm}")
    for name, net, x, y in digits(chosen.trained):
        recurrent = name in ("digits LSTM", "digits GRU", "digits RNN")
        for tier, norm in (("tight", math.inf), ("tight", 2.0) if recurrent else ("split", math.inf)):
            problems = list(radius_problems(net, x, y, norm=norm))
            measured(
                table,
                name,
                net,
                problems,
                tier,
                f"{norm:g}",
                folder / name / f"{tier}{norm}",
                seconds=20 * len(x),
            )


def mnist_lstm(table: Table, chosen: argparse.Namespace, folder: Path) -> None:
    from benchmarks.certify.prover import Lstm
    from benchmarks.certify.prover import images as mnist

    module = Lstm(shared("prover", chosen.data) / "mnist_07f_032h_1l.safetensors", 7).eval()
    x, y = mnist(module, 7, 4, chosen.data)
    net = hf.Network.from_torch(module, domain=(0, 1))
    name = "MNIST LSTM 7 x 32, 784 inputs"
    measured(table, name, net, list(radius_problems(net, x, y)), "fast", "inf", folder / "prover")
    measured(
        table,
        name,
        net,
        list(radius_problems(net, x[:2], y[:2])),
        "tight",
        "inf",
        folder / "prover tight",
        seconds=120,
    )


def mnist_fc(table: Table, chosen: argparse.Namespace, folder: Path) -> None:
    from benchmarks.certify.data import mnist_frames

    x, y = mnist_frames(28, "test", chosen.data)
    for file in sorted((shared("vnncomp", chosen.data) / "mnist_fc" / "onnx").glob("*x2*")):
        net = hf.Network.from_onnx(file)
        points = ((x[:20] + 1) / 2).reshape(20, *(size or 784 for size in net.shape or (784,)))
        right = net(points).argmax(1) == y[:20]
        problems = list(radius_problems(net, points[right][:3], y[:20][right][:3]))
        measured(table, "mnist_fc 256 x 2", net, problems, "fast", "inf", folder / "fc", file=file)


def mnist_verify(table: Table, chosen: argparse.Namespace, folder: Path) -> None:
    """Certify instances that are known to hold, in the order of the competition's list.

    Each has a minute for the search and another for its certificate. Branching on ReLU signs settles what
    linear bounds alone do not.
    """
    from holdfast.verification.search import Scatter
    from holdfast.verification.specification import problem_of
    from holdfast.verification.verify import select_methods
    from holdfast.verification.vnnlib import read_vnnlib

    place = shared("vnncomp", chosen.data) / "mnist_fc"
    for layers in ("256x2", "256x4"):
        with (place / "expected.csv").open() as listed:
            known = [
                row
                for row in csv.DictReader(listed)
                if layers in row["network"] and row["expected"] == "unsat"
            ]
        for row in known[: chosen.instances]:
            file = place / f"{row['network']}.gz"
            net = hf.Network.from_onnx(file)
            problem = problem_of(net, read_vnnlib(place / f"{row['property']}.gz"))
            began = time.process_time()
            records = hf.solve(
                [problem], select_methods(None, Scatter(), None), hf.Stop(seconds=chosen.seconds, sign=True)
            )
            proving = time.process_time() - began
            what, name = f"verify {Path(row['property']).stem}", f"mnist_fc {layers}"
            if not records[0].bracket.lower.value > 0:
                print(
                    f"  {name}, {what}: not decided in {chosen.seconds:g} s, so there is no certificate",
                    flush=True,
                )
                continue
            out = folder / f"{layers}{Path(row['property']).stem}"
            counted(
                table, name, what, [problem], records, proving, out, file, hf.Stop(seconds=2 * chosen.seconds)
            )


def acasxu(table: Table, chosen: argparse.Namespace, folder: Path) -> None:
    from holdfast.verification.search import Scatter
    from holdfast.verification.specification import problem_of
    from holdfast.verification.verify import select_methods
    from holdfast.verification.vnnlib import read_vnnlib

    place = shared("acasxu", chosen.data)
    for network, rule in (("1_1", 3), ("1_6", 3), ("1_6", 4), ("3_3", 4), ("5_5", 3)):
        file = place / "onnx" / f"ACASXU_run2a_{network}_batch_2000.onnx.gz"
        net = hf.Network.from_onnx(file)
        problem = problem_of(net, read_vnnlib(place / "vnnlib" / f"prop_{rule}.vnnlib.gz"))
        began = time.process_time()
        records = hf.solve([problem], select_methods(None, Scatter(), None), hf.Stop(seconds=60, sign=True))
        proving = time.process_time() - began
        out = folder / f"acas{network}{rule}"
        kept = [record for record in records if record.bracket.lower.value > 0]
        for one in counted(
            table, f"ACAS Xu {network}, property {rule}", "verify, box", [problem], kept, proving, out, file
        ):
            if one.file is not None and one.kind == "proof":
                tree = read_container(one.file.read_bytes())[1].get("tree", np.array([-1]))
                print(f"  {int((tree == -1).sum())} leaves")


def broken(chosen: argparse.Namespace, folder: Path) -> None:
    """Mutate proofs for every kind of network; the checker must reject all mutants."""
    tried = accepted = 0
    draw = np.random.default_rng(0)
    found = [(name, net, x, y, "fast") for name, net, x, y in digits(chosen.mutated)]
    found += [
        (name, net, x, y, "tight")
        for name, net, x, y in digits(min(2, chosen.mutated))
        if name in ("digits LSTM", "digits RNN")
    ]
    found.sort(key=lambda one: one[0] == "digits LSTM" and one[-1] == "tight")  # which takes longest
    for name, net, x, y, tier in found:
        problems = list(radius_problems(net, x, y))
        records = hf.solve(problems, default_methods(net, "radius", tier), hf.Stop(seconds=60))  # type: ignore[arg-type]
        made = prove(problems, records, folder / name / f"mutants {tier}")
        shown = {one.key: one.known for one in made if one.kind == "witness" and one.file is not None}
        for one in (one for one in made if one.kind == "proof" and one.file is not None and one.key in shown):
            assert one.file is not None
            assert one.model is not None
            metadata, arrays = read_container(one.file.read_bytes())
            model, path = Model.read_file(one.model), folder / "mutant.proof"
            files = mutants(json.loads(metadata[SCHEMA]), dict(arrays), shown[one.key], draw)
            tried, accepted = tried + len(files), accepted + _accepted(model, path, files)
        print(f"{name}, {tier}: {tried} mutants tried up to here, {tried - accepted} rejected.", flush=True)


def broken_trees(chosen: argparse.Namespace, folder: Path) -> None:
    """Mutate branch-and-bound proofs on ReLU signs.

    The claimed radius lies between the radius from linear bounds alone and the counterexample's distance.
    Other, well-formed trees claim the counterexample's own distance.
    """
    tried = accepted = 0
    draw = np.random.default_rng(0)
    for name, net, x, y in digits(min(6, chosen.mutated)):
        if name not in ("digits MLP", "digits CNN"):
            continue
        problems = list(radius_problems(net, x, y))
        records = hf.solve(problems, default_methods(net, "radius", "fast"))
        further = [(record, record.bracket.lower.value, record.bracket.upper.value) for record in records]
        aimed = [
            _proved(record, low + (high - low) * (0.5 if name == "digits MLP" else 0.2))
            for record, low, high in further
        ]
        made = prove(problems, aimed, folder / name / "signs")
        shown = {one.key: one.known for one in made if one.kind == "witness"}
        for one in (one for one in made if one.kind == "proof" and one.file is not None):
            assert one.file is not None
            assert one.model is not None
            metadata, arrays = read_container(one.file.read_bytes())
            if "signs" not in arrays:
                continue
            header, model, path = (
                json.loads(metadata[SCHEMA]),
                Model.read_file(one.model),
                folder / "mutant.proof",
            )
            false = {**header, "region": {**header["region"], "radius": shown[one.key]}}
            files = [
                *((header, other) for other in broken_signs(arrays)),
                *((false, other) for other in other_signs(arrays, draw)),
            ]
            tried, accepted = tried + len(files), accepted + _accepted(model, path, files)
    print(f"\n{tried} mutants of branch-and-bound proofs tried, {tried - accepted} rejected.", flush=True)


def _accepted(model: Model, path: Path, files: list[tuple[dict[str, Any], dict[str, Any]]]) -> int:
    """Count the mutants (headers and arrays, written as files) that the checker accepts; print each accepted
    one.
    """
    accepted = 0
    for header, arrays in files:
        path.write_bytes(pack_proof(header, arrays))
        if check(model, path).accepted:
            accepted += 1
            print("ACCEPTED", header)
    return accepted


def _proved(record: hf.Record, radius: float) -> hf.Record:
    """A copy of the record that claims `radius` as its certified lower bound, whether or not that is true."""
    return replace(record, bracket=replace(record.bracket, lower=replace(record.bracket.lower, value=radius)))


def lines() -> None:
    import ast

    total = blank = words = 0
    for path in SOURCE.glob("*.py"):
        text = path.read_text()
        total += len(text.splitlines())
        blank += sum(not line.strip() for line in text.splitlines())
        words += sum(line.strip().startswith("#") for line in text.splitlines())
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
                words += (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
    print(
        f"\nThe checker has {total - blank - words} lines of code; with {words} of docstrings and comments "
        f"and {blank} empty ones, {total}."
    )


PARTS = {"claims": claims, "prover": mnist_lstm, "fc": mnist_fc, "verify": mnist_verify, "acasxu": acasxu}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.proofs", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=SHARED, help="folder of the shared data")
    parser.add_argument(
        "--count", type=int, default=20, help="inputs of each digits network, half in each norm"
    )
    parser.add_argument(
        "--trained", type=int, default=2, help="inputs of each digits network for tiers tight and split"
    )
    parser.add_argument("--instances", type=int, default=10, help="instances of each mnist_fc network")
    parser.add_argument("--seconds", type=float, default=60, help="seconds for each of these instances")
    parser.add_argument(
        "--mutated", type=int, default=8, help="inputs of each digits network whose proofs are mutated"
    )
    parser.add_argument(
        "--only", nargs="+", choices=[*PARTS, "mutants", "lines"], default=[*PARTS, "mutants", "lines"]
    )
    parser.add_argument("--out", type=Path, help="folder where the table is written")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        if set(chosen.only) & set(PARTS):
            table = Table(COLUMNS, chosen.out, "proofs")
            for name in chosen.only:
                if name in PARTS:
                    PARTS[name](table, chosen, Path(place))
        if "mutants" in chosen.only:
            broken(chosen, Path(place))
            broken_trees(chosen, Path(place))
        if "lines" in chosen.only:
            lines()


if __name__ == "__main__":
    main()
