"""k-step robustness through the abstract model: as published, corrected, and a constant, against enumeration.

python -m benchmarks.monitor steps --sets news --cells lstm --k 0 1 2 3

The paper propagates k unmutated steps and then mutates the last element. The corrected propagation follows
the mutants of the first element. Errors are mean squared errors of the score over attackable words of the
test texts. Probability mass that propagation loses to unseen transitions counts as the constant.
"""

import argparse

import numpy as np

from benchmarks.certify.table import Table
from benchmarks.monitor.data import case, options
from holdfast.monitor.abstract.marble import Marble, Refinement
from holdfast.monitor.abstract.traces import profile
from holdfast.monitor.engine.exact import labels


def arguments(parser: argparse.ArgumentParser) -> None:
    options(parser, ["news"])
    parser.add_argument("--k", nargs="+", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--theta", type=float, default=0.6)


def main(chosen: argparse.Namespace) -> None:
    table = Table(
        ["network", "k", "words", "constant", "as published", "mass lost, %", "corrected", "mass lost, %"],
        chosen.out,
        "steps",
    )
    for name in chosen.sets:
        for cell in chosen.cells:
            at = case(name, cell, chosen)
            seen = profile(at.net, at.train.tokens, at.mutation, None, at.view, mutants=True)
            model = Marble.fit(seen, Refinement(at.texts.omega, chosen.theta))
            states, groups, said = (
                model.abstract(at.new.states),
                at.new.abstract.numpy(),
                at.new.labels.numpy(),
            )
            ends = np.cumsum([len(tokens) for tokens in at.test.tokens])[:-1]
            parts = list(
                zip(np.split(states, ends), np.split(groups, ends), np.split(said, ends), strict=True)
            )
            for k in chosen.k:
                exact = labels(at.net, at.train.tokens, at.mutation, k=k, view=at.view)
                usual = float(exact.values[exact.attackable & (exact.labels >= 0)].mean())
                exact = labels(at.net, at.test.tokens, at.mutation, k=k, view=at.view)
                rows = (exact.attackable & (exact.labels >= 0)).numpy()
                truth, cells = exact.values.numpy()[rows], list[float | str]()
                for corrected in (False, True):
                    found = [model.mdp.robustness(*part, k, corrected=corrected) for part in parts]
                    value, mass = (np.concatenate(column)[rows] for column in zip(*found, strict=True))
                    cells += [
                        float(((value + (1 - mass) * usual - truth) ** 2).mean()),
                        f"{100 * (1 - mass.mean()):.1f}",
                    ]
                table.add(str(at), k, len(truth), float(((truth - usual) ** 2).mean()), *cells)
