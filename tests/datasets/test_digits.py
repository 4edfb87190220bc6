"""The embedded digits and the networks stored with them."""

import subprocess
import sys
from importlib.resources import files
from typing import Literal

import pytest
import torch
from sklearn.datasets import load_digits

from holdfast.datasets import digits
from holdfast.datasets.digits_networks import (
    DigitsCNN,
    DigitsGRU,
    DigitsLSTM,
    digits_cnn,
    digits_gru,
    digits_lstm,
)
from holdfast.errors import BadInput

NETWORKS = [
    pytest.param(digits_cnn, DigitsCNN, (1, 8, 8), 0.97, id="cnn"),
    pytest.param(digits_lstm, DigitsLSTM, (8, 8), 0.95, id="lstm"),
    pytest.param(digits_gru, DigitsGRU, (8, 8), 0.95, id="gru"),
]
every_network = pytest.mark.parametrize(("factory", "architecture", "shape", "least_accuracy"), NETWORKS)

# One image as a hashable value: its 64 pixels as integers 0..16, then its label.
Image = tuple[int, ...]


def images(split: Literal["train", "test"]) -> list[Image]:
    data = digits(split)
    pixels = (data.x.flatten(1) * 16).int().tolist()
    return [(*row, label) for row, label in zip(pixels, data.y.tolist(), strict=True)]


def everything() -> list[Image]:
    pixels, labels = load_digits(return_X_y=True)
    return [(*row, label) for row, label in zip(pixels.astype(int).tolist(), labels.tolist(), strict=True)]


@pytest.mark.parametrize(("split", "size"), [("train", 1297), ("test", 500)])
def test_shapes_types_and_ranges(split, size):
    data = digits(split)
    assert data.x.shape == (size, 1, 8, 8)
    assert data.y.shape == (size,)
    assert data.x.dtype == torch.float32
    assert data.y.dtype == torch.int64
    assert data.x.min() == 0
    assert data.x.max() == 1
    assert data.y.unique().tolist() == list(range(10))


def test_the_two_splits_are_disjoint_and_together_are_all_of_scikit_learns_digits():
    assert len(set(everything())) == 1797, "a repeated image could sit in both splits"
    assert sorted(images("train") + images("test")) == sorted(everything())


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_call_gives_the_same_images_in_fresh_memory(split):
    first, second = digits(split), digits(split)
    assert torch.equal(first.x, second.x)
    assert torch.equal(first.y, second.y)
    first.x.zero_()
    assert second.x.max() == 1


def test_the_split_is_the_one_the_networks_were_trained_on():
    """A split that moved would leak training images into the test set and leave every other test green."""
    positions = {image: position for position, image in enumerate(everything())}
    chosen = [positions[image] for image in images("test")]
    assert chosen[:8] == [1, 8, 10, 15, 21, 26, 29, 30]
    assert sum(chosen) == 448011


def test_the_split_is_stratified():
    in_all = torch.cat([digits("train").y, digits("test").y]).bincount().double()
    in_test = digits("test").y.bincount().double()
    assert ((in_test - in_all * 500 / 1797).abs() <= 1).all()


def test_rows_are_the_rows_of_the_image():
    x = digits("test").x
    assert torch.equal(x.reshape(-1, 8, 8)[:, 3], x[:, 0, 3, :])


def test_an_unknown_split_is_refused():
    with pytest.raises(BadInput, match="'train' and 'test'"):
        digits("validation")


@every_network
def test_stored_weights_reach_their_accuracy(factory, architecture, shape, least_accuracy):
    data = digits("test")
    with torch.no_grad():
        logits = factory()(data.x.reshape(-1, *shape))
    assert logits.shape == (500, 10)
    assert (logits.argmax(1) == data.y).double().mean() >= least_accuracy


@every_network
def test_factories_return_small_finite_modules_in_eval_mode(factory, architecture, shape, least_accuracy):
    module = factory()
    assert type(module) is architecture
    assert not any(part.training for part in module.modules())
    parameters = list(module.parameters())
    assert sum(parameter.numel() for parameter in parameters) < 40_000
    assert all(parameter.isfinite().all() and parameter.dtype == torch.float32 for parameter in parameters)


@every_network
def test_factories_return_a_new_module_each_time_and_leave_the_random_state_alone(
    factory, architecture, shape, least_accuracy
):
    before = torch.get_rng_state()
    first, second = factory(), factory()
    assert torch.equal(torch.get_rng_state(), before)
    with torch.no_grad():
        next(first.parameters()).zero_()
    assert next(second.parameters()).any()


def test_the_weights_are_light():
    sizes = [len(path.read_bytes()) for path in (files("holdfast.datasets") / "weights").iterdir()]
    assert len(sizes) == 3
    assert sum(sizes) < 1_000_000


def test_importing_needs_no_safetensors():
    code = (
        "import sys; sys.modules['safetensors'] = None; "
        "import holdfast.datasets, holdfast.datasets.digits_networks; holdfast.datasets.digits('test')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
