"""The monitor: robustness scores of a recurrent network, for whole sequences or element by element.

The score of element i is the k-step pointwise robustness of Du et al. 2020 (MARBLE, Definition 2.5):

    gamma_k(x, i) = P(label of step i + k stays the same when x_i is replaced by a mutant drawn from mu(x_i)).
"""

import math
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
from holdfast.files import explained_errors
from holdfast.monitor import outputs, stored_settings
from holdfast.monitor.abstract.marble import Marble, Refinement
from holdfast.monitor.abstract.marble_scores import MarbleScores
from holdfast.monitor.abstract.traces import profile
from holdfast.monitor.abstract.tree import DecisionTreeEstimate
from holdfast.monitor.abstract.tree_growth import Growing
from holdfast.monitor.engine import exact
from holdfast.monitor.engine.numpy_stream import NumpyEngine
from holdfast.monitor.engine.recurrent import Recurrent
from holdfast.monitor.engine.sampled import Drawn, interval
from holdfast.monitor.engine.state_view import StateView, open_network
from holdfast.monitor.engine.stream import Stream
from holdfast.monitor.mutation import mutation
from holdfast.monitor.mutation.choices import Mutation, Still, are_ids
from holdfast.monitor.outputs import Classes, Output
from holdfast.monitor.reading import Reader, has_unknown, unknown_token
from holdfast.monitor.saving import WRITTEN, load, save
from holdfast.monitor.score import Score, Scores, Steps
from holdfast.network import Network
from holdfast.network.text import Unknown
from holdfast.result import Evidence

Mode = Literal["exact", "sampled", "abstract", "marble"]
# Up to this many tokens in all, steps in numpy are faster than a batch in torch (chosen by hand).
FEW_TOKENS = 64
# Limit for the number of elements in the draws that are in memory at once (chosen by hand).
MOST_DRAWN_ELEMENTS = 2**24

# of Monitor: net, mutation, outputs, settings and view; with fewer, a user called the class itself.
ARGUMENTS_WITHOUT_DEFAULT = 5

ONE_ELEMENT = "exactly one element is replaced, by one of its set"
STEPS = "a step answers each row from its own state and element"
OPENED = (
    "rounding moves the network's outputs by at most a multiple of the largest difference seen on prefixes"
)
SAME_ANSWER = "the model answers the same sequence the same way every time, alone or in a batch"


@dataclass(frozen=True)
class Settings:
    """Settings of a monitor, stored with it on disk."""

    mode: Mode
    unknown: Unknown
    unk: int | None
    confidence: float
    samples: int
    seed: int
    max_length: int

    @property
    def fitted(self) -> bool:
        """Whether scores come from a model that was fitted on sequences."""
        return self.mode in ("abstract", "marble")


