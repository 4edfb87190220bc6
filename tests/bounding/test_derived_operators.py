"""Operators that are written as others: the graph says what torch says, and no point of a region escapes. Masks, most of all."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from bounds_zoo import BIAS, HIDDEN, Wrapped, values
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn
from torch.nn import functional as F

import holdfast as hf
from holdfast.bounding.crown import lower_bound, propagate
from holdfast.bounding.graph.graph import Graph, Relaxed, build, unsupported_nodes
from holdfast.bounding.relax import Exp
from holdfast.network.trace import layers

GROUPS: dict[str, list[Callable[[Tensor], Tensor]]] = {
    "attention": [
        lambda h: F.scaled_dot_product_attention(three(h), three(h).flip(1), three(h) * 2.0, is_causal=True).flatten(1),
        lambda h: F.scaled_dot_product_attention(torch.ones(3, 2).to(h), three(h), three(h) + 1.0, BIAS.to(h) > -1).flatten(1),
        lambda h: F.scaled_dot_product_attention(four(h), four(h)[:, :1], four(h)[:, 1:], enable_gqa=True).flatten(1),
        lambda h: torch.baddbmm(BIAS.to(h).expand(h.shape[0], 3, 3), three(h), three(h).mT, beta=0.5, alpha=2.0).softmax(-1).flatten(1),
    ],
    "masks": [
        lambda h: (h.reshape(-1, 2, 3).masked_fill(HIDDEN, -torch.inf) * 2.0 + 0.3).transpose(1, 2).softmax(1).flatten(1),
        lambda h: torch.where(HIDDEN, torch.finfo(torch.float32).min, h.reshape(-1, 2, 3)).logsumexp(2),
        lambda h: torch.where(HIDDEN, h.reshape(-1, 2, 3), torch.full((2, 3), -torch.inf).to(h)).amax((1, 2)).unsqueeze(1),
        lambda h: (h.reshape(-1, 2, 3) - HIDDEN * 1e30).masked_fill(HIDDEN.flip(0), -1e5).log_softmax(2)[:, :, 0],
        lambda h: h.masked_fill(h > 0.3, -0.5) + h.masked_fill(torch.arange(6) > 3, 2.0) + torch.where(torch.arange(6) > 3, h, -2e3) / 1e3,
        lambda h: (h.reshape(-1, 2, 3) * 1.5).masked_fill_(HIDDEN, -torch.inf).softmax(2).flatten(1),
        lambda h: h.reshape(-1, 2, 3).tril().flatten(1) + h.reshape(-1, 2, 3).triu(1).flatten(1),
    ],
    "whole numbers": [
        torch.trunc, torch.frac, lambda h: torch.floor(h.relu()), lambda h: torch.div(h, 0.7, rounding_mode="floor"), lambda h: h // 0.4,
        lambda h: torch.div(h, 0.3, rounding_mode="trunc"), lambda h: torch.fmod(h, 0.9), lambda h: torch.round(h, decimals=1),
        lambda h: h % (2.0 + torch.tanh(h.flip(1))), lambda h: torch.div(h, 0.7, rounding_mode=None),
    ],
    "classes and counts": [
        lambda h: h.argmax(1, keepdim=True).to(h.dtype), lambda h: h.reshape(-1, 3, 2).argmin(2).to(h.dtype),
        lambda h: (3 * h).long().to(h.dtype), lambda h: ((2 * h).int() != 1).to(h.dtype),
        lambda h: (h.reshape(-1, 3, 2).argmax(2) == (2 * h[:, :3]).int()).sum(1, keepdim=True).to(h.dtype),
        lambda h: torch.where(h.argmax(1, keepdim=True) == 2, 5, 7).to(h.dtype),
        lambda h: ((h.argmax(1, keepdim=True) == torch.arange(6)) | (h > 1)).to(h.dtype),
        lambda h: (h.reshape(-1, 3, 2).argmax(2).unsqueeze(2) == torch.arange(2)).to(h.dtype).flatten(1) * h,
    ],
    "pools": [
        lambda h: F.adaptive_max_pool1d(h.unsqueeze(1), 4).flatten(1), lambda h: h.reshape(-1, 2, 3).min(1)[0],
        lambda h: F.adaptive_max_pool2d(h.reshape(-1, 1, 2, 3), (1, None)).flatten(1), lambda h: h.amin(1, keepdim=True),
        lambda h: F.max_pool2d(h.reshape(-1, 1, 2, 3), 2, 1, 1, return_indices=True)[0].flatten(1),
        lambda h: F.max_pool3d(h.reshape(-1, 1, 1, 2, 3), (1, 2, 2), 1, (0, 1, 1)).flatten(1), lambda h: h.unfold(1, 3, 2).flatten(1),
        lambda h: F.interpolate(h.reshape(-1, 1, 2, 3), scale_factor=2, mode="bilinear").flatten(1), lambda h: h.tile(1, 2),
        lambda h: F.conv_transpose2d(h.reshape(-1, 1, 2, 3), -torch.ones(1, 2, 2, 2).to(h)).flatten(1), lambda h: h.repeat_interleave(2, 1),
        lambda h: F.unfold(h.reshape(-1, 1, 2, 3), 2).flatten(1), lambda h: F.interpolate(h.unsqueeze(1), scale_factor=2).flatten(1),
    ],
    "powers": [
        lambda h: (1.0 + h * h) ** -2, lambda h: 2.0**h, torch.exp2, lambda h: torch.log2(1.5 + torch.tanh(h)), lambda h: h**1 - h**0,
        lambda h: torch.log10(1.5 + torch.tanh(h)), torch.sinh, torch.cosh, lambda h: torch.tan(0.3 * torch.tanh(h)),
        lambda h: torch.logit(0.1 + 0.8 * torch.sigmoid(h)), lambda h: torch.logit(h, 0.2), lambda h: torch.atanh(0.8 * torch.tanh(h)),
    ],
    "norms": [
        lambda h: h.norm(1, 1, keepdim=True), lambda h: h.norm(dim=1, keepdim=True), lambda h: (1.0 + h * h) ** 0.75,
        lambda h: torch.linalg.vector_norm(h, torch.inf, 1, keepdim=True), F.normalize,
        lambda h: h.prod(1, keepdim=True), lambda h: h.reshape(-1, 2, 3).std(2), lambda h: h.var(1, correction=0).unsqueeze(1),
    ],
    "choices": [
        lambda h: ((h > 0) & (h < 1)).to(h.dtype), lambda h: F.threshold(h, 0.1, -0.4), lambda h: h.clamp(-BIAS[0, 2] / 8, 0.25),
        lambda h: h.clamp(-torch.arange(6).to(h) / 8, torch.arange(6).to(h) / 4), lambda h: torch.lerp(h, h.flip(1), -0.3),
        lambda h: torch.addcmul(h, h, h + 1.0, value=0.5), lambda h: torch.logical_and(h > 0, torch.arange(6) > 2).to(h.dtype) * h,
        torch.nan_to_num,
    ],
}  # fmt: skip


def three(h: Tensor) -> Tensor:
    return h.reshape(-1, 3, 2)


def four(h: Tensor) -> Tensor:
    return h.reshape(-1, 2, 3, 1)


def ends(graph: Graph, region: hf.Ball) -> tuple[Tensor, Tensor]:
    """(batch, outputs): below and above."""
    rows = torch.eye(graph.output.size, dtype=torch.float64).expand(len(region), -1, -1).contiguous()
    boxes = propagate(graph, region)
    low, high = (lower_bound(graph, boxes, sign * rows, rows.new_zeros(rows.shape[:2])) for sign in (1, -1))
    return low, -high


@pytest.mark.parametrize("name", list(GROUPS))
def test_the_graph_says_what_torch_says_and_no_point_escapes(name: str) -> None:
    torch.manual_seed(2)
    model = Wrapped(*GROUPS[name]).eval()
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(3))
    graph = build(hf.Network.from_torch(model), x)
    with torch.no_grad():
        wanted = Wrapped.forward(model.double(), x.double())
    torch.testing.assert_close(values(graph, x)[graph.output].flatten(1), wanted, rtol=1e-10, atol=1e-10)
    for radius in (0.0, 0.3):
        region = hf.Ball(x.double(), torch.full((3,), radius, dtype=torch.float64))
        low, high = ends(graph, region)
        assert low.isfinite().all()
        near = x.double() + radius * (
            2 * torch.rand((400, 3, 4), generator=torch.Generator().manual_seed(4), dtype=torch.float64) - 1
        )
        near[:8] = x.double() + radius * (
            2 * torch.randint(0, 2, (8, 3, 4), generator=torch.Generator().manual_seed(5)).double() - 1
        )
        with torch.no_grad():
            said = model(near.flatten(0, 1)).reshape(400, 3, -1)
        assert (low <= said).all()
        assert (said <= high).all()


# ---------------------------------------------------------------- masks


MASKS: list[Callable[[Tensor], Tensor]] = [
    lambda h: h[..., :4],
    lambda h: h.masked_fill(torch.arange(6) > 3, -torch.inf),
    lambda h: torch.where(torch.arange(6) > 3, -1e9, h),
    lambda h: h + (torch.arange(6) > 3) * torch.finfo(torch.float32).min,
]


@pytest.mark.parametrize("read", [lambda v: v.softmax(1)[:, :4], lambda v: v.logsumexp(1, keepdim=True)])
def test_what_is_masked_is_as_if_it_were_not_there(read: Callable[[Tensor], Tensor]) -> None:
    """However the mask is written the bounds are as wide as those of the rest alone, and no digit is lost to -1e38."""
    found = []
    for mask in MASKS:
        torch.manual_seed(0)
        graph = build(hf.Network.from_torch(Wrapped(lambda h, m=mask: read(m(h))).eval()), torch.zeros(1, 4))
        found.append(
            ends(
                graph,
                hf.Ball(torch.ones(1, 4, dtype=torch.float64), torch.full((1,), 0.2, dtype=torch.float64)),
            )
        )
    alone, hidden, *low = (high - low for low, high in found)
    torch.testing.assert_close(hidden, alone, rtol=1e-9, atol=1e-9)
    for width in low:  # paired differently
        assert (width <= 1.05 * alone).all()


def test_a_masked_place_has_no_weight_at_all() -> None:
    """Its own box, and every box of the weights, is [0, 0] but for what underflows, however wide the region."""
    torch.manual_seed(0)
    graph = build(
        hf.Network.from_torch(
            Wrapped(lambda h: h.masked_fill(torch.arange(6) > 3, -torch.inf).softmax(1)).eval()
        ),
        torch.zeros(1, 4),
    )
    boxes = propagate(
        graph, hf.Ball(torch.zeros(1, 4, dtype=torch.float64), torch.full((1,), 50.0, dtype=torch.float64))
    )
    (weights,) = (
        node for node in graph.nodes if isinstance(node, Relaxed) and isinstance(node.relaxation, Exp)
    )
    assert weights.size == 4  # nothing was computed of the others
    (spread,) = (node for node in graph.nodes if weights in node.inputs)
    assert float(boxes.upper[spread][0, 0, 4:].abs().max()) < 1e-190
    assert float(boxes.lower[spread][0, 0, 4:].abs().max()) < 1e-190


class Stack(nn.Module):
    """torch's own transformer, with a mask that it would look at to see whether it is causal."""

    def __init__(self, *, batch_first: bool, padded: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 4, batch_first=batch_first, norm_first=not batch_first)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(3))
        self.head, self.batch_first, self.padded = nn.Linear(4, 2), batch_first, padded

    def forward(self, x: Tensor) -> Tensor:
        last = (
            torch.tensor([[False, False, True]], device=x.device).expand(x.shape[0], 3)
            if self.padded
            else None
        )
        mask = self.mask if not self.padded else self.mask < 0
        y = self.encoder(x if self.batch_first else x.transpose(0, 1), mask, last)
        answer: Tensor = self.head(y[:, 1] if self.batch_first else y[1])
        return answer


