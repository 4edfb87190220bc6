"""Edited texts: exact counts for one edit, and proofs for two and three beside ARC's bound on the same networks.

    python -m benchmarks.edits --set trec                          # one edit on all questions; two edits on 40
    python -m benchmarks.edits --set trec --hardened --space arc   # a network trained with interval cells
    python -m benchmarks.edits --set trec --copies                 # the standard network after hf.harden(edits=...)
    python -m benchmarks.edits --set news --one 200 --count 0
    python -m benchmarks.edits --set imdb --one 20 --count 0

The networks are LSTMs (vectors 16 wide, 32 hidden), trained here with fixed seeds and kept in benchmarks/.cache. The
hardened ones are trained for one edit (swaps left out) by ARC's programme of intervals, written again in torch.
--copies: `hf.harden` trains the standard network further on the worst of eight copies with one edit of --space each.

Edits, --space all: a word may become a counter-fitted neighbour (Jia et al. 2019), one of the 20 most frequent words may
be inserted, any word deleted, swapped with its neighbour or written twice. --space arc, as in ARC's experiments: stop
words are deleted, words are written twice or become a neighbour. More edits are bounded for the texts that enumeration
does not refute; a bound cannot prove the others. ARC's bound is `EditBounds(join="intervals",
most=1)`: one box a cell, for which this package's interval arithmetic is used. CPU seconds are of this process.
"""

import argparse
import json
import lzma
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import holdfast as hf
from benchmarks.certify.data import SHARED, shared
from benchmarks.certify.nets import CACHE
from holdfast.api.radius import radius_problems
from holdfast.edits import EditBounds, EnumerateEdits
from holdfast.network.text import SIGNS
from holdfast.solver import Stop, solve

FOLDERS = {"trec": "trec_qc", "news": "news_titles", "imdb": "imdb"}
CLASSES = {
    "trec": ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"),
    "news": ("sport", "business", "us", "health", "sci_tech", "world", "entertainment"),
    "imdb": ("0", "1"),
}
EPOCHS = {"trec": 8, "news": 3, "imdb": 8}
TRAINED = {"trec": 10**6, "news": 10**6, "imdb": 8000}  # Texts that are trained on at most.
LONGEST = {"trec": 40, "news": 30, "imdb": 100}  # Words of a text that are read in training and here.
MOST_BOUNDED = 20  # Texts that are bounded in each way at most, which takes seconds for each.
RAREST = {"trec": 2, "news": 3, "imdb": 5}  # A word of the vocabulary occurs at least so often.
STOP_WORDS = {
    "the",
    "a",
    "an",
    "of",
    "is",
    "in",
    "to",
    "and",
    "for",
    "was",
    "are",
    "by",
    "on",
    "it",
    "that",
    "this",
}
INSERTED = 20  # The most frequent words, which may be inserted.
DIMENSIONS, HIDDEN, BATCH = 16, 32, 64
VALIDATED = 50  # Validation texts of which `hf.harden` counts edits before and after.
MOST_WORST = 0.1  # Share of the worst case in the loss of hardened networks at the end (0.5 learns nothing).


