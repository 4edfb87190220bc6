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
from holdfast.random_streams import RandomStreams
from holdfast.region import Ball, Box, Frames, Sparse

ROOT = Path(__file__).resolve().parents[2]
FAST = [PGD(rounds=3, steps=10)]


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, timeout=600, check=False,
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
    assert len(hf.__all__) <= 42
    assert set(hf.__all__) < set(dir(hf))
    for room in set(dir(hf)) - set(hf.__all__):
        assert getattr(hf, room).__name__ == f"holdfast.{room}"
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
        for name in set(hf.__all__) - {"check"}:  # which reads a run's options as the command line does, and needs what that needs
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
    assert uppers(hf.radius(KNOWN.network(), KNOWN.x, KNOWN.y)) == pytest.approx(
        KNOWN.radius(math.inf).tolist(), rel=0.02
    )


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
    ids=[
        "all",
        "one",
        "list",
        "tensor",
        "tensor of two",
        "bools",
        "list of bools",
        "mask for each input",
        "numpy",
    ],
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


EACH_ITS_OWN = [[1, 1, 1], [1, 0, 0], [0.5, 0, 0.25], [2, 2, 2]]


@pytest.mark.parametrize(
    ("scale", "shares", "p"),
    [
        ([1, 0.5, 2], [[1, 0.5, 2]] * 4, 2),
        (torch.tensor([0.0, 1.0, 3.0]), [[0, 1, 3]] * 4, math.inf),
        *((np.array(EACH_ITS_OWN), EACH_ITS_OWN, p) for p in (1, 2, math.inf)),
    ],
    ids=["list", "tensor", "for each input, 1", "for each input, 2", "for each input, inf"],
)
def test_frames_move_by_their_scale(scale: Any, shares: list[list[float]], p: float) -> None:
    mask = torch.tensor(shares)
    answers = KNOWN.radius_of_frames(p, mask).tolist()
    for bracket, answer in zip(
        hf.radius(KNOWN.network(), KNOWN.x, KNOWN.y, norm=p, frames="all", shares=scale), answers, strict=True
    ):
        assert (
            answer * 0.97
            <= bracket.lower.value
            <= answer
            <= bracket.upper.value * (1 + 1e-9)
            <= answer * 1.03
        )
    some = hf.radius(
        KNOWN.network(), KNOWN.x, KNOWN.y, norm=p, frames=[1, 2], shares=scale, methods=[hf.certify.Certify()]
    )
    assert [b.lower.value for b in some] == pytest.approx(
        KNOWN.radius_of_frames(p, mask * only(1, 2)).tolist(), rel=0.05
    )


def test_each_frame_alone_by_its_scale() -> None:
    net, scale = KNOWN.network(), [1.0, 0.0, 4.0]
    plain = hf.radius(net, KNOWN.x, KNOWN.y, norm=2, frames="each", methods=[hf.certify.Certify(rounds=6)])
    found = hf.radius(
        net, KNOWN.x, KNOWN.y, norm=2, frames="each", shares=scale, methods=[hf.certify.Certify(rounds=6)]
    )
    for before, after in zip(plain, found, strict=True):
        assert after[2].lower.value == pytest.approx(before[2].lower.value / 4, rel=0.01)
        assert after[1].lower.value == after[1].upper.value == math.inf


def test_where_nothing_moves_the_radius_is_infinite_and_says_why() -> None:
    net = KNOWN.network()
    frames = torch.tensor([[False] * 3, [True] * 3, [False] * 3, [True] * 3])
    wrong = KNOWN.y.clone()
    wrong[2] = (wrong[2] + 1) % 3
    still, moves, broken, _ = hf.radius(net, KNOWN.x, wrong, norm=2, frames=frames, methods=FAST)
    assert still.lower.value == still.upper.value == math.inf
    assert still.closed
    assert still.gap == 0
    assert still.lower.evidence.kind == "proved"
    assert still.lower.evidence.assumptions == ("nothing may change here: the region holds the input alone",)
    assert "nothing may change" in still.note
    assert moves.upper.value < math.inf
    assert (broken.lower.value, broken.upper.value) == (0, 0)  # it is wrong as it stands, whatever may move


