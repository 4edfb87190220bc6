"""The parts of a network, assembled from a torch module and the options with which the user describes its
inputs and outputs."""

import inspect
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from holdfast.errors import BadInput
from holdfast.foreign_text import first_line
from holdfast.network.adapter import Adapter, Pool, Scaling
from holdfast.network.fingerprint import combine_hashes, of_tensors
from holdfast.network.flat_tensors import FlatTensor
from holdfast.network.normalisation import domain_along_axis, normaliser
from holdfast.network.text import Given, HuggingFace, Tokenizer, tokenizer_of
from holdfast.network.tokens import OfVectors
from holdfast.network.trees import Trees
from holdfast.region.base import Domain
from holdfast.region.columns import Columns

# Parameter names that mean the lengths of the sequences of a batch.
LENGTHS = re.compile(r"(^|_)(length|lengths|lens?)(_|$)|^length")

Source = Literal["torch", "export", "onnx", "black box"]
DomainOption = tuple[float | Tensor, float | Tensor] | Domain | None


@dataclass(frozen=True)
class AssemblyOptions:
    """How the user's data relate to the inputs and outputs of the model, and where it runs.

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
    output: str | None = None
    device: str | torch.device = "cpu"
    input_scaler: Any = None
    output_mean: float | Sequence[float] | Tensor | None = None
    output_std: float | Sequence[float] | Tensor | None = None
    output_scaler: Any = None


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


@dataclass(frozen=True)
class OpenedModel:
    """A model as the module of its kind opened it.

    Attributes:
        module: the module to measure; for token models the part that takes word vectors.
        shape: of one input, without the batch axis; None for an axis of any size.
        vectors: (words, dim), the embedding of a token model.
        token_module: the whole token model, token ids in.
        output: the name of the output that is still to be picked from the model's answer.
        input_tensors: the inputs of the model that one flat input holds.
    """

    module: nn.Module
    name: str
    source: Source
    device: torch.device
    notes: Sequence[str]
    fingerprint: str
    shape: Sequence[int | None] | None
    vectors: Tensor | None = None
    token_module: nn.Module | None = None
    output: str | None = None
    input_tensors: Sequence[FlatTensor] = ()


def assemble(opened: OpenedModel, options: AssemblyOptions) -> NetworkParts:
    """Check the options against the model and wrap the model in an `Adapter`."""
    model, name, source, shape = opened.module, opened.name, opened.source, opened.shape
    vectors, token_model, fingerprint = opened.vectors, opened.token_module, opened.fingerprint
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
    mean, std = _scaling(options.mean, options.std, options.input_scaler, "input_scaler", shape or None)
    said = ("mean", "std") if options.input_scaler is None else ("input_scaler",) * 2
    scaling = Scaling(
        normaliser(mean, shape or None, dtype, said[0]),
        normaliser(std, shape or None, dtype, said[1]),
        *_output_scale(options, dtype),
    )
    adapter = Adapter(
        model,
        scaling=scaling,
        time_first=options.time_first,
        pool=options.pool,
        takes_lengths=source == "torch" and takes_lengths(model),
        output=opened.output,
    )
    scalers = {"mean": adapter.mean, "std": adapter.std} if options.input_scaler is not None else {}
    if options.output_scaler is not None:
        scalers |= {"output_mean": adapter.output_mean, "output_std": adapter.output_std}
    if fingerprint and scalers:
        known = {name: value for name, value in scalers.items() if value is not None}
        fingerprint = combine_hashes(fingerprint, of_tensors(known, begin="scalers"))
    if token_model is not None:
        token_model = Adapter(
            token_model,
            scaling=Scaling(output_mean=scaling.output_mean, output_std=scaling.output_std),
            time_first=options.time_first,
            pool=options.pool,
            takes_lengths=adapter.takes_lengths,
            output=opened.output,
        )
    return NetworkParts(
        module=adapter.eval().to(opened.device),
        name=name,
        source=source,
        domain=domain_along_axis(Domain.of(options.domain), shape or None),
        fingerprint=fingerprint,
        device=opened.device,
        dtype=dtype,
        shape=tuple(shape) if shape is not None else None,
        vectors=vectors,
        vocabulary=tuple(vocabulary) if vocabulary is not None else None,
        tokenizer=tokenizer,
        classes=distinct_names(options.classes, f"classes of {name}"),
        token_model=token_model,
        notes=tuple(opened.notes),
        input_tensors=tuple(opened.input_tensors),
    )


def _scaling(mean: Any, std: Any, scaler: Any, name: str, shape: Sequence[int | None] | None) -> Any:
    """The mean and std that the user gives, or those of a fitted scaler, the argument called `name`."""
    if scaler is None:
        return mean, std
    if mean is not None or std is not None:
        raise BadInput(f"{name} says what mean and std of it say: give one of them.")
    from holdfast.network.estimators.scalers import scale_along_last_axis  # it imports the estimators

    return scale_along_last_axis(scaler, name, shape)


def _output_scale(options: AssemblyOptions, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """The numbers by which outputs become the user's units, (outputs,) or () each."""
    given = _scaling(options.output_mean, options.output_std, options.output_scaler, "output_scaler", None)
    found: list[Tensor | None] = []
    for name, value in zip(("output_mean", "output_std"), given, strict=True):
        if value is None:
            found.append(None)
            continue
        try:
            row = torch.as_tensor(value, dtype=dtype).reshape(1, -1)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadInput(f"{name} must be a number, or several, got {value!r}.") from error
        if not bool(row.isfinite().all()):
            raise BadInput(f"{name} holds NaN or infinity: {value}.")
        numbers = normaliser(row, None, dtype, name)
        assert numbers is not None
        if name == "output_std" and not bool((numbers > 0).all()):
            raise BadInput(f"output_std must be positive, got {value}.")
        found.append(numbers)
    return found[0], found[1]


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


def check_one_input(function: Callable[..., Any], name: str, *, lengths: bool = False) -> None:
    """Raise BadInput unless the function takes one tensor, or with lengths=True one tensor and the lengths of
    its sequences."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # C functions and TorchScript may have no signature
        return
    kinds = inspect.Parameter
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    needed = [
        p
        for p in parameters
        if p.default is kinds.empty and p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    ]
    if not positional and not any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
        raise BadInput(
            f"{name} takes no positional argument; holdfast calls it with one tensor, (batch, *shape)."
        )
    others = [p for p in needed if p not in positional[:1]]
    if lengths and len(positional) > 1 and positional[1] in others and LENGTHS.search(positional[1].name):
        others.remove(positional[1])
    if others:
        names = [p.name for p in (*positional[:1], *others)]
        raise BadInput(
            f"{name} takes {len(names)} inputs ({', '.join(names)}); holdfast gives it one tensor, the "
            f"perturbed input. Fix the others by constants={{{names[-1]!r}: value}} (--constant "
            f"{names[-1]}=0.5), or perturb several together by inputs={{{names[0]!r}: size, {names[-1]!r}: "
            f"size}} (--inputs)."
        )


def takes_lengths(model: nn.Module) -> bool:
    """Whether the second required parameter of forward is the lengths of the sequences."""
    whole = model.behind if isinstance(model, OfVectors) else model
    parameters = list(inspect.signature(whole.forward).parameters.values())
    return (
        len(parameters) > 1
        and parameters[1].default is inspect.Parameter.empty
        and bool(LENGTHS.search(parameters[1].name))
    )
