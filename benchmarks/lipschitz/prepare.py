"""Convert networks and properties for machines that have neither the shared data nor onnx.

python -m benchmarks.lipschitz prepare

Writes benchmarks/.cache/lipschitz/{acasxu,mnist_fc}: the lists, keys and properties unchanged, and each
network's weights as .npz. Every converted network is compared with its .onnx file before it is saved.
"""

import argparse
import shutil
from pathlib import Path

import numpy as np
import torch
from torch import nn

import holdfast as hf
from benchmarks.certify.data import ROOT, shared

CACHE = ROOT / "benchmarks" / ".cache" / "lipschitz"
SETS = {"acasxu": "acasxu", "mnist_fc": "vnncomp/mnist_fc"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))


def main(chosen: argparse.Namespace) -> None:
    for name in chosen.sets:
        source, target = shared(SETS[name], chosen.data), CACHE / name
        shutil.rmtree(target, ignore_errors=True)
        (target / "onnx").mkdir(parents=True)
        shutil.copytree(source / "vnnlib", target / "vnnlib")
        for file in ("instances.csv", "expected.csv"):
            shutil.copyfile(source / file, target / file)
        for file in sorted((source / "onnx").glob("*.onnx.gz")):
            _convert(file, target / "onnx" / file.name.replace(".onnx.gz", ".npz"))
        print(f"{name}: {len(list((target / 'onnx').glob('*.npz')))} networks in {target}")


def _convert(file: Path, target: Path) -> None:
    """Convert a ReLU perceptron: every weight matrix and its bias, in order."""
    import onnx  # An optional package.
    from onnx import numpy_helper

    from holdfast.network.onnx.reader import read_onnx

    model: onnx.ModelProto = read_onnx(file)
    arrays = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    turned = {name for node in model.graph.node if node.op_type == "Gemm" for name in node.input[1:2]}
    weights = [
        arrays[n] if n in turned else arrays[n].T
        for node in model.graph.node
        for n in node.input
        if n in arrays and arrays[n].ndim == 2
    ]
    biases = [
        arrays[n]
        for node in model.graph.node
        if node.op_type in ("Gemm", "Add")
        for n in node.input
        if n in arrays and arrays[n].ndim == 1
    ]
    net = hf.Network.from_onnx(file)
    assert net.shape is not None
    kept = {"shape": np.array(net.shape)}
    for i, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
        kept |= {f"weight{i}": np.ascontiguousarray(weight), f"bias{i}": bias}
    np.savez(target, **kept)
    x = torch.rand(64, *[size or 1 for size in net.shape], generator=torch.Generator().manual_seed(0)) - 0.5
    assert torch.allclose(load(target)(x), net(x), rtol=1e-4, atol=1e-5), (
        f"{file.name} is not a ReLU perceptron, so it cannot be converted"
    )


def load(file: Path, device: str = "cpu") -> hf.Network:
    """Read a converted network."""
    with np.load(file, allow_pickle=False) as arrays:
        layers: list[nn.Module] = [nn.Flatten()]
        for i in range(sum(name.startswith("weight") for name in arrays)):
            weight, bias = torch.from_numpy(arrays[f"weight{i}"]), torch.from_numpy(arrays[f"bias{i}"])
            linear = nn.Linear(weight.shape[1], weight.shape[0])
            linear.load_state_dict({"weight": weight, "bias": bias})
            layers += [linear, nn.ReLU()]
        shape = [int(size) for size in arrays["shape"]]
    return hf.Network.from_torch(
        nn.Sequential(*layers[:-1]).eval(), shape=shape, device=device, name=file.stem
    )