@pytest.mark.parametrize(
    "options",
    [
        {"norm": 2},
        {"norm": math.inf},
        {"norm": 1.5},
        {"norm": 0},
        {"norm": 2, "frames": "all", "shares": [1, 3, 0.1]},
    ],
)
def test_a_class_that_nothing_in_the_domain_changes_has_an_infinite_radius(options: dict[str, Any]) -> None:
    layer = nn.Linear(6, 2)
    with torch.no_grad():
        layer.weight.mul_(0.1)
        layer.bias.copy_(torch.tensor([5.0, 0.0]))
    net = hf.Network.from_torch(nn.Sequential(nn.Flatten(), layer).eval(), domain=(0, 1))
    [bracket] = hf.radius(net, torch.rand(1, 3, 2), [0], **options)
    assert bracket.lower.value == bracket.upper.value == math.inf
    assert bracket.lower.evidence.method in ("Certify", "Branch")
    assert "no change that is allowed breaks it" in bracket.note
    assert bracket.note in bracket.lower.evidence.assumptions


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
    alone = [
        uppers(hf.radius(net, [row], [int(y)], norm=2, methods=FAST))[0]
        for row, y in zip(rows, labels, strict=True)
    ]
    assert found == pytest.approx(alone, rel=0.02)
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=math.nan)
    assert uppers(hf.radius(net, padded, labels, norm=2, methods=FAST, lengths=lengths)) == found
    each = hf.radius(net, rows, labels, norm=2, frames="each", methods=FAST)
    assert [len(row) for row in each] == lengths
    shares = [[float(k % 2) for k in range(n)] for n in lengths]
    odd = hf.radius(net, rows, labels, norm=2, frames="all", shares=shares, methods=FAST)
    flags = [[bool(share) for share in row] for row in shares]
    assert uppers(hf.radius(net, rows, labels, norm=2, frames=flags, methods=FAST)) == uppers(odd)
    together = torch.tensor([[0, 1, 0, 1]] * 5)
    assert uppers(
        hf.radius(net, padded, labels, norm=2, frames="all", shares=together, methods=FAST, lengths=lengths)
    ) == uppers(odd)
    assert [u == math.inf for u in uppers(odd)] == [
        n == 1 for n in lengths
    ]  # the only frame of the short ones stays


def test_targets_count_only_their_own_class() -> None:
    margin, slopes = KNOWN.margins()
    targets = (KNOWN.y + 1) % 3
    rows = torch.arange(4)
    answers = margin[rows, targets] / slopes[rows, targets].norm(dim=-1)
    found = hf.radius(KNOWN.network(), KNOWN.x, KNOWN.y, norm=2, targets=targets)
    assert uppers(found) == pytest.approx(answers.tolist(), rel=0.02)


@pytest.mark.parametrize(
    ("shape", "frames", "axes"),
    [((3, 2), None, ()), ((3, 2), "all", (1,)), ((2, 2, 2), None, (0,)), ((7,), None, ())],
)
def test_norm_zero_counts_numbers_frames_or_pixels(
    shape: tuple[int, ...], frames: Any, axes: tuple[int, ...]
) -> None:
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
            assert (
                int((witness != row).sum()) == bracket.upper.value + 1
            )  # the words themselves, one more changed than is safe


@pytest.mark.parametrize("seed", range(3))
def test_each_place_alone(seed: int) -> None:
    """0 where a word of its set changes the class, infinite where none does or there is none."""
    known = truth.sentences(seed, batch=6)
    found = hf.radius(known.network(), known.tokens, known.y, substitutes=known.substitutes, frames="each")
    for row, sentence, label in zip(found, known.tokens.tolist(), known.y.tolist(), strict=True):
        assert len(row) == len(sentence)
        for place, bracket in enumerate(row):
            others = [
                [*sentence[:place], word, *sentence[place + 1 :]]
                for word in known.substitutes.get(sentence[place], ())
            ]
            flips = bool(others) and bool((known.model(torch.tensor(others)).argmax(-1) != label).any())
            assert bracket.lower.value == bracket.upper.value == (0 if flips else math.inf)
            assert ("nothing may change" in bracket.note) == (not others)
            if flips:
                assert bracket.upper.evidence.witness is not None
                assert bracket.upper.evidence.witness.tolist() in others


