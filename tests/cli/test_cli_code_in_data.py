"""A file that somebody sent never decides which code runs: not a list of instances, not a run folder, not a saved monitor, and not a
Python file that lies in the working folder."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cli_workshop import SOURCE, Ask
from test_cli_check import change_question
from test_cli_verify import SQUARE, instances, write_net

from holdfast.errors import BadInput
from holdfast.files import new_file
from holdfast.reading.source import call, import_named, import_only

EVIL = """
open("RAN", "w").close()
import torch
def made():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 3))
def cut(text):
    return [1]
def inputs():
    return {"x": torch.rand(2, 3, 2), "y": [0, 1]}
"""


@pytest.fixture
def evil(workshop: Path) -> Iterator[Path]:
    """The workshop with a module that leaves a file RAN behind when it is imported."""
    (workshop / "w6_evil.py").write_text(EVIL)
    yield workshop
    sys.modules.pop("w6_evil", None)


def ran(folder: Path) -> bool:
    return (folder / "RAN").exists()


# ---- lists of instances


def test_a_line_of_instances_names_a_file_and_never_code(evil: Path, ask: Ask) -> None:
    (evil / "p.vnnlib").write_text(SQUARE + "(assert (>= Y_0 2.1))\n")
    (evil / "w6_evil:made").touch()
    instances(evil, "w6_evil:made,p.vnnlib,10")
    said = ask("verify", ".")
    assert said.code == 2
    assert "not package.module:factory" in said.err
    assert not ran(evil)
    write_net(evil / "small.onnx")
    instances(evil, "small.onnx,p.vnnlib,10", "w6_evil:made,p.vnnlib,10")  # beside one that is answered
    said = ask("verify", ".")
    assert said.code == 3  # some could not be answered
    assert "small p: unsat" in said.out
    assert not ran(evil)


@pytest.mark.parametrize("name", ["../outside.onnx", "link.onnx", "ABSOLUTE", "sub/../../outside.onnx"])
def test_a_line_of_instances_does_not_lead_out_of_its_folder(workshop: Path, refused: Ask, name: str) -> None:
    write_net(workshop / "outside.onnx")
    folder = workshop / "sent"
    (folder / "sub").mkdir(parents=True)
    (folder / "link.onnx").symlink_to(workshop / "outside.onnx")
    (folder / "p.vnnlib").write_text(SQUARE + "(assert (>= Y_0 2.1))\n")
    instances(folder, f"{workshop / 'outside.onnx' if name == 'ABSOLUTE' else name},p.vnnlib,10")
    said = refused("verify", "sent")
    assert "leads out of the folder sent" in said.err
    shutil.copy(workshop / "outside.onnx", folder / "inside.onnx")
    instances(folder, "sub/../inside.onnx,p.vnnlib,10")
    assert "inside" in read_names(folder)


def read_names(folder: Path) -> list[str]:
    from holdfast.verification import read_instances

    return [instance.name[0] for instance in read_instances(folder)]


# ---- runs


NETWORK = "--model", "lstm.onnx", "--data", "data.npz", "--limit", "1"
NAMING = {  # Each option that may name code, and a command that begins a run with it.
    "model": ("w6_evil:made", ("radius", *NETWORK, "--seconds", "0")),
    "tokenizer": (
        "w6_evil:cut",
        (
            "radius",
            "--model",
            "reader.onnx",
            "--data",
            "text.tsv",
            "--vocabulary",
            "words.txt",
            "--seconds",
            "0",
        ),
    ),
    "data": ("w6_evil:inputs", ("radius", *NETWORK, "--seconds", "0")),
    "property": ("w6_evil:made", ("worst", *NETWORK, "--radius", "0.1", "--seconds", "0")),
    "train": ("w6_evil:inputs", ("testgen", *NETWORK, "--domain", "0,1", "--seconds", "0")),
}


@pytest.mark.parametrize("option", NAMING)
def test_resume_runs_no_code_that_only_the_run_names(evil: Path, ask: Ask, option: str) -> None:
    value, begin = NAMING[option]
    made = ask(*begin, "--out", "run", "--executor", "here")
    assert (evil / "run" / "run.sqlite").exists(), made

    def change(question: dict[str, object]) -> None:
        options = question["options"]
        assert isinstance(options, dict)
        (options["network"] if option in ("model", "tokenizer") else options)[option] = value

    change_question(evil / "run", change)  # type: ignore[arg-type]
    said = ask("resume", "run", "--executor", "here")
    assert said.code == 2
    assert f"{value!r} is code, and a file names it" in said.err
    assert "--trust" in said.err
    assert not ran(evil)
    ask("resume", "run", "--executor", "here", "--trust")
    assert ran(evil)


def test_a_pt2_file_is_opened_again_only_where_its_user_says_so_again(workshop: Path, ask: Ask) -> None:
    assert (
        ask(
            "radius",
            "--model",
            "lstm.pt2",
            "--trust",
            "--data",
            "data.npz",
            "--limit",
            "1",
            "--seconds",
            "0",
            "--out",
            "run",
        ).code
        == 0
    )
    said = ask("resume", "run")
    assert said.code == 2
    assert "--trust" in said.err
    assert ask("resume", "run", "--trust", "--seconds", "0").code == 0


# ---- monitors


def test_a_saved_monitor_runs_no_code_that_it_names(evil: Path, ask: Ask) -> None:
    assert (
        ask("monitor", "fit", "lstm.onnx", "--mutation", "noise:0.1,inf", "--samples", "5", "-o", "mine").code
        == 0
    )
    told = json.loads((evil / "mine" / "model.json").read_text())
    told["model"]["model"] = "w6_evil:made"
    told["model"]["trust"] = True  # it does not say so for whoever opens it
    (evil / "mine" / "model.json").write_text(json.dumps(told))
    commands = [
        ("score", "mine", "data.npz"), ("evaluate", "mine", "--data", "data.npz", "-o", "run"), ("export", "mine", "--prism", "out"),
        ("serve", "mine"),
    ]  # fmt: skip
    for command in commands:
        said = ask("monitor", *command)
        assert said.code == 2, said
        assert not ran(evil)
    assert "is code, and a file names it" in ask("monitor", "score", "mine", "data.npz").err
    ask("monitor", "score", "mine", "data.npz", "--trust")
    assert ran(evil)


def test_a_monitor_of_your_own_code_says_how_it_is_opened(evil: Path, ask: Ask) -> None:
    options = ("--shape", "3,2", "--mutation", "noise:0.1,inf", "--samples", "5")
    said = ask("monitor", "fit", "w6_evil:made", *options, "-o", "mine")
    assert said.code == 0, said
    assert "holdfast monitor score mine --trust" in " ".join(said.out.split())


# ---- the one place that imports


def test_only_confirmed_names_are_imported_inside_the_block(evil: Path) -> None:
    with import_only(["json:loads"], "Say so."):
        assert import_named("json:loads", "model")[1] == "loads"
        with pytest.raises(
            BadInput, match=r"'w6_evil:made' is code, and a file names it, not you: it is not run\. Say so\."
        ):
            import_named("w6_evil:made", "model")
    assert not ran(evil)
    assert call("w6_evil:made", "model") is not None
    assert ran(evil)


def test_the_working_folder_stays_on_the_path_only_for_code_that_lies_in_it(evil: Path) -> None:
    """A model from an installed package: then no file of the folder of data is imported later, whatever it is called."""
    here = os.getcwd()
    assert here not in sys.path
    import_named("json:loads", "model")
    assert here not in sys.path
    with pytest.raises(BadInput, match="cannot import"):
        import_named("w6_is_not_there:f", "model")
    assert here not in sys.path
    import_named("w6_evil:made", "model")
    assert here in sys.path


HIDDEN = 'open("RAN", "w").close()\nraise SystemExit(7)\n'


def in_folder(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    around = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    around.pop("PYTHONSAFEPATH", None)
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=around, capture_output=True, text=True, timeout=600
    )


@pytest.mark.parametrize("name", ["typer", "json", "rich"])
def test_python_m_holdfast_imports_nothing_of_the_working_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text(HIDDEN)
    said = in_folder(tmp_path, "-m", "holdfast", "--version")
    assert said.returncode == 0, said
    assert said.stdout.startswith("holdfast ")
    assert not ran(tmp_path)


SPAWN = """
import multiprocessing, os, sys
from holdfast.execution.python_path import without_working_folder
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=print, args=("alive",))
    with without_working_folder():
        process.start()
    process.join()
    assert "PYTHONSAFEPATH" not in os.environ
    sys.exit(process.exitcode)
