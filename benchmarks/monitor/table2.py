"""MARBLE's Table 2 and Figure 4: does a robustness score find the words that an attack should replace?

python -m benchmarks.monitor table2 --sets news trec --cells lstm gru
python -m benchmarks.monitor table2 --sets trec --cells lstm --popqorn 42 --longest 8

For every test text with at least two attackable words, the table gives the expected attack success at the
word with a method's smallest (largest) score: the exact probability that the final label changes when this
word alone is replaced by another of its group. Expectations are enumerated, not sampled; over words with
equal scores the mean counts. The interval is the normal one at 95 % over texts. "tree, final" is the abstract
model fitted to exact final-step scores of the training texts: like all others but the exact final step and
POPQORN, it does not read beyond the word that it scores. The paper has 42 texts for "QC", GloVe vectors (at
cosine 0.75) and other networks.

POPQORN's score of a word is its certified l2 radius in the space of the word vectors, the other words fixed.
With --popqorn N all rows are of the first N texts of at most --longest words, as in the paper, whose POPQORN
ended for 42 titles. Its seconds include the tracing of each new length.

"p" is the p-value of the one-sided Mann-Whitney U test that the success at the least robust word is larger
than at a random word. "Over texts" compares the texts' expectations. "Over repeats" is the paper's protocol:
100 attack success rates, each with one random replacement for each text; it says nothing about other texts.

Two columns control for the position of the word: the success at the picked word minus the mean success of all
attackable words of the other test texts that are as far from the beginning (the end). The rows "first word" and
"last word" pick by position alone: a score that finds no more than they do may know nothing else.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.stats import mannwhitneyu
from torch import Tensor

import holdfast as hf
from benchmarks.certify.measure import backward_passes_only
from benchmarks.certify.nets import Reader
from benchmarks.certify.table import Table
from benchmarks.charts import draw_bars, new_figure, save
from benchmarks.monitor.data import Case, accuracy, case, options
from holdfast.monitor.abstract.marble import Marble, Refinement
from holdfast.monitor.abstract.traces import Traces
from holdfast.monitor.abstract.tree import DecisionTreeEstimate

REPEATS = 100  # Random replacements of each text in the paper's test.

# The paper's Table 2 (LSTM networks): least robust, most robust, seconds a text.
PAPER: dict[tuple[str, int, float], tuple[float, float, float]] = {
    ("news", 16, 0.3): (20.24, 5.76, 0.02),
    ("news", 16, 0.6): (20.00, 4.40, 0.02),
    ("news", 16, 1.0): (22.71, 4.24, 0.02),
    ("news", 32, 0.3): (19.83, 2.67, 0.03),
    ("news", 32, 0.6): (20.10, 2.57, 0.05),
    ("news", 32, 1.0): (17.74, 5.40, 0.06),
    ("toxic", 16, 0.3): (7.27, 2.00, 0.22),
    ("toxic", 16, 0.6): (8.76, 2.29, 0.24),
    ("toxic", 16, 1.0): (10.24, 2.29, 0.21),
    ("toxic", 32, 0.3): (7.80, 2.10, 0.27),
    ("toxic", 32, 0.6): (10.46, 2.24, 0.25),
    ("toxic", 32, 1.0): (11.74, 2.20, 0.23),
    ("imdb", 32, 0.3): (4.76, 1.11, 1.09),
    ("imdb", 32, 0.6): (3.60, 1.17, 1.04),
    ("imdb", 32, 1.0): (4.01, 1.06, 0.84),
    ("imdb", 64, 0.3): (4.04, 1.06, 1.25),
    ("imdb", 64, 0.6): (3.59, 1.01, 1.16),
    ("imdb", 64, 1.0): (2.79, 1.16, 1.05),
}
# Section 5.3 (Figure 4) and 5.2 of the paper, LSTM networks.
PAPER_RANDOM = {"news": "11.7", "toxic": "3.0", "imdb": "1.7"}
PAPER_POPQORN = {"news": "14.9 / 10, 3168 s"}


@dataclass(frozen=True)
class Places:
    """The attackable words of eligible texts."""

    text: Tensor  # (words,) index of each word's text, increasing from 0
    success: Tensor  # (words,) probability that a replacement changes the final label
    # (2, words): mean success of other texts' words as far from the beginning, and from the end; NaN where
    # there are none.
    usual: Tensor

    def picked(self, score: Tensor, values: Tensor | None = None) -> Tensor:
        """Mean of `values` (default: the success), (texts,), over the words with the smallest score of each
        text.
        """
        count = int(self.text[-1]) + 1
        least = torch.full((count,), torch.inf, dtype=torch.float64).scatter_reduce(
            0, self.text, score, "amin"
        )
        tied = score == least[self.text]
        chosen = torch.where(tied, self.success if values is None else values, 0.0)
        return self._sums(chosen) / self._sums(tied.double())

    def above(self, score: Tensor, control: int) -> Tensor:
        """Success at the picked word minus the usual success at its distance from the beginning (control 0) or
        from the end (control 1); texts without such a comparison are left out.
        """
        difference = self.picked(score, self.success - self.usual[control])
        return difference[~difference.isnan()]

    def mean(self) -> Tensor:
        return self._sums(self.success) / self._sums(torch.ones_like(self.success))

    def of_texts(self, texts: int, chosen: Tensor) -> "Places":
        """The words `chosen` (indices), all words of the first `texts` texts in question."""
        text = self.text[chosen].unique(return_inverse=True)[1]
        assert int(text[-1]) + 1 == texts
        return Places(text, self.success[chosen], self.usual[:, chosen])

    def _sums(self, values: Tensor) -> Tensor:
        return torch.zeros(int(self.text[-1]) + 1, dtype=torch.float64).index_add_(0, self.text, values)


def usual_success(success: Tensor, distance: Tensor) -> Tensor:
    """For each word the mean success of the words of other texts at the same distance.

    A text has one word at each distance, so the word itself is the only one to leave out.
    """
    size = int(distance.max()) + 1
    total = torch.zeros(size, dtype=torch.float64).index_add_(0, distance, success)
    count = torch.zeros(size, dtype=torch.float64).index_add_(0, distance, torch.ones_like(success))
    return (total[distance] - success) / (count[distance] - 1)


def arguments(parser: argparse.ArgumentParser) -> None:
    options(parser, ["news", "trec"])
    parser.add_argument(
        "--omega", nargs="+", type=int, help="PCA dimensions; default: the paper's two for the set"
    )
    parser.add_argument("--theta", nargs="+", type=float, default=[0.3, 0.6, 1.0])
    parser.add_argument(
        "--popqorn", type=int, default=0, help="texts on which POPQORN's radii are a score too; 0: none"
    )
    parser.add_argument("--longest", type=int, default=8, help="words of the texts for POPQORN at most")


def main(chosen: argparse.Namespace) -> None:
    columns = ["network", "accuracy", "texts", "score", "least robust, %", "most robust, %"]
    columns += ["p over texts", "p over repeats"]
    columns += ["least, above its place from the beginning, %", "from the end, %", "CPU-s a text"]
    table = Table([*columns, "paper, least / most"], chosen.out, "table2")
    bars: dict[str, dict[str, tuple[float, float]]] = {}
    for name in chosen.sets:
        for cell in chosen.cells:
            at = case(name, cell, chosen)
            bars[str(at)] = measure(table, at, chosen)
    if chosen.out:
        draw(bars, chosen.out)


@dataclass(frozen=True)
class Score:
    """Scores (words,) of one method and its CPU seconds for a text, where measured."""

    name: str
    values: Tensor
    seconds: float | None = None
    paper: str | None = None


def measure(table: Table, at: Case, chosen: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Add the rows of a network; returns (least, most) in per cent of the methods in the paper's Figure 4."""
    new, final = at.new, at.final("test")
    enough = torch.bincount(new.sequence, new.attackable.double()) >= 2
    rows = (new.attackable & enough[new.sequence]).nonzero()[:, 0]
    replaced = 1 - 1 / final.support[rows]  # The score counts the word itself as a member of its group.
    lengths = torch.tensor([len(tokens) for tokens in at.test.tokens])
    text = new.sequence[rows].unique(return_inverse=True)[1]
    success = (1 - final.values[rows]) / replaced
    from_end = lengths[new.sequence[rows]] - 1 - new.place[rows]
    usual = torch.stack([usual_success(success, distance) for distance in (new.place[rows], from_end)])
    places = Places(text, success, usual)
    texts = int(enough.sum())
    if chosen.popqorn:
        short = (enough & (lengths[: len(enough)] <= chosen.longest)).nonzero()[:, 0][: chosen.popqorn]
        texts, kept = len(short), torch.isin(new.sequence[rows], short).nonzero()[:, 0]
        rows, from_end, places = rows[kept], from_end[kept], places.of_texts(texts, kept)
    some = new.rows(rows)
    scores = list(_learned(at, some, chosen, texts))
    scores += [
        Score("exact 0-step", some.scores),
        Score("exact final-step", final.values[rows]),
        Score("last word", from_end.double()),
        Score("first word", -from_end.double()),
    ]
    if chosen.popqorn:
        radii, seconds = popqorn(at, some.sequence, some.place)
        paper = PAPER_POPQORN.get(at.name) if at.cell == "lstm" else None
        scores.append(Score("POPQORN radius", radii, seconds / texts, paper))
    about = [str(at), f"{accuracy(at.module, at.test):.1%}", texts]
    random = PAPER_RANDOM.get(at.name) if at.cell == "lstm" else None
    table.add(*about, "random word", shown(places.mean()), shown(places.mean()), *[None] * 5, random)
    found = {"random": 2 * (100 * float(places.mean().mean()),)}
    marble = []
    for score in scores:
        least, most = places.picked(score.values), places.picked(-score.values)
        table.add(
            *about,
            score.name,
            shown(least),
            shown(most),
            mann_whitney(least, places.mean()),
            mann_whitney(repeated(least), repeated(places.mean())),
            shown(places.above(score.values, 0)),
            shown(places.above(score.values, 1)),
            score.seconds,
            score.paper,
        )
        pair = 100 * float(least.mean()), 100 * float(most.mean())
        if score.name.startswith("MARBLE"):
            marble.append(pair)
        elif score.name in ("exact final-step", "last word") or score.name.startswith("POPQORN"):
            found[score.name] = pair
    low, high = torch.tensor(marble).mean(0).tolist()
    return {"MARBLE": (low, high), **found}