def test_substitutes_for_each_place_of_each_sentence() -> None:
    known = truth.sentences(1, batch=6)
    net = known.network()
    spelt = [[known.substitutes.get(word, ()) for word in sentence] for sentence in known.tokens.tolist()]
    same = hf.radius(net, known.tokens, known.y, substitutes=spelt)
    assert uppers(same) == uppers(hf.radius(net, known.tokens, known.y, substitutes=known.substitutes))
    first = [[sets[0], *([[]] * (len(sets) - 1))] for sets in spelt]
    alone = hf.radius(net, known.tokens, known.y, substitutes=known.substitutes, frames="each")
    assert uppers(hf.radius(net, known.tokens, known.y, substitutes=first)) == [
        row[0].upper.value for row in alone
    ]
    ragged = [known.tokens[0], known.tokens[1, :2], known.tokens[2]]
    labels = [int(known.model(row[None]).argmax()) for row in ragged]
    sets = [spelt[0], spelt[1][:2], spelt[2]]
    by_place = hf.radius(net, ragged, labels, substitutes=sets)
    assert uppers(by_place) == uppers(hf.radius(net, ragged, labels, substitutes=known.substitutes))
    with pytest.raises(hf.errors.BadInput, match="sentence 1 has 2 words, but substitutes for 4 positions"):
        hf.radius(net, ragged, labels, substitutes=spelt[:3])


def test_targets_may_be_the_runner_up() -> None:
    margin, slopes = KNOWN.margins()
    rows, second = torch.arange(4), margin.argmin(-1)
    answers = margin[rows, second] / slopes[rows, second].norm(dim=-1)
    found = hf.radius(KNOWN.network(), KNOWN.x, KNOWN.y, norm=2, targets="runner-up")
    assert uppers(found) == pytest.approx(answers.tolist(), rel=0.02)


def test_token_networks_take_norms_around_their_vectors() -> None:
    known = truth.sentences(0)
    found = hf.radius(known.network(), known.tokens, known.y, norm=2, methods=FAST)
    assert all(0 < u < math.inf for u in uppers(found))


def test_a_black_box_is_asked_by_corners() -> None:
    net = hf.Network.from_callable(lambda x: KNOWN.model(torch.from_numpy(x)).detach().numpy())
    found = hf.radius(net, KNOWN.x, KNOWN.y, norm=2)
    assert all(
        a <= u * (1 + 1e-6) < math.inf for u, a in zip(uppers(found), KNOWN.radius(2).tolist(), strict=True)
    )


def test_seeds_and_stops_reach_the_solver() -> None:
    net = KNOWN.network()
    one, two = (
        uppers(hf.radius(net, KNOWN.x, KNOWN.y, norm=2, methods=[Corners(rounds=2)], seed=s)) for s in (1, 2)
    )
    assert one != two
    assert uppers(hf.radius(net, KNOWN.x, KNOWN.y, stop=hf.Stop(seconds=0))) == [math.inf] * 4


