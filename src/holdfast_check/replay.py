"""A witness once more in onnxruntime, where that is installed: not a part of what is trusted, but of what people run."""

import gzip
import json
from pathlib import Path

import numpy as np

from holdfast_check.container import read
from holdfast_check.proof import SCHEMA, Claim, Model


def replayed(path: str | Path, model: Model, witness: str | Path) -> str:
    """What onnxruntime says at the point of an accepted witness file; nothing where it is no .onnx file or there is no onnxruntime."""
    if not Path(path).name.endswith((".onnx", ".onnx.gz")):
        return ""
    try:
        import onnxruntime  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return "onnxruntime is not installed, so it was not asked"
    metadata, arrays = read(Path(witness).read_bytes())
    claim = Claim.read(json.loads(metadata[SCHEMA]), arrays, model.program)
    data = Path(path).read_bytes()
    session = onnxruntime.InferenceSession(
        gzip.decompress(data) if Path(path).suffix == ".gz" else data, providers=["CPUExecutionProvider"]
    )
    given = session.get_inputs()[0]
    point = arrays["witness"].reshape(model.program.input_shape).astype(np.float64 if "double" in given.type else np.float32)
    values = claim.matrix @ session.run(None, {given.name: point})[0].astype(np.float64).ravel() + claim.offset
    fails = any(all(values[row] <= claim.above for row in group) for group in claim.groups)
    return "onnxruntime shows it too" if fails else "onnxruntime, in its own arithmetic, does not show it"
