"""Layers that are written for the checker as other operators: its bounds hold at every point tried, and no false claim passes."""

from pathlib import Path

import numpy as np
import pytest
import torch
from test_prove import opened
from torch import Tensor, nn

from holdfast.api.prove import prove
from holdfast.certificates.claim import pack_proof
from holdfast.certificates.model_file import model_for
from holdfast.certify import Certify
from holdfast.errors import UnsupportedLayer
from holdfast.network import Network
from holdfast.problem import Problem
from holdfast.property import Linear
from holdfast.region import Box
from holdfast.solver import solve
from holdfast_check import Rejected, check, proof
from holdfast_check.planes import StepBounds
from holdfast_check.region import CheckedRegion


class Cubic(nn.Module):
    """Products of two values that depend on the input."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0] * x[:, 1] * x[:, 2], x[:, 3] ** 2 - x[:, 0] * x[:, 3]], 1)


class Attention(nn.Module):
    """A residual block of attention behind a layer normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(8, 2)
        self.parts = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        normal = self.norm(x)
        mixed = nn.functional.scaled_dot_product_attention(*(part(normal) for part in self.parts))
        return self.head((x + mixed).flatten(1))


class Quotient(nn.Module):
    """A vector by its length, and constants that float32 does not hold."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.2 * x[:, :2] / (0.1 * torch.ones_like(x[:, :1]) + (x * x).sum(1, keepdim=True)).sqrt()


def _layers() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(0)

    def between(layer: nn.Module) -> tuple[nn.Module, tuple[int, ...]]:
        return nn.Sequential(nn.Linear(4, 5), layer, nn.Linear(5, 2)), (4,)

    def head(*layers: nn.Module, many: int) -> nn.Module:
        return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(many, 2))

    turned = nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1, groups=2)
    return {
        "silu": between(nn.SiLU()),
        "hardswish": between(nn.Hardswish()),
        "hardsigmoid": between(nn.Hardsigmoid()),
        "gelu by tanh": between(nn.GELU("tanh")),
        "prelu": between(nn.PReLU()),
        "prelu per channel": between(nn.PReLU(5)),
        "gelu": between(nn.GELU()),
        "elu": between(nn.ELU(0.5)),
        "selu": between(nn.SELU()),
        "celu": between(nn.CELU(0.7)),
        "softplus": between(nn.Softplus(2)),
        "log sigmoid": between(nn.LogSigmoid()),
        "softmax": between(nn.Softmax(-1)),
        "layer normalisation": between(nn.LayerNorm(5)),
        "root mean square normalisation": between(nn.RMSNorm(5, eps=1e-5)),
        "gated linear unit": (nn.Sequential(nn.Linear(4, 10), nn.GLU(), nn.Linear(5, 2)), (4,)),
        "attention": (Attention(), (2, 4)),
        "quotient": (Quotient(), (4,)),
        "transposed convolution": (head(turned, many=144), (2, 3, 3)),
        "dilated transposed convolution": (head(nn.ConvTranspose1d(2, 3, 2, dilation=2), many=21), (2, 5)),
        "grouped convolution": (head(nn.Conv2d(4, 4, 2, groups=4), many=16), (4, 3, 3)),
        "upsampling": (head(nn.Upsample(scale_factor=2), many=36), (1, 3, 3)),
        "pixel shuffle": (head(nn.PixelShuffle(2), many=16), (4, 2, 2)),
        "products": (Cubic(), (4,)),
    }


LAYERS = _layers()
FAR = {"attention": 0.02, "layer normalisation": 0.1, "root mean square normalisation": 0.1}  # Default: 0.3.


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_has_certificates_and_no_false_claim_passes(name: str, tmp_path: Path) -> None:
    (module, shape), far = LAYERS[name], FAR.get(name, 0.3)
    module = module.double().eval()
    net = Network.from_torch(module, shape=shape)
    draw = np.random.default_rng(1)
    x = torch.from_numpy(draw.uniform(-1, 1, (1, *shape)))
    problem = Problem(net, Box(x, x - far, x + far), Linear.of([1.0, -0.5], batch=1), "worst")
    _, model = model_for(problem, tmp_path, None)
    centre = x.numpy().ravel()
    points = centre + far * draw.uniform(-1, 1, (400, centre.size))
    points[:200] = centre + far * np.sign(points[:200] - centre)
    with torch.no_grad():
        real = module(torch.from_numpy(points).reshape(-1, *shape)).numpy()
    # The program of the checker is the network, and its bounds hold at corners and inside.
    assert np.abs(model.program.value(points) - real).max() < 1e-12
    bounds = StepBounds(model.program, CheckedRegion((centre - far)[None], (centre + far)[None]))
    rows = np.array([[1.0, -0.5], [1.0, 0.0], [0.0, -1.0]])
    least, values = bounds.rows(rows, np.zeros(3))[0], real @ rows.T
    assert (values >= least).all()
    assert (values.min(0) - least < 10 * (values.max(0) - values.min(0))).all(), "a bound that says nothing"
    # What the engine proves has a certificate; claims at and above a value that a point takes are rejected.
    made = [one for one in prove([problem], solve([problem], [Certify()]), tmp_path) if one.kind == "proof"]
    assert made[0].file is not None, made[0].reason
    assert made[0].value >= made[0].known - 0.011 * max(1e-6, abs(made[0].known))
    header, arrays = opened(made[0].file)
    for more in (0.0, 1e-9, 0.1, 10.0):
        header["above"] = float(values[:, 0].min()) + more
        for noise in (0.0, 0.3):
            other = dict(arrays)
            for place, step in enumerate(model.program.steps):
                if noise and hasattr(step, "function"):
                    given = noise * draw.normal(size=(1, 2, len(step.parts), step.size))
                    other[f"slopes/{place}"] = given
            made[0].file.write_bytes(pack_proof(header, other))
            verdict = check(model, made[0].file)
            assert not verdict.accepted, (more, noise)
            assert "misses the claimed number" in verdict.reason, verdict.reason
    assert header["version"] == proof.VERSION


@pytest.mark.parametrize("layer", [nn.Mish(), nn.GroupNorm(1, 5), nn.Softplus(1, 10), nn.RMSNorm(5)])
def test_a_layer_without_certificate_says_so(layer: nn.Module, tmp_path: Path) -> None:
    net = Network.from_torch(nn.Sequential(nn.Linear(4, 5), layer, nn.Linear(5, 2)).eval(), shape=(4,))
    x = torch.zeros(1, 4, dtype=torch.float64)
    problem = Problem(net, Box(x, x - 1, x + 1), Linear.of([1.0, 0.0], batch=1), "worst")
    with pytest.raises((UnsupportedLayer, Rejected), match="cannot be exported for holdfast-check"):
        model_for(problem, tmp_path, None)
