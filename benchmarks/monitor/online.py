"""Cost of a score in a stream of words: microseconds per token, one token at a time, on one core.

python -m benchmarks.monitor online --sets news --cells lstm gru
python -m benchmarks.monitor online --sets imdb --cells lstm --long 5     256 words, 300 units, end to end

"exact" and "abstract" are Monitor.step as a user calls it, including the network's own step. "tree" is the
share of the abstract model in a step. MARBLE receives its state at no cost, by token (a stream) and by text
(all its states at once, as the paper measures). Times are CPU times of the best of several rounds, since
other load only adds time.
"""

import argparse
import time
from collections.abc import Callable

from benchmarks.certify.table import Table
from benchmarks.monitor.data import Case, case, options
from holdfast.monitor.abstract.marble import Marble, Refinement
from holdfast.monitor.monitor import Monitor


def arguments(parser: argparse.ArgumentParser) -> None:
    options(parser, ["news"])
    parser.add_argument("--theta", type=float, default=0.6)
    parser.add_argument("--texts", type=int, default=200, help="test texts per round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--long", type=int, default=0, help="only this number of texts of full length, end to end"
    )


def main(chosen: argparse.Namespace) -> None:
    if chosen.long:
        columns = [
            "network",
            "words",
            "steps one by one, s",
            "k = 0 at once, s",
            "final step, s",
            "mutants",
            "least robust word",
        ]
        table = Table(columns, chosen.out, "online-long")
    else:
        columns = [
            "network",
            "tokens",
            "exact, us",
            "abstract, us",
            "tree alone, us",
            "MARBLE by token, us",
            "MARBLE by text, us",
            "MARBLE / exact",
        ]
        table = Table(columns, chosen.out, "online")
    for name in chosen.sets:
        for cell in chosen.cells:
            at = case(name, cell, chosen)
            (whole if chosen.long else measure)(table, at, chosen)


def measure(table: Table, at: Case, chosen: argparse.Namespace) -> None:
    texts = [tokens.tolist() for tokens in at.test.tokens[: chosen.texts]]
    count = sum(map(len, texts))
    exact = Monitor.fit(at.net, at.train.tokens[:100], at.mutation)
    abstract = Monitor.fit(at.net, at.train.tokens, at.mutation, mode="abstract")
    published = Marble.fit(at.seen, Refinement(at.texts.omega, chosen.theta))
    rows = at.new.rows(at.new.sequence < len(texts))
    states, words = (
        list(rows.successors.numpy()),
        list(zip(rows.abstract.tolist(), rows.labels.tolist(), rows.margins.tolist(), strict=True)),
    )
    tree = abstract.tree
    parts = [rows.rows(rows.sequence == i) for i in range(20)]

    def alone() -> None:
        for state, (group, label, margin) in zip(states, words, strict=True):
            tree.single(state, group, label, margin)

    def by_text() -> None:
        for part in parts:
            published.estimate(part)

    def by_token() -> None:
        for part in parts:
            for i in range(len(part)):
                published.estimate(part.rows(slice(i, i + 1)))  # type: ignore[arg-type]

    few = sum(map(len, parts))
    spent = [best(lambda m=m: stream(m, texts), chosen.rounds) / count for m in (exact, abstract)]  # type: ignore[misc]
    spent += [best(alone, chosen.rounds) / count, best(by_token, 2) / few, best(by_text, 2) / few]
    table.add(
        str(at),
        count,
        *(f"{1e6 * s:.1f}" for s in spent),
        f"{spent[3] / spent[0]:.0f} x, {spent[4] / spent[0]:.0f} x",
    )


def stream(monitor: Monitor, texts: list[list[int]]) -> None:
    for text in texts:
        monitor.start()
        for token in text:
            monitor.step(token)


def best(work: Callable[[], object], rounds: int) -> float:
    work()
    found = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def whole(table: Table, at: Case, chosen: argparse.Namespace) -> None:
    monitor = Monitor.fit(at.net, at.train.tokens[:6], at.mutation)
    for tokens in [t for t in at.test.tokens if len(t) == at.texts.longest][: chosen.long]:
        steps = best(lambda t=tokens: stream(monitor, [t.tolist()]), 1)  # type: ignore[misc]
        now = best(lambda t=tokens: monitor.score(t), 1)  # type: ignore[misc]
        began = time.process_time()
        scores = monitor.score(tokens, k="final")
        spent = time.process_time() - began
        mutants = int(scores.support[scores.attackable].sum() - scores.attackable.sum())
        least = scores.least
        word = "" if least is None else f"place {least}: {float(scores.values[least]):.2f}"
        table.add(str(at), len(tokens), steps, now, spent, mutants, word)
