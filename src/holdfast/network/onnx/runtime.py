"""ONNX files as black boxes run by onnxruntime: all of its operators, but no gradients and no proofs."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from holdfast.errors import BadInput, MissingExtra, UnreadableFile
from holdfast.network.onnx.importer import ports
from holdfast.network.onnx.module import Port
from holdfast.network.onnx.reader import read_onnx

Array = npt.NDArray[Any]
# Level of onnxruntime's log at which only errors are logged, which are raised as exceptions too.
LOG_ERRORS = 3


class OnnxRuntime:
    """A loaded session: arrays in, arrays out, in the order of `inputs` and `outputs`."""

    def __init__(self, session: Any, inputs: tuple[Port, ...], outputs: tuple[Port, ...], name: str) -> None:
        self._session = session
        self.inputs = inputs
        self.outputs = outputs
        self.name = name

    def __call__(self, *inputs: Array) -> Array | tuple[Array, ...]:
        """One array, or a tuple where the graph has several outputs.

        Inputs are cast to the declared types.
        """
        if len(inputs) != len(self.inputs):
            names = ", ".join(port.name for port in self.inputs)
            raise BadInput(
                f"{self.name} takes {len(self.inputs)} inputs ({names}), {len(inputs)} were given."
            )
        feed = {
            port.name: np.asarray(value, dtype=str(port.dtype).removeprefix("torch."))
            for port, value in zip(self.inputs, inputs, strict=True)
        }
        try:
            results = self._session.run([port.name for port in self.outputs], feed)
        except Exception as error:  # onnxruntime's exception classes exist only where it is installed
            given = {key: value.shape for key, value in feed.items()}
            raise BadInput(f"{self.name}: onnxruntime refused inputs of shapes {given}: {error}") from error
        return tuple(results) if len(results) > 1 else np.asarray(results[0])


def session(source: str | Path | onnx.ModelProto, name: str = "model", *, threads: int = 1) -> OnnxRuntime:
    """Load a file, or a model that was already read. MissingExtra if onnxruntime is not installed."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra(
            "Running ONNX files as black boxes needs onnxruntime: pip install 'holdfast[runtime]'."
        ) from error
    if isinstance(source, str | Path):
        source, name = read_onnx(source), str(source)
    inputs, outputs = ports(source.graph, name)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = LOG_ERRORS
    try:
        # From bytes, so that onnxruntime opens no file that read_onnx has not checked.
        loaded = onnxruntime.InferenceSession(
            source.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:
        raise UnreadableFile(f"{name}: onnxruntime cannot load the model: {error}") from error
    return OnnxRuntime(loaded, inputs, outputs, name)
