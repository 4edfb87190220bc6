"""MARBLE's Table 2: does a robustness score find the words that an attack should replace?

python -m benchmarks.monitor table2 --sets news trec --cells lstm gru

For every test text with at least two attackable words, the table gives the expected attack success at the
word with a method's smallest (largest) score: the exact probability that the final label changes when this
word alone is replaced by another of its group. Expectations are enumerated, not sampled; over words with
equal scores the mean counts. The interval is the normal one at 95 % over texts. "tree, final" is the abstract
model fitted to exact final-step scores of the training texts: like all others but the exact final step, it
does not read beyond the word that it scores. The paper has 42 texts for "QC", GloVe vectors (at cosine 0.75)
and other networks.
"""

import argparse
from dataclasses import dataclass

import torch
from scipy.stats import mannwhitneyu
from torch import Tensor

from benchmarks.certify.table import Table
from benchmarks.monitor.data import Case, accuracy, case, options
from holdfast.monitor.abstract.marble import Marble, Refinement
from holdfast.monitor.abstract.tree import DecisionTreeEstimate

PAPER = {
    "news": ("11.7", "20.00 / 4.40"),
    "toxic": ("3.0", "8.76 / 2.29"),
    "imdb": ("1.7", "3.60 / 1.17"),
}  # LSTM: random; MARBLE at 0.6


@dataclass(frozen=True)
class Places:
    """The attackable words of eligible texts."""

    text: Tensor  # (words,) index of each word's text, increasing from 0
    success: Tensor  # (words,) probability that a replacement changes the final label

    def picked(self, score: Tensor) -> Tensor:
        """Expected success (texts,) at the word with the smallest score of each text."""
        count = int(self.text[-1]) + 1
        least = torch.full((count,), torch.inf, dtype=torch.float64).scatter_reduce(
            0, self.text, score, "amin"
        )
        tied = (score == least[self.text]).double()
        return self._sums(tied * self.success) / self._sums(tied)

    def mean(self) -> Tensor:
        return self._sums(self.success) / self._sums(torch.ones_like(self.success))

    def _sums(self, values: Tensor) -> Tensor:
        return torch.zeros(int(self.text[-1]) + 1, dtype=torch.float64).index_add_(0, self.text, values)


def arguments(parser: argparse.ArgumentParser) -> None:
    options(parser, ["news", "trec"])
    parser.add_argument("--theta", type=float, default=0.6)


def main(chosen: argparse.Namespace) -> None:
    table = Table(
        [
            "network",
            "accuracy",
            "texts",
            "score",
            "least robust, %",
            "most robust, %",
            "p, least against random",
            "paper, least / most",
        ],
        chosen.out,
        "table2",
    )
    for name in chosen.sets:
        for cell in chosen.cells:
            measure(table, case(name, cell, chosen), chosen.theta)


def measure(table: Table, at: Case, theta: float) -> None:
    new, final = at.new, at.final("test")
    enough = torch.bincount(new.sequence, new.attackable.double()) >= 2
    rows = (new.attackable & enough[new.sequence]).nonzero()[:, 0]
    replaced = 1 - 1 / final.support[rows]  # The score counts the word itself as a member of its group.
    places = Places(new.sequence[rows].unique(return_inverse=True)[1], (1 - final.values[rows]) / replaced)
    some = new.rows(rows)
    published = Marble.fit(at.seen, Refinement(at.texts.omega, theta))
    trees = [
        DecisionTreeEstimate.fit(at.seen),
        DecisionTreeEstimate.fit(at.seen, scores=at.final("train").values),
    ]
    behind = [tree.estimate(some.successors, some.abstract, some.labels, some.margins)[0] for tree in trees]
    scores = {
        f"MARBLE ({at.texts.omega}, {theta})": torch.from_numpy(published.estimate(some)[0]),
        "tree": behind[0],
        "tree, final": behind[1],
        "exact 0-step": some.scores,
        "exact final-step": final.values[rows],
    }
    about = [str(at), f"{accuracy(at.module, at.test):.1%}", int(enough.sum())]
    paper = PAPER.get(at.name, ("", "")) if at.cell == "lstm" else ("", "")
    table.add(*about, "random word", shown(places.mean()), shown(places.mean()), None, paper[0])
    for name, score in scores.items():
        table.add(
            *about,
            name,
            shown(places.picked(score)),
            shown(places.picked(-score)),
            mann_whitney(places.picked(score), places.mean()),
            paper[1] if "MARBLE" in name else None,
        )


def mann_whitney(least: Tensor, random: Tensor) -> str:
    """The p-value of the one-sided Mann-Whitney U test (the paper's Figure 4): is the success at the least
    robust word larger?
    """
    return f"{mannwhitneyu(least.numpy(), random.numpy(), alternative='greater').pvalue:.2g}"


def shown(success: Tensor) -> str:
    return f"{100 * float(success.mean()):.2f} ± {196 * float(success.std()) / len(success) ** 0.5:.2f}"
