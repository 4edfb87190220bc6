"""The five networks for ImageNet: sizes as published, names of weight files, and clear errors for other files."""

from pathlib import Path

import pytest
import torch
from torch import nn

from holdfast.datasets import imagenet_networks as networks
from holdfast.errors import BadInput, UnreadableFile

# Parameters as published with the weights of torchvision.
PUBLISHED = {
    "AlexNet": (networks.AlexNet, (), 61_100_840),
    "VGG16": (networks.VGG, (16,), 138_357_544),
    "VGG19": (networks.VGG, (19,), 143_667_240),
    "ResNet50": (networks.ResNet, (50,), 25_557_032),
    "ResNet101": (networks.ResNet, (101,), 44_549_160),
}


def on_meta(name: str) -> nn.Module:
    """Without memory for the weights."""
    kind, options, _ = PUBLISHED[name]
    with torch.device("meta"):
        return kind(*options).eval()


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_outputs_are_those_published(name: str) -> None:
    network = on_meta(name)
    assert sum(p.numel() for p in network.parameters()) == PUBLISHED[name][2]
    assert network(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)


def test_names_are_those_of_published_files() -> None:
    assert {"features.0.weight", "features.10.bias", "classifier.1.weight", "classifier.6.bias"} <= set(
        on_meta("AlexNet").state_dict()
    )
    assert {"features.28.weight", "classifier.0.weight", "classifier.6.bias"} <= set(
        on_meta("VGG16").state_dict()
    )
    assert "features.34.weight" in on_meta("VGG19").state_dict()
    for name, last in (("ResNet50", 5), ("ResNet101", 22)):
        state = on_meta(name).state_dict()
        assert {
            "conv1.weight",
            "bn1.running_mean",
            "layer1.0.downsample.0.weight",
            "layer2.0.downsample.1.running_var",
            f"layer3.{last}.conv3.weight",
            "layer4.2.bn2.num_batches_tracked",
            "fc.bias",
        } <= set(state)
        assert f"layer3.{last + 1}.conv3.weight" not in state
        assert state["layer2.0.conv2.weight"].shape == (128, 128, 3, 3)
        assert "layer1.1.downsample.0.weight" not in state


def test_weights_of_a_file_are_used(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    network = networks.resnet50(seed=1)
    state = network.state_dict()
    plain, safe = tmp_path / "resnet50.pth", tmp_path / "resnet50.safetensors"
    torch.save({k: v for k, v in state.items() if "num_batches" not in k}, plain)  # as older files are
    save_file(state, safe)
    x = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        expected = network(x)
        assert torch.equal(networks.resnet50(plain)(x), expected)
        assert torch.equal(networks.resnet50(safe)(x), expected)
        assert not torch.equal(networks.resnet50(seed=2)(x), expected)


def test_the_callers_random_numbers_are_left_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    networks.resnet50()
    assert torch.equal(torch.get_rng_state(), before)


def test_a_file_of_another_architecture_is_refused_with_names(tmp_path: Path) -> None:
    state = {name: torch.empty(0) for name in on_meta("AlexNet").state_dict()}
    torch.save(state, tmp_path / "alexnet.pth")
    with pytest.raises(BadInput) as said:
        networks.resnet50(tmp_path / "alexnet.pth")
    for part in ("is not of ResNet50", "missing: conv1.weight", "unexpected: features.0.weight", "more"):
        assert part in str(said.value)
    with pytest.raises(
        BadInput, match=r"other shapes: features.0.weight is \(0,\) instead of \(64, 3, 11, 11\)"
    ):
        networks.alexnet(tmp_path / "alexnet.pth")


def test_files_that_hold_no_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile, match="there is no file"):
        networks.vgg16(tmp_path / "none.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(UnreadableFile, match="something else than a dictionary of tensors"):
        networks.vgg16(tmp_path / "list.pth")
    torch.save(nn.Linear(2, 2), tmp_path / "module.pth")  # would run code when it is opened
    with pytest.raises(UnreadableFile, match="no plain dictionary of tensors"):
        networks.vgg16(tmp_path / "module.pth")
    (tmp_path / "text.safetensors").write_text("nothing")
    with pytest.raises(UnreadableFile, match="no plain dictionary of tensors"):
        networks.vgg16(tmp_path / "text.safetensors")


def test_normalised_networks_read_pixels() -> None:
    inner = nn.Flatten()
    x = torch.rand(2, 3, 2, 2)
    mean, std = (torch.tensor(v).reshape(3, 1, 1) for v in (networks.MEAN, networks.STD))
    assert torch.allclose(networks.add_normalisation(inner)(x), ((x - mean) / std).flatten(1))
