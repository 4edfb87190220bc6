"""Networks of 8-bit integers: radii, and the largest difference from the float32 network that they were made of.

    python -m benchmarks.quantised [--networks perceptron cnn acasxu] [--count 3] [--seconds 30] [--data FOLDER]
    python -m benchmarks.quantised --picture docs/quantised.png

Each network is quantised by onnxruntime's own tool, in the formats QDQ and QOperator, with weights scaled by channel.
"equal" counts inputs for which the imported network answers as onnxruntime in every bit. Every bound is attacked by
onnxruntime: random points of the region, its corners, and ties of the first rounding with their neighbours.
ACAS Xu comes from the shared data (benchmarks/data.md).
"""

import argparse
import gzip
import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper, version_converter
from torch import Tensor, nn

import holdfast as hf
from benchmarks import charts
from benchmarks.certify.data import SHARED
from holdfast.datasets import digits
from holdfast.datasets.digits_networks import digits_cnn
from holdfast.network.onnx import session

STYLES = ("QDQ", "QOperator")
COMPARED = 3000  # Inputs on which the import is compared with onnxruntime.
ATTACKS = 20000  # Points that attack each bound.
CALIBRATION = 200  # Inputs from which the tool takes the ranges of activations.
ACAS_FILE = "acasxu/onnx/ACASXU_run2a_1_1_batch_2000.onnx.gz"
ACAS_CENTRE = (0.3, 0.1, 0.1, 0.2, -0.2)  # An input in the units of the network, chosen by hand.


@dataclass(frozen=True)
class Example:
    """A float32 network, inputs in its domain, and the boxes on which it is compared."""

    file: Path
    shape: tuple[int, ...]
    domain: tuple[float, float]
    calibration: Tensor
    inputs: Tensor
    labels: Tensor
    radii: tuple[float, ...]


def train_perceptron() -> nn.Sequential:
    """64 - 48 - 24 - 10 with ReLU, on the digits; the seed is fixed."""
    data = digits("train")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 10))
    steps = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(150):
        steps.zero_grad()
        nn.functional.cross_entropy(net(data.x.flatten(1)), data.y).backward()
        steps.step()
    return net.eval()


def export_layers(layers: nn.Sequential, shape: tuple[int, ...], path: Path) -> None:
    """Write a chain of layers as ONNX."""
    nodes, constants, name = [], {}, "x"
    for k, layer in enumerate(layers):
        made = "y" if k == len(layers) - 1 else f"v{k}"
        if isinstance(layer, nn.Linear | nn.Conv2d):
            constants |= {f"w{k}": layer.weight, f"b{k}": layer.bias}
        if isinstance(layer, nn.Linear):
            nodes.append(helper.make_node("Gemm", [name, f"w{k}", f"b{k}"], [made], transB=1))
        elif isinstance(layer, nn.Conv2d):
            pads = [*layer.padding, *layer.padding]
            nodes.append(helper.make_node("Conv", [name, f"w{k}", f"b{k}"], [made], pads=pads))
        elif isinstance(layer, nn.AvgPool2d):
            sizes = {"kernel_shape": [layer.kernel_size] * 2, "strides": [layer.stride] * 2}
            nodes.append(helper.make_node("AveragePool", [name], [made], **sizes))
        else:
            nodes.append(helper.make_node(type(layer).__name__.replace("ReLU", "Relu"), [name], [made]))
        name = made
    tensors = [numpy_helper.from_array(value.detach().numpy(), key) for key, value in constants.items()]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 10])],
        tensors,
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def make_example(name: str, folder: Path, data: Path) -> Example:
    path = folder / f"{name}.onnx"
    if name == "acasxu":
        model = onnx.load_from_string(gzip.decompress((data / ACAS_FILE).read_bytes()))
        # The tool writes attributes that the file's old operator set does not have.
        onnx.save(version_converter.convert_version(model, 17), path)
        shape = (1, 1, 5)
        draw = torch.Generator().manual_seed(0)
        calibration = torch.rand(CALIBRATION, *shape, generator=draw) - 0.5
        centres = torch.tensor(ACAS_CENTRE).reshape(1, *shape)
        return Example(path, shape, (-0.5, 0.5), calibration, centres, torch.zeros(1), (0.01, 0.05))
    shape = (64,) if name == "perceptron" else (1, 8, 8)
    layers = train_perceptron() if name == "perceptron" else digits_cnn().layers
    assert isinstance(layers, nn.Sequential)
    export_layers(layers, shape, path)
    test, train = digits("test"), digits("train")
    x, calibration = test.x.reshape(-1, *shape), train.x[:CALIBRATION].reshape(-1, *shape)
    return Example(path, shape, (0.0, 1.0), calibration, x, test.y, (0.005, 0.02))


def free_input(model: onnx.ModelProto) -> onnx.ValueInfoProto:
    """The input that is no stored constant."""
    stored = {tensor.name for tensor in model.graph.initializer}
    return next(info for info in model.graph.input if info.name not in stored)


def quantise(example: Example, style: str, path: Path) -> None:
    from onnxruntime import quantization

    name = free_input(onnx.load(example.file)).name
    rows = iter(example.calibration[:, None].numpy())

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def get_next(self) -> dict[str, np.ndarray] | None:
            row = next(rows, None)
            return None if row is None else {name: row}

    logging.getLogger().setLevel(logging.ERROR)
    quantization.quantize_static(
        example.file, path, Reader(), quant_format=quantization.QuantFormat[style], per_channel=True
    )


