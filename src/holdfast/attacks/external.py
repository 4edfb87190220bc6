"""Attacks of other libraries as methods: foolbox, the Adversarial Robustness Toolbox (ART), or any function.

The other library proposes points; it proves nothing and decides nothing. Each point is moved into the perturbation
set, replayed through the user's model and measured like every candidate, so an error of an attack can only make
the upper bound larger than necessary.

References: Rauber et al., "Foolbox Native" (2020); Nicolae et al., "Adversarial Robustness Toolbox" (2018).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from holdfast.attacks.descent import pull_closer
from holdfast.errors import BadInput
from holdfast.method import Claims, Method
from holdfast.problem import Problem
from holdfast.property import Robustness
from holdfast.result import Traits

# (model, inputs, classes, epsilon) -> points of the shape of the inputs
Attack = Callable[[nn.Module, Tensor, Tensor, float], Any]
# Smallest tried radius as a share of the largest (chosen by hand).
SMALLEST_SHARE = 1e-3


@dataclass(frozen=True)
class State:
    """The number of radii that were tried, and the random seed of this run."""

    tried: int
    seed: int


@dataclass(frozen=True, eq=False)
class External(Method[State]):
    """Attack the class of each input with a function of another library, at several radii.

    Attributes:
        attack: called as attack(model, x, y, epsilon) with a torch module that returns the outputs, inputs
            (n, *shape), their classes (n,) and one radius; returns points (n, *shape).
        epsilons: the radii. Empty: `radii` of them, in a geometric series up to the largest that the domain
            allows.
        label: the name of the attack in results.
    """

    finds: ClassVar[str] = "witnesses"
    help: ClassVar[str] = "an attack of foolbox, of ART or of your own (Python only)"
    traits: ClassVar[Traits] = Traits(glass=True)

    attack: Attack
    epsilons: tuple[float, ...] = ()
    radii: int = 10
    label: str = "external attack"

    def __post_init__(self) -> None:
        self.at_least(radii=1)
        if not callable(self.attack):
            raise BadInput(
                f"External: the attack must be a function (model, x, y, epsilon) -> points, got {self.attack!r}."
            )
        if not all(epsilon > 0 for epsilon in self.epsilons):
            raise BadInput(f"External: epsilons must be positive, got {list(self.epsilons)}.")

    def obstacle(self, problem: Problem) -> str | None:
        if not problem.network.differentiable:
            return "attacks of other libraries need a torch module, and the network is a black box"
        if not isinstance(problem.property, Robustness):
            return "attacks of other libraries change the class; this problem has another property"
        if problem.region.as_norm_family() is None:
            return "attacks of other libraries search a norm ball; this problem has another region"
        if not self.epsilons and not bool(problem.family.reach().isfinite().all()):
            return "without a domain it is not known which radii to try: give epsilons or a domain"
        return None

    def start(self, problem: Problem, seed: int) -> State:
        return State(0, seed)

    def step(self, problem: Problem, state: State) -> tuple[State | None, Claims]:
        """Attack all rows at one radius."""
        epsilons = self._radii(problem)
        family = problem.region.as_norm_family()
        assert family is not None
        assert isinstance(problem.property, Robustness)
        centre = problem.region.centre
        with torch.random.fork_rng(), torch.enable_grad():
            torch.manual_seed(state.seed * len(epsilons) + state.tried)
            model = _Outputs(problem.network.module)
            given = self.attack(model, centre.clone(), problem.property.label, epsilons[state.tried])
        points = torch.as_tensor(given).detach().to(centre)
        if points.shape != centre.shape:
            raise BadInput(
                f"{self.label}: returned points of shape {tuple(points.shape)} for inputs {tuple(centre.shape)}."
            )
        points = torch.where(points.isfinite(), points, centre)
        inside = family.at(torch.inf) if problem.bounds_radius else problem.region
        points = inside.project(points)
        found = ~(problem.score(points) > 0)
        if problem.bounds_radius:
            points, distance = pull_closer(problem, points, found)
            found = distance.isfinite()
        else:
            found = torch.ones_like(found)
        tried = state.tried + 1
        following = State(tried, state.seed) if tried < len(epsilons) else None
        return following, Claims(witness=points, found=found)

    def _radii(self, problem: Problem) -> tuple[float, ...]:
        if self.epsilons:
            return self.epsilons
        largest = problem.family.reach() if problem.bounds_radius else problem.family.radius
        top = float(largest.max())
        if self.radii == 1 or not problem.bounds_radius:
            return (top,)
        shares = [k / (self.radii - 1) for k in range(self.radii)]
        return tuple(top * SMALLEST_SHARE ** (1 - share) for share in shares)


class _Outputs(nn.Module):
    """The network's module, which a foreign library may put into any mode and on any device."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.training = False

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.module(x)
        return found

    def train(self, mode: bool = True) -> "_Outputs":
        """Stay in evaluation mode: the network is measured as it is used."""
        return self


def foolbox_attack(
    attack: Any, *, bounds: tuple[float, float], epsilons: tuple[float, ...] = (), radii: int = 10
) -> External:
    """A foolbox attack as a method: `hf.radius(net, x, y, methods=[hf.attacks.foolbox_attack(...), ...])`.

    Args:
        attack: such as `foolbox.attacks.LinfPGD()`.
        bounds: lowest and highest value of an input; foolbox clips to it.
        epsilons, radii: as in `External`.
    """

    def run(model: nn.Module, x: Tensor, y: Tensor, epsilon: float) -> Any:
        try:
            import foolbox
        except ImportError as error:
            raise BadInput("foolbox is not installed: pip install foolbox.") from error
        wrapped = foolbox.PyTorchModel(model, bounds=bounds, device=x.device)
        _, clipped, _ = attack(wrapped, x, foolbox.criteria.Misclassification(y), epsilons=epsilon)
        return clipped

    return External(run, tuple(epsilons), radii, f"foolbox {type(attack).__name__}")


def art_attack(attack: Any, *, epsilons: tuple[float, ...] = (), radii: int = 10) -> External:
    """An evasion attack of ART as a method. It brings its own estimator, which should wrap the same module.

    Args:
        attack: such as `ProjectedGradientDescent(PyTorchClassifier(...))`. If it has the parameter `eps`, this is
            set to each radius; otherwise it runs once.
        epsilons, radii: as in `External`.
    """
    if not hasattr(attack, "generate"):
        raise BadInput(f"art_attack: expected an evasion attack with generate, got {type(attack).__name__}.")
    takes_radius = "eps" in getattr(attack, "attack_params", ())

    def run(model: nn.Module, x: Tensor, y: Tensor, epsilon: float) -> Any:
        if takes_radius:
            step = {"eps_step": epsilon / 10} if "eps_step" in attack.attack_params else {}
            attack.set_params(eps=epsilon, **step)
        return attack.generate(x=x.detach().cpu().numpy(), y=y.cpu().numpy())

    return External(
        run, tuple(epsilons), radii if takes_radius or epsilons else 1, f"ART {type(attack).__name__}"
    )
