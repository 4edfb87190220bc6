"""The readers under test: their files, the damage to these, and a function that reads a file completely."""

import io
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import torch
from rich.console import Console

import holdfast as hf
import holdfast_check
from benchmarks.fuzz import seeds
from benchmarks.fuzz.damage import damaged, damaged_json
from benchmarks.fuzz.formats import (
    damaged_npy,
    damaged_npz,
    damaged_onnx,
    damaged_proof,
    damaged_safetensors,
    damaged_sqlite,
)
from holdfast.certificates.checking import header_of
from holdfast.cli.bundle import findings
from holdfast.commands.check import CheckSettings
from holdfast.commands.options import ModelOptions
from holdfast.commands.reading.box import box_option
from holdfast.commands.reading.model import load_network
from holdfast.errors import UnreadableFile
from holdfast.monitor.monitor import Monitor
from holdfast.reading.data import load_data, load_mask, load_substitutes
from holdfast.report import write_report
from holdfast.verification.instances import read_instances, read_key
from holdfast.verification.specification import Allowed, Forbidden
from holdfast.verification.vnnlib import read_vnnlib

STRUCTURED: dict[str, Callable[[bytes, Random], bytes]] = {
    ".onnx": damaged_onnx,
    ".npz": damaged_npz,
    ".npy": damaged_npy,
    ".json": damaged_json,
    ".safetensors": damaged_safetensors,
    ".proof": damaged_proof,
    ".sqlite": damaged_sqlite,
}
TEXTS = (".vnnlib", ".csv", ".tsv", ".txt", ".json")


@dataclass(frozen=True)
class Reader:
    """One reader.

    `seeds`: names in the folder of valid files, of files or of folders whose files belong together.
    """

    name: str
    seeds: tuple[str, ...]
    read: Callable[[Path], object]
    cost: int = 1  # Divides the number of files, for a slow reader.

    def damaged(self, honest: Path, to: Path, chance: Random) -> Path:
        """Write a damaged copy of one of the seeds to the folder `to`; return the path to read."""
        chosen = honest / chance.choice(self.seeds)
        target = to / chosen.name
        if chosen.is_file():
            target.write_bytes(self._bytes(chosen, honest, chance))
            return target
        shutil.copytree(chosen, target)
        file = chance.choice(sorted(chosen.iterdir()))
        (target / file.name).write_bytes(self._bytes(file, honest, chance))
        return target

    def _bytes(self, file: Path, honest: Path, chance: Random) -> bytes:
        data = file.read_bytes()
        if file.suffix in STRUCTURED and chance.random() < 0.6:
            return STRUCTURED[file.suffix](data, chance)
        others = [(honest / name).read_bytes() for name in self.seeds if (honest / name).is_file()]
        return damaged(data, chance, others, text=file.suffix in TEXTS)


