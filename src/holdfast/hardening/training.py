"""The training loop, with occasional evaluation on validation data to keep the best weights."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from holdfast import time_limit
from holdfast.errors import BadInput
from holdfast.hardening import cells as _cells  # noqa: F401  for what they add to the table of rules
from holdfast.hardening import interval_rules as _rules  # noqa: F401
from holdfast.hardening.backward import TapedWalk
from holdfast.hardening.evaluation import accuracy, certified_share
from holdfast.hardening.examples import Examples, batches, examples_of
from holdfast.hardening.intervals import Traced
from holdfast.hardening.losses import BoundedNetwork, TrainingBatch, loss
from holdfast.hardening.recipe import Recipe
from holdfast.network import Network
from holdfast.network.recurrent import copy_module
from holdfast.network.trace import replace_weights
from holdfast.problem import Problem
from holdfast.result import Share

Ended = Literal["finished", "stopped", "interrupted", "not a number"]
EVALUATED_INPUTS = 100  # Validation inputs that the engine bounds in one evaluation (chosen by hand).
EVALUATIONS = 6  # Number of evaluations by the engine after the full radius is reached (chosen by hand).
# Limit for the share of the elapsed time that evaluations may take (chosen by hand).
EVALUATION_TIME_SHARE = 0.3
# Share of the time after which only the final evaluation follows (chosen by hand).
TRAINING_TIME_SHARE = 0.93


@dataclass(frozen=True)
class Epoch:
    """One pass over all inputs, with validation results.

    certified: share of the `measured` validation inputs that the engine proves, of `judged` that were
    selected; None if the engine was not run, or had no time.
    """

    number: int
    seconds: float  # since training began
    grown: float  # share of the full radius at the end of the epoch
    loss: float
    accuracy: float  # on validation inputs
    certified: float | None = None
    measured: int = 0
    judged: int = 0


@dataclass
class TrainedModule:
    """The module being trained, a copy of the network's own, and its word vectors, if any."""

    net: Network  # wraps the module below
    module: nn.Module
    vectors: Tensor | None
    trained: list[Tensor]

    def state(self) -> dict[str, Tensor]:
        """Return copies of all weights and buffers."""
        found = {f"module.{name}": value.detach().clone() for name, value in self.module.state_dict().items()}
        return found if self.vectors is None else {**found, "vectors": self.vectors.detach().clone()}

    def load(self, state: dict[str, Tensor]) -> None:
        self.module.load_state_dict(
            {k.removeprefix("module."): v for k, v in state.items() if k.startswith("module.")}
        )
        if self.vectors is not None:
            with torch.no_grad():
                self.vectors.copy_(state["vectors"])

    def freeze(self) -> Network:
        """Return an independent network with the current weights, without cached results."""
        module = copy_module(self.module).eval().requires_grad_(False)
        found = self.net.around(module)
        found._programs = {
            shape: replace_weights(program, module) for shape, program in self.net._programs.items()
        }
        if self.vectors is not None:
            found.vectors = self.vectors.detach().clone()
            found.token_model = None  # it still has the old weights
            found.tokens_checked = {}
        return found


@dataclass
class TrainingProgress:
    """The state from which a run can resume."""

    state: dict[str, Tensor]
    best: dict[str, Tensor]
    score: float = -math.inf
    epoch: int = 0
    seconds: float = 0.0
    history: list[Epoch] = field(default_factory=list)
    optimiser: dict[str, Any] = field(default_factory=dict)
    chance: Tensor | None = None  # state of the random generator


@dataclass(frozen=True)
class TrainingOutcome:
    state: dict[str, Tensor]  # weights of the best checkpoint
    history: tuple[Epoch, ...]
    ended: Ended
    seconds: float


def prepare_training(net: Network, freeze: Sequence[str], *, words: bool) -> TrainedModule:
    """Copy the module for training. BadInput if it has no trainable weights."""
    module = copy_module(net.module).eval()
    names = [name for name, _ in module.named_parameters()]
    plain = [_plain(name) for name in names]
    for prefix in freeze:
        if not any(_under(name, prefix) for name in [*plain, "embedding"]):
            raise BadInput(
                f"freeze {prefix!r}: the model has no such layer; its layers are "
                f"{', '.join(sorted({n.rsplit('.', 1)[0] for n in plain}))}."
            )
    trained: list[Tensor] = []
    for name, parameter in module.named_parameters():
        wanted = parameter.is_floating_point() and not any(_under(_plain(name), prefix) for prefix in freeze)
        parameter.requires_grad_(wanted)
        trained += [parameter] if wanted else []
    vectors = None
    if words and net.vectors is not None:
        vectors = net.vectors.detach().clone()
        if "embedding" not in freeze:
            trained.append(vectors.requires_grad_(True))
    if not trained:
        raise BadInput(
            f"{net.name} has no trainable weights{' except frozen ones' if freeze else ''}. harden takes "
            "torch modules "
            f"(Network.from_torch); a model read from a file has constants only."
        )
    for part in module.modules():
        if isinstance(part, nn.RNNBase) and part.dropout == 0:
            # cuDNN has no backward pass in evaluation mode; without dropout both modes are the same
            part.train()
    live = net.around(module)
    return TrainedModule(live, module, vectors, trained)


