"""Strangers' files: whatever chance or malice makes of one, only an error of the house comes out, soon and without filling the memory."""

import json
import resource
import sqlite3
import warnings
from pathlib import Path
from random import Random

import pytest
from benchmarks.fuzz import hostile, seeds
from benchmarks.fuzz.attempts import tried
from benchmarks.fuzz.readers import Readers

import holdfast as hf
from holdfast.commands.reading.box import box_option
from holdfast.errors import HoldfastError, StoreError, UnreadableFile
from holdfast.monitor.monitor import Monitor
from holdfast.monitor.saving import digest
from holdfast.monitor.stored_settings import checked_tree
from holdfast.reading.data import load_data, load_substitutes
from holdfast.verification.vnnlib import read_vnnlib

FEW = 40  # files of each reader; `make fuzz` takes thousands
SLOW = ("exported program", "run folder, page")
LITTLE = 2**30  # bytes that reading a hostile file may add to the process


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    seeds.made(folder)
    return folder


@pytest.fixture(autouse=True)
def _little_memory() -> object:
    """The process may not grow beyond what it has and a little more, so that no test passes by the size of the machine."""
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (held + LITTLE, old[1]))
    yield None
    resource.setrlimit(resource.RLIMIT_AS, old)


def test_only_errors_of_the_house_escape(honest: Path) -> None:
    for reader in Readers(honest).all():
        if reader.name not in SLOW:
            for number in range(FEW):
                found = tried(reader, honest, seed=1, number=number)
                assert not found.escapes, (
                    f"python -m benchmarks.fuzz --seed 1 --only '{reader.name}': file {number} makes {found.escapes}"
                )


def test_the_fuzzer_sees_what_escapes(honest: Path) -> None:
    [reader] = [reader for reader in Readers(honest).all() if reader.name == "npy"]

    def careless(path: Path) -> object:
        raise KeyError(path)

    assert tried(type(reader)("npy", reader.seeds, careless), honest, 1, 0).escapes == {"KeyError": 1}


def test_honest_files_are_read(honest: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for reader in Readers(honest).all():
            if reader.name not in SLOW and reader.name != "csv":
                for seed in reader.seeds:
                    reader.read(honest / seed)


@pytest.mark.parametrize("name", list(hostile.onnx_files()))
def test_hostile_models(name: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.onnx"
    path.write_bytes(hostile.onnx_files()[name])
    with pytest.raises(HoldfastError, match=r"hostile\.onnx"):
        hf.Network.from_onnx(path)


@pytest.mark.parametrize("name", list(hostile.vnnlib_files()))
def test_hostile_properties(name: str, tmp_path: Path) -> None:
    path = tmp_path / "hostile.vnnlib"
    path.write_text(hostile.vnnlib_files()[name])
    with pytest.raises(HoldfastError, match=r"hostile\.vnnlib"):
        read_vnnlib(path)


@pytest.mark.parametrize("name", list(hostile.data_files()))
def test_hostile_data(name: str, tmp_path: Path, honest: Path) -> None:
    path = tmp_path / name
    path.write_bytes(hostile.data_files()[name])
    read = {".npz": load_data, ".json": load_substitutes}.get(path.suffix, box_option)
    net = (
        seeds.tokens_network(honest)
        if path.suffix == ".json"
        else hf.Network.from_onnx(honest / "dense.onnx")
    )
    with pytest.raises(HoldfastError, match=name):
        read(str(path), net)


@pytest.mark.parametrize("size", [60_000, 12_000, 3000])
def test_a_picture_that_says_it_is_giant(size: int, tmp_path: Path) -> None:
    (tmp_path / "giant.png").write_bytes(hostile.png(size, size))
    with pytest.raises(HoldfastError, match=r"giant\.png"):
        load_data(str(tmp_path), hf.Network.from_callable(lambda x: x.reshape(len(x), -1)[:, :2]), scale=255)


@pytest.mark.parametrize("ending", ["onnx", "npz", "npy", "csv", "parquet", "tsv", "json", "vnnlib"])
def test_two_gibibytes_of_nothing(ending: str, tmp_path: Path, honest: Path) -> None:
    path = hostile.sparse(tmp_path / f"large.{ending}")
    tokens = seeds.tokens_network(honest)
    reads = {"onnx": hf.Network.from_onnx, "vnnlib": read_vnnlib}
    with_network = {
        "npz": load_data,
        "tsv": load_data,
        "json": load_substitutes,
        "npy": box_option,
        "csv": load_data,
        "parquet": load_data,
    }
    with pytest.raises(HoldfastError, match=r"large\."):
        reads[ending](path) if ending in reads else with_network[ending](str(path), tokens)


def test_a_damaged_monitor_is_never_another_one(honest: Path, tmp_path: Path) -> None:
    net, folder, chance = seeds.tokens_network(honest), tmp_path / "monitor", Random(0)
    Monitor.load(honest / "monitor_exact", net).save(folder)
    text = folder / "monitor.json"
    written = json.loads(text.read_text())
    assert Monitor.load(folder, net).settings == Monitor.load(honest / "monitor_exact", net).settings
    for name, value in (("samples", 7), ("unknown", "error"), ("max_length", 5)):
        text.write_text(json.dumps({**written, "settings": {**written["settings"], name: value}}))
        with pytest.raises(UnreadableFile, match="changed after it was written"):
            Monitor.load(folder, net)
    text.write_text(
        json.dumps({key: written[key] for key in chance.sample(list(written), len(written))})
    )  # laid out otherwise: the same
    assert Monitor.load(folder, net).settings.samples == written["settings"]["samples"]
    del written["digest"]
    text.write_text(json.dumps(written))
    with pytest.raises(UnreadableFile, match="digest"):
        Monitor.load(folder, net)
    text.write_text(json.dumps({**written, "version": 1}))
    with pytest.warns(UserWarning, match="digest"):
        assert Monitor.load(folder, net).mutation.kind == "groups"


@pytest.mark.parametrize(
    "change",
    [
        {"mode": "abstract"},
        {"samples": "many"},
        {"seed": 2**70},
        {"mode": "nonsense"},
        {"confidence": 7},
        {"unk": True},
    ],
)
def test_a_monitor_whose_parts_do_not_fit_is_refused(
    change: dict[str, object], honest: Path, tmp_path: Path
) -> None:
    """Even with a digest: it may have been made by hand."""
    net = seeds.tokens_network(honest)
    Monitor.load(honest / "monitor_exact", net).save(tmp_path)
    written = json.loads((tmp_path / "monitor.json").read_text())
    written["settings"].update(change)
    (tmp_path / "monitor.json").write_text(json.dumps({**written, "digest": digest(written)}))
    with pytest.raises(HoldfastError):
        Monitor.load(tmp_path, net)


def test_a_tree_that_runs_in_a_circle_is_refused(honest: Path) -> None:
    tree = Monitor.load(honest / "monitor_abstract", seeds.tokens_network(honest)).tree
    assert checked_tree(tree) is tree
    tree.parent[-1] = len(tree.parent) - 1
    with pytest.raises(ValueError, match="cycle"):
        checked_tree(tree)


def test_a_damaged_row_names_the_run(honest: Path) -> None:
    with sqlite3.connect(honest / "run" / "run.sqlite") as connection:
        connection.execute("UPDATE input SET x = ?", (hostile.npy("(1000000000000,)"),))
    with hf.Store.open(honest / "run") as store, pytest.raises(StoreError, match=r"run\.sqlite.*input 0"):
        store.inputs()
