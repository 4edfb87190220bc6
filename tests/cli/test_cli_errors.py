"""What a user gets wrong: one clear message that says what, where and what to do; exit code 2; no traceback; no run left behind."""

import gzip
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from cli_workshop import Ask
from onnx import TensorProto, helper

from holdfast.store import Store

BEGIN = ("radius", "-o", "run", "--methods", "pgd")


def change(**arrays: Any) -> str:
    """The good data with some arrays replaced."""
    with np.load("data.npz") as archive:
        np.savez("changed.npz", **{**archive, **arrays})
    return "changed.npz"


def x() -> "np.ndarray[Any, Any]":
    with np.load("data.npz") as archive:
        found: np.ndarray[Any, Any] = archive["x"]
    return found


# ---- data


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (lambda: {"x": x()[:, :, :1]}, ["(3, 1)", "lstm.onnx takes 3x2"]),
        (lambda: {"x": np.where(np.arange(6)[:, None, None] == 4, np.nan, x())}, ["input 4", "NaN"]),
        (lambda: {"y": np.array([0, 1, 2, 0, 1, 7])}, ["label 7 of input 5", "classes 0 to 2"]),
        (lambda: {"y": np.array([0, 1, 2, 0, -1, 0])}, ["label -1 of input 4"]),
        (lambda: {"y": np.zeros(6)}, ["labels must be integers"]),
        (lambda: {"y": np.eye(6, dtype=int)}, ["(6, 6)", "one class for each input"]),
        (lambda: {"y": np.array(3)}, ["y has no axis"]),
        (lambda: {"y": np.array([1, 2])}, ["x has 6 rows, y has 2"]),
        (lambda: {"y": np.array(list("abcdef"))}, ["6 names (a, b, c, d, e, f)", "3 outputs", "--classes"]),
        (lambda: {"x": np.array(list("abcdef"))}, ["text needs a network that reads tokens"]),
        (lambda: {"x": np.array(1.0)}, ["x is a single number"]),
        (lambda: {"x": x() + 1j}, ["complex"]),
        (lambda: {"x": x()[:0], "y": np.zeros(0, int)}, ["x is empty"]),
        (lambda: {"x": (x() * 255).astype(np.uint8)}, ["integers (uint8)", "--scale 255"]),
        (lambda: {"y": np.array([{}] * 6, dtype=object)}, ["no Python objects"]),
        (lambda: {"names": np.array(["a"])}, ["names has 1"]),
        (lambda: {"lengths": np.array(["a"] * 6)}, ["lengths does not hold numbers"]),
        (lambda: {"lengths": np.array([9] * 6)}, ["length 9 of input 0", "3 frames"]),
    ],
)
def test_data_that_do_not_fit(arrays: Any, words: list[str], refused: Ask) -> None:
    said = refused(*BEGIN, "-m", "lstm.onnx", "-d", change(**arrays()))
    for word in words:
        assert word in said.err


def test_values_outside_the_domain(refused: Ask) -> None:
    said = refused(*BEGIN, "-m", "lstm.onnx", "--domain", "0,1", "-d", change(x=x() * 300))
    assert "the domain is [0, 1]" in said.err
    assert "input 0" in said.err