class Classifier(nn.Module):
    """Token ids (batch, words) -> scores of the classes, by the last state of an LSTM."""

    def __init__(self, words: int, classes: int) -> None:
        super().__init__()
        self.vectors = nn.Embedding(words, DIMENSIONS)
        self.lstm = nn.LSTM(DIMENSIONS, HIDDEN, batch_first=True)
        self.out = nn.Linear(HIDDEN, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.out(self.lstm(self.vectors(tokens))[0][:, -1])
        return scores


@dataclass(frozen=True)
class Corpus:
    """A data set: words by frequency, texts as token ids with their classes, and the neighbours of each word."""

    name: str
    words: list[str]
    train: list[tuple[list[int], int]]
    test: list[tuple[list[int], int]]
    neighbours: dict[int, list[int]]

    @staticmethod
    def read(name: str, data: Path) -> "Corpus":
        lines = {
            part: _lines(shared(FOLDERS[name], data) / f"{part}.tsv.xz", name) for part in ("train", "test")
        }
        counts = Counter(word for words, _ in lines["train"] for word in words)
        kept = [word for word, many in counts.most_common() if many >= RAREST[name]]
        number = {word: place + 1 for place, word in enumerate(kept)}  # 0 is every other word.

        def ids(part: str) -> list[tuple[list[int], int]]:
            longest = LONGEST[name]
            return [
                ([number.get(w, 0) for w in words[:longest]], label) for words, label in lines[part] if words
            ]

        with lzma.open(shared("synonyms", data) / "counterfitted_neighbors.json.xz") as file:
            raw = file.read()
        near: dict[int, list[int]] = {}
        for word, others in json.loads(raw).items():
            if word in number:
                found = [number[o] for o in _names(others) if o in number and o != word]
                if found:
                    near[number[word]] = found
        return Corpus(name, ["<unk>", *kept], ids("train"), ids("test"), near)

    def edits(self, total: int, space: str) -> hf.Edits:
        if space == "arc":
            stop = [place for place, word in enumerate(self.words) if word in STOP_WORDS]
            return hf.Edits(
                substitute=total,
                delete=total,
                duplicate=total,
                total=total,
                substitutes=self.neighbours,
                deletable=stop,
            )
        return hf.Edits(
            substitute=total,
            insert=total,
            delete=total,
            swap=total,
            duplicate=total,
            total=total,
            substitutes=self.neighbours,
            insertions=list(range(1, INSERTED + 1)),
        )


def _names(others: object) -> list[str]:
    """The neighbours of a word, which are stored alone or with a score."""
    assert isinstance(others, list)
    return [one if isinstance(one, str) else one[0] for one in others]


def _lines(path: Path, name: str) -> list[tuple[list[str], int]]:
    found = []
    with lzma.open(path, "rt", encoding="utf-8", errors="replace") as file:
        lines = file.readlines()
    for line in lines:
        label, _, text = line.rstrip("\n").partition("\t")
        words = [word.strip(SIGNS) or word for word in text.lower().split()]
        found.append((words, CLASSES[name].index(label.split(":")[0])))
    return found


# ---- training


def trained(corpus: Corpus, hardened: bool) -> Classifier:
    """The network of the cache, or one that is trained now."""
    module = Classifier(len(corpus.words), len(CLASSES[corpus.name]))
    file = CACHE / f"edits-{corpus.name}-{'hardened' if hardened else 'standard'}.safetensors"
    if file.exists():
        module.load_state_dict(load_file(file))
        return module.eval()
    torch.manual_seed(0)
    for part in module.modules():
        if hasattr(part, "reset_parameters"):
            part.reset_parameters()
    optimiser = torch.optim.Adam(module.parameters(), lr=2e-3 if hardened else 5e-3)
    shuffled, epochs = random.Random(0), EPOCHS[corpus.name]
    data = corpus.train[: TRAINED[corpus.name]]
    boxes = _substitute_boxes(corpus) if hardened else None
    for epoch in range(epochs):
        for tokens, labels in _batches(data, shuffled):
            loss = nn.functional.cross_entropy(module(tokens), labels)
            if boxes is not None and epoch:
                share = MOST_WORST * epoch / (epochs - 1)
                loss = (1 - share) * loss + share * _worst_loss(module, tokens, labels, boxes)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimiser.step()
        print(f"# epoch {epoch + 1}: accuracy {accuracy(module, corpus.test[:1000]):.1%}", flush=True)
    CACHE.mkdir(exist_ok=True)
    save_file(module.state_dict(), file)
    return module.eval()


def trained_on_copies(corpus: Corpus, space: str) -> Classifier:
    """The standard network after `hf.harden` for one edit, of the cache or trained now."""
    file = CACHE / f"edits-{corpus.name}-copies-{space}.safetensors"
    module = trained(corpus, hardened=False)
    if file.exists():
        module.load_state_dict(load_file(file))
        return module.eval()
    net = hf.Network.from_torch(module, vocabulary=corpus.words)
    data = corpus.train[: TRAINED[corpus.name]]
    texts, labels = [torch.tensor(text) for text, _ in data], torch.tensor([y for _, y in data])
    found = hf.harden(
        net, texts, labels, edits=corpus.edits(1, space), epochs=EPOCHS[corpus.name], measured=VALIDATED
    )
    print(f"# {found.verdict}", flush=True)
    save_file(found.module.state_dict(), file)
    assert isinstance(found.module, Classifier)
    return found.module


def _batches(data: Sequence[tuple[list[int], int]], shuffled: random.Random) -> list[tuple[Tensor, Tensor]]:
    """Batches of texts of one length, in random order."""
    by_length: dict[int, list[tuple[list[int], int]]] = {}
    for text, label in shuffled.sample(list(data), len(data)):
        by_length.setdefault(len(text), []).append((text, label))
    found = [
        (torch.tensor([t for t, _ in part]), torch.tensor([y for _, y in part]))
        for texts in by_length.values()
        for part in (texts[k : k + BATCH] for k in range(0, len(texts), BATCH))
    ]
    shuffled.shuffle(found)
    return found


def _substitute_boxes(corpus: Corpus) -> Tensor:
    """(words, most): each word and its neighbours, filled up with the word itself."""
    most = 1 + max(map(len, corpus.neighbours.values()))
    rows = [[word, *corpus.neighbours.get(word, ())] for word in range(len(corpus.words))]
    return torch.tensor([row + row[:1] * (most - len(row)) for row in rows])


def _worst_loss(module: Classifier, tokens: Tensor, labels: Tensor, boxes: Tensor, edits: int = 1) -> Tensor:
    """The loss of ARC's programme: one box for each position and number of edits, swaps left out."""
    choices = module.vectors(boxes[tokens])
    low, high = choices.amin(2), choices.amax(2)
    exact = module.vectors(tokens)
    new = module.vectors(torch.arange(1, INSERTED + 1))
    least, most = (end.expand(len(tokens), -1) for end in (new.amin(0), new.amax(0)))
    zero = torch.zeros(len(tokens), 2 * HIDDEN)
    cells: list[Cell | None] = [(zero, zero)] + [None] * edits

    def insert(cells: list[Cell | None]) -> list[Cell | None]:
        for made in range(1, edits + 1):
            before = cells[made - 1]
            if before is not None:
                added = _box_step(module.lstm, before, least, most)
                cells[made] = _hull([cells[made], added])
        return cells

    for place in range(tokens.shape[1]):
        cells = insert(cells)
        word = exact[:, place]
        kept = [None if cell is None else _box_step(module.lstm, cell, word, word) for cell in cells]
        after = kept[:1]
        for made in range(1, edits + 1):
            before, again = cells[made - 1], kept[made - 1]
            parts = [kept[made]]
            if before is not None and again is not None:
                parts += [_box_step(module.lstm, before, low[:, place], high[:, place]), before]
                parts.append(_box_step(module.lstm, again, word, word))
            after.append(_hull(parts))
        cells = after
    cells = insert(cells)
    found = [cell for cell in cells if cell is not None]
    low_h = torch.stack([c[0] for c in found]).amin(0)[:, :HIDDEN]
    high_h = torch.stack([c[1] for c in found]).amax(0)[:, :HIDDEN]
    weight = module.out.weight[None] - module.out.weight[labels][:, None]
    bias = module.out.bias[None] - module.out.bias[labels][:, None]
    middle, radius = (low_h + high_h) / 2, (high_h - low_h) / 2
    worst = (weight @ middle[:, :, None]).squeeze(-1) + (weight.abs() @ radius[:, :, None]).squeeze(-1) + bias
    return nn.functional.cross_entropy(worst, labels)


Cell = tuple[Tensor, Tensor]


def _hull(cells: Sequence[Cell | None]) -> Cell | None:
    """The smallest box that holds the boxes."""
    found = [cell for cell in cells if cell is not None]
    if not found:
        return None
    return torch.stack([c[0] for c in found]).amin(0), torch.stack([c[1] for c in found]).amax(0)


def _box_step(lstm: nn.LSTM, cell: tuple[Tensor, Tensor], low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """One step of the LSTM on boxes of states and vectors, for training alone: nothing is rounded outwards."""
    size = HIDDEN
    middle_x, radius_x = (low + high) / 2, (high - low) / 2
    middle_h, radius_h = (
        (cell[0][:, :size] + cell[1][:, :size]) / 2,
        (cell[1][:, :size] - cell[0][:, :size]) / 2,
    )
    linear = nn.functional.linear
    centre = linear(middle_x, lstm.weight_ih_l0, lstm.bias_ih_l0) + linear(
        middle_h, lstm.weight_hh_l0, lstm.bias_hh_l0
    )
    away = linear(radius_x, lstm.weight_ih_l0.abs()) + linear(radius_h, lstm.weight_hh_l0.abs())
    gates = [(centre - away).chunk(4, 1), (centre + away).chunk(4, 1)]
    i, f, o = ((torch.sigmoid(gates[0][k]), torch.sigmoid(gates[1][k])) for k in (0, 1, 3))
    g = torch.tanh(gates[0][2]), torch.tanh(gates[1][2])
    kept, written = _product(f, (cell[0][:, size:], cell[1][:, size:])), _product(i, g)
    memory = kept[0] + written[0], kept[1] + written[1]
    hidden = _product(o, (torch.tanh(memory[0]), torch.tanh(memory[1])))
    return torch.cat([hidden[0], memory[0]], 1), torch.cat([hidden[1], memory[1]], 1)


def _product(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    corners = torch.stack([x * y for x in a for y in b])
    return corners.amin(0), corners.amax(0)


@torch.no_grad()
def accuracy(module: Classifier, data: Sequence[tuple[list[int], int]]) -> float:
    """The share of texts that are classified right."""
    right = sum(int(module(torch.tensor([text])).argmax()) == label for text, label in data)
    return right / len(data)


# ---- measuring


def one_edit(net: hf.Network, corpus: Corpus, texts: Sequence[tuple[list[int], int]], space: str) -> None:
    """Enumerate all texts with one edit, and print a line with the shares and the CPU seconds of a text."""
    edits, seconds, counts = corpus.edits(1, space), list[float](), Counter[str]()
    for text, label in texts:
        began = time.process_time()
        ((problem),) = radius_problems(net, [torch.tensor(text)], torch.tensor([label]), edits=edits)
        (record,) = solve([problem], [EnumerateEdits()], Stop())
        seconds.append(time.process_time() - began)
        bracket = record.bracket
        if not bracket.closed:
            counts["open"] += 1
        elif "fails at the input" in bracket.note:
            counts["wrong"] += 1
        else:
            counts["certified" if bracket.lower.value >= 1 else "attacked"] += 1
    ordered = sorted(seconds)
    print(
        f"| 1 edit, exact | {len(texts)} | {counts['certified']} certified, {counts['attacked']} attacked, "
        f"{counts['wrong']} wrong, {counts['open']} open | mean {sum(seconds) / len(seconds):.3f}, "
        f"95 % {ordered[int(0.95 * (len(ordered) - 1))]:.3f}, most {ordered[-1]:.3f} |",
        flush=True,
    )


def more_edits(
    net: hf.Network, corpus: Corpus, texts: Sequence[tuple[list[int], int]], edits: int, space: str
) -> None:
    """Print for each way how many texts it proves for so many edits."""
    allowed = corpus.edits(edits, space)
    problems = [
        radius_problems(net, [torch.tensor(text)], torch.tensor([label]), edits=allowed)[0]
        for text, label in texts
    ]
    began = time.process_time()
    brackets = [solve([problem], [EnumerateEdits()], Stop())[0].bracket for problem in problems]
    spent = (time.process_time() - began) / len(problems)
    proved = sum(b.lower.value >= edits for b in brackets)
    attacked = sum(b.upper.value < edits for b in brackets)
    print(
        f"| {edits} edits, enumeration | {len(problems)} | {proved} proved, {attacked} attacked | "
        f"mean {spent:.2f} |",
        flush=True,
    )
    problems = [p for p, b in zip(problems, brackets, strict=True) if b.upper.value >= edits][:MOST_BOUNDED]
    if not problems:
        return
    ways = {
        "intervals, one box a cell (ARC)": EditBounds(join="intervals", most=1),
        "intervals, 8 boxes a cell": EditBounds(join="intervals", most=8),
        "affine forms, 1 a cell": EditBounds(most=1),
        "affine forms, 8 a cell": EditBounds(most=8),
    }
    for name, method in ways.items():
        proved, began = 0, time.process_time()
        for problem in problems:
            proved += method.certifies(problem, 0, edits, method.sizes[-1])
        spent = (time.process_time() - began) / len(problems)
        print(f"| {edits} edits, {name} | {len(problems)} | {proved} proved | mean {spent:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--set", choices=FOLDERS, default="trec")
    parser.add_argument("--hardened", action="store_true", help="a network trained with interval cells")
    parser.add_argument(
        "--copies", action="store_true", help="a network trained on edited copies of the texts"
    )
    parser.add_argument("--one", type=int, default=10**6, help="texts for one edit")
    parser.add_argument("--count", type=int, default=40, help="texts for two edits, classified right")
    parser.add_argument("--edits", nargs="+", type=int, default=[2])
    parser.add_argument("--space", choices=("all", "arc"), default="all", help="which edits are allowed")
    parser.add_argument("--data", type=Path, default=SHARED)
    chosen = parser.parse_args()
    corpus = Corpus.read(chosen.set, chosen.data)
    module = trained_on_copies(corpus, chosen.space) if chosen.copies else trained(corpus, chosen.hardened)
    net = hf.Network.from_torch(module, vocabulary=corpus.words)
    kind = "on copies" if chosen.copies else "hardened" if chosen.hardened else "standard"
    print(
        f"\n{chosen.set}, {kind} network, {len(corpus.words)} words, edits {chosen.space}, "
        f"accuracy {accuracy(module, corpus.test[:1000]):.1%}\n"
    )
    print("| question | texts | result | CPU-s a text |\n|---|---|---|---|")
    if chosen.one:
        one_edit(net, corpus, corpus.test[: chosen.one], chosen.space)
    right = [(t, y) for t, y in corpus.test if int(module(torch.tensor([t])).argmax()) == y]
    for edits in chosen.edits if chosen.count else ():
        more_edits(net, corpus, right[: chosen.count], edits, chosen.space)


if __name__ == "__main__":
    main()
