"""Data in every form that people have, read as a command reads it."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cli_workshop import forked
from torch import Tensor, nn

import holdfast as hf
from holdfast.commands.options import DataOptions
from holdfast.errors import HoldfastError
from holdfast.network import recurrent
from holdfast.reading.data import Data, load_data

WORDS = ("<pad>", "<unk>", "good", "bad", "film")
PETS = "age,height,weight,species\n1,2,3,cat\n4,5.5,6,dog\n7,8,9,emu\n"


class Reader(nn.Module):
    """The mean of the words' vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(len(WORDS), 4), nn.Linear(4, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        answer: Tensor = self.head(self.table(tokens).mean(1))
        return answer


def numbers(
    classes: Sequence[str] | None = None, shape: Sequence[int] = (3,), outputs: int = 3
) -> hf.Network:
    """Says the place of the largest input, where there are as many inputs as outputs."""
    size = int(np.prod(shape))
    module = nn.Sequential(nn.Flatten(), nn.Linear(size, outputs, bias=False)).eval()
    with torch.no_grad():
        module[1].weight.copy_(torch.eye(outputs, size))
    return hf.Network.from_torch(module, shape=shape, classes=classes)


def words() -> hf.Network:
    torch.manual_seed(0)
    return hf.Network.from_torch(Reader().eval(), vocabulary=WORDS)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(
    source: str,
    net: hf.Network | None = None,
    *,
    scale: float | None = None,
    limit: int | None = None,
    **how: Any,
) -> Data:
    return load_data(
        source, numbers() if net is None else net, scale=scale, limit=limit, how=DataOptions(**how)
    )


def refused(source: str, net: hf.Network | None = None, *, scale: float | None = None, **how: Any) -> str:
    with pytest.raises(HoldfastError) as told:
        read(source, net, scale=scale, **how)
    return str(told.value)


def write(name: str, text: str) -> str:
    Path(name).write_text(text, encoding="utf-8")
    return name


# ---- tables


@pytest.mark.parametrize(
    "text",
    [
        PETS,
        "\ufeff" + PETS,
        PETS.replace(",", ";").replace("5.5", "5,5"),
        PETS.replace(",", "\t"),
        PETS.replace("dog", '"dog"').replace("\n", "\r\n"),
        "id,age,height,weight,species\n71,1,2,3,cat\n72,4,5.5,6,dog\n73,7,8,9,emu\n",
    ],
    ids=["plain", "mark", "semicolons", "tabs", "quotes", "id"],
)
def test_a_table(text: str) -> None:
    data = read(write("pets.csv", text))
    assert torch.stack(data.x).tolist() == [[1, 2, 3], [4, 5.5, 6], [7, 8, 9]]
    assert data.columns == ["age", "height", "weight"]
    assert data.y.tolist() == [0, 1, 2]
    assert data.classes == ["cat", "dog", "emu"]
    assert data.names == (["71", "72", "73"] if text.startswith("id") else ["0", "1", "2"])
    assert "labels are column 'species'" in data.notes[0]
    assert "0 cat, 1 dog, 2 emu" in data.notes[1]


def test_names_follow_the_networks_order() -> None:
    data = read(write("pets.csv", PETS), numbers(classes=("emu", "dog", "cat")))
    assert data.y.tolist() == [2, 1, 0]
    assert data.classes == ["emu", "dog", "cat"]
    assert not any("sorted" in note for note in data.notes)


def test_numbers_of_another_order_are_matched_by_name() -> None:
    np.savez("pets.npz", x=np.eye(3), y=np.array([0, 1, 2]), classes=np.array(["cat", "dog", "emu"]))
    assert read("pets.npz", numbers(classes=("emu", "dog", "cat"))).y.tolist() == [2, 1, 0]
    assert read("pets.npz").y.tolist() == [0, 1, 2]
    assert "'emu' is none of the classes" in refused("pets.npz", numbers(classes=("ant", "dog", "cat")))


