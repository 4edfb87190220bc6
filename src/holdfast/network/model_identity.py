"""The hash by which a stored run recognises its model: of weights and code, or of a user-given name."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from holdfast.errors import BadInput, UnreadableFile, UnsupportedLayer
from holdfast.network.adapter import Adapter, single_input_model
from holdfast.network.callable_fingerprint import hash_callable
from holdfast.network.fingerprint import of_file, of_graph, of_program, of_tensors, of_text

if TYPE_CHECKING:
    from holdfast.network.network import Network

# The note of a network without a fingerprint starts with this.
NOT_HASHED = "not hashed"
NAME_IT = (
    "name what it is made of: from_callable(f, fingerprint=[files] or its version), and so with from_torch, "
    "or --fingerprint FILE on the command line"
)


def hash_or_note(model: Any) -> tuple[str, list[str]]:
    """The hash of everything that the model reads, and no note.

    If a part cannot be hashed, "" and a note that says which.
    """
    digest, unreadable = hash_callable(model)
    note = f"{NOT_HASHED}: {unreadable} cannot be read; so that its runs can be resumed and joined, {NAME_IT}"
    return digest, [note] if unreadable else []


def named_by(fingerprint: str | Sequence[str | Path]) -> str:
    """The hash of a model that the user identifies by a text, such as a version, or by the files it is made
    of."""
    if isinstance(fingerprint, str):
        if not fingerprint.strip():
            raise BadInput(
                "fingerprint: an empty text does not distinguish one model from another. "
                "Give the model's version or the paths of its files."
            )
        return of_text(f"said: {fingerprint}")  # this prefix is part of stored fingerprints
    files = [existing_file(path) for path in fingerprint]
    if not files:
        raise BadInput(
            "fingerprint: no files are named. Give the paths of the files that the model is made of, or a "
            "text such as its version."
        )
    return of_text("\n".join(["files:", *(of_file(path) for path in files)]))


def existing_file(file: str | Path) -> Path:
    """The path, if it is a file; else UnreadableFile."""
    if not isinstance(file, str | Path):
        raise BadInput(f"expected the path of a model file, got {type(file).__name__}.")
    path = Path(file)
    if not path.is_file():
        problem = "is a folder" if path.is_dir() else "no such file"
        raise UnreadableFile(f"{path}: {problem}. Give the path of a model file.")
    return path


def identity(net: "Network", x: Tensor) -> str:
    """The hash of everything that decides the outputs for inputs shaped like x.

    It covers the model's fingerprint, how the model is called, and its operators with their
    arguments, which follow from the code that the model calls.
    """
    adapter = single_input_model(net.module) or net.module
    described: list[Any] = [net.fingerprint, net.dtype, net.source]
    tensors = {}
    if isinstance(adapter, Adapter):  # a network with an appended score has no adapter, but always a program
        described += [adapter.time_first, adapter.pool, adapter.takes_lengths, adapter.output]
        names = ("mean", "std", "output_mean", "output_std")
        scaling = {name: getattr(adapter, name) for name in names}
        tensors = {name: value for name, value in scaling.items() if isinstance(value, Tensor)}
    with contextlib.suppress(UnsupportedLayer):
        recorded = net.recorded_operators(x)
        described.append(of_program(net.program(x)) if recorded is None else of_graph(recorded))
    return of_tensors(tensors, begin=str(described))
