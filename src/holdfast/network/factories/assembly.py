"""The parts of a network, assembled from a torch module and the options with which the user describes its
inputs and outputs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from holdfast.errors import BadInput
from holdfast.foreign_text import first_line
from holdfast.network.adapter import Adapter, Pool
from holdfast.network.flat_tensors import FlatTensor
from holdfast.network.forward_signature import takes_lengths
from holdfast.network.normalisation import domain_along_axis, normaliser
from holdfast.network.text import Given, HuggingFace, Tokenizer, tokenizer_of
from holdfast.network.trees import Trees
from holdfast.region.base import Domain
from holdfast.region.columns import Columns

Source = Literal["torch", "export", "onnx", "black box"]
DomainOption = tuple[float | Tensor, float | Tensor] | Domain | None


@dataclass(frozen=True)
class AssemblyOptions:
    """How the user's data relate to the inputs and outputs of the model.

    `Network.from_torch` documents each option.
    """

    domain: DomainOption = None
    mean: float | Sequence[float] | Tensor | None = None
    std: float | Sequence[float] | Tensor | None = None
    time_first: bool = False
    pool: Pool | None = None
    vocabulary: Sequence[str] | None = None
    classes: Sequence[str] | None = None
    tokenizer: Given | None = None


@dataclass
class NetworkParts:
    """The constructor arguments of a `Network`."""

    module: nn.Module
    name: str
    source: Source
    domain: Domain
    fingerprint: str
    device: torch.device
    dtype: torch.dtype
    shape: tuple[int | None, ...] | None
    vectors: Tensor | None
    vocabulary: tuple[str, ...] | None
    tokenizer: Tokenizer | None
    classes: tuple[str, ...] | None
    token_model: nn.Module | None
    notes: tuple[str, ...]
    labels: tuple[Any, ...] | None = None
    columns: Columns | None = None
    trees: Trees | None = None
    input_tensors: tuple[FlatTensor, ...] = ()


def assemble(
    model: nn.Module,
    options: AssemblyOptions,
    *,
    name: str,
    source: Source,
    device: torch.device,
    notes: Sequence[str],
    fingerprint: str,
    shape: Sequence[int | None] | None,
    vectors: Tensor | None = None,
    token_model: nn.Module | None = None,
    output: str | None = None,
    input_tensors: Sequence[FlatTensor] = (),
) -> NetworkParts:
    """Check the options against the model and wrap the model in an `Adapter`.

    Args:
        model: the module to measure; for token models the part that takes word vectors.
        shape: of one input, without the batch axis; None for an axis of any size.
        vectors: (words, dim), the embedding of a token model.
        token_model: the whole token model, token ids in.
        output: the name of the output that the adapter picks from the model's answer.
        input_tensors: the inputs of the model that one flat input holds.
    """
    check_weights(model, name)
    vocabulary = options.vocabulary
    if vectors is None and vocabulary is not None:
        raise BadInput(f"{name} does not read tokens, so a vocabulary has no meaning for it.")
    if vectors is None and options.tokenizer is not None:
        raise BadInput(f"{name} does not read tokens, so a tokenizer has no meaning for it.")
    if vectors is not None and vocabulary is not None and len(vocabulary) != len(vectors):
        raise BadInput(
            f"the vocabulary has {len(vocabulary)} words, but the embedding of {name} has {len(vectors)} "
            f"rows."
        )
    tokenizer = None if vectors is None else tokenizer_of(options.tokenizer, vocabulary, len(vectors))
    if vectors is not None and vocabulary is None and isinstance(tokenizer, HuggingFace):
        vocabulary = tokenizer.words(len(vectors))
    dtype = _floating_dtype(model)
    adapter = Adapter(
        model,
        mean=normaliser(options.mean, shape or None, dtype, "mean"),
        std=normaliser(options.std, shape or None, dtype, "std"),
        time_first=options.time_first,
        pool=options.pool,
        takes_lengths=source == "torch" and takes_lengths(model),
        output=output,
    )
    if token_model is not None:
        token_model = Adapter(
            token_model,
            time_first=options.time_first,
            pool=options.pool,
            takes_lengths=adapter.takes_lengths,
            output=output,
        )
    return NetworkParts(
        module=adapter.eval().to(device),
        name=name,
        source=source,
        domain=domain_along_axis(Domain.of(options.domain), shape or None),
        fingerprint=fingerprint,
        device=device,
        dtype=dtype,
        shape=tuple(shape) if shape is not None else None,
        vectors=vectors,
        vocabulary=tuple(vocabulary) if vocabulary is not None else None,
        tokenizer=tokenizer,
        classes=distinct_names(options.classes, f"classes of {name}"),
        token_model=token_model,
        notes=tuple(notes),
        input_tensors=tuple(input_tensors),
    )


def torch_device(device: str | torch.device) -> torch.device:
    """The device, if torch has it here; else BadInput."""
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise BadInput(f"device {device!r}: {first_line(error)}") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise BadInput(
            f"device {device!r}: no GPU is visible to torch here. Use device='cpu' (it gives the same "
            f"answers, slower)."
        )
    return found


def distinct_names(names: Sequence[str] | None, what: str) -> tuple[str, ...] | None:
    """The names as strings; BadInput if two are equal, because then nobody can tell which is meant."""
    found = None if names is None else tuple(str(name) for name in names)
    repeated = next((name for name, count in Counter(found or ()).items() if count > 1), None)
    if repeated is not None:
        raise BadInput(f"{what}: {repeated!r} stands there more than once.")
    return found


def check_weights(module: nn.Module, name: str) -> None:
    """Raise BadInput if a weight or buffer holds NaN or infinity."""
    parameters = dict(module.named_parameters())
    for key, value in module.state_dict().items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        # An attention mask may hold minus infinity; a trained weight or a running mean may not.
        may_mask = key not in parameters and "running_" not in key
        if not bool((value.isfinite() | (may_mask & (value == -torch.inf))).all()):
            raise BadInput(
                f"{name}: {key} holds NaN or infinity. The file is damaged or the training diverged."
            )


def item_shape(shape: Sequence[int | None], time_first: bool) -> tuple[int | None, ...]:
    """The shape of one input, from the shape of a batch in the model's own axis order."""
    return (shape[0], *shape[2:]) if time_first else tuple(shape[1:])


def _floating_dtype(module: nn.Module) -> torch.dtype:
    """The dtype of the first floating-point parameter or buffer; float32 if there is none."""
    tensors = [*module.parameters(), *module.buffers()]
    return next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