@pytest.mark.parametrize(
    ("text", "how", "told"),
    [
        (PETS.replace("emu", "dog"), {}, ["2 names (cat, dog)", "3 outputs", "--classes"]),
        (PETS.replace("5.5", ""), {}, ["line 3, column 'height'", "missing"]),
        (
            PETS.replace("5.5", "NA").replace("9", "?"),
            {},
            ["line 3, column 'height'; line 4, column 'weight'"],
        ),
        (PETS.replace("5.5", "tall"), {}, ["line 3", "'height'", "'tall'"]),
        (PETS, {"label_column": "kind"}, ["'kind'", "'age', 'height', 'weight', 'species'"]),
        (PETS, {"text_column": "age"}, ["--text-column has no effect"]),
        ("a,b,c,d\n1,2,3,4\n", {}, ["which of its columns 'a', 'b', 'c', 'd'", "--label-column"]),
        ("a,b,label,class\n1,2,3,4\n", {}, ["which of its columns 'label', 'class'"]),
        ("a,b,label\n1,2,0\n", {}, ["takes 3 numbers", "2 columns besides the label 'label': 'a', 'b'"]),
        ("1,2,3\n4,5,6\n", {}, ["first line holds numbers", "names of the columns"]),
        ("a,b,c\n1,2\n", {}, ["line 2", "2 cells"]),
        ("a,b,c\n", {}, ["one line"]),
        ("a,a,c\n1,2,3\n", {}, ["two columns are named 'a'"]),
        ('a,b,c\n1,2,"3\n', {}, ["cannot be read as .csv"]),
    ],
)
def test_tables_that_are_refused(text: str, how: dict[str, str], told: list[str]) -> None:
    said = refused(write("table.csv", text), **how)
    for words in ["table.csv" if "text_column" not in how else "", *told]:
        assert words in said


def test_the_label_column_that_is_said() -> None:
    data = read(write("table.csv", "a,b,c,d\n2,1,3,4\n0,5,6,7\n"), label_column="a")
    assert data.y.tolist() == [2, 0]
    assert data.columns == ["b", "c", "d"]


def test_a_table_without_labels() -> None:
    data = read(
        write("table.csv", "age,class,weight\n1,2,3\n")
    )  # as many columns as the network takes: none is a label
    assert data.columns == ["age", "class", "weight"]
    assert not data.labelled


def test_truth_is_a_number() -> None:
    assert read(write("table.csv", "a,b,c,y\nTrue,false,3,1\n")).x[0].tolist() == [1, 0, 3]


def test_a_table_of_pixels_is_an_image() -> None:
    write("pixels.csv", "label,a,b,c,d\n1,0,255,0,51\n")
    assert "--scale 255" in refused("pixels.csv", numbers(shape=(1, 2, 2), outputs=2))
    assert read("pixels.csv", numbers(shape=(1, 2, 2), outputs=2), scale=255).x[0].tolist() == [
        [[0, 1], [0, pytest.approx(0.2)]]
    ]


def test_parquet_and_frames_hold_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    pandas.read_csv(write("pets.csv", PETS)).to_parquet("pets.parquet")
    monkeypatch.syspath_prepend(tmp_path)
    write("reading_frame.py", "import pandas\ndef load():\n    return pandas.read_csv('pets.csv')\n")
    table, *others = (read(source) for source in ("pets.csv", "pets.parquet", "reading_frame:load"))
    for other in others:
        assert torch.equal(torch.stack(other.x), torch.stack(table.x))
        assert (other.y.tolist(), other.columns, other.classes) == (
            table.y.tolist(),
            table.columns,
            table.classes,
        )
    frame = pandas.read_csv("pets.csv")
    frame.loc[1, "height"] = None
    frame.to_parquet("pets.parquet")
    assert "row 1, column 'height'" in refused("pets.parquet")
    Path("half.parquet").write_bytes(Path("pets.parquet").read_bytes()[:-20])
    assert "half.parquet: cannot be read as .parquet" in refused("half.parquet")


# ---- texts


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'review,stars\n"good, film",pos\nbad film,neg\n'),
        ("a.csv", 'id,title,text,label\n1,x y,"good, film",pos\n2,y z,bad film,neg\n'),
        ("a.tsv", "label\ttext\npos\tgood, film\nneg\tbad film\n"),
        ("a.tsv", "1\tgood, film\n0\tbad film\n"),
    ],
)
def test_texts_and_their_labels(name: str, text: str) -> None:
    data = read(write(name, text), words())
    assert data.names == ["good, film", "bad film"]
    assert [row.tolist() for row in data.x] == [[2, 4], [3, 4]]
    assert data.y.tolist() == [1, 0]
    assert data.classes == (["neg", "pos"] if "pos" in text else None)


def test_quotes_between_tabs_are_part_of_the_text() -> None:
    assert read(write("a.tsv", 'label\ttext\npos\t"good" film\nneg\t"bad film\n'), words()).names == [
        '"good" film',
        '"bad film',
    ]