def _plain(name: str) -> str:
    """Return the parameter's name in the user's own module."""
    return name.removeprefix("model.").removeprefix("behind.")


def _under(name: str, prefix: str) -> bool:
    return name == prefix or name.startswith(f"{prefix}.")


def parts_of(live: TrainedModule, problems: Sequence[Problem], radius: float) -> list[Examples]:
    return [examples_of(problem, radius, live.vectors) for problem in problems]


@dataclass(frozen=True)
class HardeningSettings:
    """How a network is trained.

    Attributes:
        recipe: the loss and its schedule.
        radius: the perturbation radius to train for.
        seconds: limit for everything, evaluations included. It also defines the progress if the recipe has no
            epochs.
        seed: of the order of batches, and of attacks.
    """

    recipe: Recipe
    radius: float
    seconds: float | None = None
    seed: int = 0


# The share of some inputs that are certified at the full radius: network, examples, about how many inputs.
Certify = Callable[[Network, Sequence[Examples], int], Share]


def train(
    live: TrainedModule,
    problems: Sequence[Problem],
    validation: Sequence[Problem],
    settings: HardeningSettings,
    *,
    progress: Callable[[Epoch], None] | None = None,
    keep: Callable[[TrainingProgress], None] | None = None,
    known: TrainingProgress | None = None,
    certify: Certify = certified_share,
) -> TrainingOutcome:
    """Train. After Ctrl-C or a loss that is not finite the best weights so far are returned.

    Args:
        keep: called after every epoch with the state to resume from.
        known: such a state of an earlier run.
        certify: what the checkpoint is chosen by, next to accuracy.
    """
    if settings.recipe.epochs is None and settings.seconds is None:
        raise BadInput("set when training ends: by epochs of the recipe, or by seconds.")
    return _Loop(live, problems, validation, settings, progress, keep, known, certify).run()


