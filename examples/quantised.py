"""A digits perceptron of 8-bit integers: what is proved about it, and how far it is from its float32 original."""

import logging

import onnx
import torch
from onnx import helper, numpy_helper
from onnxruntime import quantization
from torch import nn

import holdfast as hf
from holdfast.datasets import digits

train, test = digits("train"), digits("test")
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
optimiser = torch.optim.Adam(net.parameters(), 1e-2)
for _ in range(150):
    optimiser.zero_grad()
    nn.functional.cross_entropy(net(train.x.flatten(1)), train.y).backward()
    optimiser.step()

weights = {name.replace(".", "_"): value.detach().numpy() for name, value in net.state_dict().items()}
graph = helper.make_graph(
    [
        helper.make_node("Gemm", ["pixels", "0_weight", "0_bias"], ["hidden"], transB=1),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "2_weight", "2_bias"], ["logits"], transB=1),
    ],
    "digits",
    [helper.make_tensor_value_info("pixels", onnx.TensorProto.FLOAT, ["batch", 64])],
    [helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, ["batch", 10])],
    [numpy_helper.from_array(value, name) for name, value in weights.items()],
)
opset = [helper.make_opsetid("", 17)]
onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), "float32.onnx")


class Calibration(quantization.CalibrationDataReader):
    """Training images, from which the tool takes the range of every layer."""

    def __init__(self):
        self.rows = iter(train.x[:100].reshape(-1, 1, 64).numpy())

    def get_next(self):
        row = next(self.rows, None)
        return None if row is None else {"pixels": row}


logging.getLogger().setLevel(logging.ERROR)
quantization.quantize_static("float32.onnx", "int8.onnx", Calibration(), per_channel=True)

x, y = test.x[:3].flatten(1), test.y[:3]
for file in ("float32.onnx", "int8.onnx"):
    print(file)
    for bracket in hf.radius(hf.Network.from_onnx(file, domain=(0, 1)), x, y, stop=hf.Stop(seconds=20)):
        print(" ", bracket)

box = ((x[0] - 0.02).clamp(0, 1), (x[0] + 0.02).clamp(0, 1))
print(hf.equivalent("float32.onnx", "int8.onnx", box, same_class=True, stop=20))
print(hf.equivalent("float32.onnx", "int8.onnx", box, within=4, stop=20).summary())
