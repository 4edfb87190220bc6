"""Five networks for ImageNet in plain torch, written from their papers: AlexNet, VGG16, VGG19, ResNet50, ResNet101.

The package holds no weights for them. Without a file their weights are random, which is enough to measure what
a method costs. With `weights=PATH` they are read from a file that the user brings. Parameters have the names that
torchvision gives them ("features.0.weight", "layer1.0.conv1.weight", ...), so its files load as they are. A
.pth file is read with weights_only=True: no code in it is run.

Every network maps (batch, 3, 224, 224), normalised by MEAN and STD, to (batch, 1000) logits; other sizes from 64
pixels a side work too. `add_normalisation` puts the normalisation in front, so that inputs are pixels in [0, 1].

References: A. Krizhevsky, One weird trick for parallelizing convolutional neural networks, 2014 (AlexNet with one
tower); K. Simonyan and A. Zisserman, Very deep convolutional networks for large-scale image recognition, 2015
(configurations D and E); K. He et al., Deep residual learning for image recognition, 2016, with the stride of a
block at its 3x3 convolution, as in the published files.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import BadInput, UnreadableFile
from holdfast.process_state import own_random_numbers

CLASSES = 1000  # Of the ILSVRC 2012 task, which the published weights answer.
# Mean and standard deviation of each channel of ImageNet, with which the published weights were trained.
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
MAX_NAMES_SHOWN = 4  # Names of parameters that an error lists; chosen by hand.

# Channels of the convolutions; "pool" halves the image.
VGG_LAYERS: Mapping[int, tuple[int | str, ...]] = {
    16: (64, 64, "pool", 128, 128, "pool", *(256,) * 3, "pool", *(512,) * 3, "pool", *(512,) * 3, "pool"),
    19: (64, 64, "pool", 128, 128, "pool", *(256,) * 4, "pool", *(512,) * 4, "pool", *(512,) * 4, "pool"),
}
# Blocks in each of the four stages.
RESNET_BLOCKS: Mapping[int, tuple[int, ...]] = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}

Weights = str | PathLike[str] | None


class AlexNet(nn.Module):
    """(batch, 3, 224, 224) -> (batch, 1000) logits; 61,100,840 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, kernel_size=11, stride=4, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(64, 192, kernel_size=5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(192, 384, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(384, 256, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.Conv2d(256, 256, kernel_size=3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(3, 2),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(6)
        self.classifier = nn.Sequential(
            nn.Dropout(),
            nn.Linear(256 * 6 * 6, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Linear(4096, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return logits


class VGG(nn.Module):
    """(batch, 3, 224, 224) -> (batch, 1000) logits; 138,357,544 (16 layers) or 143,667,240 (19) parameters."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        features: list[nn.Module] = []
        channels = 3
        for layer in VGG_LAYERS[layers]:
            if isinstance(layer, str):
                features.append(nn.MaxPool2d(2, 2))
            else:
                features += [nn.Conv2d(channels, layer, kernel_size=3, padding=1), nn.ReLU()]
                channels = layer
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d(7)
        self.classifier = nn.Sequential(
            nn.Linear(512 * 7 * 7, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, 4096),
            nn.ReLU(),
            nn.Dropout(),
            nn.Linear(4096, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return logits


class Bottleneck(nn.Module):
    """A residual block: 1x1, 3x3 and 1x1 convolution, added to the input (projected where the shapes differ)."""

    WIDENING = 4  # Channels of the output, as a multiple of those inside.

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        wide = width * self.WIDENING
        self.conv1 = nn.Conv2d(channels, width, kernel_size=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, kernel_size=3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, wide, kernel_size=1, bias=False)
        self.bn3 = nn.BatchNorm2d(wide)
        self.relu = nn.ReLU()
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != wide:
            self.downsample = nn.Sequential(
                nn.Conv2d(channels, wide, kernel_size=1, stride=stride, bias=False), nn.BatchNorm2d(wide)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.relu(self.bn1(self.conv1(x)))
        inner = self.relu(self.bn2(self.conv2(inner)))
        inner = self.bn3(self.conv3(inner))
        added: Tensor = self.relu(inner + (x if self.downsample is None else self.downsample(x)))
        return added


class ResNet(nn.Module):
    """(batch, 3, 224, 224) -> (batch, 1000) logits; 25,557,032 (50 layers) or 44,549,160 (101) parameters."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, kernel_size=7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        channels = 64
        for stage, blocks in enumerate(RESNET_BLOCKS[layers]):
            width = 64 * 2**stage
            made = []
            for block in range(blocks):
                made.append(Bottleneck(channels, width, 2 if stage and not block else 1))
                channels = width * Bottleneck.WIDENING
            self.add_module(f"layer{stage + 1}", nn.Sequential(*made))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(channels, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in (1, 2, 3, 4):
            x = self.get_submodule(f"layer{stage}")(x)
        logits: Tensor = self.fc(self.avgpool(x).flatten(1))
        return logits


class ChannelNormalisation(nn.Module):
    """Subtract the mean of each channel and divide by its standard deviation."""

    mean: Tensor
    std: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).reshape(3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).reshape(3, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def add_normalisation(network: nn.Module) -> nn.Module:
    """Return the network with its normalisation in front, so that it reads pixels in [0, 1]; in eval mode."""
    return nn.Sequential(OrderedDict(normalise=ChannelNormalisation(), network=network)).eval()


def alexnet(weights: Weights = None, *, seed: int = 0) -> nn.Module:
    """Return AlexNet in eval mode, with the weights of a file, or with random ones drawn from `seed`."""
    return _network("AlexNet", AlexNet, weights, seed)


def vgg16(weights: Weights = None, *, seed: int = 0) -> nn.Module:
    """Return VGG with 16 layers in eval mode, with the weights of a file, or with random ones drawn from `seed`."""
    return _network("VGG16", lambda: VGG(16), weights, seed)


def vgg19(weights: Weights = None, *, seed: int = 0) -> nn.Module:
    """Return VGG with 19 layers in eval mode, with the weights of a file, or with random ones drawn from `seed`."""
    return _network("VGG19", lambda: VGG(19), weights, seed)


def resnet50(weights: Weights = None, *, seed: int = 0) -> nn.Module:
    """Return ResNet with 50 layers in eval mode, with the weights of a file, or with random ones drawn from `seed`."""
    return _network("ResNet50", lambda: ResNet(50), weights, seed)


def resnet101(weights: Weights = None, *, seed: int = 0) -> nn.Module:
    """Return ResNet with 101 layers in eval mode, with the weights of a file, or with random ones drawn from `seed`."""
    return _network("ResNet101", lambda: ResNet(101), weights, seed)


NETWORKS: Mapping[str, Callable[..., nn.Module]] = {
    "alexnet": alexnet,
    "vgg16": vgg16,
    "vgg19": vgg19,
    "resnet50": resnet50,
    "resnet101": resnet101,
}


def _network(name: str, make: Callable[[], nn.Module], weights: Weights, seed: int) -> nn.Module:
    if weights is not None:
        held = _read_weights(Path(weights))
        with torch.device("meta"):  # no memory and no time for weights that the file replaces
            network = make()
        _check_weights(name, network, held, Path(weights))
        network.load_state_dict(held, assign=True)
        return network.eval()
    with own_random_numbers(seed):
        network = make()
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Linear):
                # He et al. 2015: the activations keep their size from layer to layer, so the logits differ.
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
    return network.eval()


def _read_weights(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a .safetensors file, or of a file of torch.save that holds nothing but tensors."""
    if not path.is_file():
        raise UnreadableFile(f"weights: there is no file {path}.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file  # optional in this module

            held: Any = load_file(path)
        else:
            held = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UnreadableFile(
            f"weights: {path} holds no plain dictionary of tensors ({type(error).__name__}: {error}). Save it by "
            "torch.save(network.state_dict(), path), or as .safetensors."
        ) from error
    if isinstance(held, Mapping) and set(held) == {"state_dict"}:
        held = held["state_dict"]
    if not isinstance(held, Mapping) or not all(isinstance(value, Tensor) for value in held.values()):
        raise UnreadableFile(
            f"weights: {path} holds something else than a dictionary of tensors. Save it by "
            "torch.save(network.state_dict(), path)."
        )
    return dict(held)


def _check_weights(name: str, network: nn.Module, held: dict[str, Tensor], path: Path) -> None:
    """Raise BadInput where names or shapes differ; counters of batches that a file lacks are added."""
    expected = network.state_dict()
    for key, value in expected.items():
        if key.endswith(
            "num_batches_tracked"
        ):  # files of torch < 0.4.1 lack them, and evaluation ignores them
            held.setdefault(key, torch.zeros_like(value, device="cpu"))
    missing = [key for key in expected if key not in held]
    unexpected = [key for key in held if key not in expected]
    shapes = [
        f"{key} is {tuple(held[key].shape)} instead of {tuple(value.shape)}"
        for key, value in expected.items()
        if key in held and held[key].shape != value.shape
    ]
    wrong = [
        f"{what} {', '.join(names[:MAX_NAMES_SHOWN])}"
        + (f" and {len(names) - MAX_NAMES_SHOWN} more" if len(names) > MAX_NAMES_SHOWN else "")
        for what, names in (("missing:", missing), ("unexpected:", unexpected), ("other shapes:", shapes))
        if names
    ]
    if wrong:
        raise BadInput(
            f"weights: {path} is not of {name}; {'; '.join(wrong)}. Give the file of {name}, with the names "
            "that torchvision uses."
        )
