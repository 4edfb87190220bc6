"""Networks from torch modules."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from holdfast.errors import BadInput
from holdfast.network.adapter import Adapter, RowByRow
from holdfast.network.factories.assembly import (
    AssemblyOptions,
    NetworkParts,
    OpenedModel,
    assemble,
    check_one_input,
    check_weights,
    takes_lengths,
    torch_device,
)
from holdfast.network.fingerprint import combine_hashes, of_output
from holdfast.network.flat_tensors import FlatTensor
from holdfast.network.low_precision import DYNAMIC_NOTE, is_dynamically_quantised
from holdfast.network.model_identity import hash_or_note, named_by
from holdfast.network.recurrent import copy_module
from holdfast.network.several_inputs import Sizes, count_numbers, join_inputs
from holdfast.network.tokens import split_module

# Number of tokens with which a token model is traced if the user gives no shape (chosen by hand).
DEFAULT_TOKENS = 7


def parts_of_module(
    module: nn.Module,
    options: AssemblyOptions,
    *,
    shape: Sequence[int] | None,
    tokens: bool,
    name: str | None,
    fingerprint: str | Sequence[str | Path] | None,
    inputs: Sizes | None = None,
    constants: Mapping[str, Any] | None = None,
) -> NetworkParts:
    """The parts of `Network.from_torch`. The module is copied and put into evaluation mode."""
    if not isinstance(module, nn.Module):
        raise BadInput(
            f"from_torch needs a torch.nn.Module, got {type(module).__name__}; any function goes through "
            f"from_callable."
        )
    given: object = shape
    if given is not None and (isinstance(given, str) or not isinstance(given, Sequence)):
        raise BadInput(f"shape: expected the sizes of one input, as in (1, 28, 28) or (4,), got {shape!r}.")
    notes: list[str] = []
    uncompiled = getattr(module, "_orig_mod", None)
    if isinstance(uncompiled, nn.Module):
        module = uncompiled
        notes.append("was compiled; measured as it was written, without torch.compile")
    kind = type(module).__name__
    label = name or kind
    if isinstance(module, torch.jit.ScriptModule):
        raise BadInput(
            f"{kind}: TorchScript (torch.jit.script, torch.jit.trace or torch.jit.load) cannot be measured. Give "
            "the module that it was made from, or export that to ONNX and give the .onnx file."
        )
    empty = next((key for key, value in module.named_parameters() if value.is_meta), None)
    if empty is not None:
        raise BadInput(
            f"{kind}: {empty} is on the device 'meta' and has no values. Load the weights into the module first "
            "(module.to_empty(device='cpu'), then load_state_dict)."
        )
    tensors: tuple[FlatTensor, ...] = ()
    if inputs is not None or constants:
        if tokens or options.vocabulary is not None or options.tokenizer is not None:
            raise BadInput(f"{kind}: a token model cannot have inputs or constants; wrap it in a module.")
        training = module.training
        module, tensors = join_inputs(module, inputs, constants, label)
        module.train(training)
        if tensors and shape is not None:
            raise BadInput(f"{kind}: with inputs the shape is that of all inputs together; leave shape out.")
        shape = (count_numbers(tensors),) if tensors else shape
    check_one_input(module.forward, label, lengths=True)
    lazy = next((key for key, value in module.named_parameters() if is_lazy(value)), None)
    if lazy is not None:
        raise BadInput(
            f"{kind}: {lazy} has no size yet (a lazy layer). Call the module once on an input first."
        )
    if module.training:
        warnings.warn(
            f"{kind} is in training mode; holdfast measures a copy in evaluation mode (dropout off, batch "
            f"norm with its stored statistics). Your module is not changed.",
            stacklevel=3,
        )
        notes.append("was in training mode; measured in evaluation mode")
    try:
        copied = copy_module(module).eval().requires_grad_(False)
    except Exception as error:
        raise BadInput(
            f"{kind} cannot be copied ({error}); give holdfast a fresh, untrained-on module."
        ) from error
    digest, hash_notes = hash_or_note(module) if fingerprint is None else (named_by(fingerprint), [])
    target = torch_device(options.device)
    copied = copied.to(target)
    input_shape: Sequence[int | None] | None = shape
    vectors, token_model = None, None
    if tokens or options.vocabulary is not None or options.tokenizer is not None:
        check_weights(copied, label)  # before the embedding is split off
        token_model = copied
        length = shape[0] if shape else DEFAULT_TOKENS
        lengths = (torch.full((3,), length, dtype=torch.int64),) if takes_lengths(copied) else ()
        batch_shape = (length, 3) if options.time_first else (3, length)
        vectors, copied = split_module(copied, batch_shape, *lengths, output=options.output)
        input_shape = (shape[0] if shape else None, vectors.shape[1])
    dynamic = is_dynamically_quantised(copied)
    if dynamic:
        notes.append(DYNAMIC_NOTE)
    assembled = assemble(
        OpenedModel(
            copied,
            name=label,
            source="torch",
            device=target,
            notes=[*notes, *hash_notes],
            fingerprint=digest and combine_hashes(digest, of_output(options.output)),
            shape=input_shape,
            vectors=vectors,
            token_module=token_model,
            output=options.output,
            input_tensors=tensors,
        ),
        options,
    )
    return _evaluated_row_by_row(assembled) if dynamic else assembled


def _evaluated_row_by_row(parts: NetworkParts) -> NetworkParts:
    """The same network, evaluated in batches of one."""
    token_model = parts.token_model
    return replace(
        parts,
        module=Adapter(RowByRow(parts.module)).eval(),
        token_model=None if token_model is None else Adapter(RowByRow(token_model)).eval(),
    )