@pytest.mark.parametrize(("batch_first", "padded"), [(True, True), (False, False)])
def test_transformers_with_masks_are_proved(batch_first: bool, padded: bool) -> None:
    torch.manual_seed(1)
    net = hf.Network.from_torch(Stack(batch_first=batch_first, padded=padded).eval())
    x = torch.randn(2, 3, 4)
    found = hf.bounds(net, hf.Ball(x, 0.02))
    near = x + 0.02 * (2 * torch.rand(200, 2, 3, 4) - 1)
    near[:, :, 2] += 5.0  # a later frame, which the second cannot see
    said = net(near.flatten(0, 1)).double().reshape(200, 2, -1)
    assert (found.lower <= said + 1e-5).all()
    assert (said - 1e-5 <= found.upper).all()


def test_torchs_fast_path_that_blanks_padded_frames_is_named() -> None:
    class Blank(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 4, batch_first=True), 1)

        def forward(self, x: Tensor) -> Tensor:
            last = torch.tensor([[False, False, True]]).expand(x.shape[0], 3)
            answer: Tensor = self.encoder(x, src_key_padding_mask=last).flatten(1)
            return answer

    with pytest.raises(hf.errors.UnsupportedLayer, match="enable_nested_tensor=False"):
        hf.bounds(hf.Network.from_torch(Blank().eval()), hf.Ball(torch.randn(1, 3, 4), 0.01))


