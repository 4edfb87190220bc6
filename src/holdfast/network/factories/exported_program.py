"""Networks from files of torch.export."""

import contextlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn

from holdfast.errors import BadInput, UnreadableFile
from holdfast.foreign_text import first_line
from holdfast.network.adapter import OutputOf, check_unambiguous, for_any_batch, note_of_choice
from holdfast.network.factories.assembly import (
    AssemblyOptions,
    NetworkParts,
    OpenedModel,
    assemble,
    check_weights,
    item_shape,
    torch_device,
)
from holdfast.network.fingerprint import combine_hashes, of_file, of_output
from holdfast.network.model_identity import existing_file
from holdfast.network.tokens import split_graph
from holdfast.network.trace import as_plain_module, convert_graph
from holdfast.process_state import ignored_torch_logs


def parts_of_exported_program(
    file: str | Path,
    options: AssemblyOptions,
    *,
    trust: bool,
) -> NetworkParts:
    """The parts of `Network.from_export`. The file is opened only with trust=True."""
    path = existing_file(file)
    if not trust:
        raise UnreadableFile(
            f"{path}: opening a .pt2 file can run code that it contains (torch unpickles parts of it). If "
            f"you trust whoever made it, pass trust=True (--trust on the command line); otherwise ask for "
            f"an ONNX file, which cannot."
        )
    target, output = torch_device(options.device), options.output
    try:
        with ignored_torch_logs():  # torch logs the traceback; the error below holds its first line
            program = torch.export.load(path)
            model = as_plain_module(program)
    except Exception as error:
        raise UnreadableFile(
            f"{path}: torch.export cannot read it ({first_line(error)}). Was it written by torch.export.save?"
        ) from error
    value = _single_input(program, path)
    example = _example(value, target)
    model = convert_graph(model, dtype=None, device=target).requires_grad_(False)
    # None marks an axis whose size the program leaves open.
    shape = item_shape([size if isinstance(size, int) else None for size in value.shape], options.time_first)
    measured: nn.Module = model
    vectors: Tensor | None = None
    token_model: nn.Module | None = None
    if not example.is_floating_point():
        check_weights(model, path.name)
        token_model = model
        vectors, without_embedding = split_graph(model, example)
        assert isinstance(without_embedding, fx.GraphModule)
        measured, shape = without_embedding, (*shape, vectors.shape[1])
    answers = _answers(measured, example, vectors, time_first=options.time_first)
    if output is None:
        check_unambiguous(answers)
    notes = list(filter(None, [note_of_choice(answer, output) for _, answer in answers[:1]]))
    if output is not None:
        measured = OutputOf(measured, output)
        token_model = None if token_model is None else OutputOf(token_model, output)
    if not options.time_first:
        count = value.shape[0]
        fixed = count if isinstance(count, int) else None
        measured = for_any_batch(measured, example if vectors is None else vectors[example], fixed=fixed)
    return assemble(
        OpenedModel(
            measured,
            name=path.name,
            source="export",
            device=target,
            notes=notes,
            fingerprint=combine_hashes(of_file(path), of_output(output)),
            shape=shape,
            vectors=vectors,
            token_module=token_model,
        ),
        options,
    )


def _single_input(program: torch.export.ExportedProgram, path: Path) -> Any:
    """The traced value of the program's only input; BadInput if it takes several."""
    inputs = program.graph_signature.user_inputs
    values = [node.meta["val"] for node in program.graph.nodes if node.name in inputs]
    if len(values) != 1:
        raise BadInput(
            f"{path}: the program takes {len(values)} inputs ({', '.join(inputs)}); holdfast gives it one "
            f"tensor, the perturbed input. Export a module whose forward takes that tensor and gives the "
            f"others to your model, or export to ONNX: there --constant name=value (constants=) fixes an "
            f"input."
        )
    return values[0]


def _example(value: Any, device: torch.device) -> Tensor:
    """Zeros in the shape of a traced input, with size 2 for open axes. Zero is also a valid token id."""
    shape = [size if isinstance(size, int) else 2 for size in value.shape]
    return torch.zeros(shape, dtype=value.dtype, device=device)


def _answers(
    model: nn.Module, example: Tensor, vectors: Tensor | None, *, time_first: bool
) -> list[tuple[int, Any]]:
    """Pairs of a batch size and what the model returns for it: for the example and for one input, where the
    model accepts these."""
    answers, axis = [], min(int(time_first), example.dim() - 1)
    for rows in (example, example.narrow(axis, 0, 1)):
        # A program with a fixed batch size refuses the other one. Other failures are reported when the
        # network is checked.
        with contextlib.suppress(Exception), torch.no_grad():
            answers.append((rows.shape[axis], model(rows if vectors is None else vectors[rows])))
    return answers