# ---------------------------------------------------------------- refusals

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("labels too few", {"y": [0, 1]}, r"labels have shape \(2,\), expected \(4,\)"),
    ("labels out of range", {"y": [0, 1, 2, 3]}, "label 3 of input 3 is out of range"),
    ("labels of floats", {"y": [0.0, 1.5, 2.0, 0.0]}, "labels must be integers"),
    ("targets too few", {"targets": [1]}, "targets have shape"),
    ("targets are labels", {"targets": KNOWN.y}, "its own label"),
    ("norm below one", {"norm": 0.5}, "norm 0.5"),
    ("norm negative", {"norm": -1}, "norm -1"),
    ("norm NaN", {"norm": math.nan}, "norm nan"),
    ("norm zero without a domain", {"norm": 0}, "bounded domain"),
    ("frames by another word", {"frames": "every"}, "frames='every': use 'all', 'each'"),
    ("frame that does not exist", {"frames": 3}, "frame 3 does not exist: input 0 has frames 0 to 2"),
    ("frame below zero", {"frames": [0, -1]}, "frame -1 does not exist"),
    ("mask too short", {"frames": torch.tensor([True, False])}, "mask covers 2 frames, input 0 has 3"),
    ("mask for other inputs", {"frames": EVERY[:3]}, "mask is given for 3 inputs, but there are 4"),
    ("no frame at all", {"frames": []}, "name at least one frame"),
    ("half a frame", {"frames": 1.5}, "by whole numbers"),
    ("substitutes and frames", {"substitutes": {0: [1]}, "frames": "all"}, "leave frames out"),
    ("several lists of frames", {"frames": [[0, 1, 1]] * 4}, "several lists are bool masks"),
    ("scale without frames", {"shares": [1, 1, 1]}, "with shares every feature moves by its own"),
    ("scale under norm zero", {"shares": [1, 1, 1], "norm": 0, "frames": "all"}, "the shares .* need a norm p >= 1"),
    ("negative scale", {"shares": [1, -1, 1], "frames": "all"}, "must be 0 or between .*; got -1 to 1"),
    ("scale of NaN", {"shares": [1, math.nan, 1], "frames": "all"}, "must be 0 or between"),
    ("infinite scale", {"shares": [1, math.inf, 1], "frames": "each"}, "must be 0 or between"),
    ("scale too short", {"shares": [1, 1], "frames": "all"}, "the list of shares covers 2 frames, input 0 has 3"),
    ("scale too long", {"shares": [1, 1, 1, 1], "frames": "all"}, "the list of shares covers 4 frames, input 0 has 3"),
    ("scale for other inputs", {"shares": torch.ones(3, 3), "frames": "all"}, "the list of shares is given for 3 inputs, but there are 4"),
    ("scale of words", {"shares": ["a", "b", "c"], "frames": "all"}, "the list of shares needs a number for each frame"),
    ("one number for a scale", {"shares": 0.5, "frames": "all"}, "the list of shares needs a number for each frame"),
    ("norm by a name that is none", {"norm": "two"}, "norm 'two' is unknown: give 1, 2, math.inf"),
    ("targets by another word", {"targets": "second"}, "targets='second'"),
    ("runner-up of a label that is not there", {"targets": "runner-up", "y": [0, 1, 2, 9]}, "label 9 of input 3"),
    ("no labels", {"y": None}, "radius needs labels, the class of each input"),
    ("one number for x", {"x": 3.0}, "x does not hold inputs"),
    ("infinity", {"x": torch.full((4, 3, 2), math.inf)}, "input 0 holds NaN or infinity"),
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
    with pytest.raises(hf.errors.BadInput, match=message):
        hf.radius(net, options.pop("x"), options.pop("y"), **options)
    assert net.queries <= 8


def test_token_ids_that_are_no_integers() -> None:
    known = truth.sentences(0)
    with pytest.raises(hf.errors.BadInput, match=r"Bag reads token ids, and the data are torch\.float32"):
        hf.radius(known.network(), known.tokens.float(), known.y)


def test_data_outside_the_domain_are_refused_before_any_query() -> None:
    net = KNOWN.network((0, 1))
    with pytest.raises(hf.errors.BadInput, match=r"input 0 has values .* but the domain is \[0, 1\]"):
        hf.radius(net, KNOWN.x * 255, KNOWN.y)
    assert net.queries == 0


def test_frames_need_frames() -> None:
    flat = truth.linear(0, shape=(6,), batch=2)
    one = truth.linear(0, shape=(1,), batch=2)
    found = hf.radius(flat.network(), flat.x, flat.y, frames="each", methods=FAST)  # six frames of one number
    assert [len(row) for row in found] == [6, 6]
    assert len(hf.radius(one.network(), one.x, one.y, frames="all", methods=FAST)) == 2


def test_weights_that_are_no_numbers_are_refused_when_the_network_is_read() -> None:
    model = truth.sentences(0).model
    with torch.no_grad():
        model.embedding.weight[3, 0] = math.nan
    with pytest.raises(hf.errors.BadInput, match=r"Bag: embedding\.weight holds NaN or infinity"):
        hf.Network.from_torch(model, tokens=True)


# ---------------------------------------------------------------- worst


def test_worst_over_a_ball_is_the_dual_norm_away() -> None:
    z = copy.deepcopy(KNOWN.model).double()(KNOWN.x.double()).detach()  # proofs speak of real arithmetic
    layer = KNOWN.model[1]
    slope = (layer.weight[0].double() - layer.weight[1].double()).detach()
    for p in (1, 2, math.inf):
        region = Ball(KNOWN.x, torch.full((4,), 0.3, dtype=torch.float64), p)
        found = hf.worst(KNOWN.network(), region, hf.property.Linear.of([1.0, -1.0, 0.0], batch=4))
        answers = z[:, 0] - z[:, 1] - 0.3 * truth.length(slope, truth.dual(p))
        for bracket, answer in zip(found, answers.tolist(), strict=True):
            assert bracket.lower.value <= answer
            assert answer - 1e-5 <= bracket.upper.value <= answer + 0.01