class Readers:
    """All readers, with the networks that some of them need."""

    def __init__(self, honest: Path) -> None:
        self.honest = honest

    @cached_property
    def dense(self) -> hf.Network:
        return hf.Network.from_onnx(self.honest / "dense.onnx")

    @cached_property
    def images(self) -> hf.Network:
        return hf.Network.from_onnx(self.honest / "images.onnx")

    @cached_property
    def tokens(self) -> hf.Network:
        return seeds.tokens_network(self.honest)

    @cached_property
    def frames(self) -> hf.Network:
        return hf.Network.from_onnx(self.honest / "frames.onnx")

    def all(self) -> list[Reader]:
        models = ("dense.onnx", "images.onnx", "frames.onnx", "tokens.onnx", "functions.onnx")
        monitors = ("monitor_exact", "monitor_abstract", "monitor_typos", "monitor_noise", "monitor_old")
        return [
            Reader("ONNX", models, lambda path: _asked(hf.Network.from_onnx(path))),
            Reader(
                "ONNX, black box", models, lambda path: _asked(hf.Network.from_onnx(path, black_box=True))
            ),
            Reader(
                "exported program",
                ("dense.pt2",),
                lambda path: _asked(hf.Network.from_export(path, trust=True)),
                cost=20,
            ),
            Reader("VNN-LIB 1", ("one.vnnlib", "many.vnnlib"), _specified),
            Reader("VNN-LIB 2", ("two.vnnlib", "several.vnnlib"), _specified),
            Reader("npz", ("plain.npz", "rich.npz"), lambda path: load_data(str(path), self.dense)),
            Reader("npy", ("box.npy", "mask.npy"), self._npy),
            Reader("csv", ("box.csv", "instances.csv", "key.csv"), self._csv),
            Reader("tsv", ("text.tsv",), lambda path: load_data(str(path), self.tokens)),
            Reader("table", ("table.csv",), lambda path: load_data(str(path), self.dense)),
            Reader("parquet", ("table.parquet",), lambda path: load_data(str(path), self.dense)),
            Reader("texts", ("texts.csv",), lambda path: load_data(str(path), self.tokens)),
            Reader("pictures", ("pictures",), lambda path: load_data(str(path), self.images, scale=255)),
            Reader(
                "substitutes",
                ("substitutes.json", "places.json"),
                lambda path: load_substitutes(str(path), self.tokens),
            ),
            Reader("vocabulary", ("words.txt",), self._vocabulary),
            Reader("monitor", monitors, self._monitor),
            Reader("run folder", ("run",), _run),
            Reader("run folder, page", ("run",), _page, cost=20),
            Reader("proof", ("0.proof", "1.proof", "2.proof"), self._proof),
            Reader("description", ("described.safetensors",), _description),
            Reader("bundle", ("evidence.zip",), _bundle),
        ]

    def _npy(self, path: Path) -> object:
        return (
            load_mask(str(path), [torch.zeros(4)])
            if path.name == "mask.npy"
            else box_option(str(path), self.dense)
        )

    def _csv(self, path: Path) -> object:
        if path.name == "box.csv":
            return box_option(str(path), self.dense)
        for name in ("dense.onnx", "functions.onnx", "one.vnnlib"):
            shutil.copy(self.honest / name, path.parent)
        return read_key(path) if path.name == "key.csv" else read_instances(path)

    def _proof(self, path: Path) -> object:
        """Check a certificate as a bundle's is checked.

        A rejection with a reason is fine; any other failure is an escape.
        """
        told = header_of(path)
        verdict = holdfast_check.check(self.honest / "dense.onnx", path)
        if "could not be followed" in verdict.reason:
            raise Unfollowed(verdict.reason)
        if not verdict.accepted:
            raise UnreadableFile(verdict.reason)
        return told

    def _vocabulary(self, path: Path) -> object:
        return load_network(ModelOptions(model=str(self.honest / "tokens.onnx"), vocabulary=str(path)))

    def _monitor(self, path: Path) -> object:
        reads_frames = path.name == "monitor_noise"
        net = self.frames if reads_frames else self.tokens
        monitor = Monitor.load(path, net)
        if path.name != "monitor_old":  # monitor_old has no digest.
            same(monitor, Monitor.load(self.honest / path.name, net))
        return monitor.score(torch.zeros(3, 2) if reads_frames else "the film was good")


def same(one: Monitor, other: Monitor) -> None:
    """Require that a damaged monitor is not read as a different one."""
    told = [
        [
            m.settings,
            m.outputs,
            m.mutation.settings(),
            {k: v.tolist() for k, v in m.mutation.tensors().items()},
        ]
        for m in (one, other)
    ]
    trees = [
        None if m.tree is None else {k: v.tolist() for k, v in m.tree.tensors().items()} for m in (one, other)
    ]
    if told[0] != told[1] or trees[0] != trees[1]:
        raise AnotherMonitor


class AnotherMonitor(Exception):
    pass


class Unfollowed(Exception):
    """The checker rejected a proof only through its catch-all for unforeseen errors."""


def _description(path: Path) -> object:
    try:
        return holdfast_check.Model.read_file(path).program.value(np.zeros((1, 4)))
    except holdfast_check.Rejected as error:
        raise UnreadableFile(str(error)) from error


def _bundle(path: Path) -> object:
    """Everything that `holdfast verify-bundle` reads without the model."""
    with TemporaryDirectory() as place:
        found = list(findings(path, Path(place), (), CheckSettings({})))
    wrong = [one.told for one in found if one.state == "differs"]
    if wrong:
        raise UnreadableFile(wrong[0])
    return found


def _asked(net: hf.Network) -> object:
    """Evaluate the network once, as every command does first."""
    shape = [3 if size is None else size for size in net.shape or (4,)]
    return net(torch.zeros(1, *shape))


def _specified(path: Path) -> object:
    spec = read_vnnlib(path)
    return (Allowed.by(spec, (spec.inputs,)), Forbidden.by(spec)) if spec.cases else None


def _run(path: Path) -> object:
    with hf.Store.open(path) as store:
        found = (
            store.question,
            store.provenance,
            store.inputs(),
            store.records_with_artefacts(),
            store.answers(),
            store.history(),
            store.rows(),
        )
        return found, [store.export(path / f"out.{ending}") for ending in ("json", "csv", "npz")]


def _page(path: Path) -> object:
    from holdfast.cli.views.show import show_input

    show_input(path, 0, Console(file=io.StringIO()))
    with hf.Store.open(path) as store:
        return write_report(store, path / "page.html")
