"""`holdfast show`, `compare` and `report` on runs as people have them."""

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from report_runs import Document, TinySequence, TinyWords, put, record, witness
from rich.console import Console

import holdfast as hf
from holdfast.cli import main
from holdfast.report import terminal_pictures

NewStore = Callable[..., hf.Store]


@pytest.fixture
def ask(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    monkeypatch.setenv("COLUMNS", "150")

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ending:
            main([str(a) for a in arguments])
        out, err = capsys.readouterr()
        return int(ending.value.code or 0), out, err

    return run


def shown(store: hf.Store, x: torch.Tensor, moved: torch.Tensor | None, **question: object) -> hf.Store:
    store.put_inputs([x], [0], [1], ["a name [bold]"], [None])
    made = record(0, 0.1, 0.4, note="a note [red]")
    bracket = made.bracket if moved is None else replace(made.bracket, upper=witness(0.4, moved))
    store.write([replace(made, bracket=bracket)])
    return store


@pytest.mark.parametrize(
    "shape", [(1, 8, 8), (8, 8), (3, 20, 30), (70, 3), (5,), (300,), (2, 3, 4, 5), (0,), ()]
)
def test_inputs_of_any_shape_are_shown(
    new_store: NewStore, ask: Callable[..., tuple[int, str, str]], shape: tuple[int, ...]
) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    for moved in (None, x * 0.5, torch.full(shape, math.nan)):
        code, out, err = ask("show", shown(new_store(), x, moved).folder, "--input", 0)
        assert (code, err) == (0, "")
        for part in (
            "a name [bold]",
            "a note [red]",
            "proved",
            "witnessed",
            "Certify",
            "real arithmetic",
            "label 0  says 1",
        ):
            assert part in out


def test_names_cannot_steer_the_terminal(
    new_store: NewStore, ask: Callable[..., tuple[int, str, str]]
) -> None:
    store = new_store(classes=["\x1b[31mred\x07"])
    store.put_inputs([torch.zeros(2)], [0], [0], ["\x1b]0;title\x07 name"], [None])
    store.write([record(0, 0.1, 0.4, note="\x1b[2J")])
    for command in (("show", store.folder), ("gate", store.folder, "--at", 9, "--min-certified", 1)):
        _, out, _ = ask(*command)
        assert "name" in out
        assert "\x1b" not in out
        assert "\x07" not in out


def test_pictures_of_blocks_hold_the_pixels() -> None:
    x = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert terminal_pictures.picture(x, colour=False).plain == "  ██\n██  "[: 4 + 1] + "██  "
    drawn = terminal_pictures.picture(x)
    colours = [(span.style.color.triplet.red, span.style.bgcolor.triplet.red) for span in drawn.spans]  # type: ignore[union-attr]
    assert colours == [(0, 0), (0, 0), (255, 255), (255, 255), (255, 255), (255, 255), (0, 0), (0, 0)]
    assert terminal_pictures.change(x, np.array([[0.0, 0.5], [1.0, 0.5]]), colour=False).plain == "··--\n··++"
    screen = io.StringIO()
    Console(force_terminal=True, color_system="truecolor", file=screen).print(drawn)
    assert "38;2;255;255;255" in screen.getvalue()


def test_frames_and_words_are_shown(new_store: NewStore, ask: Callable[..., tuple[int, str, str]]) -> None:
    net = hf.Network.from_torch(TinySequence().eval(), domain=(-1, 1))
    x = torch.rand(1, 5, 2, generator=torch.Generator().manual_seed(1)) * 0.3
    store = new_store(frames="each")
    put(store, x, [0], net)
    hf.radius(net, x, [0], frames="each", store=store, methods=[hf.attacks.PGD()])
    _, out, _ = ask("show", store.folder)
    assert len([line for line in out.splitlines() if line.startswith("│ ") and line[2] in "01234"]) == 5
    vocabulary = ["the", "[bold]film", "was", "bad", "good"]
    words = hf.Network.from_torch(TinyWords().eval(), vocabulary=vocabulary)
    tokens = torch.tensor([[0, 1, 2, 4]])
    store = new_store(vocabulary=vocabulary)
    put(store, words.embed(tokens), [0], words, tokens)
    made = record(0, 0.0, 1.0)
    store.write(
        [replace(made, bracket=replace(made.bracket, upper=witness(1.0, torch.tensor([0, 1, 2, 3]))))]
    )
    _, out, _ = ask("show", store.folder)
    assert "input: the [bold]film was good" in out
    assert "witness: the [bold]film was bad" in out


def test_of_many_frames_the_weakest_are_shown(
    new_store: NewStore, ask: Callable[..., tuple[int, str, str]]
) -> None:
    store = new_store(frames="each")
    store.write([record(0, 0.01 * (k + 1), 1.0, frame=k) for k in reversed(range(90))])
    _, out, _ = ask("show", store.folder)
    rows = [
        int(line.split()[1])
        for line in out.splitlines()
        if line.startswith("│ ") and line.split()[1].isdigit()
    ]
    assert rows == list(range(40))
    assert "the weakest 40 of 90" in out


def test_an_input_that_is_not_there_is_told(
    new_store: NewStore, ask: Callable[..., tuple[int, str, str]]
) -> None:
    store = new_store()
    assert ask("show", store.folder, "--input", 3)[::2] == (
        2,
        f"error: {store.folder}: no result for input 3; it has no results yet.\n",
    )
    store.write([record(0, 0.1, 0.2), record(1, 0.1, 0.2)])
    code, _, err = ask("show", store.folder, "-i", 17)
    assert code == 2
    assert "no result for input 17; it has results for 2 inputs, from 0 to 1" in err


def test_compare_writes_what_it_shows(
    new_store: NewStore, tmp_path: Path, ask: Callable[..., tuple[int, str, str]]
) -> None:
    stores = [new_store(), new_store()]
    for k, store in enumerate(stores):
        store.write([record(i, 0.1 + k, 0.5 + k) for i in range(4)])
    folders = [store.folder for store in stores]
    code, out, _ = ask("compare", *folders, "--at", "0.2,0.7", "-o", tmp_path / "c.json")
    assert code == 0
    told = json.loads((tmp_path / "c.json").read_text())
    assert told["radii"] == [0.2, 0.7]
    assert told["duels"][0]["losses"] == 4
    assert "certified at 0.7" in out.replace("\n", " ") or "0.7" in out
    assert ask("compare", *folders, "-o", tmp_path / "c.html")[0] == 0
    assert "which network holds longer" in Document((tmp_path / "c.html").read_text()).text
    assert ask("compare", *folders, "-o", tmp_path / "c.md")[0] == 0
    assert (tmp_path / "c.md").read_text().startswith("## Comparison")


def test_compare_refuses_what_it_cannot_do(
    new_store: NewStore, tmp_path: Path, ask: Callable[..., tuple[int, str, str]]
) -> None:
    store, other = new_store(), new_store(norm="2")
    for one in (store, other):
        one.write([record(0, 0.1, 0.2)])
    for arguments in (
        (store.folder,),
        (store.folder, other.folder),
        (store.folder, tmp_path / "nowhere"),
        (store.folder, store.folder, "--out", "c.pdf"),
        (store.folder, store.folder, "--at", "many"),
        (store.folder, store.folder, "--confidence", "95"),
    ):
        code, out, err = ask("compare", *arguments)
        assert code == 2, arguments
        assert out == ""
        assert len(err.splitlines()) == 1
        assert err.startswith("error: ")


def test_report_writes_a_model_card(
    new_store: NewStore, tmp_path: Path, ask: Callable[..., tuple[int, str, str]]
) -> None:
    store = new_store()
    store.write([record(0, 0.1, 0.2)])
    assert ask("report", store.folder, "-o", tmp_path / "card.md")[:2] == (
        0,
        f"report: {tmp_path / 'card.md'}\n",
    )
    assert "stability (clause 5.3)" in (tmp_path / "card.md").read_text()
    assert ask("report", store.folder, "-o", tmp_path / "page.pdf")[0] == 2