def _learned(at: Case, some: Traces, chosen: argparse.Namespace, texts: int) -> Iterator[Score]:
    """The scores of MARBLE's models and of our trees for the words of `some`."""
    for omega in chosen.omega or (at.texts.omega, 2 * at.texts.omega):
        for theta in chosen.theta:
            published = Marble.fit(at.seen, Refinement(omega, theta))
            began = time.process_time()
            values = torch.cat(
                [
                    torch.from_numpy(published.estimate(some.rows(some.sequence == i))[0])
                    for i in some.sequence.unique()
                ]
            )
            spent = (time.process_time() - began) / texts
            said = PAPER.get((at.name, omega, theta)) if at.cell == "lstm" else None
            paper = None if said is None else f"{said[0]:.2f} / {said[1]:.2f}, {said[2]} s"
            yield Score(f"MARBLE ({omega}, {theta})", values, spent, paper)
    trees = {
        "tree": DecisionTreeEstimate.fit(at.seen),
        "tree, final": DecisionTreeEstimate.fit(at.seen, scores=at.final("train").values),
    }
    for name, tree in trees.items():
        yield Score(name, tree.estimate(some.successors, some.abstract, some.labels, some.margins)[0])


def popqorn(at: Case, sequence: Tensor, place: Tensor) -> tuple[Tensor, float]:
    """Certified l2 radii (words,) of single word vectors by backward passes alone, as POPQORN's, and CPU seconds."""
    reader = Reader(
        at.cell, at.module.embedding.embedding_dim, at.module.cell.hidden_size, len(at.texts.classes)
    )
    reader.cell, reader.head = at.module.cell, at.module.head
    net = hf.Network.from_torch(reader.eval())
    radii = torch.empty(len(sequence), dtype=torch.float64)
    began = time.process_time()
    for text in sequence.unique().tolist():
        x = at.module.embedding(at.test.tokens[text])[None].detach()
        label = net(x).argmax(1)
        with backward_passes_only():
            (brackets,) = hf.radius(net, x, label, norm=2, frames="each", methods=[hf.certify.Certify()])
        lower = torch.tensor([bracket.lower.value for bracket in brackets], dtype=torch.float64)
        mine = (sequence == text).nonzero()[:, 0]
        radii[mine] = lower[place[mine]]
    return radii, time.process_time() - began


