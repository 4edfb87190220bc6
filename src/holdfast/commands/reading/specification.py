"""Load the network of a VNN-LIB property, and the same file in onnxruntime to check counterexamples."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.commands.options import ModelOptions
from holdfast.commands.reading.model import ONNX, load_network
from holdfast.errors import BadInput, MissingExtra, UnreadableFile
from holdfast.network import Network
from holdfast.network.onnx import session_of
from holdfast.verification.specification import input_shape


def load_judged(
    options: ModelOptions, inputs: int, file: Path | None = None
) -> tuple[Network, tuple[Network, ...]]:
    """The network, and the same file in onnxruntime if that is installed; file: as for `load_network`."""
    model = options.model if file is None else str(file)
    net = _fitting(options, inputs, file)
    if not model.endswith(ONNX) or options.constants:
        return net, ()
    try:
        return net, (_through_onnxruntime(model, options.output),)
    except MissingExtra:
        return net, ()


def _through_onnxruntime(model: str, output: str | None) -> Network:

    run = session_of(model, output)
    rank = len(run.inputs[0].shape)

    def ask(x: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        answers = [run(row.reshape((1,) * (rank - row.ndim) + row.shape)) for row in x]
        return np.stack([np.asarray(answer).flatten() for answer in answers])

    name = f"{model} in onnxruntime"
    return Network.from_callable(ask, name=name, fingerprint=name)


def _fitting(options: ModelOptions, inputs: int, file: Path | None) -> Network:
    """The network, without a batch axis if only then its input size is that of the property."""
    model = options.model if file is None else str(file)
    try:
        net = load_network(options, file)
        input_shape(net, inputs)
    except (BadInput, UnreadableFile) as error:
        if not model.endswith(ONNX) or options.unbatched:
            raise
        with suppress(BadInput, UnreadableFile):
            net = load_network(replace(options, unbatched=True), file)
            input_shape(net, inputs)
            return net
        raise error
    return net