class Monitor:
    """Robustness scores of a recurrent network. Build one with `fit` or `load`.

    Modes:
        exact: every mutant of an element is run: proved, without error.
        sampled: random mutants, with a Clopper-Pearson interval for each score; for noise on frames and very
            large sets.
        abstract: a decision tree fitted on training sequences: estimated, with the number of transitions
            behind it.
        marble: MARBLE's labelled MDP, fitted on training sequences: estimated, with the number of transitions
            behind it.
    """

    def __new__(cls, *given: Any, **named: Any) -> "Monitor":
        if given and len(given) + len(named) < ARGUMENTS_WITHOUT_DEFAULT:
            raise BadInput(
                "Monitor: build one with hf.Monitor.fit(net, sequences, mutation), or read a saved one with "
                "hf.Monitor.load(folder, net)."
            )
        return super().__new__(cls)

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
        mode: Literal["auto", "exact", "sampled", "abstract", "marble"] = "auto",
        unknown: Unknown | None = None,
        unk: int | None = None,
        confidence: float = 0.95,
        samples: int = 1000,
        seed: int = 0,
        max_length: int = 4096,
        omega: int | None = None,
        theta: float | None = None,
    ) -> "Monitor":
        """Build a monitor for a network that answers every prefix of a sequence.

        Args:
            net: a recurrent network, or any network that answers every prefix of a sequence.
            sequences: of token ids, words or frames. The modes abstract and marble are trained on them; the
                other modes only check the network on some of them.
            mutation: the possible replacements of an element: Groups, Typos, Noise or Own.
            answer: the part of the output that must not change: Classes() (default); Bins or Tolerance for
                numbers.
            mode: auto selects exact if the mutation is a finite set, else sampled.
            unknown: treatment of unknown words: error, skip (omit them) or unk (replace them by the token
                `unk`). Default: the network's token for unknown words, and an error if it has none.
            confidence: with mode sampled, the probability that an interval contains its score.
            samples: with mode sampled, the number of random mutants of each element.
            seed: decides every random number.
            max_length: the most elements of a sequence; longer ones are refused.
            omega: with mode marble, the dimensions that PCA keeps of the states (default 16).
            theta: with mode marble, the error that is allowed in an abstract state (default 0.6).
        """
        if not isinstance(net, Network):
            raise BadInput(
                f"net: a monitor needs a hf.Network, got {type(net).__name__}. Build it with "
                "hf.Network.from_torch(module, ...); for a model of tokens with vocabulary= or tokenizer=."
            )
        if not isinstance(mutation, Mutation):
            raise BadInput(
                f"mutation: what may replace an element, got {type(mutation).__name__}. Give "
                "hf.monitor.Groups(...) or hf.monitor.Typos(...) for words, hf.monitor.Noise(...) for frames, or "
                "hf.monitor.Own(...)."
            )
        chosen: Mode = ("exact" if mutation.finite else "sampled") if mode == "auto" else mode
        if unknown is None:
            unknown = "unk" if has_unknown(net, unk) else "error"
        _check(net, mutation, chosen, unknown, confidence, samples, max_length)
        _check_refinement(chosen, omega, theta)
        if unknown == "unk":
            unk = unknown_token(net, unk)
        settings = Settings(chosen, unknown, unk, confidence, samples, seed, max_length)
        view = open_network(net, Reader(net, unknown, unk, max_length).read_all(list(sequences)[:6])[0])
        made = cls(net, mutation, answer or Classes(), settings, view=view)
        if view is not None:
            made.outputs.count(view.outputs(view.start(1)).shape[1])
        if settings.fitted:
            made.tree = made._abstract_model(sequences, omega, theta)
        return made

    def _abstract_model(self, sequences: Sequence[Any], omega: int | None, theta: float | None) -> Any:

        if not len(sequences):
            raise BadInput("the abstract model learns from sequences: give some to fit.")
        if self.mode == "marble" and self.view is None:
            raise BadInput(
                f"mode marble reads the hidden states of the network, and those of {self.net.name} are not "
                "accessible: it is used as a black box. Use mode='abstract', which needs only outputs."
            )
        known = (
            self.mutation
            if self.mutation.finite
            else Drawn(self.mutation, self.settings.samples, self.generator())
        )
        traces = profile(self.net, self.read_all(sequences), known, self.outputs, self.view)
        if self.mode == "marble":
            return _fit_marble(traces, omega, theta, self.settings.seed)

        return DecisionTreeEstimate.fit(
            traces, Growing(confidence=self.settings.confidence, seed=self.settings.seed)
        )

    @property
    def mode(self) -> Mode:
        return self.settings.mode

    @cached_property
    def quick(self) -> NumpyEngine | None:
        """The numpy engine if it applies: tokens, classes, an affine head, CPU."""
        fits = isinstance(self.view, Recurrent) and NumpyEngine.fits(self.view, self.mutation, self.outputs)
        return NumpyEngine(self.view, self.mutation) if fits and isinstance(self.view, Recurrent) else None

    # ---- whole sequences

    def score(self, sequence: Any, k: Steps = 0) -> Scores:
        """One score for each element of `sequence`: the probability that the label k elements later stays."""
        return self.score_all([sequence], k)[0]

    def score_all(self, sequences: Sequence[Any], k: Steps = 0) -> list[Scores]:
        """Score several `sequences` for the label k elements later in one batch, which is faster than one by
        one.
        """
        read = self.read_all(sequences)
        if (
            self.settings.mode == "exact"
            and k == 0
            and self.quick is not None
            and sum(map(len, read)) <= FEW_TOKENS
        ):
            short = [self._short(sequence, self.quick.fresh()) for sequence in read]
            if not any(scores is None for scores in short):
                return [scores for scores in short if scores is not None]
        if self.settings.mode == "exact":
            found = exact.labels(self.net, read, self.mutation, outputs=self.outputs, k=k, view=self.view)
            found = found.to(torch.device("cpu"))
            return self._split(read, found, found.values, found.values, found.values, k)
        if self.settings.mode == "sampled":
            return [scores for some in self._side_by_side(read) for scores in self._score_sampled(some, k)]
        return self._score_estimated(read, k)

    def _short(self, sequence: Tensor, engine: NumpyEngine) -> Scores | None:
        """Score few tokens step by step, which is faster than a batch.

        None if a close label needs the user's module.
        """
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
        """Group sequences whose draws fit into memory together; a longer one is a group of its own."""
        some: list[Tensor] = []
        filled = 0
        for sequence in read:
            # A token is evaluated once, however often it is drawn.
            numbers = sequence.numel() * (self.settings.samples if sequence.is_floating_point() else 1)
            if some and filled + numbers > MOST_DRAWN_ELEMENTS:
                yield some
                some, filled = [], 0
            some.append(sequence)
            filled += numbers
        if some:
            yield some

    def _score_sampled(self, read: list[Tensor], k: Steps) -> list[Scores]:
        """Score several sequences at once, or one sequence in parts if its draws do not fit into memory."""
        count, generator, size = self.settings.samples, self.generator(), sum(map(len, read))
        rows = (
            max(1, MOST_DRAWN_ELEMENTS // (count * max(1, read[0][0].numel())))
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
            ).to(torch.device("cpu"))
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
                f"k={k!r}: the abstract model estimates the label right after an element (k=0); other steps "
                "need mode='exact'."
            )
        keep: exact.Keep = "labels" if self.view is None else "states"
        found = exact.labels(
            self.net, read, Still(), outputs=self.outputs, keep=keep, view=self.view, apart=False
        )
        # For a black box only its outputs are visible.
        behind = found.outputs if found.successors is None else found.successors
        if self.tree.needs_state_before:
            assert found.states is not None
            behind = found.states
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
        """(n, ...) -> (n,) bool: whether the element has a mutant other than itself."""
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
        if self.tree is not None and s.mode == "marble":
            settings |= {"omega": self.tree.refinement.omega, "theta": self.tree.refinement.theta}
        return Evidence("estimated", method, settings, seed=s.seed, dtype=dtype, assumptions=assumptions)

    def generator(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.settings.seed)

    # ---- streams

    def stream(self) -> "Stream":
        """Return a stream with its own state; several can run at the same time."""
        return Stream(self)

    def start(self) -> None:
        """Start a new stream; the previous elements are discarded."""
        if self._stream is None:
            self._stream = Stream(self)
        self._stream.reset()

    def reset(self) -> None:
        """Same as `start`."""
        self.start()

    def step(self, element: Any) -> Score | None:
        """Score the next element of the stream. None if it is unknown and unknown elements are skipped."""
        if self._stream is None:
            self.start()
        assert self._stream is not None
        return self._stream.step(element)

    def read(self, sequence: Any) -> Tensor:
        """Convert a text, words, ids or frames to a tensor; unknown words are treated as chosen in `fit`."""
        return self.read_all([sequence])[0]

    def read_all(self, sequences: Sequence[Any]) -> list[Tensor]:
        """Convert several sequences; warn once about unknown words in texts."""
        found, notes = self.reader.read_all(sequences)
        for note in notes:
            warnings.warn(note, stacklevel=3)
        return found

    # ---- files

    def save(self, folder: str | Path) -> None:
        """Write monitor.json and monitor.safetensors into a folder.

        Of the network only the fingerprint is stored.
        """

        tensors = {f"mutation.{key}": value for key, value in self.mutation.tensors().items()}
        content: dict[str, Any] = {
            "tokenizer": None if self.net.tokenizer is None else self.net.tokenizer.fingerprint,
            "mutation": self.mutation.settings(),
            "outputs": self.outputs.settings(),
            "settings": asdict(self.settings),
        }
        if self.tree is not None:
            name = "marble" if self.mode == "marble" else "tree"
            content[name] = self.tree.settings()
            tensors |= {f"{name}.{key}": value for key, value in self.tree.tensors().items()}
        save(Path(folder), self.net, content, tensors)

    @classmethod
    def load(cls, folder: str | Path, net: Network) -> "Monitor":
        """Load the monitor that was saved in `folder`. The network `net` and its tokenizer must be the ones it
        was fitted for.
        """

        content, tensors = load(Path(folder), net)

        def part(name: str) -> Mapping[str, Tensor]:
            return {
                key.removeprefix(f"{name}."): value
                for key, value in tensors.items()
                if key.startswith(f"{name}.")
            }

        view = open_network(net)
        tree: Any = None
        with explained_errors(folder, "damaged", WRITTEN):
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
                tree = stored_settings.checked_tree(DecisionTreeEstimate.of(part("tree"), content["tree"]))
            if settings.mode == "marble":
                stored = stored_settings.check_types(content["marble"], stored_settings.MARBLE)
                stored_settings.check_types(stored["refinement"], stored_settings.REFINEMENT)
                tree = stored_settings.checked_marble(
                    MarbleScores.of(part("marble"), stored), 0 if view is None else view.width
                )
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
    if mode not in ("exact", "sampled", "abstract", "marble"):
        raise BadInput(f"mode {mode!r}: choose auto, exact, sampled, abstract or marble.")
    if unknown not in ("error", "skip", "unk"):
        raise BadInput(f"unknown {unknown!r}: choose error, skip or unk.")
    if mode == "exact" and not mutation.finite:
        raise BadInput(
            f"{type(mutation).__name__} has infinitely many values, so scores cannot be exact: use "
            "mode='sampled'."
        )
    if net.vectors is not None and not mutation.finite:
        raise BadInput(
            f"{net.name} reads tokens, and {type(mutation).__name__} is for frames of numbers: use Groups, "
            "Typos or Own."
        )
    if not 0 < confidence < 1 or samples < 1 or max_length < 1:
        raise BadInput(
            f"confidence={confidence} must be between 0 and 1, samples={samples} and "
            f"max_length={max_length} at least 1."
        )


def _check_refinement(mode: Mode, omega: int | None, theta: float | None) -> None:
    if mode != "marble" and (omega is not None or theta is not None):
        raise BadInput(f"omega and theta are settings of mode marble, and the mode is {mode}: omit them.")
    if omega is not None and (isinstance(omega, bool) or not isinstance(omega, int) or omega < 1):
        raise BadInput(f"omega={omega!r}: the number of dimensions that PCA keeps is an integer >= 1.")
    if theta is not None and not (theta > 0 and math.isfinite(theta)):
        raise BadInput(f"theta={theta!r}: the error allowed in an abstract state is a number above 0.")


def _fit_marble(traces: Any, omega: int | None, theta: float | None, seed: int) -> Any:

    if not bool(traces.attackable.any()):
        raise BadInput(
            "no element of these sequences has a mutant other than itself, so every score is 1 and there is "
            "nothing to learn."
        )
    standard = Refinement()
    settings = Refinement(
        omega=standard.omega if omega is None else omega,
        theta=standard.theta if theta is None else float(theta),
        seed=seed,
    )
    return MarbleScores.of_model(Marble.fit(traces, settings))
