"""The monitor: how likely does the answer stay when one element of the sequence is another? For whole sequences, or as they come in."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.files import in_words
from holdfast.monitor.engine import exact
from holdfast.monitor.engine.numpy_stream import Quick
from holdfast.monitor.engine.recurrent import Recurrent
from holdfast.monitor.engine.sampled import Drawn, interval
from holdfast.monitor.engine.state_view import StateView, find
from holdfast.monitor.engine.stream import Stream
from holdfast.monitor.mutation.choices import Mutation, Still, are_ids
from holdfast.monitor.outputs import Classes, Output
from holdfast.monitor.reading import Reader, has_unknown, unknown_token
from holdfast.monitor.score import Score, Scores, Steps
from holdfast.network import Network
from holdfast.network.text import Unknown
from holdfast.result import Evidence

Mode = Literal["exact", "sampled", "abstract"]
SHORT = 64  # tokens in all: below, steps in numpy beat a batch in torch
DRAWN = 2**24  # numbers in the draws of one sweep

ONE_ELEMENT = "exactly one element is replaced, by one of its set"
STEPS = "a step answers each row from its own state and element"
OPENED = "rounding moves the network's outputs by no more than a multiple of what was seen on prefixes"
SAME_ANSWER = "the model answers the same sequence the same way every time, alone or in a batch"


@dataclass(frozen=True)
class Settings:
    """How a monitor scores; kept with it on disk."""

    mode: Mode
    unknown: Unknown
    unk: int | None
    confidence: float
    samples: int
    seed: int
    max_length: int


class Monitor:
    """Scores of robustness for a recurrent network. Build one with `fit` or `load`.

    exact      every value that may stand in an element's place is run: proved, error 0.
    sampled    draws, with a Clopper-Pearson interval for each score: for noise on frames and sets too large to list.
    abstract   an abstract model, fitted on training sequences: estimated, with the number of transitions behind it.
    """

    def __init__(
        self,
        net: Network,
        mutation: Mutation,
        outputs: Output,
        settings: Settings,
        *,
        view: StateView | None,
        tree: Any = None,
    ) -> None:
        self.net, self.mutation, self.outputs, self.settings, self.view, self.tree = (
            net,
            mutation,
            outputs,
            settings,
            view,
            tree,
        )
        self.reader = Reader(
            net,
            settings.unknown,
            settings.unk,
            settings.max_length,
            view.frame if isinstance(view, Recurrent) else None,
        )
        self._stream: Stream | None = None

    @classmethod
    def fit(
        cls,
        net: Network,
        sequences: Sequence[Any],
        mutation: Mutation,
        *,
        answer: Output | None = None,
        mode: Literal["auto", "exact", "sampled", "abstract"] = "auto",
        unknown: Unknown | None = None,
        unk: int | None = None,
        confidence: float = 0.95,
        samples: int = 1000,
        seed: int = 0,
        max_length: int = 4096,
    ) -> "Monitor":
        """A monitor for a network that answers every prefix of a sequence.

        sequences   of token ids, words or frames. The abstract model learns from them; the other modes only check the network on some.
        mutation    what may stand in an element's place: Groups, Typos, Noise, Own.
        answer      what of it must stay: Classes() (the default), Bins or Tolerance for numbers.
        mode        auto: exact where the mutation is a finite set, else sampled.
        unknown     what happens to words the network does not know: error, skip (left out), unk (the token `unk` stands for them). If not
                    said: what holdfast does everywhere, the network's token for unknown words, and an error where it has none.
        """
        if not isinstance(net, Network) or not isinstance(mutation, Mutation):
            raise BadInput(
                f"a monitor needs a Network and a mutation, got {type(net).__name__} and {type(mutation).__name__}."
            )
        chosen: Mode = ("exact" if mutation.finite else "sampled") if mode == "auto" else mode
        if unknown is None:
            unknown = "unk" if has_unknown(net, unk) else "error"
        _check(net, mutation, chosen, unknown, confidence, samples, max_length)
        if unknown == "unk":
            unk = unknown_token(net, unk)
        settings = Settings(chosen, unknown, unk, confidence, samples, seed, max_length)
        view = find(net, Reader(net, unknown, unk, max_length).read_all(list(sequences)[:6])[0])
        made = cls(net, mutation, answer or Classes(), settings, view=view)
        if view is not None:
            made.outputs.count(view.outputs(view.start(1)).shape[1])
        if chosen == "abstract":
            made.tree = made._abstract_model(sequences)
        return made

    def _abstract_model(self, sequences: Sequence[Any]) -> Any:
        from holdfast.monitor.abstract.traces import profile
        from holdfast.monitor.abstract.tree import DecisionTreeEstimate
        from holdfast.monitor.abstract.tree_growth import Growing  # only this mode needs scikit-learn

        if not len(sequences):
            raise BadInput("the abstract model learns from sequences: give some to fit.")
        known = (
            self.mutation
            if self.mutation.finite
            else Drawn(self.mutation, self.settings.samples, self.generator())
        )
        traces = profile(self.net, self.read_all(sequences), known, self.outputs, self.view)
        return DecisionTreeEstimate.fit(
            traces, Growing(confidence=self.settings.confidence, seed=self.settings.seed)
        )

    @property
    def mode(self) -> Mode:
        return self.settings.mode

    @cached_property
    def quick(self) -> Quick | None:
        """The way through plain numpy, where all of it fits: tokens, classes, an affine head, a CPU."""
        fits = isinstance(self.view, Recurrent) and Quick.fits(self.view, self.mutation, self.outputs)
        return Quick(self.view, self.mutation) if fits and isinstance(self.view, Recurrent) else None

    # ---- whole sequences

    def score(self, sequence: Any, k: Steps = 0) -> Scores:
        """One score for each element: is the label k elements later (or the final one) still the same?"""
        return self.score_all([sequence], k)[0]

    def score_all(self, sequences: Sequence[Any], k: Steps = 0) -> list[Scores]:
        """Many sequences side by side, which is faster than one by one."""
        read = self.read_all(sequences)
        if (
            self.settings.mode == "exact"
            and k == 0
            and self.quick is not None
            and sum(map(len, read)) <= SHORT
        ):
            short = [self._short(sequence, self.quick.fresh()) for sequence in read]
            if not any(scores is None for scores in short):
                return [scores for scores in short if scores is not None]
        if self.settings.mode == "exact":
            found = exact.labels(self.net, read, self.mutation, outputs=self.outputs, k=k, view=self.view)
            return self._split(read, found, found.values, found.values, found.values, k)
        if self.settings.mode == "sampled":
            return [scores for some in self._side_by_side(read) for scores in self._score_sampled(some, k)]
        return self._score_estimated(read, k)

    def _short(self, sequence: Tensor, engine: Quick) -> Scores | None:
        """Few tokens: step by step is faster than a batch. None: a close call, on which the user's module must be heard."""
        steps, gamma = [], []
        for token in sequence.tolist():
            steps.append(engine.step(token))
            gamma.append(np.bincount(engine.said, engine.weight, engine.bias.size))
            if steps[-1][1] != steps[-1][2]:
                return None
        value = torch.tensor([step[0] for step in steps], dtype=torch.float64)
        label, support = (torch.tensor([step[column] for step in steps]) for column in (3, 4))
        known = torch.from_numpy(np.stack(gamma))
        return Scores(
            value,
            value,
            value,
            label,
            support,
            support > 1,
            self.evidence(0),
            0,
            known,
            self._words(sequence),
        )

    def _side_by_side(self, read: list[Tensor]) -> Iterator[list[Tensor]]:
        """Sequences whose draws fit into one sweep; a longer one alone."""
        some: list[Tensor] = []
        filled = 0
        for sequence in read:
            numbers = sequence.numel() * (
                self.settings.samples if sequence.is_floating_point() else 1
            )  # a token is drawn, and run once
            if some and filled + numbers > DRAWN:
                yield some
                some, filled = [], 0
            some.append(sequence)
            filled += numbers
        if some:
            yield some

    def _score_sampled(self, read: list[Tensor], k: Steps) -> list[Scores]:
        """Several sequences at once, or one whose draws do not fit, in parts."""
        count, generator, size = self.settings.samples, self.generator(), sum(map(len, read))
        rows = (
            max(1, DRAWN // (count * max(1, read[0][0].numel())))
            if len(read) == 1 and read[0].is_floating_point()
            else size
        )
        gammas = []
        for begin in range(0, size, rows):
            drawn = Drawn(
                self.mutation,
                count,
                generator,
                range(begin, begin + rows) if len(read) == 1 else None,
                alike=True,
            )
            found = exact.labels(
                self.net, read, drawn, outputs=self.outputs, k=k, view=self.view, apart=False
            )
            gammas.append(found.gamma[begin : begin + rows])
        support, attackable = torch.full_like(found.support, count), self.attackable(found.elements)
        found = replace(found, gamma=torch.cat(gammas), support=support, attackable=attackable)
        value = found.values
        low, high = (
            torch.where(value.isnan(), torch.nan, end)
            for end in interval((value * count).round(), count, self.settings.confidence)
        )
        return self._split(read, found, value, low, high, k)

    def _score_estimated(self, read: list[Tensor], k: Steps) -> list[Scores]:
        if k != 0:
            raise BadInput(
                f"k={k!r}: the abstract model estimates the label right behind an element (k=0); other steps need mode='exact'."
            )
        keep: exact.Keep = "labels" if self.view is None else "states"
        found = exact.labels(
            self.net, read, Still(), outputs=self.outputs, keep=keep, view=self.view, apart=False, stay=True
        )
        behind = (
            found.outputs if found.successors is None else found.successors
        )  # a black box shows only its outputs
        margins = self.outputs.margins(found.outputs, found.outputs)
        tree = self.tree.to(behind.device)
        estimate = tree.estimate(behind, self.mutation.abstract(found.elements), found.labels, margins)
        value, support, low, high = (part.cpu() for part in estimate)
        attackable = self.attackable(torch.cat(read))
        value, low, high = (torch.where(attackable, end.double(), 1.0) for end in (value, low, high))
        found = replace(found, states=None, successors=None).to(value.device)
        found = replace(found, attackable=attackable, support=torch.where(attackable, support.long(), 1))
        return self._split(read, found, value, low, high, k, known=False)

    def attackable(self, elements: Tensor) -> Tensor:
        """(n, ...) -> (n,) bool: something else may stand there."""
        if not self.mutation.finite:
            return torch.ones(len(elements), dtype=torch.bool)
        distinct, place = (
            elements.unique(return_inverse=True)
            if are_ids(elements)
            else (elements, torch.arange(len(elements)))
        )
        return (self.mutation.table(distinct).counts > 1)[place]

    def _split(
        self,
        read: list[Tensor],
        found: exact.Transitions,
        value: Tensor,
        low: Tensor,
        high: Tensor,
        k: Steps,
        *,
        known: bool = True,
    ) -> list[Scores]:
        size = [len(sequence) for sequence in read]
        columns = (value, low, high, found.labels, found.support, found.attackable, found.gamma)
        evidence, scores = self.evidence(k), []
        for sequence, (v, a, b, labels, support, attackable, gamma) in zip(
            read, zip(*(c.split(size) for c in columns), strict=True), strict=True
        ):
            kept = gamma if known else None
            scores.append(
                Scores(v, a, b, labels, support, attackable, evidence, k, kept, self._words(sequence))
            )
        return scores

    def _words(self, sequence: Tensor) -> tuple[str, ...] | None:
        return tuple(self.net.words(sequence)) if self.net.vocabulary is not None else None

    def evidence(self, k: Steps) -> Evidence:
        s = self.settings
        method, settings = (
            f"Monitor ({s.mode})",
            {"mutation": self.mutation.kind, "outputs": self.outputs.kind, "k": k},
        )
        dtype = str(self.net.dtype).removeprefix("torch.")
        opened = (
            () if self.view is None else (OPENED,) if isinstance(self.view, Recurrent) else (STEPS, OPENED)
        )
        assumptions = (ONE_ELEMENT, SAME_ANSWER, *opened)
        if s.mode == "exact":
            return Evidence("proved", method, settings, dtype=dtype, assumptions=assumptions)
        if s.mode == "sampled":
            settings["samples"] = s.samples
            return Evidence(
                "sampled",
                method,
                settings,
                seed=s.seed,
                dtype=dtype,
                assumptions=assumptions,
                confidence=s.confidence,
            )
        return Evidence("estimated", method, settings, seed=s.seed, dtype=dtype, assumptions=assumptions)

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.settings.seed)

    # ---- streams

    def stream(self) -> "Stream":
        """A stream with a state of its own; several may run beside each other."""
        return Stream(self)

    def start(self) -> None:
        """Begin a new stream: what came before is forgotten."""
        if self._stream is None:
            self._stream = Stream(self)
        self._stream.reset()

    def reset(self) -> None:
        """The same as `start`."""
        self.start()

    def step(self, element: Any) -> Score | None:
        """The next element of the stream: its score now. None where it is unknown and unknown elements are skipped."""
        if self._stream is None:
            self.start()
        assert self._stream is not None
        return self._stream.step(element)

    def read(self, sequence: Any) -> Tensor:
        """A text, words, ids or frames -> a tensor, unknown words treated as chosen in `fit`."""
        return self.read_all([sequence])[0]

    def read_all(self, sequences: Sequence[Any]) -> list[Tensor]:
        """Many; what became unknown of texts is warned of once."""
        found, notes = self.reader.read_all(sequences)
        for note in notes:
            warnings.warn(note, stacklevel=3)
        return found

    # ---- files

    def save(self, folder: str | Path) -> None:
        """Into a folder: monitor.json and monitor.safetensors. The network is not saved, only its fingerprint."""
        from holdfast.monitor.saving import save

        tensors = {f"mutation.{key}": value for key, value in self.mutation.tensors().items()}
        content: dict[str, Any] = {
            "tokenizer": None if self.net.tokenizer is None else self.net.tokenizer.fingerprint,
            "mutation": self.mutation.settings(),
            "outputs": self.outputs.settings(),
            "settings": asdict(self.settings),
        }
        if self.tree is not None:
            content["tree"] = self.tree.settings()
            tensors |= {f"tree.{key}": value for key, value in self.tree.tensors().items()}
        save(Path(folder), self.net, content, tensors)

    @classmethod
    def load(cls, folder: str | Path, net: Network) -> "Monitor":
        """What `save` wrote, for the same network with the same tokenizer; any other is refused."""
        from holdfast.monitor import outputs, stored_settings
        from holdfast.monitor.mutation import mutation
        from holdfast.monitor.saving import WRITTEN, load

        content, tensors = load(Path(folder), net)

        def part(name: str) -> Mapping[str, Tensor]:
            return {
                key.removeprefix(f"{name}."): value
                for key, value in tensors.items()
                if key.startswith(f"{name}.")
            }

        view, tree = find(net), None
        with in_words(folder, "damaged", WRITTEN):
            settings = Settings(**stored_settings.check_types(content["settings"], stored_settings.SETTINGS))
            read = (
                mutation.restore(content["mutation"], part("mutation")),
                outputs.restore(content["outputs"]),
                settings,
            )
            _check(
                net,
                read[0],
                settings.mode,
                settings.unknown,
                settings.confidence,
                settings.samples,
                settings.max_length,
            )
            if view is not None:
                read[1].count(view.outputs(view.start(1)).shape[1])
            if settings.mode == "abstract":
                from holdfast.monitor.abstract.tree import DecisionTreeEstimate

                tree = stored_settings.checked_tree(DecisionTreeEstimate.of(part("tree"), content["tree"]))
        return cls(net, *read, view=view, tree=tree)


def _check(
    net: Network,
    mutation: Mutation,
    mode: Mode,
    unknown: str,
    confidence: float,
    samples: int,
    max_length: int,
) -> None:
    if mode not in ("exact", "sampled", "abstract"):
        raise BadInput(f"mode {mode!r}: there are auto, exact, sampled and abstract.")
    if unknown not in ("error", "skip", "unk"):
        raise BadInput(f"unknown {unknown!r}: there are error, skip and unk.")
    if mode == "exact" and not mutation.finite:
        raise BadInput(
            f"{type(mutation).__name__} has infinitely many values, so scores cannot be exact: use mode='sampled'."
        )
    if net.vectors is not None and not mutation.finite:
        raise BadInput(
            f"{net.name} reads tokens, and {type(mutation).__name__} is for frames of numbers: use Groups, Typos or Own."
        )
    if not 0 < confidence < 1 or samples < 1 or max_length < 1:
        raise BadInput(
            f"confidence={confidence} must lie between 0 and 1, samples={samples} and max_length={max_length} above 0."
        )
