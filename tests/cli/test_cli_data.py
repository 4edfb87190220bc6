"""Commands on the data that people have: names of classes in every view, inputs that the network gets wrong, data without labels."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from cli_workshop import Ask

import holdfast as hf
from holdfast.reading.data import load_mask
from holdfast.report.pairing import load

CODE = """
import torch
from torch import nn

def largest():
    made = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        made.weight.copy_(torch.eye(3))
    return made
"""
PETS = "name,fur,bark,height,species\na,3,1,0,cat\nb,2,1,0,dog\nc,0,3,0,dog\nd,0,1,3,emu\n"  # the second is called a cat
BEGIN = ("radius", "-m", "largest:largest", "--shape", "3", "--methods", "certify,corners")


@pytest.fixture
def _pets(workshop: Path) -> None:
    Path("largest.py").write_text(CODE)
    Path("pets.csv").write_text(PETS)


@pytest.mark.usefixtures("_pets")
def test_names_of_classes_go_everywhere(ask: Ask) -> None:
    said = ask(*BEGIN, "-d", "pets.csv", "-o", "run")
    assert said.code == 0, said.err
    assert "says cat" in said.out
    assert "sorted order: 0 cat, 1 dog, 2 emu" in " ".join(said.out.split())
    shown = ask("show", "run", "--input", 1).out
    assert "label dog" in shown
    assert "says cat" in shown
    assert ask("export", "run", "run/records.csv").code == 0
    with open("run/records.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["label_name"] for row in rows] == ["cat", "dog", "dog", "emu"]
    assert [row["prediction_name"] for row in rows] == ["cat", "cat", "dog", "emu"]
    assert [(row["name"], row["label"], row["prediction"]) for row in rows][1] == ("b", "1", "0")
    assert ask("export", "run", "run/records.json").code == 0
    told = json.loads(Path("run/records.json").read_text())
    assert told["records"][1]["prediction_name"] == "cat"
    assert told["question"]["data"]["columns"] == ["fur", "bark", "height"]
    assert ask("report", "run").code == 0
    page = Path("run/report.html").read_text()
    assert "cat" in page
    assert "emu" in page


@pytest.mark.usefixtures("_pets")
def test_only_what_the_network_gets_right(ask: Ask) -> None:
    said = ask(*BEGIN, "-d", "pets.csv", "--only-correct", "--limit", 2, "-o", "run")
    assert said.code == 0, said.err
    assert "leaves out 1 of the first 3 inputs" in " ".join(said.out.split())
    assert "b (predicted cat)" in " ".join(said.out.split())
    with hf.Store.read("run") as store:
        assert [given.name for given in store.inputs()] == ["a", "c"]
        assert store.question.data.count == 2
    assert ask("resume", "run", "--trust").code == 0
    assert ask(*BEGIN, "-d", "pets.csv", "--limit", 2, "-o", "all").code == 0
    assert (
        ask("merge", "run", "all", "-o", "both").code == 2
    )  # the second input of one is not that of the other


@pytest.mark.usefixtures("_pets")
@pytest.mark.parametrize("command", ["worst", "saliency", "smoothing", "risk", "testgen"])
def test_every_command_that_takes_labels_leaves_them_out(ask: Ask, command: str) -> None:
    more = {
        "worst": ["--radius", 0.1, "--methods", "certify"],
        "risk": ["--radius", 0.1, "--queries", 30, "--pictures", 0],
        "smoothing": ["--sigma", 0.1, "--samples", 20, "--choosing", 5],
        "saliency": ["--values", "0,1"],
        "testgen": ["--seconds", 2, "--layers", "linear", "--tests", 1],
    }[command]
    said = ask(
        command,
        "-m",
        "largest:largest",
        "--shape",
        "3",
        "-d",
        "pets.csv",
        "--only-correct",
        "-o",
        "run",
        "--domain",
        "0,3",
        *more,
    )
    assert said.code == 0, said.err
    assert "leaves out 1 of the first 4" in " ".join(said.out.split())


@pytest.mark.usefixtures("_pets")
def test_what_belongs_to_inputs_that_are_left_out_is_left_out(ask: Ask) -> None:
    free = np.random.default_rng(0).random((4, 3)) > 0.5
    np.save("free.npy", free)
    assert load_mask("free.npy", [torch.zeros(3)] * 3, [0, 2, 3]).tolist() == free[[0, 2, 3]].tolist()
    assert load_mask("free.npy", [torch.zeros(3)] * 2).tolist() == free[:2].tolist()
    said = ask(*BEGIN, "-d", "pets.csv", "--only-correct", "--targets", "emu,emu,cat,dog", "-o", "targets")
    assert said.code == 0, said.err
    with hf.Store.read("targets") as store:
        [first, second, third] = [record.bracket.upper.value for record in store.records()]
    assert (first, second, third) == (
        pytest.approx(1.5, abs=0.01),
        pytest.approx(1.5, abs=0.01),
        pytest.approx(1.0, abs=0.01),
    )


@pytest.mark.usefixtures("_pets")
def test_refusals_of_only_correct(refused: Ask) -> None:
    Path("own.txt").write_text("dog\ndog\nemu\ncat\n")
    said = refused(*BEGIN, "-d", "pets.csv", "--labels", "own.txt", "--only-correct", "-o", "run")
    assert "misclassifies all 4 inputs" in said.err
    assert "a (predicted cat)" in said.err
    Path("bare.csv").write_text("fur,bark,height\n3,1,0\n")
    assert "holds no labels" in refused(*BEGIN, "-d", "bare.csv", "--only-correct", "-o", "run").err


@pytest.mark.usefixtures("_pets")
def test_without_labels_the_network_speaks(ask: Ask) -> None:
    Path("bare.csv").write_text("fur,bark,height\n3,1,0\n0,1,3\n")
    said = ask(*BEGIN, "-d", "bare.csv", "--classes", "cat,dog,emu", "-o", "run")
    assert said.code == 0, said.err
    assert "the prediction of the network" in " ".join(said.out.split())
    assert "says emu" in said.out
    with hf.Store.read("run") as store:
        assert [(given.label, given.prediction) for given in store.inputs()] == [(None, 0), (None, 2)]
        assert [round(record.bracket.lower.value, 3) for record in store.records()] == [1, 1]
    assert ask("compare", "run", "run").code == 0


@pytest.mark.usefixtures("_pets")
def test_classes_from_a_file(ask: Ask) -> None:
    Path("classes.txt").write_text("emu\ndog\ncat\n")
    said = ask(*BEGIN, "-d", "pets.csv", "--classes", "classes.txt", "--limit", 1, "-o", "run")
    assert "says emu" in said.out
    with hf.Store.read("run") as store:
        assert store.question.data.classes == ("emu", "dog", "cat")


def test_tests_that_were_made_are_data(ask: Ask, workshop: Path) -> None:
    """The file that testgen writes holds the names of the classes, not what the network says of each test, by the name of `classes`."""
    images = np.random.default_rng(0).random((3, 1, 6, 6), dtype=np.float32)
    np.savez("images.npz", x=images, y=[0, 1, 2], classes=["ant", "bee", "cow"])
    common = ("-m", "cli_own_code:pooled", "--domain", "0,1")
    assert ask("testgen", *common, "-d", "images.npz", "-o", "run", "--tests", 2, "--pictures", 0).code == 0
    assert ask("radius", *common, "-d", "run/tests.npz", "--methods", "certify", "-o", "again").code == 0
    with hf.Store.read("again") as store:
        assert store.question.data.classes == ("ant", "bee", "cow")


@pytest.mark.usefixtures("_pets")
def test_a_run_of_pictures_on_the_terminal(ask: Ask) -> None:
    image = pytest.importorskip("PIL.Image")
    for place, name in enumerate(("ship", "truck", "whale")):
        Path("photos", name).mkdir(parents=True)
        image.fromarray(np.eye(3, dtype=np.uint8)[None, place] * 255).save(f"photos/{name}/one.png")
    said = ask(
        "radius",
        "-m",
        "largest:largest",
        "--shape",
        "3",
        "-d",
        "photos",
        "--scale",
        255,
        "--methods",
        "certify",
        "-o",
        "run",
    )
    assert said.code == 0, said.err
    assert "ship" in said.out
    assert "whale" in said.out
    with hf.Store.read("run") as store:
        assert [given.name for given in store.inputs()] == ["ship/one.png", "truck/one.png", "whale/one.png"]
        assert load(store).rows
