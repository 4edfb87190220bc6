"""Instances of the verification competition (VNN-COMP) with known verdicts.

python -m benchmarks.lipschitz acasxu --seconds 116 --processes 2 --out benchmarks/.cache/results

--only keeps the instances whose network or property contains one of the words (as in --only prop_3 1_9),
--part 2/4 the second quarter. Networks come from the .onnx files of the shared data, otherwise from the
output of `prepare`. Every verdict is appended to NAME.csv at once; the final table counts what was solved and
what contradicts the key, with times. --merge runs nothing and makes that table from the files of earlier
runs: --merge OUT/*/mnist_fc.csv. Of two verdicts for an instance, a decided one counts.
"""

import argparse
import csv
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch

import holdfast as hf
from benchmarks.certify.table import Table
from benchmarks.lipschitz.prepare import CACHE, SETS, load
from holdfast.verification.instances import contradicts, plain, read_key


@dataclass(frozen=True)
class Question:
    model: Path
    spec: Path
    seconds: float
    expected: str
    threads: int
    device: str


@dataclass(frozen=True)
class Answer:
    network: str
    property: str
    answer: str
    seconds: float  # Seconds as the competition counts them: from reading the property on.
    loading: float  # Seconds of reading and tracing the network, once for each process and network.
    nodes: int
    least: float
    lowest: float
    expected: str
    note: str

    @property
    def solved(self) -> bool:
        return self.answer in ("sat", "unsat")

    @property
    def wrong(self) -> bool:
        return contradicts(self.answer, self.expected)

    @property
    def doubtful(self) -> bool:
        return self.solved and self.expected.endswith("?") and self.answer != self.expected.rstrip("?")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="WORD",
        help="instances whose network or property contains one of these",
    )
    parser.add_argument("--part", default="1/1", help="as in 2/4: every fourth instance, from the second on")
    parser.add_argument("--seconds", type=float, help="limit for each instance; default: that of the list")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--merge", nargs="+", type=Path, metavar="CSV", help="verdicts of earlier runs: only print the table"
    )
    parser.add_argument("--out", type=Path, help="folder for the verdicts and the table")


def main(chosen: argparse.Namespace) -> None:
    if chosen.merge:
        answers = _merged(chosen.merge)
        _tell(
            chosen,
            answers,
            f"in {sum(a.seconds for a in answers):.0f} s of computing, in {len(chosen.merge)} parts",
        )
        return
    asked = _chosen(chosen)
    out = None if chosen.out is None else chosen.out / f"{chosen.name}.csv"
    answers: list[Answer] = []
    began = time.monotonic()
    for answer in _answers(asked, chosen.processes):
        answers.append(answer)
        _keep(out, answer, first=len(answers) == 1)
        mark = "WRONG" if answer.wrong else "against most" if answer.doubtful else ""
        print(
            f"{len(answers)}/{len(asked)} {answer.network} {answer.property} {answer.answer} "
            f"{answer.seconds:.2f} s {mark}",
            flush=True,
        )
    spent = (
        f"in {time.monotonic() - began:.0f} s by {chosen.processes} processes "
        f"of {chosen.threads} threads on {chosen.device}"
    )
    _tell(chosen, answers, spent)


def _merged(files: list[Path]) -> list[Answer]:
    """The verdicts of several files, one for each instance."""
    found: dict[tuple[str, str], Answer] = {}
    for path in files:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                numbers = {"seconds": float, "loading": float, "nodes": int, "least": float, "lowest": float}
                answer = Answer(**{name: numbers.get(name, str)(value) for name, value in row.items()})
                question = answer.network, answer.property
                if question not in found or (answer.solved and not found[question].solved):
                    found[question] = answer
    return list(found.values())


