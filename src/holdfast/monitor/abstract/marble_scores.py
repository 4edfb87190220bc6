"""0-step scores of a fitted MARBLE model, as plain arrays: the form in which a monitor stores and runs it.

A state s before an element is projected by PCA, z = C (s - m). An inner node of the refinement tree sends z
to its second child if the decision function of its SVC (radial basis functions) is positive,

    sum over support vectors v of  dual_v exp(-gamma ||z - v||^2)  +  intercept  >  0,

and to its first child otherwise. The leaf is the abstract state S. For an element with the abstract input X
and the emitted label y the score is eta(S, X)[y] (Definition 3.2), and the mean score of the training
transitions if (S, X) did not occur in the training data.

The score is an estimate. MARBLE states no interval for it, so the interval is [0, 1].
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.monitor.abstract.marble import Marble, Refinement, RefinementNode
from holdfast.monitor.abstract.mdp import Floats, Ints

# Limit for the number of kernel values in memory at once: 32 MiB in float64 (chosen by hand).
KERNEL_VALUES = 2**22


@dataclass(frozen=True)
class MarbleScores:
    """A fitted MARBLE model for 0-step scores. An estimate, never a proof."""

    needs_state_before: ClassVar[bool] = True  # A decision tree reads the state after the element instead.

    refinement: Refinement
    states: int  # number of abstract states
    unseen: float  # the score of a (state, input) pair that did not occur in the training data
    centre: Tensor  # (d,) float64, mean of the training states
    components: Tensor  # (omega, d) float64, principal axes
    below: Tensor  # (nodes, 2) child nodes, -1 for a leaf
    leaf: Tensor  # (nodes,) abstract state of a leaf, -1 for an inner node
    first: Tensor  # (nodes + 1,) node i owns the support vectors first[i] .. first[i + 1] - 1
    vectors: Tensor  # (vectors, omega) float64, support vectors
    dual: Tensor  # (vectors,) float64, their coefficients
    gamma: Tensor  # (nodes,) float64, 0 for a leaf
    intercept: Tensor  # (nodes,) float64, 0 for a leaf
    keys: Tensor  # (pairs,) input * states + state, ascending
    count: Tensor  # (pairs,) number of training transitions
    eta: Tensor  # (pairs, labels) float64, distribution of the labels that mutants emit

    @classmethod
    def of_model(cls, model: Marble) -> "MarbleScores":
        """Copy what 0-step scores need from a fitted model."""
        classifiers = [node.classifier for node in model.nodes]
        omega = len(model.pca.components_)
        sizes = [0 if svc is None else len(svc.support_vectors_) for svc in classifiers]
        vectors = [svc.support_vectors_ for svc in classifiers if svc is not None]
        dual = [svc.dual_coef_[0] for svc in classifiers if svc is not None]
        return cls(
            refinement=model.settings,
            states=model.mdp.states,
            unseen=model.mean,
            centre=_floats(model.pca.mean_),
            components=_floats(model.pca.components_),
            below=torch.tensor([_children(node) for node in model.nodes]),
            leaf=torch.tensor([node.leaf if node.classifier is None else -1 for node in model.nodes]),
            first=torch.tensor([0, *sizes]).cumsum(0),
            vectors=_floats(np.concatenate([np.empty((0, omega)), *vectors])),
            dual=_floats(np.concatenate([np.empty(0), *dual])),
            gamma=_floats([0.0 if svc is None else svc._gamma for svc in classifiers]),
            intercept=_floats([0.0 if svc is None else svc.intercept_[0] for svc in classifiers]),
            keys=torch.from_numpy(model.mdp.keys),
            count=torch.from_numpy(model.mdp.count),
            eta=_floats(model.mdp.eta),
        )

    def to(self, device: torch.device) -> "MarbleScores":
        """Return the model itself: it runs on the CPU whatever the device of the network."""
        return self

    # ---- scores

    def estimate(
        self, before: Tensor, abstract: Tensor, labels: Tensor, margins: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Estimate 0-step scores: value, support, low, high, each (n,), on the CPU.

        Args:
            before: (n, d) states before the elements.
            abstract, labels: (n,) abstract inputs and emitted labels.
            margins: (n,), not used by MARBLE.

        The support is the number of training transitions with the same abstract state and input.
        """
        value, support = self._look_up(
            before.detach().cpu().double().numpy(), abstract.cpu().numpy(), labels.cpu().numpy()
        )
        found = torch.from_numpy(value)
        return found, torch.from_numpy(support), torch.zeros_like(found), torch.ones_like(found)

    def single(
        self, before: NDArray[Any], abstract: int, label: int, margin: float
    ) -> tuple[float, int, float, float]:
        """Return `estimate` for one state (d,) as Python numbers."""
        value, support = self._look_up(
            before[None].astype(np.float64), np.array([abstract]), np.array([label])
        )
        return float(value[0]), int(support[0]), 0.0, 1.0

    def _look_up(self, before: Floats, abstract: Ints, labels: Ints) -> tuple[Floats, Ints]:
        keys = self.keys.numpy()
        wanted = abstract * self.states + self.abstract_states(before)
        pair = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
        seen = (keys[pair] == wanted) & (abstract >= 0) & (labels >= 0) & (labels < self.eta.shape[1])
        score = self.eta.numpy()[pair, np.where(seen, labels, 0)]
        value: Floats = np.where(seen, score, self.unseen).clip(0.0, 1.0)
        return value, np.where(seen, self.count.numpy()[pair], 0)

    def abstract_states(self, before: Floats) -> Ints:
        """(n, d) -> (n,) abstract states."""
        points: Floats = (before - self.centre.numpy()) @ self.components.numpy().T
        below, leaf = self.below.numpy(), self.leaf.numpy()
        found = np.empty(len(points), dtype=np.int64)
        waiting = [(0, np.arange(len(points)))]
        while waiting:
            node, rows = waiting.pop()
            if leaf[node] >= 0:
                found[rows] = leaf[node]
            elif len(rows):
                side = self._decision(node, points[rows]) > 0
                waiting += [(int(below[node, 0]), rows[~side]), (int(below[node, 1]), rows[side])]
        return found

    def _decision(self, node: int, points: Floats) -> Floats:
        """(n, omega) -> (n,): the decision function of a node's SVC."""
        from scipy.spatial.distance import cdist

        own = slice(int(self.first[node]), int(self.first[node + 1]))
        vectors, dual, gamma = self.vectors[own].numpy(), self.dual[own].numpy(), float(self.gamma[node])
        rows = max(1, KERNEL_VALUES // max(1, len(vectors)))
        values = [
            np.exp(-gamma * cdist(points[at : at + rows], vectors, "sqeuclidean")) @ dual
            for at in range(0, len(points), rows)
        ]
        return np.concatenate(values) + float(self.intercept[node])

    # ---- on disk

    def tensors(self) -> dict[str, Tensor]:
        return {name: value.contiguous() for name, value in vars(self).items() if isinstance(value, Tensor)}

    def settings(self) -> dict[str, Any]:
        return {"refinement": asdict(self.refinement), "states": self.states, "unseen": self.unseen}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor], settings: Mapping[str, Any]) -> "MarbleScores":
        return cls(
            Refinement(**settings["refinement"]), settings["states"], settings["unseen"], **dict(tensors)
        )


def _children(node: RefinementNode) -> tuple[int, int]:
    return (-1, -1) if node.classifier is None else node.below


def _floats(values: Any) -> Tensor:
    """Copy to a float64 tensor."""
    return torch.tensor(np.asarray(values, dtype=np.float64))
