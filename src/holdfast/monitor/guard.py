"""A wrapper that hands inputs with a low robustness score to a fallback."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import BadInput
from holdfast.monitor.monitor import Monitor
from holdfast.monitor.score import Steps
from holdfast.network.callable_fingerprint import hash_callable


class Guard(nn.Module):
    """Answers like `model`, or by the fallback if a sequence's lowest score is below the threshold.

    Args:
        model: sequences (batch, length, ...) -> (batch, ...); the monitor must have been fitted for it.
        fallback: a module or function of the same kind, called only on doubtful sequences; or a fixed answer,
            a tensor like one row.
        k: which scores count: now (0), k elements later, or 'final'.
    """

    def __init__(
        self,
        model: nn.Module,
        monitor: Monitor,
        threshold: float,
        fallback: Callable[[Tensor], Tensor] | Tensor,
        *,
        k: Steps = 0,
    ) -> None:
        super().__init__()
        if not 0 <= threshold <= 1:
            raise BadInput(f"threshold={threshold}: scores are between 0 and 1.")
        digest, missed = (
            hash_callable(model) if monitor.net.source == "torch" else (monitor.net.fingerprint, "")
        )
        if missed:
            raise BadInput(
                f"{type(model).__name__} cannot be hashed ({missed} cannot be read), so it cannot be "
                "compared with the model "
                f"of the monitor. Remove that from the module."
            )
        if digest != monitor.net.fingerprint:
            raise BadInput(
                f"the monitor was fitted for {monitor.net.name} with other weights or another structure "
                "than this model."
            )
        self.model, self.monitor, self.threshold, self.k = model, monitor, threshold, k
        self.fallback: Any
        if isinstance(fallback, Tensor):
            self.register_buffer("fallback", fallback)
        else:
            self.fallback = fallback

    def doubtful(self, x: Tensor) -> Tensor:
        """(batch,) bool: whether the lowest score is below the threshold."""
        return torch.tensor(
            [scores.lowest < self.threshold for scores in self.monitor.score_all(list(x), self.k)],
            device=x.device,
        )

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        answer: Tensor = self.model(x.clone())  # the model may modify its input
        if not len(x):
            return answer
        doubtful = self.doubtful(x)
        if bool(doubtful.any()):
            answer = answer.clone()
            answer[doubtful] = (
                self.fallback if isinstance(self.fallback, Tensor) else self.fallback(x[doubtful])
            ).to(answer)
        return answer
