"""Cost of the offline part: exact labels of every training transition, and of both abstractions.

python -m benchmarks.monitor offline --sets news --cells lstm gru

Exact labels: the label distribution over all mutants of every training word, with CPU and wall seconds of the
best of several rounds. Builds: CPU seconds from the same traces. Errors are mean squared errors of the score
over attackable test words; the training mean replaces pairs that MARBLE has not seen.
"""

import argparse
import time

from benchmarks.certify.table import Table
from benchmarks.monitor.data import Case, case, options
from holdfast.monitor.abstract.marble import Marble, Refinement
from holdfast.monitor.abstract.tree import DecisionTreeEstimate
from holdfast.monitor.engine.exact import labels


def arguments(parser: argparse.ArgumentParser) -> None:
    options(parser, ["news"])
    parser.add_argument("--theta", type=float, default=0.6)
    parser.add_argument("--rounds", type=int, default=3)


def main(chosen: argparse.Namespace) -> None:
    columns = ["network", "transitions", "mutants", "exact labels, CPU-s", "s"]
    table = Table(
        [*columns, "MARBLE CPU-s", "tree CPU-s", "ratio", "states", "MARBLE MSE", "tree MSE", "less error"],
        chosen.out,
        "offline",
    )
    for name in chosen.sets:
        for cell in chosen.cells:
            at = case(name, cell, chosen)
            count, mutants, spent = exact(at, chosen.rounds)
            new = at.new.rows(at.new.attackable)
            truth = new.scores.numpy()
            began = time.process_time()
            model = Marble.fit(at.seen, Refinement(at.texts.omega, chosen.theta))
            middle = time.process_time()
            tree = DecisionTreeEstimate.fit(at.seen)
            seconds = middle - began, time.process_time() - middle
            value, _ = model.estimate(new)
            said = [value, tree.estimate(new.successors, new.abstract, new.labels, new.margins)[0].numpy()]
            error = [float(((v - truth) ** 2).mean()) for v in said]
            size = f"{model.mdp.states} / {tree.leaves}"
            built = [
                *seconds,
                f"{seconds[0] / seconds[1]:.0f} x",
                size,
                *error,
                f"{100 * (1 - error[1] / error[0]):.0f} %",
            ]
            table.add(str(at), count, mutants, *spent, *built)


def exact(at: Case, rounds: int) -> tuple[int, int, list[float]]:
    """Numbers of transitions and mutants, and CPU and wall seconds of the best round."""
    spent = []
    for _ in range(rounds):
        began, wall = time.process_time(), time.perf_counter()
        found = labels(at.net, at.train.tokens, at.mutation, view=at.view)
        spent.append([time.process_time() - began, time.perf_counter() - wall])
    return len(found.labels), int(found.support.sum()), min(spent)
