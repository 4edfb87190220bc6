"""Which numbers of a row a network read from an estimator depends on, proved from its structure.

Statement. If `independent_of` returns True for a set of features, the outputs are bit for bit the same for any two
finite rows that differ in these features only.

Trees: no leaf has a bound in one of the features, so every row has the same leaves, and the estimator adds the same
numbers. Modules: a number that does not depend on the features is one that a linear map multiplies by weights that are
exactly zero wherever it reads a number that does (0 x = 0 for every finite x, and adding zero changes no sum), or that
is selected, scaled or mapped by itself from such numbers. A layer that is not listed below is taken to mix all.
"""

import torch
from torch import Tensor, nn

from holdfast.network.adapter import Adapter
from holdfast.network.estimators.composed import Average
from holdfast.network.estimators.preparation_modules import Elementwise, Filled, Joined, Selected
from holdfast.network.estimators.preparing import Scaled
from holdfast.network.trees import Trees

# Layers of perceptrons that map each number by itself.
BY_THEMSELVES = (nn.ReLU, nn.Tanh, nn.Sigmoid, nn.Identity, Elementwise)


def independent_of(module: nn.Module, trees: Trees | None, features: Tensor) -> bool:
    """Whether the outputs of a network do not depend on these features; False also if that is not known.

    Args:
        module: the network's module.
        trees: its trees, if it is a sum of trees.
        features: (features,) bool.
    """
    if trees is not None:
        bounds = torch.stack([trees.lower[:, features], -trees.upper[:, features]])
        return bool((bounds == -torch.inf).all())
    found = _dependent(module, features)
    return found is not None and not bool(found.any())


def _dependent(module: nn.Module, features: Tensor) -> Tensor | None:
    """Which outputs of a module may depend on the marked inputs; None if it is not known."""
    if isinstance(module, Adapter):
        plain = module.mean is None and module.std is None and module.pool is None and not module.time_first
        return _dependent(module.model, features) if plain else None
    if isinstance(module, nn.Sequential):
        found: Tensor | None = features
        for layer in module:
            found = None if found is None else _dependent(layer, found)
        return found
    if isinstance(module, nn.Linear):
        return ((module.weight != 0) & features).any(1)
    if isinstance(module, Selected):
        return features[module.which]
    if isinstance(module, Filled):
        numbers, missing = (_dependent(part, features) for part in (module.numbers, module.indicators))
        spread = None if missing is None else _dependent(module.missing, missing)
        return None if numbers is None or spread is None else numbers | spread
    if isinstance(module, Joined | Average):
        parts = [_dependent(part, features) for part in module.parts]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return torch.cat(known) if isinstance(module, Joined) else torch.stack(known).any(0)
    if isinstance(module, (Scaled, *BY_THEMSELVES)):
        return features
    return None if bool(features.any()) else features