def test_labels_that_are_names_before_a_tab() -> None:
    data = read(write("a.tsv", "pos\tgood film\nneg\tbad film\npos\tfilm\n"), words())
    assert data.y.tolist() == [1, 0, 1]  # the first line is no heading: its label comes again


@pytest.mark.parametrize(
    ("text", "how", "told"),
    [
        ("a,b,c\ngood film,pos,1\nbad film,neg,2\n", {}, ["'b', 'c'", "labels", "--label-column"]),
        (
            "a,b,label\ngood film,bad film,1\nbad film,film film,0\n",
            {},
            ["'a', 'b'", "texts", "--text-column"],
        ),
        ("text,label\ngood film,1\n,0\n", {}, ["line 3", "no text"]),
        ("text,label\ngood film,pos\nbad film,\n", {}, ["line 3", "label is missing"]),
        ("a,b\n1,2\n", {}, ["none of its columns 'a', 'b' holds texts"]),
    ],
)
def test_texts_that_are_refused(text: str, how: dict[str, str], told: list[str]) -> None:
    said = refused(write("text.csv", text), words(), **how)
    for part in ["text.csv", *told]:
        assert part in said


def test_columns_that_are_said() -> None:
    write("text.csv", "a,b,c\ngood film,pos,film good\nbad film,neg,film\n")
    data = read("text.csv", words(), text_column="c", label_column="b")
    assert data.names == ["film good", "film"]
    assert not any("column" in note for note in data.notes)


# ---- pictures


def picture(path: str, colours: Any, mode: str | None = None) -> None:
    image = pytest.importorskip("PIL.Image")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    made = image.fromarray(np.asarray(colours, dtype=np.uint8))
    (made if mode is None else made.convert(mode)).save(path)


def albums() -> None:
    for place, label in enumerate(("cat", "dog")):
        for k in range(3):
            picture(f"photos/{label}/{k}.png", np.full((2, 3, 3), (100 * place, k, 255)))


def test_a_folder_of_pictures_for_each_class() -> None:
    albums()
    write("photos/cat/notes.txt", "no picture")
    write("photos/dog/3.webp", "a picture that is not read")
    net = numbers(shape=(3, 2, 3), outputs=2)
    data = read("photos", net, scale=255)
    assert data.names == ["cat/0.png", "dog/0.png", "cat/1.png", "dog/1.png", "cat/2.png", "dog/2.png"]
    assert data.y.tolist() == [0, 1, 0, 1, 0, 1]
    assert data.classes == ["cat", "dog"]
    assert (data.x[3] * 255)[:, 1, 2].round().tolist() == [100, 1, 255]  # channels first
    assert "1 pictures of photos are neither PNG nor JPEG and are left out, 3.webp first" in data.notes
    assert "--scale 255" in refused("photos", net)
    assert read("photos", numbers(shape=(2, 3, 3), outputs=2), scale=255).x[3][1, 2].mul(
        255
    ).round().tolist() == [100, 1, 255]
    assert read("photos", numbers(shape=(18,), outputs=2), scale=255).x[3].equal(data.x[3].flatten())
    few = read("photos", net, scale=255, limit=2)
    assert few.names == ["cat/0.png", "dog/0.png"]
    picture("photos/dog/0.png", np.full((2, 3, 3), 7))
    assert read("photos", net, scale=255, limit=2).fingerprint != few.fingerprint


def test_grey_and_colours_by_the_network() -> None:
    picture("photos/a/grey.png", [[0, 255]])
    picture("photos/b/colours.jpg", np.full((1, 2, 3), 200))
    assert [tuple(row.shape) for row in read("photos", numbers(shape=(1, 1, 2), outputs=2), scale=255).x] == [
        (1, 1, 2)
    ] * 2
    assert read("photos", numbers(shape=(3, 1, 2), outputs=2), scale=255).x[0].tolist() == [[[0, 1]]] * 3


def test_a_class_without_pictures_is_one() -> None:
    albums()
    Path("photos/emu").mkdir()
    assert read("photos", numbers(shape=(3, 2, 3)), scale=255).classes == ["cat", "dog", "emu"]
    assert "3 names" in refused("photos", numbers(shape=(3, 2, 3), outputs=2), scale=255)


def test_pictures_alone_have_no_labels() -> None:
    albums()
    data = read("photos/dog", numbers(shape=(3, 2, 3), outputs=2), scale=255)
    assert data.names == ["0.png", "1.png", "2.png"]
    assert not data.labelled


