"""hf.radius and hf.worst as people type them, and what importing the package costs."""

import copy
import importlib
import math
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import holdfast as hf
import truth
from holdfast.attacks import PGD, Corners
from holdfast.region import Ball, Box, Frames, Sparse

ROOT = Path(__file__).resolve().parents[1]
FAST = [PGD(rounds=3, steps=10)]


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


# ---------------------------------------------------------------- names


def test_all_is_sorted_complete_and_importable() -> None:
    def place(name: str) -> tuple[int, str]:  # constants, classes, functions: as ruff sorts them
        return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)

    assert hf.__all__ == sorted(hf.__all__, key=place)
    assert len(set(hf.__all__)) == len(hf.__all__)
    for name in hf.__all__:
        assert getattr(hf, name) is not None
    assert dir(hf) == sorted(hf.__all__)
    namespace: dict[str, Any] = {}
    exec("from holdfast import *", namespace)
    assert set(hf.__all__) <= namespace.keys()


def test_every_public_name_of_the_parts_is_public_or_stays_inside() -> None:
    """What the packages below offer to users is offered by holdfast too, by the same object."""
    for part in ("attacks", "region", "property", "errors"):
        module = importlib.import_module(f"holdfast.{part}")
        for name in getattr(module, "__all__", ()):
            if name in hf.__all__:
                assert getattr(hf, name) is getattr(module, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'radios'"):
        _ = hf.radios


def test_importing_the_package_does_not_import_torch() -> None:
    heavy = python("""
        import sys
        import holdfast
        assert holdfast.__version__
        print([m for m in ("torch", "numpy", "scipy", "sklearn", "onnx", "matplotlib", "rich") if m in sys.modules])
    """)
    assert heavy.strip() == "[]"


def test_the_library_works_without_anything_but_torch_and_numpy() -> None:
    out = python("""
        import sys

        BLOCKED = ("onnx", "onnxruntime", "safetensors", "typer", "rich", "jinja2", "matplotlib", "pyarrow")

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in BLOCKED:
                    raise ImportError(f"{name} is blocked")

        sys.meta_path.insert(0, Blocker())
        import torch
        import holdfast as hf
        for name in hf.__all__:
            getattr(hf, name)
        torch.manual_seed(0)
        net = hf.Network.from_torch(torch.nn.Linear(3, 2).eval())
        x = torch.rand(2, 3)
        [a, b] = hf.radius(net, x, net(x).argmax(-1), norm=2)
        assert 0 < a.upper.value < 1e9
        try:
            hf.Network.from_onnx(__file__ if "__file__" in dir() else sys.executable)
        except (hf.HoldfastError, ImportError) as error:
            print(type(error).__name__)
        print(sorted(m for m in sys.modules if m.split(".")[0] in BLOCKED))
    """)
    kind, modules = out.strip().splitlines()
    assert kind in ("MissingExtra", "ImportError", "UnreadableFile")
    assert modules == "[]"


# ---------------------------------------------------------------- radius

KNOWN = truth.linear(2, shape=(3, 2), batch=4)


def uppers(brackets: list[Any]) -> list[float]:
    return [b.upper.value for b in brackets]


def test_a_radius_for_each_input_in_order() -> None:
    for p in (1, 2, math.inf):
        found = uppers(hf.radius(KNOWN.network(), KNOWN.x, KNOWN.y, norm=p))
        assert found == pytest.approx(KNOWN.radius(p).tolist(), rel=0.02)
    assert uppers(hf.radius(KNOWN.network(), KNOWN.x, KNOWN.y)) == pytest.approx(KNOWN.radius(math.inf).tolist(), rel=0.02)


def test_labels_may_be_a_list_and_inputs_numpy_or_double() -> None:
    net = KNOWN.network()
    found = uppers(hf.radius(net, KNOWN.x, KNOWN.y, norm=2, methods=FAST))
    assert uppers(hf.radius(net, KNOWN.x, KNOWN.y.tolist(), norm=2, methods=FAST)) == found
    assert uppers(hf.radius(net, KNOWN.x.numpy(), KNOWN.y.numpy(), norm=2, methods=FAST)) == found
    assert uppers(hf.radius(net, KNOWN.x.double(), KNOWN.y, norm=2, methods=FAST)) == found
    assert uppers(hf.radius(net, list(KNOWN.x), KNOWN.y, norm=2, methods=FAST)) == found


EVERY = torch.ones(4, 3, dtype=torch.bool)


def only(*frames: int) -> Tensor:
    mask = torch.zeros(4, 3, dtype=torch.bool)
    mask[:, list(frames)] = True
    return mask


@pytest.mark.parametrize(
    ("frames", "mask"),
    [
        ("all", EVERY),
        (1, only(1)),
        ([0, 2], only(0, 2)),
        (torch.tensor([2]), only(2)),
        (torch.tensor([0, 1]), only(0, 1)),
        (torch.tensor([True, False, True]), only(0, 2)),
        ([False, True, False], only(1)),
        (
            torch.tensor([[True, False, False]] * 2 + [[False, True, True]] * 2),
            torch.cat([only(0)[:2], only(1, 2)[:2]]),
        ),
        (np.array([0, 1]), only(0, 1)),
    ],
    ids=["all", "one", "list", "tensor", "tensor of two", "bools", "list of bools", "mask for each input", "numpy"],
)
@pytest.mark.parametrize("p", [2, math.inf])
def test_frames_in_every_form(frames: Any, mask: Tensor, p: float) -> None:
    found = hf.radius(KNOWN.network(), KNOWN.x, KNOWN.y, norm=p, frames=frames, methods=[PGD(rounds=4)])
    answers = KNOWN.radius_of_frames(p, mask).tolist()
    assert uppers(found) == pytest.approx(answers, rel=0.03)
    assert all(u >= a * (1 - 1e-9) for u, a in zip(uppers(found), answers, strict=True))


def test_each_frame_alone() -> None:
    found = hf.radius(KNOWN.network(), KNOWN.x, KNOWN.y, norm=2, frames="each")
    assert [len(row) for row in found] == [3] * 4
    for frame in range(3):
        answers = KNOWN.radius_of_frames(2, only(frame)).tolist()
        assert [row[frame].upper.value for row in found] == pytest.approx(answers, rel=0.03)


class Mean(nn.Module):
    """The mean over however many frames there are, then a linear classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.mean(1))


def ragged() -> tuple[hf.Network, list[Tensor], Tensor, list[int]]:
    generator = torch.Generator().manual_seed(1)
    model = Mean().eval()
    lengths = [3, 1, 4, 3, 1]
    rows = [torch.rand((n, 2), generator=generator) * 4 for n in lengths]
    labels = torch.stack([model(row[None])[0].argmax() for row in rows])
    return hf.Network.from_torch(model), rows, labels, lengths


def test_inputs_of_different_lengths_keep_their_order() -> None:
    net, rows, labels, lengths = ragged()
    found = uppers(hf.radius(net, rows, labels, norm=2, methods=FAST))
    alone = [uppers(hf.radius(net, [row], [int(y)], norm=2, methods=FAST))[0] for row, y in zip(rows, labels, strict=True)]
    assert found == pytest.approx(alone, rel=0.02)
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=math.nan)
    assert uppers(hf.radius(net, padded, labels, norm=2, methods=FAST, lengths=lengths)) == found
    each = hf.radius(net, rows, labels, norm=2, frames="each", methods=FAST)
    assert [len(row) for row in each] == lengths


def test_targets_count_only_their_own_class() -> None:
    margin, slopes = KNOWN.margins()
    targets = (KNOWN.y + 1) % 3
    rows = torch.arange(4)
    answers = margin[rows, targets] / slopes[rows, targets].norm(dim=-1)
    found = hf.radius(KNOWN.network(), KNOWN.x, KNOWN.y, norm=2, targets=targets)
    assert uppers(found) == pytest.approx(answers.tolist(), rel=0.02)


@pytest.mark.parametrize(
    ("shape", "frames", "axes"), [((3, 2), None, ()), ((3, 2), "all", (1,)), ((2, 2, 2), None, (0,)), ((7,), None, ())]
)
def test_norm_zero_counts_numbers_frames_or_pixels(shape: tuple[int, ...], frames: Any, axes: tuple[int, ...]) -> None:
    known = truth.linear(4, shape=shape, batch=5)
    found = hf.radius(known.network((0, 1)), known.x, known.y, norm=0, frames=frames)
    answers = known.changed_units((0.0, 1.0), axes).tolist()
    for bracket, answer in zip(found, answers, strict=True):
        assert bracket.lower.value <= answer <= bracket.upper.value
    assert uppers(found) == answers


@pytest.mark.parametrize("seed", range(4))
def test_words_by_substitution(seed: int) -> None:
    known = truth.sentences(seed, batch=6)
    found = hf.radius(known.network(), known.tokens, known.y, substitutes=known.substitutes)
    for bracket, answer, row in zip(found, known.radius(), known.tokens, strict=True):
        assert bracket.lower.value <= answer <= bracket.upper.value
        witness = bracket.upper.evidence.witness
        if witness is not None and bracket.upper.value > 0:
            assert int((witness != row).sum()) == bracket.upper.value + 1  # the words themselves, one more changed than is safe


def test_token_networks_take_norms_around_their_vectors() -> None:
    known = truth.sentences(0)
    found = hf.radius(known.network(), known.tokens, known.y, norm=2, methods=FAST)
    assert all(0 < u < math.inf for u in uppers(found))


def test_a_black_box_is_asked_by_corners() -> None:
    net = hf.Network.from_callable(lambda x: KNOWN.model(torch.from_numpy(x)).detach().numpy())
    found = hf.radius(net, KNOWN.x, KNOWN.y, norm=2)
    assert all(a <= u * (1 + 1e-6) < math.inf for u, a in zip(uppers(found), KNOWN.radius(2).tolist(), strict=True))


def test_seeds_and_stops_reach_the_solver() -> None:
    net = KNOWN.network()
    one, two = (uppers(hf.radius(net, KNOWN.x, KNOWN.y, norm=2, methods=[Corners(rounds=2)], seed=s)) for s in (1, 2))
    assert one != two
    assert uppers(hf.radius(net, KNOWN.x, KNOWN.y, stop=hf.Stop(seconds=0))) == [math.inf] * 4


# ---------------------------------------------------------------- refusals

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("labels too few", {"y": [0, 1]}, r"labels have shape \(2,\), expected \(4,\)"),
    ("labels out of range", {"y": [0, 1, 2, 3]}, "label 3 of input 3 is out of range"),
    ("labels of floats", {"y": [0.0, 1.0, 2.0, 0.0]}, "labels must be integers"),
    ("targets too few", {"targets": [1]}, "targets have shape"),
    ("targets are labels", {"targets": KNOWN.y}, "its own label"),
    ("norm below one", {"norm": 0.5}, "norm 0.5"),
    ("norm negative", {"norm": -1}, "norm -1"),
    ("norm NaN", {"norm": math.nan}, "norm nan"),
    ("norm zero without a domain", {"norm": 0}, "bounded domain"),
    ("frames by another word", {"frames": "every"}, "frames='every': use 'all', 'each'"),
    ("frame that does not exist", {"frames": 3}, "frame 3 does not exist: the inputs have frames 0 to 2"),
    ("frame below zero", {"frames": [0, -1]}, "frame -1 does not exist"),
    ("mask too short", {"frames": torch.tensor([True, False])}, "mask covers 2 frames, the inputs have 3"),
    ("mask for other inputs", {"frames": EVERY[:3]}, r"mask has shape \(3, 3\), expected \(3,\) or \(4, 3\)"),
    ("no frame at all", {"frames": []}, "name at least one frame"),
    ("half a frame", {"frames": 1.5}, "by whole numbers"),
    ("substitutes and frames", {"substitutes": {0: [1]}, "frames": "each"}, "leave frames out"),
    ("no data", {"x": torch.zeros(0, 3, 2), "y": []}, "the data are empty"),
    ("no data in a list", {"x": [], "y": []}, "the data are empty"),
    ("NaN", {"x": torch.full((4, 3, 2), math.nan)}, "input 0 holds NaN"),
    ("integers", {"x": torch.zeros(4, 3, 2, dtype=torch.int64)}, "the data are integers"),
    ("wrong shape", {"x": torch.zeros(4, 5)}, "refused inputs of shape"),
    ("substitutes without tokens", {"substitutes": {0: [1]}}, "token ids"),
    ("lengths too few", {"lengths": [3]}, "1 lengths for 4 inputs"),
    ("length zero", {"lengths": [0, 1, 2, 3]}, "length 0 of input 0 must be between 1 and its 3 frames"),
    ("length too long", {"lengths": [3, 3, 3, 4]}, "length 4 of input 3"),
    ("each frame under norm zero", {"norm": 0, "frames": "each"}, "bounded domain|norm"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), [pytest.param(c, m, id=name) for name, c, m in REFUSED])
def test_errors_come_before_long_work(change: dict[str, Any], message: str) -> None:
    net = KNOWN.network()
    options = {"x": KNOWN.x, "y": KNOWN.y, "norm": 2.0, **change}
    with pytest.raises(hf.BadInput, match=message):
        hf.radius(net, options.pop("x"), options.pop("y"), **options)
    assert net.queries <= 8


def test_data_outside_the_domain_are_refused_before_any_query() -> None:
    net = KNOWN.network((0, 1))
    with pytest.raises(hf.BadInput, match=r"input 0 has values .* but the domain is \[0, 1\]"):
        hf.radius(net, KNOWN.x * 255, KNOWN.y)
    assert net.queries == 0


def test_frames_need_frames() -> None:
    flat = truth.linear(0, shape=(6,), batch=2)
    one = truth.linear(0, shape=(1,), batch=2)
    found = hf.radius(flat.network(), flat.x, flat.y, frames="each", methods=FAST)  # six frames of one number
    assert [len(row) for row in found] == [6, 6]
    assert len(hf.radius(one.network(), one.x, one.y, frames="all", methods=FAST)) == 2


# ---------------------------------------------------------------- worst


def test_worst_over_a_ball_is_the_dual_norm_away() -> None:
    z = copy.deepcopy(KNOWN.model).double()(KNOWN.x.double()).detach()  # proofs speak of real arithmetic
    layer = KNOWN.model[1]
    slope = (layer.weight[0].double() - layer.weight[1].double()).detach()
    for p in (1, 2, math.inf):
        region = Ball(KNOWN.x, torch.full((4,), 0.3, dtype=torch.float64), p)
        found = hf.worst(KNOWN.network(), region, hf.Linear.of([1.0, -1.0, 0.0], batch=4))
        answers = z[:, 0] - z[:, 1] - 0.3 * truth.length(slope, truth.dual(p))
        for bracket, answer in zip(found, answers.tolist(), strict=True):
            assert bracket.lower.value <= answer
            assert answer - 1e-5 <= bracket.upper.value <= answer + 0.01


def test_worst_over_a_box_is_at_a_corner() -> None:
    lower, upper = KNOWN.x - 0.5, KNOWN.x + torch.rand(4, 3, 2)
    layer = KNOWN.model[1]
    row = layer.weight[2].detach().double()
    ends = torch.minimum(row * lower.flatten(1).double(), row * upper.flatten(1).double()).sum(-1) + layer.bias[2].item()
    found = hf.worst(KNOWN.network(), Box.between(lower, upper), hf.Linear.of([0.0, 0.0, 1.0], batch=4))
    assert uppers(found) == pytest.approx(ends.tolist(), abs=1e-4)
    for bracket, low, high in zip(found, lower, upper, strict=True):
        witness = bracket.upper.evidence.witness
        assert witness is not None
        assert ((witness >= low) & (witness <= high)).all()


def test_worst_over_counting_and_framed_regions() -> None:
    """Linear again, so that the region's own exact minimum is the answer."""
    layer = KNOWN.model[1]
    row = layer.weight[0].detach().double().reshape(3, 2)
    domain = hf.Domain.of((0.0, 1.0))
    ones = torch.ones(4, dtype=torch.float64)
    for region in (
        Sparse(KNOWN.x, 2 * ones, domain),
        Frames(KNOWN.x, 0.2 * ones, 2),
        Sparse(KNOWN.x, ones, domain, axes=(1,)),
    ):
        answers = region.minimise_linear(row.expand(4, 1, 3, 2))[:, 0] + layer.bias[0].item()
        found = hf.worst(KNOWN.network(), region, hf.Linear.of([1.0, 0.0, 0.0], batch=4))
        for bracket, answer in zip(found, answers.tolist(), strict=True):
            assert answer - 1e-5 <= bracket.upper.value <= answer + 0.01


def test_worst_with_a_score_of_ones_own() -> None:
    region = Ball(KNOWN.x, torch.full((4,), 0.5, dtype=torch.float64), 2)
    found = hf.worst(KNOWN.network(), region, hf.Custom(lambda z: z[:, 0] - z[:, 1]))
    same = hf.worst(KNOWN.network(), region, hf.Linear.of([1.0, -1.0, 0.0], batch=4))
    assert uppers(found) == pytest.approx(uppers(same), abs=1e-4)
    flat = hf.worst(KNOWN.network(), region, hf.Custom(lambda z: torch.from_numpy(z.detach().numpy()[:, 0])))
    assert all(math.isfinite(u) for u in uppers(flat))  # no gradient to follow, but no crash either


def test_worst_of_a_float64_region_in_a_float32_network() -> None:
    """Regions given in double are as good as any."""
    x = torch.full((1, 3, 2), 0.1, dtype=torch.float64)
    mask = torch.tensor([[True, False, True]])
    region = Frames(x, torch.tensor([0.5], dtype=torch.float64), 2, mask=mask)
    [double] = hf.worst(KNOWN.network(), region, hf.Linear.of([1.0, 0.0, 0.0]))
    single = Frames(x.float(), torch.tensor([0.5], dtype=torch.float64), 2, mask=mask)
    [plain] = hf.worst(KNOWN.network(), single, hf.Linear.of([1.0, 0.0, 0.0]))
    assert double.upper.value == pytest.approx(plain.upper.value, abs=1e-3)