class _Loop:
    def __init__(
        self,
        live: TrainedModule,
        problems: Sequence[Problem],
        validation: Sequence[Problem],
        settings: HardeningSettings,
        progress: Callable[[Epoch], None] | None,
        keep: Callable[[TrainingProgress], None] | None,
        known: TrainingProgress | None,
        certify: Certify,
    ) -> None:
        recipe, radius = settings.recipe, settings.radius
        self.live, self.recipe, self.seed = live, recipe, settings.seed
        self.tell, self.keep, self.certify = progress, keep, certify
        self.parts, self.held = parts_of(live, problems, radius), parts_of(live, validation, radius)
        self.seconds = settings.seconds
        self.generator = torch.Generator().manual_seed(settings.seed)
        self.optimiser = torch.optim.AdamW(live.trained, lr=recipe.rate, weight_decay=recipe.decay)
        self.traced = _trace_programs(live, self.parts) if recipe.uses_bounds else {}
        self.walks = _walks(self.traced, self.parts) if recipe.uses_crown else {}
        self.recurrent = is_recurrent(live.module)
        self.now = TrainingProgress(live.state(), live.state()) if known is None else known
        if known is not None:
            live.load(known.state)
            self.optimiser.load_state_dict(known.optimiser)
            assert known.chance is not None
            self.generator.set_state(known.chance)
        self.began = time.monotonic() - self.now.seconds
        self.looking = 0.0

    def run(self) -> TrainingOutcome:
        ended: Ended = "finished"
        try:
            ended = self._epochs()
        except KeyboardInterrupt:
            ended = "interrupted"
        finally:
            self.live.module.zero_grad(set_to_none=True)
        return TrainingOutcome(self.now.best, tuple(self.now.history), ended, self._elapsed_seconds())

    def _elapsed_seconds(self) -> float:
        return time.monotonic() - self.began

    def _far(self, within: float = 0.0) -> float:
        """Return the progress of training in [0, 1]; `within` is the progress within the current epoch."""
        by_count = 0.0 if self.recipe.epochs is None else (self.now.epoch + within) / self.recipe.epochs
        by_clock = (
            0.0
            if self.seconds is None
            else self._elapsed_seconds() / max(self.seconds * TRAINING_TIME_SHARE, 1e-9)
        )
        return min(1.0, max(by_count, by_clock))

    def _epochs(self) -> Ended:
        while self._far() < 1:
            total, steps, many = 0.0, 0, batches(self.parts, self.recipe.batch, self.generator)
            for place, (part, rows) in enumerate(many):
                far = self._far(place / len(many))
                if far >= 1:
                    break
                value = self._step(part, rows, far, place)
                if not math.isfinite(value):
                    return "not a number"
                total, steps = total + value, steps + 1
            far = self._far(1.0)
            self._look(far, total / max(steps, 1))
        return (
            "stopped"
            if self.recipe.epochs is not None and self.now.epoch < self.recipe.epochs
            else "finished"
        )

    def _step(self, part: Examples, rows: Tensor, far: float, place: int) -> float:
        recipe = self.recipe
        for group in self.optimiser.param_groups:
            group["lr"] = recipe.rate * (
                0.5 + 0.5 * math.cos(math.pi * max(0.0, (far - recipe.warm[1]) / (1 - recipe.warm[1])))
            )
        self.optimiser.zero_grad(set_to_none=True)
        with torch.enable_grad():
            shape = part.problem.region.shape
            network = BoundedNetwork(
                self.live.net, self.traced.get(shape), self.recurrent, self.walks.get(shape)
            )
            seed = hash((self.seed, self.now.epoch, place))
            value = loss(recipe, network, TrainingBatch(part, rows, recipe.radius_share(far), seed))
        found = float(value.detach())
        if not math.isfinite(found):
            return found
        value.backward()
        nn.utils.clip_grad_norm_(self.live.trained, recipe.clip, error_if_nonfinite=False)
        if all(p.grad is None or bool(p.grad.isfinite().all()) for p in self.live.trained):
            self.optimiser.step()
        return found

    def _look(self, far: float, value: float) -> None:
        """Evaluate after an epoch.

        The engine runs a few times after the full radius is reached, and at the end.
        """
        now, grown = self.now, self.recipe.radius_share(far)
        now.epoch += 1
        right = accuracy(self.live.net, self.held)
        found = Share(0, 0, 0)
        if grown >= 1 and (far >= 1 or self._due(far)):
            began = time.monotonic()
            until = math.inf if self.seconds is None else self.began + self.seconds
            with time_limit.within(until):
                found = self.certify(self.live.freeze(), self.held, EVALUATED_INPUTS)
            self.looking += time.monotonic() - began
            if found.measured and found.value + right >= now.score:
                now.score, now.best = found.value + right, self.live.state()
        elif now.score == -math.inf:
            now.best = self.live.state()
        now.state, now.seconds = self.live.state(), self._elapsed_seconds()
        now.optimiser, now.chance = self.optimiser.state_dict(), self.generator.get_state()
        share = found.value if found.measured else None
        now.history.append(
            Epoch(now.epoch, now.seconds, grown, value, right, share, found.measured, found.total)
        )
        if self.tell is not None:
            self.tell(now.history[-1])
        if self.keep is not None:
            self.keep(now)

    def _due(self, far: float) -> bool:
        begun = self.recipe.warm[1]
        looks = sum(epoch.certified is not None for epoch in self.now.history)
        return (far - begun) / (1 - begun) >= (
            looks + 0.5
        ) / EVALUATIONS and self.looking <= EVALUATION_TIME_SHARE * self._elapsed_seconds()


def check_layers(live: TrainedModule, problems: Sequence[Problem], recipe: Recipe, radius: float) -> None:
    """Raise UnsupportedLayer, before training, if the recipe needs interval bounds and a layer has none."""
    if recipe.uses_bounds:
        parts = parts_of(live, problems, radius)
        traced = _trace_programs(live, parts)
        if recipe.uses_crown:
            _walks(traced, parts)


def _trace_programs(live: TrainedModule, parts: Sequence[Examples]) -> dict[tuple[int, ...], Traced]:
    """Trace the program for each input shape."""
    found: dict[tuple[int, ...], Traced] = {}
    for part in parts:
        shape = part.problem.region.shape
        if shape not in found:
            x = _one(part)
            found[shape] = Traced(live.net, x, live.module)
            found[shape].check(x)
    return found


def _walks(
    traced: dict[tuple[int, ...], Traced], parts: Sequence[Examples]
) -> dict[tuple[int, ...], TapedWalk]:
    first = {part.problem.region.shape: part for part in reversed(parts)}
    return {shape: TapedWalk(one, _one(first[shape])) for shape, one in traced.items()}


def _one(part: Examples) -> Tensor:
    """Return one input of the part's shape, (1, *shape)."""
    return part.points(torch.zeros(1, dtype=torch.int64, device=part.label.device)).detach()


def is_recurrent(module: nn.Module) -> bool:
    return any(isinstance(part, nn.RNNBase | nn.RNNCellBase) for part in module.modules())