def test_files_that_cannot_be_read(refused: Ask) -> None:
    whole = Path("data.npz").read_bytes()
    Path("half.npz").write_bytes(whole[: len(whole) // 2])
    Path("none.npz").write_bytes(b"")
    np.save("array.npy", np.zeros(3))
    Path("array.npy").rename("array.npz")
    np.savez_compressed("packed.npz", x=x(), y=np.zeros(6, int))
    packed = bytearray(Path("packed.npz").read_bytes())
    packed[60:90] = b"\0" * 30
    Path("packed.npz").write_bytes(packed)
    np.savez("other.npz", z=x())
    Path("folder.npz").mkdir()
    for name in ("half", "none", "array", "packed"):
        assert (
            f"{name}.npz: cannot be read as .npz"
            in refused(*BEGIN, "-m", "lstm.onnx", "-d", f"{name}.npz").err
        )
    assert "no array named 'x'; it holds z" in refused(*BEGIN, "-m", "lstm.onnx", "-d", "other.npz").err
    assert "missing.npz: no such file" in refused(*BEGIN, "-m", "lstm.onnx", "-d", "missing.npz").err
    assert "folder.npz: is a folder" in refused(*BEGIN, "-m", "lstm.onnx", "-d", "folder.npz").err
    assert "missing.csv: no such file" in refused(*BEGIN, "-m", "lstm.onnx", "-d", "missing.csv").err
    assert "a .npz file with x and y" in refused(*BEGIN, "-m", "lstm.onnx", "-d", "data.what").err


# ---- models


def test_models_that_cannot_be_read(refused: Ask) -> None:
    for name in ("lstm.onnx", "lstm.pt2"):
        whole = Path(name).read_bytes()
        Path(f"half-{name}").write_bytes(whole[: len(whole) // 2])
        Path(f"none-{name}").write_bytes(b"")
        for state in ("half", "none"):
            assert (
                f"{state}-{name}: "
                in refused(*BEGIN, "-m", f"{state}-{name}", "--trust", "-d", "data.npz").err
            )
    Path("half.onnx.gz").write_bytes(gzip.compress(Path("lstm.onnx").read_bytes())[:-9])
    assert "half.onnx.gz" in refused(*BEGIN, "-m", "half.onnx.gz", "-d", "data.npz").err
    assert "no such file" in refused(*BEGIN, "-m", "missing.onnx", "-d", "data.npz").err
    torch.save({"weight": torch.ones(1)}, "model.pth")
    Path("model.h5").write_bytes(b"not a model")
    assert "weights without a network" in refused(*BEGIN, "-m", "model.pth", "-d", "data.npz").err
    assert "package.module:factory" in refused(*BEGIN, "-m", "model.h5", "-d", "data.npz").err


def test_a_program_with_code_inside_is_opened_only_on_trust(refused: Ask) -> None:
    assert "--trust" in refused(*BEGIN, "-m", "lstm.pt2", "-d", "data.npz").err


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("nowhere:model", ["cannot import nowhere"]),
        (":model", ["cannot import"]),
        ("cli_own_code.py:linear", ["Write cli_own_code:linear"]),
        ("cli_own_code:missing", ["cli_own_code has no 'missing'"]),
        ("cli_own_code:OWN", ["has no 'OWN'"]),
        ("cli_own_code:fails", ["ValueError: my own mistake"]),
        ("cli_own_code:inputs", ["returned dict"]),
        ("cli_own_code:broken_weights", ["bias holds NaN"]),
        ("cli_syntax:model", ["SyntaxError"]),
    ],
)
def test_factories(model: str, words: list[str], refused: Ask) -> None:
    Path("cli_syntax.py").write_text("def model(:\n")
    said = refused(*BEGIN, "-m", model, "-d", "data.npz")
    for word in words:
        assert word in said.err


def test_an_unknown_operator_without_onnxruntime_help_is_named(refused: Ask) -> None:
    """onnxruntime does not know it either, so nothing can run it."""
    node = helper.make_node("Sorcery", ["x"], ["y"], domain="my.own")
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", 3, 2]) for n in "xy"]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("my.own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=8), "sorcery.onnx")
    assert "Sorcery" in refused(*BEGIN, "-m", "sorcery.onnx", "-d", "data.npz").err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_no_gpu(refused: Ask) -> None:
    assert "no GPU is visible" in refused(*BEGIN, "-m", "lstm.onnx", "-d", "data.npz", "--device", "cuda").err