def repeated(success: Tensor) -> Tensor:
    """The paper's repeats: (REPEATS,) attack success rates, each with one random replacement for each text."""
    generator = np.random.default_rng(0)
    drawn = generator.random((REPEATS, len(success))) < success.numpy()
    return torch.from_numpy(drawn.mean(1))


def mann_whitney(least: Tensor, random: Tensor) -> str:
    """The p-value of the one-sided Mann-Whitney U test: is the success at the least robust word larger?"""
    return f"{mannwhitneyu(least.numpy(), random.numpy(), alternative='greater').pvalue:.2g}"


def shown(success: Tensor) -> str:
    return f"{100 * float(success.mean()):.2f} ± {196 * float(success.std()) / len(success) ** 0.5:.2f}"


def draw(bars: dict[str, dict[str, tuple[float, float]]], out: Path) -> None:
    """The paper's Figure 4: attack success at the least and the most robust word by method."""
    made = new_figure(3.6 * len(bars) + 1, 3.4)
    if made is None:
        return
    for axes, (network, methods) in zip(
        made.subplots(1, len(bars), squeeze=False)[0], bars.items(), strict=True
    ):
        series = {
            "least robust word": [pair[0] for pair in methods.values()],
            "most robust word": [pair[1] for pair in methods.values()],
        }
        draw_bars(axes, [name.replace(" ", "\n") for name in methods], series)
        axes.set(title=network, ylabel="attack success, %")
        axes.tick_params(axis="x", labelsize=7)
    save(made, out / "table2-figure4")
