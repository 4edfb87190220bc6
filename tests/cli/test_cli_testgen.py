"""`holdfast testgen`: what it writes is what the model does, and what a user gets wrong is told before any work."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_workshop import Ask

from holdfast.store import Store

LSTM = ("testgen", "-m", "lstm.onnx", "-d", "data.npz", "--domain", "0,1", "-o", "run")


def read(path: str) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def images() -> str:
    """Five pictures for cli_own_code:pooled, the first of which it gets wrong."""
    import cli_own_code

    x = torch.rand(5, 1, 6, 6, generator=torch.Generator().manual_seed(0)) * 0.4
    y = cli_own_code.pooled()(x).argmax(-1)
    y[0] = (y[0] + 1) % 3
    np.savez("images.npz", x=x.numpy(), y=y.numpy(), classes=["ant", "bee", "cow"])
    return "images.npz"


@pytest.fixture
def pictures(ask: Ask, monkeypatch: pytest.MonkeyPatch, workshop: Path) -> str:
    monkeypatch.syspath_prepend(str(workshop))
    return images()


def test_what_is_written_is_what_the_model_does(ask: Ask, pictures: str) -> None:
    import cli_own_code

    said = ask(
        "testgen",
        "-m",
        "cli_own_code:pooled",
        "-d",
        pictures,
        "--domain",
        "0,1",
        "-o",
        "run",
        "--criterion",
        "boundary",
        "--pictures",
        4,
    )
    assert said.code == 0, said.err
    found, given, model = read("run/tests.npz"), read(pictures), cli_own_code.pooled()
    count = len(found["x"])
    assert count > 4
    assert found["x"].min() >= 0
    assert found["x"].max() <= 1
    seeds = given["x"][found["seeds"]]
    assert (found["originals"] == seeds).all()
    assert (found["y"] == given["y"][found["seeds"]]).all()
    assert (found["changed"] == (found["x"] != seeds).reshape(count, -1).sum(1)).all()
    with torch.no_grad():
        classes, before = (model(torch.from_numpy(x)).argmax(-1).numpy() for x in (found["x"], seeds))
    assert (found["new_classes"] == classes).all()
    assert (found["seed_classes"] == before).all()
    assert (found["adversarial"] == ((before == found["y"]) & (classes != found["y"]))).all()
    assert not found["adversarial"][found["seeds"] == 0].any()  # that seed was wrong before
    assert found["layers"].tolist() == ["1"]
    # each test covers what it says, by the model's own layers
    with torch.no_grad():
        values, over = (model[:2](torch.from_numpy(x)).flatten(1).numpy() for x in (found["x"], given["x"]))
    for test, layer, neuron, above in found["covers"].tolist():
        assert layer == 0
        assert (
            values[test, neuron] > over[:, neuron].max()
            if above
            else values[test, neuron] < over[:, neuron].min()
        )
    assert {(test, *item) for test, item in enumerate(found["targets"].tolist())} <= {
        tuple(pair) for pair in found["covers"].tolist()
    }
    # pictures, adversarial tests first
    drawn = sorted(path.name for path in Path("run").glob("*.png"))
    chosen = np.argsort(~found["adversarial"], kind="stable")[:4]
    assert drawn == sorted(f"test-{place:04d}.png" for place in chosen)
    data = (Path("run") / drawn[0]).read_bytes()
    assert data.startswith(b"\x89PNG")
    assert struct.unpack(">II", data[16:24]) == (600, 240)


def test_what_is_told(ask: Ask) -> None:
    said = ask(*LSTM, "--criterion", "multisection", "--sections", 4, "--limit", 4)
    assert said.code == 0, said.err
    found = read("run/tests.npz")
    rows = [line.replace("│", " ").split() for line in said.out.splitlines()]
    row = next(row for row in rows if len(row) == 5 and row[1].isdecimal())
    assert row[1:3] == ["12", "48"]
    before, after = (float(share.removesuffix("%")) for share in row[3:])
    covered = len({tuple(item) for item in found["covers"][:, 1:].tolist()})
    assert after == pytest.approx(before + 100 * covered / 48, abs=0.11)
    mean = found["changed"].mean()
    assert (
        f"tests: {len(found['x'])}, of which {found['adversarial'].sum()} adversarial, {mean:.3g} changed units on average"
        in said.out
    )
    assert "network evaluations" in said.out
    assert "written: run/tests.npz and" in said.out
    assert found["seeds"].max() < 4


def test_tests_are_data_for_the_other_commands(ask: Ask) -> None:
    assert ask(*LSTM, "--tests", 3).code == 0
    said = ask(
        "radius",
        "-m",
        "lstm.onnx",
        "-d",
        "run/tests.npz",
        "--domain",
        "0,1",
        "-o",
        "radii",
        "--methods",
        "pgd",
    )
    assert said.code == 0, said.err


def test_ranges_from_training_data_and_frames_as_units(ask: Ask) -> None:
    wide = read("data.npz")
    np.savez(
        "train.npz",
        x=np.concatenate([np.zeros_like(wide["x"]), np.ones_like(wide["x"])]),
        y=np.zeros(12, int),
    )
    few = ("--criterion", "multisection", "--sections", 4, "--limit", 3)
    assert ask(*LSTM, *few, "--train", "train.npz", "--unit", "frame").code == 0
    found = read("run/tests.npz")
    assert (found["changed"] == (found["x"] != found["originals"]).any(2).sum(1)).all()
    narrow = ask(*LSTM[:-1], "other", *few)
    assert narrow.code == 0
    assert len(read("other/tests.npz")["covers"]) != len(found["covers"])


def test_a_limit_is_told(ask: Ask) -> None:
    said = ask(*LSTM, "--criterion", "boundary", "--queries", 0)
    assert said.code == 0, said.err
    assert "tests: 0, of which 0 adversarial" in said.out
    assert "24 of 24 items, not reached before the limit" in " ".join(said.out.split())
    assert read("run/tests.npz")["x"].shape == (0, 3, 2)


def test_a_black_box_says_that_it_shows_only_outputs(ask: Ask) -> None:
    np.savez("two.npz", x=read("data.npz")["x"], y=np.zeros(6, int))
    said = ask(
        "testgen",
        "-m",
        "cli_own_code:black_box",
        "-d",
        "two.npz",
        "--domain",
        "0,1",
        "-o",
        "run",
        "--criterion",
        "boundary",
    )
    assert said.code == 0, said.err
    assert (
        "black_box is a black box: its hidden neurons cannot be seen, so its outputs are taken for the neurons"
        in said.out
    )
    assert read("run/tests.npz")["layers"].tolist() == ["outputs"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            ("--criterion", "branch"),
            "criterion 'branch' is unknown; there are neuron, multisection, boundary",
        ),
        (("--per", "layer"), "per 'layer' is unknown; there are element, channel"),
        (("--unit", "word"), "unit 'word' is unknown; there are pixel, frame, number"),
        (("--unit", "pixel"), "unit 'pixel' needs images"),
        (("--layers", "conv9"), "no layer 'conv9'; it has"),
        (("--train", "missing.npz"), "missing.npz: no such file"),
        (("--threshold", "nan"), "the threshold must be a number"),
        (("--domain", "0,0.1"), "but the domain is [0, 0.1]"),
        (("--data", "wide.npz"), "label 7 of input 5 is out of range"),
        (("--seconds", "-1"), "seconds must not be negative"),
    ],
)
def test_options_that_have_no_meaning(options: tuple[str, ...], words: str, refused: Ask) -> None:
    np.savez("wide.npz", x=read("data.npz")["x"], y=np.array([0, 1, 2, 0, 1, 7]))
    assert words in refused(*LSTM, *options).err


def test_data_and_folders_that_do_not_fit(refused: Ask, workshop: Path) -> None:
    assert "has none: state it" in refused("testgen", "-m", "lstm.onnx", "-d", "data.npz", "-o", "run").err
    assert (
        "x holds token ids"
        in refused("testgen", "-m", "reader.onnx", "-d", tokens(), "--domain", "0,1", "-o", "run").err
    )
    other = read("data.npz")
    np.savez("uneven.npz", **other, lengths=[3, 3, 2, 3, 3, 3])
    assert "inputs have shapes (2, 2) and (3, 2)" in refused(*LSTM[:4], "uneven.npz", *LSTM[5:]).err
    taken = workshop / "taken"
    taken.mkdir()
    Store.create(taken).close()
    assert "taken already holds a run" in refused(*LSTM[:-1], "taken").err
    assert "cannot begin a run there" in refused(*LSTM[:-1], "data.npz/below").err


def tokens() -> str:
    np.savez("tokens.npz", x=np.ones((2, 4), dtype=np.int64), y=np.array([0, 1]))
    return "tokens.npz"
