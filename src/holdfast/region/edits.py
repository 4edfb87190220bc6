"""Edited texts: at most k words of a text are substituted, inserted, deleted, swapped or duplicated.

Statement. An edited text is read off the original w_1 ... w_n from left to right. At each place one of these
consumes words of the original and emits words of the edited text:

    keep        w        -> w
    substitute  w        -> v      v in S(w), another word
    insert               -> v      v in I; several at one place are several edits
    delete      w        ->
    swap        w w'     -> w' w   neighbours that differ
    duplicate   w        -> w w
    substitute  w_1..w_m -> v_1..v_n   a phrase: a whole word that a tokenizer splits, by another such word

So a word of the original takes part in one edit at most, as in Zhang et al. 2021 (ARC, arXiv 2102.07818). An edited
text has at least one word. S(k) holds the texts with at most k edits in all and, of each kind, at most its budget.
The distance of a text is the smallest number of edits that make it, infinite if there are none.

What the network reads. With a `length`, only the first `length` words of the edited text, so an insertion may push
the last word out; with `padding`, shorter texts are filled up to that length with the padding word.

A phrase is replaced only where it is a whole word: its first token does not continue the word before it, and the token
behind it does not continue it (`continuing`).

Words that are `fixed` ([CLS], marks of the end) take part in no edit, and nothing is inserted outside of the fixed
words at the beginning and at the end.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.random_streams import RandomStreams
from holdfast.region.base import Counted
from holdfast.region.words import Vectors

KINDS = ("substitute", "insert", "delete", "swap", "duplicate")
SUBSTITUTE, INSERT, DELETE, SWAP, DUPLICATE = range(len(KINDS))
CONSUMED = (1, 0, 1, 2, 1)  # Words of the original that one edit of each kind replaces ...
EMITTED = (1, 1, 0, 2, 2)  # ... and the words that it puts in their place.
DRAWS_OF_AN_EDIT = 8  # Random draws for each edit of a drawn text, of which some do not fit (chosen by hand).
NO_WORD = -1  # Fills the end of a row of token ids, since edited texts differ in length.

Text = tuple[int, ...]  # token ids
Used = tuple[int, ...]  # how many edits of each kind


class Edit(NamedTuple):
    """One edit: its kind, the place in the original where it begins, and the words that it puts there."""

    kind: int
    place: int
    words: Text
    tokens: int = 0  # the tokens of a phrase that is replaced; 0: those of its kind

    @property
    def consumed(self) -> int:
        """The number of tokens of the original that the edit replaces."""
        return self.tokens or CONSUMED[self.kind]


@dataclass(frozen=True)
class EditRules:
    """Which edits are allowed, in token ids: the same for every text of a question.

    Attributes:
        budgets: the largest number of edits of each kind.
        total: the largest number of edits in all.
        substitutes: pairs of a word and the words that may replace it.
        any_substitutes: words that may replace every word.
        insertions: words that may be inserted.
        deletable: the words that may be deleted; None: every word.
        duplicable: the words that may be duplicated; None: every word.
        fixed: words that take part in no edit.
        length: the number of words that the network reads; None: all of them.
        padding: the word that fills shorter texts up to `length`; None: they stay short.
        phrases: pairs of the tokens of a whole word and the tokens of the words that may replace it.
        continuing: tokens that continue the word of the token before them.
        marks: special tokens, behind which a word always begins.
    """

    budgets: Used
    total: int
    substitutes: tuple[tuple[int, Text], ...] = ()
    any_substitutes: Text = ()
    insertions: Text = ()
    deletable: frozenset[int] | None = None
    duplicable: frozenset[int] | None = None
    fixed: frozenset[int] = frozenset()
    length: int | None = None
    padding: int | None = None
    phrases: tuple[tuple[Text, tuple[Text, ...]], ...] = ()
    continuing: frozenset[int] = frozenset()
    marks: frozenset[int] = frozenset()

    @cached_property
    def phrases_from(self) -> Mapping[int, Sequence[tuple[Text, tuple[Text, ...]]]]:
        """The phrases by their first token."""
        found: dict[int, list[tuple[Text, tuple[Text, ...]]]] = {}
        for phrase, others in self.phrases:
            found.setdefault(phrase[0], []).append((phrase, others))
        return found

    @cached_property
    def growth(self) -> tuple[int, int]:
        """By how many tokens a substitution lengthens a text at most, and by how many it shortens it at most."""
        changes = [len(other) - len(phrase) for phrase, others in self.phrases for other in others]
        return max([0, *changes]), -min([0, *changes])

    def is_whole(self, text: Text, begin: int, end: int) -> bool:
        """Return whether text[begin:end] is not part of a longer word."""
        begins = begin == 0 or text[begin] not in self.continuing or text[begin - 1] in self.marks
        return begins and (end == len(text) or text[end] not in self.continuing)

    @cached_property
    def substitutes_of(self) -> Mapping[int, Text]:
        return dict(self.substitutes)

    def strip(self, text: Text) -> Text:
        """Return a text without its padding at the end."""
        while text and text[-1] == self.padding:
            text = text[:-1]
        return text

    def read(self, text: Text) -> Text:
        """Return what the network reads of an edited text."""
        if self.length is None:
            return text
        cut = text[: self.length]
        return cut if self.padding is None else cut + (self.padding,) * (self.length - len(cut))

    def allows(self, used: Used) -> bool:
        """Return whether these numbers of edits of each kind are within the budgets."""
        return sum(used) <= self.total and all(a <= b for a, b in zip(used, self.budgets, strict=True))

    def options(self, text: Text) -> "TextEdits":
        """Return the edits of a text."""
        return _options(self, text)


@lru_cache(maxsize=4096)
def _options(rules: EditRules, text: Text) -> "TextEdits":
    return TextEdits(rules, text)


@dataclass(frozen=True)
class TextEdits:
    """The edits that the rules allow in one text.

    Attributes:
        at: for each place of the original (and the one behind it) the edits that begin there; insertions come
            before edits that consume its word.
    """

    rules: EditRules
    text: Text
    at: tuple[tuple[Edit, ...], ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "at", tuple(tuple(self._edits(p)) for p in range(len(self.text) + 1)))

    def _edits(self, place: int) -> Iterator[Edit]:
        rules, text = self.rules, self.text
        if rules.budgets[INSERT] and self._open_gap(place):
            yield from (Edit(INSERT, place, (word,)) for word in rules.insertions)
        if place == len(text) or text[place] in rules.fixed:
            return
        own = text[place]
        if rules.budgets[SUBSTITUTE]:
            others = dict.fromkeys((*rules.substitutes_of.get(own, ()), *rules.any_substitutes))
            yield from (Edit(SUBSTITUTE, place, (word,)) for word in others if word != own)
            for phrase, words in rules.phrases_from.get(own, ()):
                end = place + len(phrase)
                same = text[place:end] == phrase and rules.fixed.isdisjoint(phrase)
                if same and rules.is_whole(text, place, end):
                    yield from (
                        Edit(SUBSTITUTE, place, word, len(phrase))
                        for word in dict.fromkeys(words)
                        if word != phrase
                    )
        if rules.budgets[DELETE] and (rules.deletable is None or own in rules.deletable):
            yield Edit(DELETE, place, ())
        if rules.budgets[SWAP] and place + 1 < len(text):
            after = text[place + 1]
            if after != own and after not in rules.fixed:
                yield Edit(SWAP, place, (after, own))
        if rules.budgets[DUPLICATE] and (rules.duplicable is None or own in rules.duplicable):
            yield Edit(DUPLICATE, place, (own, own))

    def _open_gap(self, place: int) -> bool:
        """Return whether words may be inserted before this place: not outside of fixed words at the ends."""
        loose = [at for at, word in enumerate(self.text) if word not in self.rules.fixed]
        return bool(loose) and loose[0] <= place <= loose[-1] + 1

    @cached_property
    def most(self) -> int:
        """The largest number of edits that might be possible; a text may admit fewer."""
        possible = [0] * len(KINDS)
        for edits in self.at:
            for kind in {edit.kind for edit in edits}:
                possible[kind] += self.rules.budgets[kind] if kind == INSERT else 1
        limits = zip(possible, self.rules.budgets, strict=True)
        return min(self.rules.total, sum(min(pair) for pair in limits))

    def count(self, edits: int) -> int:
        """Return how many ways there are to make exactly this number of edits: at least as many as there are texts."""
        kinds: list[dict[tuple[int, int], int]] = [{} for _ in self.at]
        for place, options in enumerate(self.at):
            for edit in options:
                same = edit.kind, edit.consumed
                kinds[place][same] = kinds[place].get(same, 0) + 1
        nothing: Used = (0,) * len(KINDS)
        # ways[place][used]: ways to reach this place of the original with these edits
        ways: list[dict[Used, int]] = [{} for _ in range(len(self.at) + 2)]
        ways[0][nothing] = 1
        for place in range(len(self.at)):
            here = ways[place]
            for made in range(edits + 1):  # Insertions lead to more edits at the same place.
                for used in [used for used in here if sum(used) == made]:
                    for (kind, consumed), many in kinds[place].items():
                        after = add_edit(used, kind)
                        if made < edits and self.rules.allows(after):
                            there = ways[place + consumed]
                            there[after] = there.get(after, 0) + here[used] * many
            if place == len(self.text):
                break
            for used, number in here.items():
                ways[place + 1][used] = ways[place + 1].get(used, 0) + number
        return sum(number for used, number in ways[len(self.text)].items() if sum(used) == edits)

    def texts(self, edits: int) -> Iterator[tuple[Text, tuple[Edit, ...]]]:
        """Yield every text with exactly this number of edits, and the edits; equal texts may come several times."""
        yield from self._walk(0, (), (), edits, (0,) * len(KINDS))

    def _walk(
        self, place: int, emitted: Text, done: tuple[Edit, ...], left: int, used: Used
    ) -> Iterator[tuple[Text, tuple[Edit, ...]]]:
        if left == 0:
            text = emitted + self.text[place:]
            if text:
                yield text, done
            return
        for at in range(place, len(self.at)):
            before = emitted + self.text[place:at]
            for edit in self.at[at]:
                after = add_edit(used, edit.kind)
                if self.rules.allows(after):
                    yield from self._walk(
                        at + edit.consumed, before + edit.words, (*done, edit), left - 1, after
                    )

    def apply(self, edits: Sequence[Edit]) -> Text:
        """Return the text with these edits, which must not overlap; those at one place in the given order."""
        found: list[int] = []
        place = 0
        for edit in sorted(edits, key=lambda one: (one.place, one.kind != INSERT)):
            found += self.text[place : edit.place]
            found += edit.words
            place = edit.place + edit.consumed
        return (*found, *self.text[place:])

    def extensions(self, edits: tuple[Edit, ...]) -> Iterator[tuple[Edit, ...]]:
        """Yield these edits with one more that does not overlap with them, within the budgets."""
        for edit in itertools.chain.from_iterable(self.at):
            if self._fits(edit, edits):
                yield (*edits, edit)

    def _fits(self, edit: Edit, edits: tuple[Edit, ...]) -> bool:
        """Return whether one more edit overlaps with none of these and is within the budgets."""
        taken = {place for one in edits for place in range(one.place, one.place + one.consumed)}
        own = range(edit.place, edit.place + edit.consumed)
        # Nothing is inserted between the two words of a swap, or the tokens of a phrase.
        inside = edit.kind == INSERT and any(e.place < edit.place < e.place + e.consumed for e in edits)
        splits = any(e.kind == INSERT and edit.place < e.place < own.stop for e in edits)
        allowed = self.rules.allows(add_edit(count_kinds(edits), edit.kind))
        return allowed and not inside and not splits and taken.isdisjoint(own)

    @cached_property
    def _of_kind(self) -> list[list[Edit]]:
        """The edits of each kind that the text admits, without empty lists."""
        found: dict[int, list[Edit]] = {}
        for edit in itertools.chain.from_iterable(self.at):
            found.setdefault(edit.kind, []).append(edit)
        return list(found.values())

    def draw(self, count: int, generator: random.Random) -> Text:
        """Draw an edited text: a random kind and a random edit of it, `count` times; fewer where draws do not fit.

        The text itself if no edit fits, or if nothing would be left of it.
        """
        edits: tuple[Edit, ...] = ()
        for _ in range(DRAWS_OF_AN_EDIT * count if self._of_kind else 0):
            if len(edits) == count:
                break
            edit = generator.choice(generator.choice(self._of_kind))
            if self._fits(edit, edits):
                edits = (*edits, edit)
        return self.apply(edits) or self.text

    def fewest(self, target: Text) -> tuple[Edit, ...] | None:
        """Return the fewest edits that make the target within the budgets; None if there are none."""
        if not target:
            return None
        nothing: Used = (0,) * len(KINDS)
        # reached[place, emitted][used]: the edits of one way to get there
        start: dict[Used, tuple[Edit, ...]] = {nothing: ()}
        reached: dict[tuple[int, int], dict[Used, tuple[Edit, ...]]] = {(0, 0): start}
        budgets, (longer, shorter) = self.rules.budgets, self.rules.growth
        words = min(self.rules.total, budgets[SUBSTITUTE])
        widest = max(budgets[INSERT] + budgets[DUPLICATE] + words * longer, budgets[DELETE] + words * shorter)

        def arrive(where: tuple[int, int], used: Used, edits: tuple[Edit, ...]) -> None:
            known = reached.setdefault(where, {})
            if used not in known:
                known[used] = edits

        for place in range(len(self.at)):
            emits = range(max(0, place - widest), min(len(target), place + widest) + 1)
            for emitted in emits:
                here = reached.get((place, emitted))
                if here is None:
                    continue
                for used, edits in sorted(here.items(), key=lambda pair: sum(pair[0])):
                    if place < len(self.text) and target[emitted : emitted + 1] == (self.text[place],):
                        arrive((place + 1, emitted + 1), used, edits)
                    for edit in self.at[place]:
                        after = add_edit(used, edit.kind)
                        end = emitted + len(edit.words)
                        if target[emitted:end] == edit.words and self.rules.allows(after):
                            arrive((place + edit.consumed, end), after, (*edits, edit))
        found = reached.get((len(self.text), len(target)))
        return None if not found else min(found.values(), key=len)


def add_edit(used: Used, kind: int) -> Used:
    """Return the counts of edits with one more of this kind."""
    return (*used[:kind], used[kind] + 1, *used[kind + 1 :])


def count_kinds(edits: Sequence[Edit]) -> Used:
    """Return how many edits there are of each kind."""
    return tuple(sum(edit.kind == kind for edit in edits) for kind in range(len(KINDS)))


@dataclass(frozen=True, eq=False)
class EditedTexts(Counted):
    """All texts that at most `radius` edits make of the original.

    Points are rows of token ids (batch, width), filled up with NO_WORD. `centre` alone holds word vectors, those of
    the original as the network reads it, since the checks of the network, its hash and its float64 copy are about
    these; every method that takes points also takes it.
    """

    embedded: ClassVar[bool] = True
    changes_length: ClassVar[bool] = True

    tokens: Tensor  # (batch, words) int64, the originals
    rules: EditRules
    vectors: Vectors

    @staticmethod
    def around(tokens: Tensor, rules: EditRules, vectors: Tensor) -> "EditedTexts":
        """Build the region from texts of one length, (batch, words) token ids, with radius 0."""
        if tokens.dim() != 2 or tokens.is_floating_point():
            raise BadInput(
                f"edits: texts must be token ids of shape (batch, length), got {tokens.dtype} of "
                f"{tuple(tokens.shape)}."
            )
        if tokens.numel() == 0:
            raise BadInput("edits: a text is empty: there is nothing to edit.")
        given = [tuple(row) for row in tokens.tolist()]
        read = torch.tensor([rules.read(text) for text in given])
        words = sorted({*read.flatten().tolist(), *_new_words(rules, given)})
        if not bool(vectors[words].isfinite().all()):
            raise BadInput(
                "edits: the vector of a word holds NaN or infinity; robustness around it is undefined."
            )
        device = vectors.device
        zero = torch.zeros(len(tokens), dtype=torch.float64, device=device)
        return EditedTexts(
            vectors[read.to(device)].detach(), zero, tokens.to(device), rules, Vectors(vectors.detach())
        )

    @property
    def width(self) -> int:
        """The length of a row of token ids: that of the longest edited text."""
        budgets, total = self.rules.budgets, self.rules.total
        growth = self.rules.growth[0]
        longer = budgets[INSERT] + budgets[DUPLICATE] + min(total, budgets[SUBSTITUTE]) * growth
        return int(self.tokens.shape[1]) + min(total * max(1, growth), longer)

    def options(self, row: int) -> TextEdits:
        """Return the edits of one text."""
        return self.rules.options(tuple(self.tokens[row].tolist()))

    def to_rows(self, texts: Sequence[Text]) -> Tensor:
        """Return texts as points, (texts, width) token ids."""
        rows = [[*text, *[NO_WORD] * (self.width - len(text))] for text in texts]
        return torch.tensor(rows, dtype=torch.int64, device=self.tokens.device).reshape(
            len(texts), self.width
        )

    def texts(self, x: Tensor) -> list[Text]:
        """(n, width) -> the edited texts. The centre represents the originals."""
        rows = self.tokens if x.is_floating_point() else x
        return [tuple(word for word in row if word != NO_WORD) for row in rows.tolist()]

    def texts_read(self, x: Tensor) -> list[Text]:
        """(n, width) -> the token ids that the network reads."""
        return [self.rules.read(text) for text in self.texts(x)]

    def as_data(self, x: Tensor) -> Tensor:
        return self.tokens.expand(*x.shape[:-2], -1) if x.is_floating_point() else x

    def from_data(self, data: Tensor) -> Tensor | None:
        if data.is_floating_point() or data.dim() != 1 or data.numel() > self.width:
            return None
        return self.to_rows([tuple(data.tolist())])[0]

    def trim(self, data: Tensor) -> Tensor:
        return data[data != NO_WORD] if data.dim() == 1 and not data.is_floating_point() else data

    def distance(self, x: Tensor) -> Tensor:
        if x.is_floating_point():
            return torch.zeros(x.shape[: x.dim() - 2], dtype=torch.float64, device=x.device)
        lead = x.shape[:-2]
        rows = x.reshape(-1, len(self), x.shape[-1])
        found = [[self._distance(row, text) for row, text in enumerate(self.texts(part))] for part in rows]
        return torch.tensor(found, dtype=torch.float64, device=x.device).reshape(*lead, len(self))

    def _distance(self, row: int, text: Text) -> float:
        own = self.options(row)
        if text == own.text:
            return 0.0
        edits = own.fewest(text)
        return float("inf") if edits is None else float(len(edits))

    def limit(self) -> Tensor:
        most = [float(self.options(row).most) for row in range(len(self))]
        return torch.tensor(most, dtype=torch.float64, device=self.tokens.device)

    def with_vectors(self, vectors: Tensor) -> "EditedTexts":
        """Return the same texts with another embedding table, (words, dim)."""
        return replace(EditedTexts.around(self.tokens, self.rules, vectors), radius=self.radius)

    # ---- edited texts are no set of vectors

    def project(self, x: Tensor) -> Tensor:
        raise NotImplementedError(NO_VECTORS)

    def sample(self, count: int, chance: RandomStreams) -> Tensor:
        """Draw texts with as many random edits as the radius allows, or fewer where the budgets end."""
        found = []
        for _ in range(count):
            drawn = []
            for row in range(len(self)):
                options, edits = self.options(row), tuple[Edit, ...]()
                for _ in range(int(self.radius[row])):
                    more = list(options.extensions(edits))
                    if not more:
                        break
                    pick = float(chance.uniform(1, (1,), self.centre)[0, row, 0])
                    edits = more[min(int(pick * len(more)), len(more) - 1)]
                drawn.append(options.apply(edits) or options.text)
            found.append(self.to_rows(drawn))
        return torch.stack(found)

    def enclosing_box(self) -> tuple[Tensor, Tensor]:
        raise NotImplementedError(NO_VECTORS)

    def vertex(self, a: Tensor) -> Tensor:
        raise NotImplementedError(NO_VECTORS)

    def minimise_linear(self, a: Tensor) -> Tensor:
        raise NotImplementedError(NO_VECTORS)


NO_VECTORS = "EditedTexts holds texts of different lengths, which no vectors of one shape enclose: ask methods for edits."


def _new_words(rules: EditRules, texts: Sequence[Text]) -> set[int]:
    """Return the words that edits of these texts may put in."""
    own = {word for text in texts for word in text}
    found = {*rules.any_substitutes, *rules.insertions}
    pieces = {
        piece
        for word in own
        for _, others in rules.phrases_from.get(word, ())
        for other in others
        for piece in other
    }
    return found | pieces | {other for word in own for other in rules.substitutes_of.get(word, ())}