def test_worst_over_a_box_is_at_a_corner() -> None:
    lower, upper = KNOWN.x - 0.5, KNOWN.x + torch.rand(4, 3, 2)
    layer = KNOWN.model[1]
    row = layer.weight[2].detach().double()
    ends = (
        torch.minimum(row * lower.flatten(1).double(), row * upper.flatten(1).double()).sum(-1)
        + layer.bias[2].item()
    )
    found = hf.worst(
        KNOWN.network(), Box.between(lower, upper), hf.property.Linear.of([0.0, 0.0, 1.0], batch=4)
    )
    assert uppers(found) == pytest.approx(ends.tolist(), abs=1e-4)
    for bracket, low, high in zip(found, lower, upper, strict=True):
        witness = bracket.upper.evidence.witness
        assert witness is not None
        assert ((witness >= low) & (witness <= high)).all()


def test_worst_over_counting_and_framed_regions() -> None:
    """Linear again, so that the region's own exact minimum is the answer."""
    layer = KNOWN.model[1]
    row = layer.weight[0].detach().double().reshape(3, 2)
    domain = hf.region.Domain.of((0.0, 1.0))
    ones = torch.ones(4, dtype=torch.float64)
    for region in (
        Sparse(KNOWN.x, 2 * ones, domain),
        Frames(KNOWN.x, 0.2 * ones, 2),
        Sparse(KNOWN.x, ones, domain, axes=(1,)),
    ):
        answers = region.minimise_linear(row.expand(4, 1, 3, 2))[:, 0] + layer.bias[0].item()
        found = hf.worst(KNOWN.network(), region, hf.property.Linear.of([1.0, 0.0, 0.0], batch=4))
        for bracket, answer in zip(found, answers.tolist(), strict=True):
            assert answer - 1e-5 <= bracket.upper.value <= answer + 0.01


def test_worst_with_a_score_of_ones_own() -> None:
    region = Ball(KNOWN.x, torch.full((4,), 0.5, dtype=torch.float64), 2)
    found = hf.worst(KNOWN.network(), region, hf.property.Custom(lambda z: z[:, 0] - z[:, 1]))
    same = hf.worst(KNOWN.network(), region, hf.property.Linear.of([1.0, -1.0, 0.0], batch=4))
    assert uppers(found) == pytest.approx(uppers(same), abs=1e-4)
    flat = hf.worst(
        KNOWN.network(), region, hf.property.Custom(lambda z: torch.from_numpy(z.detach().numpy()[:, 0]))
    )
    assert all(math.isfinite(u) for u in uppers(flat))  # no gradient to follow, but no crash either


def test_worst_of_a_float64_region_in_a_float32_network() -> None:
    """Regions given in double are as good as any."""
    x = torch.full((1, 3, 2), 0.1, dtype=torch.float64)
    mask = torch.tensor([[True, False, True]])
    region = Frames(x, torch.tensor([0.5], dtype=torch.float64), 2, mask=mask)
    [double] = hf.worst(KNOWN.network(), region, hf.property.Linear.of([1.0, 0.0, 0.0]))
    single = Frames(x.float(), torch.tensor([0.5], dtype=torch.float64), 2, mask=mask)
    [plain] = hf.worst(KNOWN.network(), single, hf.property.Linear.of([1.0, 0.0, 0.0]))
    assert double.upper.value == pytest.approx(plain.upper.value, abs=1e-3)


# ---------------------------------------------------------------- linear bounds


class LastOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


def plane(a: Tensor, b: Tensor, x: Tensor) -> Tensor:
    """a (batch, rows, *shape), b (batch, rows), x (..., batch, *shape) -> (..., batch, rows)."""
    return (a.flatten(2) * x.double().flatten(-2)[..., None, :]).sum(-1) + b


SHARES = torch.tensor([[1.0, 0.0, 0.5]] * 4)
IN_UNIT = hf.region.Domain.of((0, 1))