"""


def test_a_spawned_process_imports_nothing_of_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "script.py").write_text(SPAWN)
    for name in ("pickle", "struct", "selectors", "multiprocessing"):
        (tmp_path / f"{name}.py").write_text(HIDDEN)
    said = in_folder(tmp_path, "-P", "elsewhere/script.py")
    assert (said.returncode, said.stdout) == (0, "alive\n"), said
    assert not ran(tmp_path)


@pytest.mark.parametrize("module", ["holdfast.execution.local", "holdfast.monitor.service.server"])
def test_every_place_that_spawns_keeps_the_working_folder_out(module: str) -> None:
    import ast
    import importlib

    tree = ast.parse(Path(str(importlib.import_module(module).__file__)).read_text())
    guarded = {
        id(call)
        for block in ast.walk(tree)
        if isinstance(block, ast.With)
        and any("without_working_folder" in ast.unparse(item) for item in block.items)
        for call in ast.walk(block)
    }
    starts = [
        call
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "process.start"
    ]
    assert starts
    assert all(id(call) in guarded for call in starts)


def test_arrays_of_objects_are_refused(workshop: Path, refused: Ask) -> None:
    """numpy would unpickle them."""
    np.savez(workshop / "objects.npz", x=np.array([{"a": 1}], dtype=object), y=np.zeros(1))
    assert "holds" in refused("radius", "--model", "lstm.onnx", "--data", "objects.npz", "--out", "run").err


def test_nothing_is_written_through_a_link_that_somebody_put_into_a_run(workshop: Path, ask: Ask) -> None:
    """Whoever sends a folder could else have your own file overwritten, with names that they chose in it."""
    assert (
        ask(
            "radius",
            "-m",
            "lstm.onnx",
            "-d",
            "data.npz",
            "--limit",
            "1",
            "--methods",
            "pgd",
            "-o",
            "run",
            "--executor",
            "here",
        ).code
        == 0
    )
    own = workshop / "mine.txt"
    own.write_text("mine")
    for name in ("report.html.part", "records.csv.part", "report.html", "records.csv"):
        (workshop / "run" / name).symlink_to(own)
    assert ask("report", "run").code == 0
    assert ask("export", "run", "run/records.csv").code == 0
    assert own.read_text() == "mine"
    assert "<html" in (workshop / "run" / "report.html").read_text()
    assert not (workshop / "run" / "report.html").is_symlink()
    with new_file(workshop / "run" / "again") as stream:
        stream.write(b"1")
    (workshop / "run" / "link").symlink_to(own)
    new_file(workshop / "run" / "link").close()
    assert own.read_text() == "mine"