def test_waves_are_bounded_over_any_width() -> None:
    model = Wrapped(torch.sin, torch.cos).eval()
    graph = build(hf.Network.from_torch(model), torch.zeros(1, 4))
    for radius in (1.0, 1e3, 1e7):
        low, high = ends(
            graph,
            hf.Ball(torch.zeros(1, 4, dtype=torch.float64), torch.full((1,), radius, dtype=torch.float64)),
        )
        most = model.last.weight.double().abs().sum(1) + model.last.bias.double().abs()
        assert (high - low <= 2 * most + 1e-9).all()
        assert math.isfinite(float(low.sum()))


# ---------------------------------------------------------------- what is said before, and what happens then


SAID: list[Callable[[Tensor], Tensor]] = [
    torch.relu, torch.sin, torch.floor, torch.sinc, F.hardshrink, lambda h: h.sort(1)[0], lambda h: h.half().float(),
    lambda h: h.topk(2)[0],
    lambda h: h.masked_fill(torch.arange(6) > 3, -torch.inf).tanh(), lambda h: h.masked_fill(torch.arange(6) > 3, -torch.inf).softmax(1),
    lambda h: F.leaky_relu(h, 1.5), lambda h: F.leaky_relu(h, 0.5), lambda h: h.max(1)[1].unsqueeze(1) * 1.0,
    lambda h: h.max(1)[0].unsqueeze(1), lambda h: (3 * h).long().to(h.dtype) * 1.0, lambda h: h.abs() ** h,
]  # fmt: skip