# ---- options


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--methods", "magic"), ["method 'magic' is unknown", "certify"]),
        (("--tier", "slow"), ["tier 'slow' is unknown", "fast"]),
        (("--norm", "abc"), ["norm 'abc'", "any p >= 1"]),
        (("--norm", "0.5"), ["norm '0.5'", "p >= 1"]),
        (("--norm", "nan"), ["norm 'nan'"]),
        (("--frames", "some"), ["frames 'some'", "each"]),
        (("--frames", "7"), ["frame 7 does not exist", "0 to 2"]),
        (("--frames", "0.5"), ["frames '0.5'"]),
        (("--frames", "each", "--norm", "0"), ["norm"]),
        (("--shares", "1,1,1"), ["shares: one number for each feature", "got (3,)"]),
        (("--frames", "all", "--shares", "1,1"), ["shares covers 2 frames, input 0 has 3"]),
        (("--frames", "all", "--shares", "1,-1,0"), ["must be 0 or between", "got -1 to 1"]),
        (("--frames", "all", "--shares", "1,nan,0"), ["must be 0 or between"]),
        (("--frames", "all", "--shares", "one"), ["shares 'one'", "expected a number"]),
        (("--targets", "inf"), ["targets 'inf'", "runner-up"]),
        (("--targets", "9"), ["9", "out of range"]),
        (("--targets", "0,1"), ["(2,)", "(6,)"]),
        (("--domain", "1,0"), ["domain"]),
        (("--domain", "1"), ["domain '1'", "0,1"]),
        (("--domain", "0,x"), ["domain '0,x'"]),
        (("--scale", "0"), ["scale 0.0", "above 0"]),
        (("--scale", "nan"), ["scale nan"]),
        (("--std", "0"), ["std"]),
        (("--shape", "0,2"), ["shape '0,2'"]),
        (("--pool", "sum"), ["pool 'sum'", "mean"]),
        (("--device", "meta"), ["device 'meta'", "cuda"]),
        (("--seconds", "nan"), ["seconds"]),
        (("--seconds=-1",), ["seconds"]),
        (("--constant", "h"), ["constant 'h'", "sr=16000"]),
        (("--constant", "h=1"), ["no input named 'h'"]),
        (("--vocabulary", "words.txt"), ["does not read tokens"]),
        (("--substitutes", "substitutes.json"), ["does not read tokens"]),
    ],
)
def test_options(options: tuple[str, ...], words: list[str], refused: Ask) -> None:
    said = refused(*BEGIN, "-m", "lstm.onnx", "-d", "data.npz", *options)
    for word in words:
        assert word in said.err


@pytest.mark.parametrize(
    "options", [("--unheard-of",), ("--limit", "0"), ("--batch", "-1"), ("--limit", "many"), ("--norm",)]
)
def test_usage_errors_exit_with_2_too(options: tuple[str, ...], ask: Ask, workshop: Path) -> None:
    said = ask(*BEGIN, "-m", "lstm.onnx", "-d", "data.npz", *options)
    assert said.code == 2
    assert options[0] in said.err
    assert "Traceback" not in said.err
    assert not (workshop / "run").exists()


def test_options_without_effect_are_refused(refused: Ask) -> None:
    assert (
        "--unbatched has no effect"
        in refused(*BEGIN, "-m", "cli_own_code:linear", "-d", "data.npz", "--unbatched").err
    )
    assert (
        "--domain has no effect"
        in refused(*BEGIN, "-m", "cli_own_code:network", "-d", "data.npz", "--domain", "0,1").err
    )
    square = ("-m", "cli_own_code:pooled", "-d", "data.npz", "--shape", "3,3", "--mean", "500,15,1")
    assert "all 9 numbers of an input, row by row" in refused(*BEGIN, *square).err
    assert "on the command line --shape" in refused(*BEGIN, *square[:4], "--mean", "500,15,1").err
    assert (
        "--mean has no effect"
        in refused(*BEGIN, "-m", "cli_own_code:black_box", "-d", "data.npz", "--mean", "1").err
    )