def run(path: Path, x: Tensor) -> Tensor:
    """(n, *shape) -> (n, outputs), as onnxruntime computes it; row by row for files without a batch axis."""
    model = onnx.load(path)
    call = session(model)
    batched = not free_input(model).type.tensor_type.shape.dim[0].dim_value
    rows = x.float().split(len(x) if batched else 1)
    return torch.cat([torch.from_numpy(np.asarray(call(part.numpy()))).flatten(1) for part in rows])


def attack_points(low: Tensor, high: Tensor, path: Path) -> Tensor:
    """Points of a box: random ones, corners, and ties of the first rounding with their neighbours."""
    draw = torch.Generator().manual_seed(1)
    inside = low + (high - low) * torch.rand(ATTACKS, *low.shape, generator=draw)
    corners = torch.where(torch.rand(ATTACKS // 10, *low.shape, generator=draw) < 0.5, low, high)
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    step = next(float(value) for key, value in stored.items() if key.endswith("_scale") and not value.ndim)
    ties = ((inside[: ATTACKS // 10] / step - 0.5).round() + 0.5) * step
    beside = [torch.nextafter(ties, torch.full_like(ties, end)) for end in (-torch.inf, torch.inf)]
    return torch.maximum(torch.minimum(torch.cat([inside, corners, ties, *beside]), high), low)


def compare(name: str, example: Example, count: int, seconds: float, folder: Path) -> None:
    for style in STYLES:
        path = folder / f"{name}_{style}.onnx"
        quantise(example, style, path)
        net = hf.Network.from_onnx(path, domain=example.domain)
        assert net.source == "onnx", net.notes
        draw = torch.Generator().manual_seed(2)
        low, high = example.domain
        x = low + (high - low) * torch.rand(COMPARED, *example.shape, generator=draw)
        x[: len(example.inputs)] = example.inputs[:COMPARED].float()
        with torch.no_grad():
            equal = int((net(x) == run(path, x)).all(1).sum())
        print(f"\n{name}, {style}: {equal} of {COMPARED} inputs equal in every bit\n")
        print("| box | input | found | proved | attacked by onnxruntime | same class | CPU s |")
        print("|---|---|---|---|---|---|---|")
        for radius in example.radii:
            for k in range(min(count, len(example.inputs))):
                centre = example.inputs[k].float()
                ends = tuple((centre + side * radius).clamp(low, high) for side in (-1, 1))
                began = time.process_time()
                found = hf.equivalent(example.file, path, ends, tolerance=1e9, stop=seconds, progress=False)
                same = hf.equivalent(example.file, path, ends, same_class=True, stop=seconds, progress=False)
                used = time.process_time() - began
                points = attack_points(*ends, path)
                points = points if name != "acasxu" else points[::10]
                apart = float((run(example.file, points) - run(path, points)).abs().max())
                assert apart <= found.proved + 1e-4, f"{name}: the proved difference is broken"
                print(
                    f"| {radius} | {k} | {found.found:.4g} | {found.proved:.4g} | {apart:.4g} | {same.answer} "
                    f"| {used:.1f} |",
                    flush=True,
                )


def compare_radii(name: str, example: Example, count: int, seconds: float, folder: Path) -> None:
    print(f"\n{name}: radii, largest norm, tier fast\n")
    print("| input | float32, proved | float32, witnessed | int8, proved | int8, witnessed | CPU s of int8 |")
    print("|---|---|---|---|---|---|")
    path = folder / f"{name}_QOperator.onnx"
    for k in range(count):
        x, y = example.inputs[k : k + 1].float(), example.labels[k : k + 1]
        found = []
        for file in (example.file, path):
            net = hf.Network.from_onnx(file, domain=example.domain)
            began = time.process_time()
            (bracket,) = hf.radius(net, x, y, stop=seconds, progress=False)
            used = time.process_time() - began
            found.append(bracket)
        reach = found[1].lower.value
        points = attack_points((x[0] - reach).clamp(0, 1), (x[0] + reach).clamp(0, 1), path)
        assert bool((run(path, points).argmax(1) == y).all()), f"{name}: the proved radius is broken"
        ends = [f"{bracket.lower.value:.4f} | {bracket.upper.value:.4f}" for bracket in found]
        print(f"| {k} | {' | '.join(ends)} | {used:.1f} |", flush=True)


def draw_picture(folder: Path, data: Path, seconds: float, file: Path) -> None:
    """Draw the proved and the found difference of the perceptron over boxes of growing radius."""
    example = make_example("perceptron", folder, data)
    path = folder / "picture.onnx"
    quantise(example, STYLES[0], path)
    centre = example.inputs[0].float()
    radii = [0.0, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03]
    answers = [
        hf.equivalent(
            example.file,
            path,
            tuple((centre + side * radius).clamp(0, 1) for side in (-1, 1)),
            tolerance=1e9,
            stop=seconds,
            progress=False,
        )
        for radius in radii
    ]
    figure = charts.new_figure(6, 3)
    if figure is None:
        return
    axes = figure.subplots()
    axes.plot(radii, [one.proved for one in answers], color=charts.COLOURS[0], label="proved: at most")
    axes.plot(radii, [one.found for one in answers], color=charts.COLOURS[1], label="found: at least")
    axes.set_xlabel("radius of the box, in grey values from 0 to 1")
    axes.set_ylabel("largest difference of a logit")
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", nargs="+", default=["perceptron", "cnn", "acasxu"])
    parser.add_argument("--count", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--data", type=Path, default=SHARED)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if options.picture is not None:
            draw_picture(Path(folder), options.data, options.seconds, options.picture)
            return
        for name in options.networks:
            example = make_example(name, Path(folder), options.data)
            compare(name, example, options.count, options.seconds, Path(folder))
            if name != "acasxu":
                compare_radii(name, example, options.count, options.seconds, Path(folder))


if __name__ == "__main__":
    main()