def test_pictures_that_are_refused() -> None:
    image = pytest.importorskip("PIL.Image")
    albums()
    net = numbers(shape=(3, 2, 3), outputs=2)
    assert "photos/cat/0.png: 3 x 2 pixels, and Sequential takes 2 x 2" in refused(
        "photos", numbers(shape=(3, 2, 2), outputs=2)
    )
    assert "reads words" in refused("photos", words())
    Path("sets").mkdir()
    Path("photos").rename("sets/test")
    assert f"Give {Path('sets/test')}" in refused("sets", net)
    Path("sets/test").rename("photos")
    assert "no PNG or JPEG in it" in refused("sets", net)
    assert "one picture; give the folder" in refused("photos/cat/0.png", net)
    image.fromarray(np.zeros((2, 3), np.uint16)).save("photos/cat/0.png")
    assert "more than 8 bits" in refused("photos", net, scale=255)
    Path("photos/cat/0.png").write_bytes(b"nothing")
    assert "photos/cat/0.png: neither PNG nor JPEG" in refused("photos", net, scale=255)
    Path("photos/cat/0.png").unlink()
    picture("photos/0.png", np.zeros((2, 3, 3)))
    assert "next to the folders of classes" in refused("photos", net)


def test_a_small_file_that_unpacks_to_a_giant_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setattr(image, "MAX_IMAGE_PIXELS", 100)
    picture("photos/a/large.png", np.zeros((15, 10)))
    assert "photos/a/large.png: cannot be read as a picture" in refused(
        "photos", numbers(shape=(1, 15, 10), outputs=1), scale=255
    )


# ---- arrays


def test_labels_beside_an_array() -> None:
    np.save("x_test.npy", np.eye(3, dtype=np.float32))
    alone = read("x_test.npy")
    assert not alone.labelled
    np.save("y_test.npy", np.array([2, 1, 0]))
    beside = read("x_test.npy")
    assert beside.y.tolist() == [2, 1, 0]
    np.save("y_test.npy", np.array([2, 1, 1]))
    assert len({alone.fingerprint, beside.fingerprint, read("x_test.npy").fingerprint}) == 3
    write("own.txt", "cat\nemu\ndog\n")
    said = read("x_test.npy", labels="own.txt")
    assert said.y.tolist() == [0, 2, 1]
    write("own.txt", "cat\nemu\nemu\n")
    assert "2 names" in refused("x_test.npy", labels="own.txt")
    assert (
        read("x_test.npy", numbers(classes=("cat", "dog", "emu")), labels="own.txt").fingerprint
        != said.fingerprint
    )
    assert "labels are read from" in refused("x_test.npy", labels="own.json")


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ({"X": np.eye(3), "labels": [0, 1, 2]}, "no array named 'x'; it holds X, labels. Is 'X' meant?"),
        ({"x": np.eye(3), "labels": [0, 1, 2]}, "no array named 'y'; it holds labels, x. Is 'labels' meant?"),
        (
            {"x": np.eye(3), "y": [0, 1, 2], "columns": ["a", "b"]},
            "x has 3 numbers in an input, columns has 2",
        ),
    ],
)
def test_arrays_of_other_names(held: dict[str, Any], told: str) -> None:
    np.savez("held.npz", **held)
    assert told in refused("held.npz")


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("a.xlsx", "as .csv"),
        ("a.json", "list of dicts"),
        ("a.pkl", "can run code"),
        ("a.pt", "numpy.savez"),
        ("a.h5", ".npz"),
        ("a.csv.gz", "unpack"),
        ("a.what", "a .csv or .parquet table, a folder"),
    ],
)
def test_other_files_are_told_the_nearest_form(name: str, near: str) -> None:
    assert near in refused(name)


# ---- what functions return

OBJECTS = """
import numpy as np
import torch

def pair(): return torch.eye(3), [0, 1, 2]
def mapping(): return {"x": np.eye(3), "y": ["cat", "dog", "emu"], "names": ["a", "b", "c"]}
def alone(): return np.eye(3)
def dicts(): return [{"x": row, "label": name} for row, name in zip(np.eye(3), ("cat", "dog", "emu"))]

class Set(torch.utils.data.Dataset):
    def __len__(self): return 3
    def __getitem__(self, place): return torch.eye(3)[place], place

def data_set(): return Set()
def loader(): return torch.utils.data.DataLoader(Set(), batch_size=2)

def endless():
    while True:
        yield torch.eye(3)[0], 0

class Named:
    names = ["emu", "dog", "cat"]

class Features(list):
    features = {"label": Named}

def features(): return Features({"x": row, "label": k} for k, row in enumerate(np.eye(3).tolist()))
def number(): return 3
def bare(): return [1, 2]
def bunch(): return {"data": np.eye(3), "target": [0, 1, 2]}
def strange(): return [{"a": 1, "b": 2}]
def breaks():
    yield torch.eye(3)[0], 0
    raise OSError("the disk is gone")
"""