@pytest.mark.parametrize("function", SAID)
def test_inspect_says_yes_where_bounds_are_found_and_only_there(function: Callable[[Tensor], Tensor]) -> None:
    net = hf.Network.from_torch(Wrapped(function).eval())
    x = torch.rand(2, 4)
    refused = unsupported_nodes(net, x)
    assert set(refused) <= {layer.node for layer in layers(net.program(x))} | {"output"}
    said = None
    try:
        hf.bounds(net, hf.Ball(x, 0.01))
    except hf.errors.UnsupportedLayer as error:
        said = str(error)
    assert (said is None) == (not refused)
    assert said is None or said in refused.values()


# ---------------------------------------------------------------- the same from a file


def test_an_onnx_file_with_masks_pools_stairs_and_waves_is_proved(tmp_path: Path) -> None:
    tensors = {
        "shape": np.array([0, 2, 3]), "mask": np.array([[0, -np.inf, 0.5], [0, 0, -np.inf]], np.float32), "hidden": HIDDEN.numpy(),
        "low": np.array(-np.inf, np.float32), "one": np.array(1.5, np.float32),
    }  # fmt: skip
    unary = ("Sin", "Cos", "Atan", "Floor", "Ceil", "Round", "Sign")
    nodes = [
        helper.make_node("Reshape", ["x", "shape"], ["r"]),
        helper.make_node("Add", ["r", "mask"], ["added"]),
        helper.make_node("Softmax", ["added"], ["y0"], axis=-1),
        helper.make_node("Where", ["hidden", "low", "r"], ["chosen"]),
        helper.make_node("Softmax", ["chosen"], ["y1"], axis=-1),
        helper.make_node("MaxPool", ["r"], ["y2"], kernel_shape=[3], pads=[1, 1], strides=[1]),
        helper.make_node("MaxPool", ["r"], ["y3"], kernel_shape=[2], dilations=[2], strides=[1]),
        helper.make_node("MaxPool", ["r"], ["y4"], kernel_shape=[2], strides=[2], ceil_mode=1),
        helper.make_node("Mod", ["r", "one"], ["y5"], fmod=1),
        helper.make_node("Pow", ["one", "r"], ["y6"]),
        *(helper.make_node(kind, ["r"], [f"y{k}"]) for k, kind in enumerate(unary, 7)),
        helper.make_node("Concat", [f"y{k}" for k in range(7 + len(unary))], ["wide"], axis=2),
        helper.make_node("Flatten", ["wide"], ["y"]),
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size])
        for name, size in (("x", 6), ("y", 72))
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], constants)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
        tmp_path / "all.onnx",
    )
    net = hf.Network.from_onnx(tmp_path / "all.onnx")
    x = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    found = hf.bounds(net, hf.Ball(x, 0.3))
    near = x + 0.3 * (2 * torch.rand((300, 2, 6), generator=torch.Generator().manual_seed(1)) - 1)
    session = onnxruntime.InferenceSession(tmp_path / "all.onnx")
    said = (
        torch.from_numpy(session.run(None, {"x": near.flatten(0, 1).numpy()})[0]).double().reshape(300, 2, -1)
    )
    assert found.lower.isfinite().all()
    assert (found.lower <= said + 1e-5).all()
    assert (said - 1e-5 <= found.upper).all()
    assert (
        float((found.upper - found.lower - (said.amax(0) - said.amin(0))).mean()) < 0.2
    )  # and not by being far away
