"""Real networks that ship in wheels and that nobody here trained.

silero-vad hears whether somebody speaks, magika tells what kind of file some bytes are.
Only their files are read; the packages are never imported.
"""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx_truth import Array, agrees, close, floats, run, truth

from holdfast.errors import UnsupportedLayer
from holdfast.network.onnx import import_onnx, read_onnx, session


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def shipped(package: str, pattern: str) -> Path:
    """The file that matches in an installed package; skips the test where it is not installed."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed: pip install --no-deps {package.replace('_', '-')}")
    return next(Path(found.submodule_search_locations[0]).glob(pattern))


def sound(*shape: int) -> Array:
    """Something between noise and a tone, as loud as speech."""
    times = np.arange(shape[-1]) / 16000
    return (0.1 * floats(*shape) + 0.2 * np.sin(2 * np.pi * 220 * times)).astype(np.float32)


def test_silero_sequence_model() -> None:
    model = read_onnx(shipped("silero_vad", "data/silero_vad_16k_sequence.onnx"))
    states = floats(1, 1, 128) / 3, floats(1, 1, 128, seed=1) / 3
    module = agrees(model, sound(9, 576), *states)
    assert [port.name for port in module.inputs] == ["input", "h", "c"]
    assert [port.shape for port in module.inputs] == [(None, 576), (1, 1, 128), (1, 1, 128)]
    example = tuple(torch.from_numpy(value) for value in (sound(9, 576), *states))
    program = torch.export.export(module, example)
    assert "aten.lstm.input" in {str(node.target) for node in program.graph.nodes}
    for mine, theirs in zip(program.module()(*example), truth(model, [sound(9, 576), *states]), strict=True):
        close(mine.numpy(), theirs)
    agrees(model, sound(14, 576), *states)


def test_silero_sequence_model_hears_the_same_in_float64() -> None:
    module = import_onnx(read_onnx(shipped("silero_vad", "data/silero_vad_16k_sequence.onnx")), "silero")
    inputs = [sound(9, 576), floats(1, 1, 128) / 3, floats(1, 1, 128, seed=1) / 3]
    narrow = run(module, inputs)[0]
    wide = run(module.double(), inputs, torch.float64)[0]
    close(narrow, wide)
    assert wide.dtype == np.float64
    assert 0 < np.abs(wide - narrow).max() < 1e-5  # not the same numbers written wider


@pytest.mark.parametrize(("rate", "samples"), [(16000, 576), (8000, 288)])
def test_silero_stream_model_at_both_rates(rate: int, samples: int) -> None:
    model = read_onnx(shipped("silero_vad", "data/silero_vad.onnx"))
    module = agrees(model, sound(2, samples), floats(2, 2, 128) / 3, bind={"sr": rate})
    assert [port.name for port in module.inputs] == ["input", "state"]


def test_silero_stream_model_needs_the_rate() -> None:
    with pytest.raises(UnsupportedLayer, match="sample rate"):
        import_onnx(read_onnx(shipped("silero_vad", "data/silero_vad.onnx")), "silero_vad.onnx")


@pytest.mark.parametrize("name", ["silero_vad_half", "silero_vad_openvino_16k"])
def test_silero_variants(name: str) -> None:
    model = read_onnx(shipped("silero_vad", f"data/{name}.onnx"))
    agrees(model, sound(1, 576), floats(2, 1, 128) / 3)


def test_magika_as_a_module_and_as_a_black_box() -> None:
    path = shipped("magika", "models/*/model.onnx")
    contents = (
        np.random.default_rng(0).integers(0, 257, (3, 2048)).astype(np.int32)
    )  # 256 stands for nothing there
    box = session(path)
    answer = np.asarray(box(contents))
    np.testing.assert_allclose(answer.sum(1), 1, rtol=1e-5)
    agrees(read_onnx(path), contents)