def test_methods_of_which_none_applies(refused: Ask) -> None:
    said = refused(
        "radius",
        "-o",
        "run",
        "-m",
        "cli_own_code:black_box",
        "-d",
        "cli_own_code:inputs",
        "--methods",
        "certify,pgd",
    )
    assert "none of the methods can answer" in said.err
    assert "black box" in said.err


# ---- words


def test_words(refused: Ask, ask: Ask) -> None:
    begin = (*BEGIN, "-m", "reader.onnx")
    assert "--vocabulary" in refused(*begin, "-d", "text.tsv").err
    Path("few.txt").write_text("the\nfilm\n")
    assert "2 words" in refused(*begin, "-d", "text.tsv", "--vocabulary", "few.txt").err
    Path("latin.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    assert "latin.txt: not UTF-8" in refused(*begin, "-d", "text.tsv", "--vocabulary", "latin.txt").err
    begin = (*begin, "--vocabulary", "words.txt")
    for text, words in (
        ("0\tthe film\n1\tthe movie was good\n", ["line 2", "'movie' is not in the vocabulary"]),
        ("good film\n", ["line 1", "a class, a tab and a text"]),
        ("good\tfilm\n", ["1 name (good)", "2 outputs"]),
        ("\u00b2\tfilm\n", ["1 name (\u00b2)"]),
        ("0\t\n", ["line 1"]),
        ("\n", ["x is empty"]),
        ("9\tgood film\n", ["label 9 of input 0"]),
    ):
        Path("own.tsv").write_text(text)
        said = refused(*begin, "-d", "own.tsv")
        for word in words:
            assert word in said.err
    begin = (*begin, "-d", "text.tsv")
    for sets, word in (
        ("{", "not JSON"),
        ("[1]", "object of lists"),
        ('{"movie": ["film"]}', "none of its 1 words"),
        ("{}", "none of its 0 words"),
    ):
        Path("own.json").write_text(sets)
        assert word in refused(*begin, "--substitutes", "own.json").err
    assert "leave frames out" in refused(*begin, "--substitutes", "substitutes.json", "--frames", "all").err
    Path("own.json").write_text(json.dumps({"good": ["fine", "splendid"], "movie": ["film"]}))
    said = ask(*begin, "--substitutes", "own.json")
    assert said.code == 0  # what cannot be meant is left out, and said
    assert "splendid" in said.err


def test_a_text_file_from_windows_is_read(ask: Ask) -> None:
    text = Path("text.tsv").read_text().replace("\n", "\r\n")
    Path("text.tsv").write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert (
        ask(*BEGIN, "-m", "reader.onnx", "--vocabulary", "words.txt", "-d", "text.tsv", "--limit", "1").code
        == 0
    )


# ---- runs


def test_run_folders(ask: Ask, refused: Ask) -> None:
    Path("file").write_text("")
    assert "file" in refused("radius", "-m", "lstm.onnx", "-d", "data.npz", "-o", "file/run").err
    assert (
        "cannot begin a run there" in refused("radius", "-m", "lstm.onnx", "-d", "data.npz", "-o", "file").err
    )
    for command in (("resume", "nowhere"), ("report", "nowhere"), ("export", "nowhere", "x.csv")):
        assert "no run here" in refused(*command).err
    Path("bad").mkdir()
    Path("bad/run.sqlite").write_bytes(b"SQLite format 3\0" + b"\7" * 999)
    for command in (("resume", "bad"), ("report", "bad"), ("export", "bad", "x.csv")):
        assert "damaged" in refused(*command).err
    begin = ("radius", "-m", "lstm.onnx", "-d", "data.npz", "--limit", "1", "--methods", "pgd", "-o", "kept")
    assert ask(*begin).code == 0
    before = Path("kept/run.sqlite").read_bytes()
    assert "holdfast resume kept" in refused(*begin).err
    assert Path("kept/run.sqlite").read_bytes() == before
    assert "use one of .json" in refused("export", "kept", "x.xlsx").err
    assert "file/x.csv" in refused("export", "kept", "file/x.csv").err
    assert "file/x.html" in refused("report", "kept", "--out", "file/x.html").err


def test_a_run_that_a_program_began_cannot_be_asked_again(refused: Ask) -> None:
    Store.create("own").close()
    assert "holdfast report" in refused("resume", "own").err


@pytest.mark.parametrize("what", ["model", "data", "vocabulary", "substitutes"])
def test_what_a_run_was_begun_with_must_not_change(what: str, ask: Ask) -> None:
    begin = (
        "radius",
        "-m",
        "reader.onnx",
        "-d",
        "text.tsv",
        "--vocabulary",
        "words.txt",
        "--substitutes",
        "substitutes.json",
    )
    assert ask(*begin, "--limit", "1", "--methods", "enumerate", "-o", "run").code == 0
    assert ask("resume", "run").code == 0
    if what == "model":
        changed = onnx.load("reader.onnx")
        changed.producer_name = "somebody else"
        onnx.save(changed, "reader.onnx")
    else:
        file = Path({"data": "text.tsv", "vocabulary": "words.txt", "substitutes": "substitutes.json"}[what])
        file.write_text(
            {"data": "1\tgood film\n", "substitutes": '{"good": ["fine"]}'}.get(
                what, file.read_text().replace("<pad>", "<PAD>")
            )
        )
    said = ask("resume", "run")
    assert said.code == 2
    assert f"the {what} " in said.err
    assert "not what this run was begun with" in said.err


def test_resuming_from_another_folder_says_from_where(
    ask: Ask, workshop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ask(*BEGIN, "-m", "lstm.onnx", "-d", "data.npz", "--limit", "1").code == 0
    monkeypatch.chdir(workshop.parent)
    said = ask("resume", workshop / "run")
    assert said.code == 2
    assert f"begun in {workshop}" in said.err


def test_a_full_disk(ask: Ask, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=192k", "tmpfs", disk], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        np.savez("many.npz", x=np.random.default_rng(0).random((4000, 3, 2)), y=np.zeros(4000, int))
        said = ask("radius", "-m", "lstm.onnx", "-d", "many.npz", "-o", disk / "run")
        assert said.code == 2
        assert "Is the disk full?" in said.err
        assert "holdfast resume" in said.err
        for name in os.listdir(disk / "run"):
            (disk / "run" / name).unlink()
        (disk / "filling").write_bytes(b"\0" * 160_000)
        said = ask("radius", "-m", "lstm.onnx", "-d", "data.npz", "-o", disk / "run")
        assert said.code == 2
        assert "disk" in said.err
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


# ---- what nobody foresaw


def test_out_of_memory_is_said_in_one_line(refused: Ask) -> None:
    said = refused(*BEGIN, "-m", "lstm.onnx", "-d", "cli_own_code:greedy")
    assert "out of memory" in said.err
    assert "--batch" in said.err


@pytest.mark.parametrize("place", [0, 1, 5])
def test_debug_shows_the_traceback_wherever_it_stands(place: int, workshop: Path) -> None:
    from holdfast.cli import main
    from holdfast.errors import UnreadableFile

    words = ["radius", "-m", "none.onnx", "-d", "data.npz", "-o", "run"]
    with pytest.raises(UnreadableFile):
        main([*words[:place], "--debug", *words[place:]])


# ---- options that are missing


@pytest.mark.parametrize("command", ["radius", "worst", "saliency", "risk", "testgen"])
def test_a_missing_folder_is_explained(ask: Ask, command: str) -> None:
    told = ask(command, "--model", "lstm.onnx", "--data", "data.npz")
    assert told.code == 2
    for words in ("--out", "Give --out FOLDER", "results are saved", "For example: --out runs/first"):
        assert words in " ".join(told.err.replace("│", " ").split()), told.err


def test_a_missing_model_is_explained(ask: Ask) -> None:
    told = ask("radius", "--data", "data.npz", "--out", "run")
    assert told.code == 2
    assert "a .onnx or .pt2 file" in " ".join(told.err.replace("│", " ").split()).lower()
