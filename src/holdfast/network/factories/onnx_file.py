"""Networks from ONNX files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.files import explained_errors
from holdfast.network.adapter import RowByRow, for_any_batch, over_single_inputs
from holdfast.network.factories.assembly import (
    AssemblyOptions,
    NetworkParts,
    OpenedModel,
    assemble,
    item_shape,
    torch_device,
)
from holdfast.network.fingerprint import combine_hashes, of_file
from holdfast.network.model_identity import existing_file
from holdfast.network.several_inputs import Sizes

if TYPE_CHECKING:
    from holdfast.network.flat_tensors import FlatInterface


def parts_of_onnx_file(
    file: str | Path,
    options: AssemblyOptions,
    *,
    black_box: bool,
    batched: bool,
    constants: Mapping[str, Any] | None,
    interface: "FlatInterface | None" = None,
    inputs: Sequence[str] | Sizes | None = None,
) -> NetworkParts:
    """The parts of `Network.from_onnx`. interface: joins several inputs, and several outputs and inner values.

    inputs: as in `Network.from_onnx`."""
    from holdfast.network.onnx import open_onnx  # onnx is not needed to import the library

    path = existing_file(file)
    with explained_errors(
        path,
        "its layers cannot be evaluated",
        "It is damaged, or they do not fit together: export or download it again.",
    ):
        opened = open_onnx(
            path,
            black_box=black_box,
            batched=batched,
            constants=constants,
            output=options.output,
            interface=interface,
            inputs=inputs,
        )
        target = torch_device("cpu" if opened.black_box else options.device)
        model = opened.module.to(target).requires_grad_(False)
        example = opened.example.to(target)
        shape = item_shape(opened.shape, options.time_first) if batched else opened.shape
        vectors, token_model = None, None
        if opened.vectors is not None:
            vectors, token_model = opened.vectors.to(target), opened.token_module
        if not batched and opened.black_box:
            model = RowByRow(model, keeps_axis=False)
        elif not batched:
            model = over_single_inputs(model, example)
        elif opened.dynamic:
            model = RowByRow(model)
        elif not opened.black_box and not options.time_first:
            model = for_any_batch(model, example, fixed=opened.shape[0] if opened.shape else None)
        return assemble(
            OpenedModel(
                model,
                name=path.name,
                source="black box" if opened.black_box else "onnx",
                device=target,
                notes=opened.notes,
                fingerprint=combine_hashes(of_file(path), *opened.extra_hashes),
                shape=shape,
                vectors=vectors,
                token_module=token_model,
                input_tensors=opened.input_tensors,
            ),
            options,
        )