@pytest.fixture
def _objects(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "reading_objects", raising=False)
    write("reading_objects.py", OBJECTS)


@pytest.mark.usefixtures("_objects")
@pytest.mark.parametrize("name", ["pair", "mapping", "alone", "dicts", "data_set", "loader", "features"])
def test_what_functions_return(name: str) -> None:
    data = read(f"reading_objects:{name}")
    assert torch.stack(data.x).equal(torch.eye(3))
    assert data.labelled == (name != "alone")
    if data.labelled:
        assert data.y.tolist() == [0, 1, 2]
    if name in ("mapping", "dicts"):
        assert data.classes == ["cat", "dog", "emu"]
    if name == "features":
        assert data.classes == ["emu", "dog", "cat"]


@pytest.mark.usefixtures("_objects")
def test_a_data_set_without_end() -> None:
    assert len(read("reading_objects:endless", limit=2).x) == 2


@pytest.mark.usefixtures("_objects")
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("number", "int; expected a dict with x and y, a pair"),
        ("bare", "its first row is int"),
        ("bunch", "Is 'data' meant?"),
        ("strange", "rows hold a, b"),
        ("breaks", "the disk is gone"),
    ],
)
def test_what_functions_may_not_return(name: str, told: str) -> None:
    assert told in refused(f"reading_objects:{name}")


# ---- classes


def test_classes_are_as_many_as_outputs() -> None:
    np.savez("held.npz", x=np.eye(3), y=[0, 1, 2])
    assert "2 classes are named" in refused("held.npz", numbers(classes=("cat", "dog")))
    with pytest.raises(HoldfastError, match="more than once"):
        numbers(classes=("cat", "dog", "cat"))
    write("pets.csv", PETS.replace("emu", "emus"))
    assert "Is 'emu' meant?" in refused("pets.csv", numbers(classes=("cat", "dog", "emu")))


# ---- from Python


def test_the_same_from_python() -> None:
    pandas = pytest.importorskip("pandas")
    frame, net = pandas.read_csv(write("pets.csv", PETS)), numbers(classes=("emu", "dog", "cat"))
    table, held, pair = (
        hf.load("pets.csv", net),
        hf.load(frame, net),
        hf.load((np.eye(3), ["cat", "dog", "emu"]), net),
    )
    assert table.y.tolist() == held.y.tolist() == pair.y.tolist() == [2, 1, 0]
    assert table.columns == held.columns == ["age", "height", "weight"]
    assert hf.load(Path("pets.csv"), net, only_correct=True, limit=1).names == [
        "0"
    ]  # the largest number is the weight of a cat
    own = hf.load(np.eye(3), net)
    assert (own.y.tolist(), own.labelled) == ([0, 1, 2], False)
    assert "the ndarray holds no labels" in own.notes[0]
    with pytest.raises(HoldfastError, match="the int: int; expected"):
        hf.load(3, net)


def test_data_are_read_where_only_the_numbers_are_installed() -> None:
    """torch, numpy, scipy and scikit-learn are all that reading, measuring and proving need: the terminal, the page and ONNX are more.

    A copy of this process keeps torch, forgets holdfast and the blocked packages, and imports holdfast without them.
    """
    blocked = ("typer", "rich", "jinja2", "matplotlib", "onnx", "safetensors", "pandas", "pyarrow", "PIL")
    Path("table.csv").write_text("a,b,label\n0.5,1,yes\n0.25,0,no\n")

    def measure() -> int:
        recurrent._LIBRARY._destroy()  # its operators are registered with torch once more
        for name in list(sys.modules):
            if name.partition(".")[0] in ("holdfast", "holdfast_check", *blocked):
                del sys.modules[name]
        sys.modules.update(dict.fromkeys(blocked))
        import holdfast as hf

        net = hf.Network.from_torch(torch.nn.Linear(2, 2), domain=(0, 1), classes=["no", "yes"])
        data = hf.load("table.csv", net)
        brackets = hf.radius(net, data.x, ["yes", "no"], stop=hf.Stop(queries=20))
        Path("said.txt").write_text(f"{data.y.tolist()} {len(brackets)}")
        return 0

    _, status = os.waitpid(forked(measure), 0)
    assert status == 0
    assert Path("said.txt").read_text() == "[1, 0] 2"
