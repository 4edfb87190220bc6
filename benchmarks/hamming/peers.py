"""Published attacks that change few pixels, where they are installed; our own replay verifies their results.

pip install --no-deps foolbox eagerpy GitPython gitdb smmap numba llvmlite torchattacks requests adv-lib

foolbox cannot be imported without GitPython. adv-lib imports torchvision and visdom for parts that are not
used here, so empty modules replace the two where they are missing.
"""

import contextlib
import importlib
import importlib.util
import io
import sys
import types
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.hamming import l0_attacks

Attack = Callable[[nn.Module, Tensor, Tensor], Tensor]
HERE = "written here"
PIXELS = (1, 2, 3, 5, 8, 13)  # Numbers of pixels that OnePixel tries in turn.


@dataclass(frozen=True)
class Peer:
    name: str
    library: str
    attack: Attack  # module, x in [0, 1], y -> candidate adversarial inputs.

    def absent(self) -> str | None:
        """Why the attack cannot run; None if it can."""
        if self.library == HERE:
            return None
        try:
            _library(self.library)
        except Exception as error:
            return f"{self.library}: {type(error).__name__}: {error}"
        return None

    def __call__(self, module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            np.random.seed(0)  # The packages use numpy's global generator.
            return self.attack(module, x, y).detach()


OWN = ("JSMA, own", "C&W-L0, own", "sigma-zero, own", "Sparse-RS, own")  # They need no other package.


def peers(names: Sequence[str]) -> list[Peer]:
    """The installed attacks among `names`; prints a line for each missing one."""
    found = []
    for name in names:
        why = PEERS[name].absent()
        if why is None:
            found.append(PEERS[name])
        else:
            print(f"{name} is left out: {why}", file=sys.stderr)
    return found


def _library(name: str) -> Any:
    if name == "adv_lib":
        for unused in ("torchvision", "visdom"):
            if unused not in sys.modules and importlib.util.find_spec(unused) is None:
                sys.modules[unused] = types.ModuleType(unused)
                sys.modules[unused].models = None  # type: ignore[attr-defined]
        return importlib.import_module("adv_lib.attacks")
    return importlib.import_module(name)


def _foolbox(attack: str, **settings: Any) -> Attack:
    def run(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        box, attacks = _library("foolbox"), importlib.import_module("foolbox.attacks")
        model = box.PyTorchModel(module, bounds=(0, 1), device=x.device)
        found: Tensor = getattr(attacks, attack)(**settings).run(model, x, y)
        return found

    return run


def _pointwise(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Pointwise attack.

    It fails on starts that are not adversarial, so images without a start are left unchanged.
    """
    box, attacks = _library("foolbox"), importlib.import_module("foolbox.attacks")
    model = box.PyTorchModel(module, bounds=(0, 1), device=x.device)
    found: Tensor = attacks.SaltAndPepperNoiseAttack().run(model, x, y)
    broken = module(found).argmax(1) != y
    if bool(broken.any()):
        attack = attacks.PointwiseAttack(l2_binary_search=False)
        found[broken] = attack.run(model, x[broken], y[broken], starting_points=found[broken])
    return found


def _torchattacks(attack: str, **settings: Any) -> Attack:
    def run(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        made = getattr(_library("torchattacks"), attack)(module, **settings)
        return torch.cat([made(image[None], label[None]) for image, label in zip(x, y, strict=True)])

    return run


def _one_pixel(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """OnePixel attack with one pixel, then two, ...: the first number that succeeds."""
    found = x.clone()
    for pixels in PIXELS:
        left = (module(found).argmax(1) == y).nonzero().flatten()
        if len(left):
            made = _library("torchattacks").OnePixel(module, pixels=pixels, steps=30, popsize=60)(
                x[left], y[left]
            )
            found[left] = torch.where(
                (module(made).argmax(1) != y[left])[:, None, None, None], made, found[left]
            )
    return found


PEERS = {
    peer.name: peer
    for peer in (
        Peer("JSMA, own", HERE, l0_attacks.jsma),
        Peer("C&W-L0, own", HERE, l0_attacks.carlini_wagner_l0),
        Peer("sigma-zero, own", HERE, l0_attacks.sigma_zero),
        Peer("Sparse-RS, own", HERE, l0_attacks.sparse_rs),
        Peer("sigma-zero", "adv_lib", lambda m, x, y: _library("adv_lib").sigma_zero(m, x, y)),
        Peer("VFGA", "adv_lib", lambda m, x, y: _library("adv_lib").vfga(m, x, y, targeted=False)),
        Peer("FMN-L0", "adv_lib", lambda m, x, y: _library("adv_lib").fmn(m, x, y, norm=0, steps=1000)),
        Peer("Brendel-Bethge L0", "foolbox", _foolbox("L0BrendelBethgeAttack")),
        Peer("Pointwise", "foolbox", _pointwise),
        Peer("salt and pepper", "foolbox", _foolbox("SaltAndPepperNoiseAttack")),
        Peer("JSMA", "torchattacks", _torchattacks("JSMA", theta=1.0, gamma=0.2)),
        Peer("OnePixel", "torchattacks", _one_pixel),
        Peer(
            "Pixle",
            "torchattacks",
            _torchattacks("Pixle", x_dimensions=(1, 3), y_dimensions=(1, 3), restarts=50, max_iterations=20),
        ),
    )
}