def _chosen(chosen: argparse.Namespace) -> list[Question]:
    folder = chosen.data / SETS[chosen.name]
    folder = folder if folder.is_dir() else CACHE / chosen.name
    if not (folder / "instances.csv").is_file():
        raise SystemExit(
            f"neither the shared data nor {folder} exist. See python -m benchmarks.lipschitz prepare --help."
        )
    key = read_key(folder / "expected.csv")
    found = []
    with (folder / "instances.csv").open(newline="") as file:
        for network, spec, seconds in csv.reader(file):
            model = next(
                p for p in (folder / f"{network}.gz", (folder / network).with_suffix(".npz")) if p.is_file()
            )
            limit = float(seconds) if chosen.seconds is None else chosen.seconds
            found.append(
                Question(
                    model,
                    folder / f"{spec}.gz",
                    limit,
                    key[plain(network), plain(spec)],
                    chosen.threads,
                    chosen.device,
                )
            )
    wanted = [
        q for q in found if not chosen.only or any(w in q.model.name or w in q.spec.name for w in chosen.only)
    ]
    first, step = (int(number) for number in chosen.part.split("/"))
    return wanted[first - 1 :: step]


def _answers(asked: list[Question], processes: int) -> Iterator[Answer]:
    if processes == 1:
        yield from map(_answer, asked)
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap_unordered(_answer, asked)


_loaded: dict[Path, hf.Network] = {}


def _answer(question: Question) -> Answer:
    torch.set_num_threads(question.threads)
    began = time.monotonic()
    if question.model not in _loaded:
        _loaded.clear()
        read = load if question.model.suffix == ".npz" else hf.Network.from_onnx
        _loaded[question.model] = net = read(question.model, device=question.device)
        net.program(torch.zeros(1, *(size or 1 for size in net.shape or ()), dtype=net.dtype))
    loading, began = time.monotonic() - began, time.monotonic()
    found = hf.verify(_loaded[question.model], question.spec, stop=hf.Stop(seconds=question.seconds))
    spent = time.monotonic() - began
    names = (
        plain(question.model.with_suffix("") if question.model.suffix == ".npz" else question.model),
        plain(question.spec),
    )
    return Answer(
        *names,
        found.answer,
        spent,
        loading,
        found.nodes,
        found.least,
        found.lowest,
        question.expected,
        found.note,
    )


def _keep(out: Path | None, answer: Answer, *, first: bool) -> None:
    if out is None:
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("w" if first else "a", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(answer)))
        if first:
            writer.writeheader()
        writer.writerow(asdict(answer))


def _tell(chosen: argparse.Namespace, answers: list[Answer], spent: str) -> None:
    columns = [
        "questions",
        "asked",
        "sat",
        "unsat",
        "not solved",
        "wrong",
        "against most",
        "median s",
        "most s",
        "parts",
        "subproblems/s",
    ]
    table = Table(columns, chosen.out, chosen.name)
    groups: dict[str, list[Answer]] = {}
    for a in sorted(answers, key=_group):
        groups.setdefault(" ".join(_group(a)[1:]), []).append(a)
    for name, group in [*groups.items(), ("all", answers)]:
        solved, nodes = [a.seconds for a in group if a.solved], sum(a.nodes for a in group)
        given = [sum(a.answer == answer for a in group) for answer in ("sat", "unsat")]
        against = [sum(a.wrong for a in group), sum(a.doubtful for a in group)]
        pace = nodes / sum(a.seconds for a in group)
        table.add(
            name,
            len(group),
            *given,
            len(group) - len(solved),
            *against,
            median(solved or [0.0]),
            max(solved or [0.0]),
            nodes,
            pace,
        )
    solved_all = sum(a.solved for a in answers)
    table.say(f"{solved_all} of {len(answers)} solved {spent}.")
    for a in answers:
        if not a.solved or a.wrong or a.doubtful:
            state = f"{a.answer} after {a.seconds:.1f} s, margin in [{a.least:.3g}, {a.lowest:.3g}]"
            table.say(f"{a.network} {a.property}: {state}, key {a.expected} {a.note}")


def _group(a: Answer) -> tuple[int, str, str]:
    """Key of a table row: an ACAS Xu property, or a network of mnist_fc with the radius of its boxes."""
    if a.network.startswith("ACAS"):
        return len(a.property), a.property, ""
    return 0, a.network, a.property.rpartition("_")[2]
