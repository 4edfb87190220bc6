"""Problems of many families of the verification competition (VNN-COMP), with the verdicts of its tools.

python -m benchmarks.lipschitz practice --seconds 20 --processes 8 --out benchmarks/.cache/results

Every problem runs in a process of its own with one thread. Its budget begins with the process, so imports, reading and
tracing are part of it; a process that is still running LATE seconds after its budget is ended and has no answer. Each
answer is appended to practice.csv at once. Then: a table by family (solved, wrong, open, the competition's best), and a
line for each open problem with its bounds, the subproblems that were bounded, and its overrun.

--only keeps the families, networks or properties that contain one of the words, --part 2/4 the second quarter. --merge
runs nothing and makes the table from the files of earlier runs. --clock cpu counts processor time instead of wall time,
for machines that do other work at the same time; the table's seconds are then processor seconds.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import get_type_hints

from benchmarks.certify.data import ROOT, shared
from benchmarks.certify.table import Table
from holdfast.verification.instances import contradicts, plain

FOLDER = "vnncomp/practice"
# Seconds after its budget at which a process is ended: long enough to see by how much a search overruns.
LATE = 60.0
# With the clock `cpu`, the wall time of a process may be this many times its budget before it is ended: the machine does
# other work.
LOADED = 10.0


@dataclass(frozen=True)
class PracticeAnswer:
    """The answer to one problem. Times are in seconds; `seconds` counts from the start of the process."""

    family: str
    network: str
    property: str
    expected: str
    best_seconds: float  # of the competition's fastest tool, on its own machine; nan: nobody answered
    answer: str  # sat, unsat, timeout, unknown, or error
    seconds: float
    budget: float
    cpu: float
    imports: float  # processor seconds until the library is imported
    gigabytes: float
    nodes: int
    least: float
    lowest: float
    note: str

    @property
    def solved(self) -> bool:
        return self.answer in ("sat", "unsat")

    @property
    def wrong(self) -> bool:
        return contradicts(self.answer, self.expected)


@dataclass(frozen=True)
class PracticeProblem:
    """One line of instances.csv."""

    family: str
    model: Path
    spec: Path
    expected: str
    best_seconds: float

    def answer(self, seconds: float, device: str, clock: str = "wall") -> PracticeAnswer:
        """Run the problem in a process of its own."""
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
        if device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        begun = time.time()
        arguments = [str(self.model), str(self.spec), str(seconds), device, str(begun), clock]
        command = [sys.executable, "-m", "benchmarks.lipschitz.one_instance", *arguments]
        found: dict[str, object] = {"answer": "error", "note": ""}
        try:
            ended = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                capture_output=True,
                text=True,
                timeout=seconds + LATE if clock == "wall" else LOADED * (seconds + LATE),
            )
            lines = ended.stdout.strip().splitlines()
            if ended.returncode == 0 and lines:
                found = json.loads(lines[-1])
            else:
                found["note"] = f"exit code {ended.returncode}: {ended.stderr.strip()[-300:]}"
        except subprocess.TimeoutExpired:
            found = {"answer": "timeout", "note": f"ended {LATE:.0f} s after its budget"}
        names = ("cpu", "imports", "gigabytes", "least", "lowest")
        number = {name: float("nan" if found.get(name) is None else str(found[name])) for name in names}
        used = number["cpu"] if clock == "cpu" else time.time() - begun
        return PracticeAnswer(
            self.family,
            plain(self.model),
            plain(self.spec),
            self.expected,
            self.best_seconds,
            str(found["answer"]),
            used,
            seconds,
            nodes=int(str(found.get("nodes", 0))),
            note=str(found["note"])[:300],
            **number,
        )


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="problems that contain a word")
    parser.add_argument("--part", default="1/1", help="as in 2/4: every fourth problem, from the second on")
    parser.add_argument("--seconds", type=float, default=20.0, help="budget of each problem")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall", help="what the budget counts")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="CSV", help="answers of earlier runs")
    parser.add_argument("--out", type=Path, help="folder for the answers and the table")


def main(chosen: argparse.Namespace) -> None:
    began, answers = time.monotonic(), list[PracticeAnswer]()
    if chosen.merge:
        answers = _read_answers(chosen.merge)
        spent = f"in {len(chosen.merge)} parts"
    else:
        problems = read_problems(chosen)
        for answer in _answer_all(problems, chosen):
            answers.append(answer)
            _keep(chosen.out, answer, first=len(answers) == 1)
            mark = "WRONG" if answer.wrong else ""
            print(
                f"{len(answers)}/{len(problems)} {answer.family} {answer.network} {answer.property} "
                f"{answer.answer} (expected {answer.expected}) {answer.seconds:.1f} s {mark}",
                flush=True,
            )
        spent = (
            f"in {time.monotonic() - began:.0f} s by {chosen.processes} processes, {chosen.seconds:g} s each"
        )
    show_answers(answers, spent, chosen.out)


def read_problems(chosen: argparse.Namespace) -> list[PracticeProblem]:
    """The chosen problems of instances.csv."""
    folder, found = shared(FOLDER, chosen.data), list[PracticeProblem]()
    with (folder / "instances.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if any(
                word in " ".join((row["family"], row["onnx"], row["vnnlib"])) for word in chosen.only or [""]
            ):
                best = float(row["best_seconds"] or "nan")
                model, spec = folder / row["onnx"], folder / row["vnnlib"]
                found.append(PracticeProblem(row["family"], model, spec, row["expected"], best))
    first, step = (int(number) for number in chosen.part.split("/"))
    return found[first - 1 :: step]


def _answer_all(problems: list[PracticeProblem], chosen: argparse.Namespace) -> Iterator[PracticeAnswer]:
    """The answers, in the order in which they come in."""
    with ThreadPoolExecutor(chosen.processes) as pool:
        waiting = [
            pool.submit(problem.answer, chosen.seconds, chosen.device, chosen.clock) for problem in problems
        ]
        for answered in as_completed(waiting):
            yield answered.result()


def _keep(out: Path | None, answer: PracticeAnswer, *, first: bool) -> None:
    if out is None:
        return
    out.mkdir(parents=True, exist_ok=True)
    with (out / "practice.csv").open("w" if first else "a", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(answer)))
        if first:
            writer.writeheader()
        writer.writerow(asdict(answer))


def _read_answers(files: list[Path]) -> list[PracticeAnswer]:
    """The answers of several files, one for each problem; a decided answer counts before an open one."""
    types = get_type_hints(PracticeAnswer)
    found: dict[tuple[str, str, str], PracticeAnswer] = {}
    for path in files:
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                answer = PracticeAnswer(**{name: types[name](value) for name, value in row.items()})
                problem = answer.family, answer.network, answer.property
                if problem not in found or (answer.solved and not found[problem].solved):
                    found[problem] = answer
    return list(found.values())


def show_answers(answers: list[PracticeAnswer], spent: str, out: Path | None = None) -> None:
    """Print the table by family and a line for each problem that is open or wrong."""
    columns = [
        "family",
        "problems",
        "verdicts",
        "solved",
        "wrong",
        "open",
        "median s",
        "most s",
        "best median s",
    ]
    table = Table(columns, out, "practice")
    families: dict[str, list[PracticeAnswer]] = {}
    for answer in sorted(answers, key=lambda a: (a.family, a.network, a.property)):
        families.setdefault(answer.family, []).append(answer)
    for name, group in [*families.items(), ("all", answers)]:
        known = [a for a in group if a.expected in ("sat", "unsat")]
        solved = [a for a in group if a.solved]
        best = [a.best_seconds for a in known]
        table.add(
            name,
            len(group),
            len(known),
            sum(a.solved for a in known),
            sum(a.wrong for a in group),
            sum(not a.solved for a in known),
            median([a.seconds for a in solved] or [float("nan")]),
            max([a.seconds for a in group]),
            median(best or [float("nan")]),
        )
    late = max(a.seconds - a.budget for a in answers)
    table.say(
        f"{sum(a.solved for a in answers if a.expected in ('sat', 'unsat'))} solved {spent}; largest overrun {late:.1f} s; "
        f"median start-up {median(a.imports for a in answers):.1f} CPU-s of imports; "
        f"median {median(a.cpu for a in answers):.1f} CPU-s."
    )
    for a in (a for group in families.values() for a in group):
        if not a.solved or a.wrong:
            state = f"{a.answer}, margin in [{a.least:.3g}, {a.lowest:.3g}], {a.nodes} subproblems"
            cost = f"{a.seconds:.1f} s, {a.seconds - a.budget:+.1f} s of its budget, {a.gigabytes:.1f} GiB"
            table.say(
                f"{a.family} {a.network} {a.property}: {state}, {cost}, expected {a.expected}. {a.note}"
            )