@pytest.mark.parametrize(
    "region",
    [
        Ball(KNOWN.x, 0.2, 2, IN_UNIT),
        Frames(KNOWN.x, 0.3, 1, mask=SHARES),
        Box.between(KNOWN.x - 0.1, KNOWN.x + 0.3),
        Sparse(KNOWN.x, torch.full((4,), 2.0), IN_UNIT),
    ],
    ids=lambda r: type(r).__name__,
)
@pytest.mark.parametrize(
    "model",
    [nn.Sequential(nn.Flatten(), nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)), LastOutput()],
    ids=["tanh", "lstm"],
)
def test_no_point_crosses_a_linear_bound(region: hf.region.Region, model: nn.Module) -> None:
    net = hf.Network.from_torch(model.eval())
    rows = torch.cat([torch.eye(3), torch.tensor([[1.0, -2.0, 0.5]])]).double()
    offset = torch.tensor([0.0, 1.0, 0.0, -0.3])
    found = hf.bounds(net, region, rows, offset)
    assert found.lower_A.shape == found.upper_A.shape == (4, 4, 3, 2)
    x = torch.cat(
        [
            region.sample(300, RandomStreams.of(range(len(region)), 0)),
            *(region.vertex(s * found.lower_A[:, :1].squeeze(1).float())[None] for s in (-1, 1)),
        ]
    )
    with torch.no_grad():
        z = (
            copy.deepcopy(model).double()(x.double().flatten(0, 1)).reshape(*x.shape[:2], 3) @ rows.t()
            + offset
        )
    below, above = plane(found.lower_A, found.lower_b, x), plane(found.upper_A, found.upper_b, x)
    slack = 1e-12  # of the planes as they are computed here
    for smaller, larger in ((found.lower, below), (below, z), (z, above), (above, found.upper)):
        assert (smaller <= larger + slack).all()
    assert (found.upper - found.lower < 20).all()
    alone = hf.bounds(net, region)
    assert torch.allclose(alone.lower + offset[:3], found.lower[:, :3])
    negated = hf.bounds(net, region, -rows.expand(4, 4, 3), -offset.expand(4, 4))
    for name, other in (("lower", "upper"), ("lower_A", "upper_A"), ("lower_b", "upper_b")):
        assert torch.allclose(getattr(found, other), -getattr(negated, name), rtol=1e-9, atol=1e-12)
        assert torch.allclose(getattr(found, name), -getattr(negated, other), rtol=1e-9, atol=1e-12)


def test_bounds_of_a_linear_network_are_the_network() -> None:
    layer = KNOWN.model[1]
    weight, bias = layer.weight.detach().double().reshape(3, 3, 2), layer.bias.detach().double()
    found = hf.bounds(KNOWN.network(), Ball(KNOWN.x, 0.3, 2))
    for a, b in ((found.lower_A, found.lower_b), (found.upper_A, found.upper_b)):
        assert torch.allclose(a, weight.expand(4, 3, 3, 2), rtol=1e-12)
        assert torch.allclose(b, bias.expand(4, 3), rtol=1e-9, atol=1e-9)
    z = copy.deepcopy(KNOWN.model).double()(KNOWN.x.double()).detach()
    away = 0.3 * weight.flatten(1).norm(dim=-1)
    assert torch.allclose(found.lower, z - away, rtol=1e-9)
    assert torch.allclose(found.upper, z + away, rtol=1e-9)


@pytest.mark.parametrize(
    ("rows", "offset", "message"),
    [
        (torch.eye(2), None, r"rows have shape \(2, 2\), expected \(rows, 3\) or \(4, rows, 3\)"),
        (torch.ones(3), None, "rows have shape"),
        (torch.ones(2, 1, 3), None, "rows have shape"),
        (torch.full((1, 3), math.nan), None, "NaN or infinite"),
        (None, torch.ones(2), r"offset has shape \(2,\), expected one number for each of the 3 rows"),
    ],
)
def test_rows_that_do_not_fit(rows: Tensor | None, offset: Tensor | None, message: str) -> None:
    with pytest.raises(hf.errors.BadInput, match=message):
        hf.bounds(KNOWN.network(), Ball(KNOWN.x, 0.3, 2), rows, offset)


def test_bounds_say_which_layer_has_none() -> None:
    class Sorted(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1).sort(-1).values

    with pytest.raises(hf.errors.UnsupportedLayer, match="sort"):
        hf.bounds(hf.Network.from_torch(Sorted().eval()), Ball(KNOWN.x, 0.3, 2))
    black_box = hf.Network.from_callable(lambda x: x.reshape(len(x), -1))
    with pytest.raises(hf.errors.UnsupportedLayer, match="black box"):
        hf.bounds(black_box, Ball(KNOWN.x, 0.3, 2))
