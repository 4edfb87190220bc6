"""A training run on disk: the state to resume from, the history, and the final weights."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.errors import StoreError
from holdfast.files import explained_errors, read_json
from holdfast.hardening.training import Epoch, TrainingProgress

STATE, TOLD, WEIGHTS, BEST = "training.pt", "harden.json", "hardened.safetensors", "best-so-far.safetensors"


class Folder:
    """The folder of a run.

    Files are written atomically. A run only resumes with the same settings `asked`.
    """

    def __init__(self, folder: str | Path, asked: dict[str, Any]) -> None:
        self.path, self.asked = Path(folder), json.loads(json.dumps(asked))
        if (self.path / WEIGHTS).exists():
            raise StoreError(
                f"{self.path} already holds {WEIGHTS}, the result of an earlier run. Choose another folder."
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / "half").touch()
            (self.path / "half").unlink()
        except OSError as error:
            raise StoreError(
                f"{self.path}: cannot be written to ({error.strerror}). Choose another folder."
            ) from error

    def load_progress(self) -> TrainingProgress | None:
        """Return the state of an earlier run, or None. StoreError if that run had other settings."""
        if not (self.path / STATE).exists():
            return None
        told = read_json(
            self.path / TOLD, "It is not a file of harden any more: start again in another folder."
        )
        if told.get("asked") != self.asked:
            changed = [name for name in self.asked if told.get("asked", {}).get(name) != self.asked[name]]
            raise StoreError(
                f"{self.path} holds a run with another {', '.join(changed) or 'question'}. Use the same "
                "settings, or "
                f"choose another folder."
            )
        with explained_errors(self.path / STATE, "it cannot be read", "Start again in another folder."):
            held = torch.load(self.path / STATE, weights_only=True)
            return TrainingProgress(**{**held, "history": [Epoch(**epoch) for epoch in held["history"]]})

    def keep(self, now: TrainingProgress) -> None:
        held = {**vars(now), "history": [asdict(epoch) for epoch in now.history]}
        self._whole(STATE, lambda half: torch.save(held, half))
        self.tell(history=[asdict(epoch) for epoch in now.history])

    def tell(self, **more: Any) -> None:
        text = json.dumps({"asked": self.asked, **more}, indent=1, allow_nan=False, default=str)
        self._whole(TOLD, lambda half: half.write_text(text))

    def finish(self, weights: dict[str, Tensor], **more: Any) -> None:
        """Write the final weights, and delete the files that only training needs."""
        self._write(WEIGHTS, weights)
        self.tell(**more)
        for name in (STATE, BEST):
            (self.path / name).unlink(missing_ok=True)

    def keep_best(self, weights: dict[str, Tensor]) -> None:
        """Write the best weights so far of an interrupted run."""
        self._write(BEST, weights)

    def _write(self, name: str, weights: dict[str, Tensor]) -> None:
        from safetensors.torch import save_file  # imported here, because only this function needs it

        plain = {key: value.detach().cpu().contiguous().clone() for key, value in weights.items()}
        self._whole(name, lambda half: save_file(plain, half))

    def _whole(self, name: str, write: Any) -> None:
        half = self.path / f"half-{name}"
        try:
            write(half)
            half.replace(self.path / name)
        except OSError as error:
            raise StoreError(f"{self.path / name}: cannot be written ({error}). Is the disk full?") from error
