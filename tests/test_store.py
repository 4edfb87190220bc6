"""The run on disk: everything comes back, a kill at any moment loses nothing, and what is broken is said."""

import csv
import json
import math
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import holdfast as hf
import truth
from holdfast.attacks import PGD
from holdfast.errors import MissingExtra, StoreError
from holdfast.question import DataDescription, Means, ModelDescription, Question, Request
from holdfast.result import Answers, Bound, Bracket, Evidence, Key, Likely, Record, Traits, trivial_bound
from holdfast.store import FILE, Store

QUESTION = Question(
    asked=Request(norm="2", substitutes={"0": [1, 2]}),
    data=DataDescription(classes=("cat", "dog")),
    options={"batch": 3},
)
ROOT = Path(__file__).resolve().parents[1]


def evidence(kind: Any, **options: Any) -> Evidence:
    return Evidence(kind, options.pop("method", "Test"), **options)


def rich_record(index: int = 0, frame: int | None = None, part: str = "") -> Record:
    """Every field differs from its default."""
    settings = {"steps": 3, "rate": 0.1, "name": "a'b\"é", "flag": True, "none": None}
    proof = evidence("proved", settings=settings, seed=7, dtype="torch.float64", assumptions=("one", "two"), checks=("seen",),
                     traits=Traits(True, False, True, True, True))  # fmt: skip
    witness = evidence("witnessed", seed=8, dtype="torch.float32", witness=torch.randn(2, 3))
    guess = evidence("sampled", method="Guess", confidence=0.95)
    bracket = Bracket(
        Bound(0.1 + 0.2, proof),
        Bound(1 / 3 + 1, witness, 1e-9, 1.25),
        (Bound(0.5, guess), Bound(math.inf, evidence("estimated"))),
        "a note",
    )
    return Record(
        Key(index, frame, part),
        bracket,
        "stopped",
        1.25,
        17,
        ("Other: does not apply",),
        "asked",
        "means",
        "probability",
    )


def open_record(
    index: int, lower: float = 0.0, upper: float = math.inf, status: Any = "interrupted"
) -> Record:
    return Record(Key(index), Bracket(trivial_bound(lower), trivial_bound(upper)), status, 0.5, 3)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "run", QUESTION)


def reopened(store: Store) -> Store:
    store.close()
    return Store.open(store.folder)


# ---------------------------------------------------------------- round trip


def test_every_field_of_a_record_comes_back(store: Store) -> None:
    records = [rich_record(0), rich_record(1, 0), rich_record(1, 2), open_record(2, -math.inf, math.inf)]
    records += [rich_record(3, 0, "largest"), rich_record(3, 0, "smallest"), rich_record(3, 1, "largest")]
    store.write(records)
    found = reopened(store).records()
    assert found == records
    for one, two in zip(found, records, strict=True):
        for end in ("lower", "upper"):
            mine, theirs = (
                getattr(one.bracket, end).evidence.witness,
                getattr(two.bracket, end).evidence.witness,
            )
            assert (mine is None) == (theirs is None)
            if theirs is not None:
                assert torch.equal(mine, theirs)
                assert mine.dtype == theirs.dtype


@pytest.mark.parametrize(
    "witness", [torch.tensor(1.5), torch.zeros(0), torch.arange(3), torch.ones(2, dtype=torch.float64)]
)
def test_witnesses_keep_their_shape_and_type(store: Store, witness: torch.Tensor) -> None:
    upper = Bound(1.0, evidence("witnessed", witness=witness))
    store.write([Record(Key(0), Bracket(trivial_bound(0.0), upper), "finished", 0.0, 0)])
    [record] = reopened(store).records()
    found = record.bracket.upper.evidence.witness
    assert found is not None
    assert found.dtype == witness.dtype
    assert torch.equal(found, witness)


def test_bfloat16_witnesses_keep_their_numbers(store: Store) -> None:
    witness = torch.tensor([1 / 3, 2.0], dtype=torch.bfloat16)
    upper = Bound(1.0, evidence("witnessed", witness=witness))
    store.write([Record(Key(0), Bracket(trivial_bound(0.0), upper), "finished", 0.0, 0)])
    found = reopened(store).records()[0].bracket.upper.evidence.witness
    assert found is not None
    assert torch.equal(found, witness.float())


def test_question_provenance_and_inputs_come_back(store: Store) -> None:
    x = [torch.rand(2, 3), torch.rand(1, 3)]
    store.put_inputs(x, [1, None], [0, None], ["first", ""], [None, [3, 0, 5]])
    store = reopened(store)
    assert store.question == QUESTION
    assert store.provenance["holdfast"] == hf.__version__
    assert store.provenance["torch"] == torch.__version__
    one, two = store.inputs()
    assert np.array_equal(one.x, x[0].numpy())
    assert (one.index, one.label, one.prediction, one.name, one.tokens) == (0, 1, 0, "first", None)
    assert (two.index, two.label, two.prediction, two.name, two.tokens) == (1, None, None, "", (3, 0, 5))


def test_answers_and_maps_come_back(store: Store) -> None:
    assert store.answers() == {}  # a run without them is whole
    store.put_inputs([torch.rand(2, 3)] * 2, [0, 1], [0, 1], ["", ""], [None, None])
    assert [stored.saliency for stored in store.inputs()] == [None, None]
    store.write([rich_record(0), rich_record(1, 2), open_record(2)])
    said = Answers(
        (Likely(3, 1.5, 0.9), Likely(0, -math.inf, 0.0)), (Likely(0, 0.1 + 0.2, 1 / 3), Likely(3, 0.0, 0.25))
    )
    answers = {Key(0): said, Key(1, 2): said, Key(2): Answers(said.before)}
    store.put_answers(answers)
    found = torch.tensor([[0.1, math.nan, 2.0]], dtype=torch.float64)
    store.put_artefacts("saliency", {Key(1): found})
    store = reopened(store)
    assert store.answers() == answers
    one, two = store.inputs()
    assert one.saliency is None
    assert two.saliency is not None
    assert two.saliency.dtype == np.float32
    np.testing.assert_array_equal(two.saliency, found.float().numpy())


def test_what_lies_beside_a_record_comes_back_by_its_name_and_key(store: Store) -> None:
    maps = {"saliency": torch.rand(2, 3), "path": torch.arange(4)}
    store.write([replace(rich_record(0, part="worst"), aside=maps), rich_record(0, part="radius")])
    store.put_artefacts("path", {Key(1): torch.zeros(0)})
    store = reopened(store)
    assert torch.equal(store.artefacts("saliency")[Key(0, part="worst")], maps["saliency"])
    assert {key: found.tolist() for key, found in store.artefacts("path").items()} == {
        Key(0, part="worst"): [0, 1, 2, 3],
        Key(1): [],
    }
    assert store.artefacts("other") == {}
    assert store.inputs() == []  # a map of an input that was not kept


def test_the_parts_of_a_question_are_kept_apart(store: Store) -> None:
    for part, lower in (("worst", 0.5), ("radius", 0.25), ("worst", 0.75)):
        store.write(
            [Record(Key(0, part=part), Bracket(trivial_bound(lower), trivial_bound(1.0)), "finished", 0.1, 1)]
        )
    store = reopened(store)
    assert {r.key.part: r.bracket.lower.value for r in store.records()} == {"radius": 0.25, "worst": 0.75}
    assert [(e.key.part, e.lower) for e in store.history()] == [
        ("worst", 0.5),
        ("radius", 0.25),
        ("worst", 0.75),
    ]
    assert set(store.finished_records()) == {Key(0, part="radius"), Key(0, part="worst")}


def test_a_question_comes_back_whole_and_knows_itself_again(tmp_path: Path) -> None:
    asked = Question(
        "reach", ModelDescription("m", "onnx", "f00d", ("a note",), "[0, 1]", {"mean": "0.5"}, ("a", "b")),
        DataDescription("d", "beef", 3, ("x", "y")),
        Request(norm="inf", specification=[["p", "h"]], tolerance=0.5), Means(tier="tight", seconds=2.0, gap=0.1), {"box": "0:1"}, "/here",
    )  # fmt: skip
    with Store.create(tmp_path / "run", asked) as store:
        again = store.question
    assert (again.fingerprint, again.model, again.data, again.means) == (
        asked.fingerprint,
        asked.model,
        asked.data,
        asked.means,
    )
    assert again.differs(asked) is None
    assert again.same_truth(asked)
    assert (
        replace(asked, means=Means(seed=5)).fingerprint == asked.fingerprint
    )  # how it is searched is no other question
    other = replace(asked, asked=replace(asked.asked, tolerance=0.25))
    assert other.fingerprint != asked.fingerprint
    assert asked.differs(other) == ("tolerance", 0.5, 0.25)
    assert not asked.same_truth(replace(asked, model=replace(asked.model, fingerprint=None)))
    with pytest.raises(StoreError, match="written by another version"):
        Question.from_json({"norm": 2})


def test_answers_of_an_earlier_witness_are_not_handed_out(store: Store) -> None:
    store.write([open_record(0, 0.0, 4.0), open_record(1, 0.0, 4.0), open_record(2)])
    said = Answers((Likely(1, 2.0, 0.8),), (Likely(0, 2.0, 0.8),))
    store.put_answers({Key(k): said for k in range(3)})
    store.write([open_record(0, 0.0, 3.0), open_record(1, 1.0, 4.0), open_record(2, 0.0, 5.0)])
    store = reopened(store)
    assert set(store.answers()) == {Key(1)}
    store.put_answers({Key(0): said})
    assert set(store.answers()) == {Key(0), Key(1)}


def test_a_better_record_replaces_and_the_history_remembers(store: Store) -> None:
    steps = [(0.0, math.inf), (0.0, 4.0), (1.0, 4.0), (1.0, 4.0), (2.0, 2.0)]
    for lower, upper in steps:
        store.write([open_record(0, lower, upper)])
    store.write([open_record(1, -math.inf, math.inf)])
    store.write([open_record(2, math.inf, math.inf, status="closed")])  # nothing breaks it
    store = reopened(store)
    assert [(r.key, r.bracket.lower.value, r.bracket.upper.value) for r in store.records()] == [
        (Key(0), 2.0, 2.0),
        (Key(1), -math.inf, math.inf),
        (Key(2), math.inf, math.inf),
    ]
    moments = [(e.lower, e.upper) for e in store.history() if e.key == Key(0)]
    assert moments == [(0.0, math.inf), (0.0, 4.0), (1.0, 4.0), (2.0, 2.0)]  # the same again is no news
    assert [(e.lower, e.upper) for e in store.history() if e.key == Key(1)] == [(-math.inf, math.inf)]
    assert [(e.lower, e.upper) for e in store.history() if e.key == Key(2)] == [(math.inf, math.inf)]


def test_interrupted_and_stopped_records_are_asked_again(store: Store) -> None:
    for index, status in enumerate(("closed", "finished", "stopped", "interrupted")):
        store.write([open_record(index, status=status)])
    assert sorted(store.finished_records()) == [Key(0), Key(1)]
    assert sorted(store.unfinished_records()) == [Key(2), Key(3)]
    store.write([open_record(3, status="finished")])  # the same ends, but now it is done
    assert sorted(reopened(store).finished_records()) == [Key(0), Key(1), Key(3)]


def test_a_run_through_the_library_comes_back(tmp_path: Path) -> None:
    known = truth.linear(0, shape=(3, 2))
    with Store.create(tmp_path / "run") as store:
        each = hf.radius(
            known.network(), known.x, known.y, norm=2, frames="each", methods=[PGD(rounds=1)], store=store
        )
    found = Store.open(tmp_path / "run").records()
    assert [r.key for r in found] == [Key(i, k) for i in range(4) for k in range(3)]
    assert [r.bracket for r in found] == [b for row in each for b in row]


# ---------------------------------------------------------------- kill -9

WORKER = """
import contextlib, os, signal, sys, time
import torch
torch.set_num_threads(1)
sys.path.insert(0, {tests!r})
import truth
import holdfast as hf
from holdfast.attacks import PGD
from holdfast.region import Ball
from holdfast.solver import solve
from holdfast.errors import StoreError
from holdfast.store import Store

known = truth.linear(5, shape=(12,), batch=18)
problem = truth.radius_problem(known.network(), Ball(known.x, torch.zeros(18, dtype=torch.float64), 2), known.y)
problem.digests()  # loads torch's tracer, so that kills meet the search and not an import

def run(folder):
    try:
        store = Store.open(folder)
    except StoreError:
        store = Store.create(folder)
    solve([problem], [PGD(rounds=4, steps=10)], batch=3, store=store)

def forked(folder, kill_after=None):
    child = os.fork()
    if child == 0:
        run(folder)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)

began = time.monotonic()
assert not forked(sys.argv[1] + "/whole")
whole = time.monotonic() - began
generator = torch.Generator().manual_seed(int(sys.argv[2]))
kills = 0
for share in torch.rand(6, generator=generator).tolist():
    kills += forked(sys.argv[1] + "/killed", kill_after=0.05 * whole + share * 0.45 * whole)
    # A kill may come before the first byte.
    with contextlib.suppress(StoreError), Store.open(sys.argv[1] + "/killed") as store:
        print("rows", len(store.finished_records()), len(store.unfinished_records()), flush=True)
assert not forked(sys.argv[1] + "/killed")
print("kills", kills)
"""


def test_a_run_survives_kill_9_at_any_moment(tmp_path: Path) -> None:
    script = WORKER.format(tests=str(ROOT / "tests"))
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), "11"], env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= 2, f"the kills came too late to mean anything: {done.stdout}"
    counts = [int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("rows")]
    assert counts == sorted(counts), "finished rows were lost"
    with sqlite3.connect(tmp_path / "killed" / FILE) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    whole, killed = Store.open(tmp_path / "whole").records(), Store.open(tmp_path / "killed").records()
    assert [r.key for r in killed] == [Key(i) for i in range(18)]
    assert [r.status for r in killed] == [r.status for r in whole] == ["finished"] * 18
    assert [r.bracket for r in killed] == [r.bracket for r in whole]
    answers = truth.linear(5, shape=(12,), batch=18).radius(2).tolist()
    assert all(a * (1 - 1e-9) <= r.bracket.upper.value for r, a in zip(killed, answers, strict=True))


# ---------------------------------------------------------------- refusals


def test_a_taken_folder_is_not_overwritten(store: Store) -> None:
    store.write([rich_record()])
    with pytest.raises(StoreError, match=r"already holds a run. Continue it with 'holdfast resume"):
        Store.create(store.folder)
    assert len(store.records()) == 1


def test_a_run_killed_before_its_first_transaction_is_begun_again(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    assert (tmp_path / FILE).exists()
    assert Store.create(tmp_path, QUESTION).question == QUESTION
    with pytest.raises(StoreError, match="already holds a run"):
        Store.create(tmp_path)


def test_no_run_here(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"no run here \(run.sqlite is missing\)"):
        Store.open(tmp_path)
    with pytest.raises(StoreError, match="no run here"):
        Store.open(tmp_path / "nowhere")


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot begin a run there"):
        Store.create(tmp_path / "file" / "run")
    with pytest.raises(StoreError, match="no run here"):
        Store.open(tmp_path / "file" / "run")


def test_a_question_json_cannot_hold_leaves_no_half_run(tmp_path: Path) -> None:
    with pytest.raises((TypeError, StoreError)):
        Store.create(tmp_path / "run", Question(asked=Request(norm=object())))  # type: ignore[arg-type]
    Store.create(tmp_path / "run")


def overwritten(data: bytes) -> bytes:
    return b"not a database at all, however long it may be" * (len(data) // 40)


def damaged_inside(data: bytes) -> bytes:
    return data[:4096] + b"\xff" * (len(data) - 4096)


@pytest.mark.parametrize(
    "damage", [overwritten, damaged_inside, lambda d: d[:5000], lambda d: d[:100], lambda d: b""]
)
def test_a_damaged_file_is_called_damaged(store: Store, damage: Callable[[bytes], bytes]) -> None:
    store.write([rich_record(i) for i in range(20)])
    store.close()
    file = store.folder / FILE
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(StoreError, match="not a run of holdfast, or damaged"):
        Store.open(store.folder)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE record SET body = '{'",
        "UPDATE record SET body = '{}'",
        'UPDATE record SET body = replace(body, \'"kind": "proved"\', \'"kind": "estimated"\')',
        "UPDATE record SET body = replace(body, '0.30000000000000004', '99')",
        "UPDATE record SET upper_witness = x'00'",
        "UPDATE record SET upper_witness = x''",
        "DROP TABLE record",
        "DELETE FROM meta",
    ],
)
def test_a_record_that_makes_no_sense_is_called_damaged(store: Store, change: str) -> None:
    store.write([rich_record()])
    store.close()
    with sqlite3.connect(store.folder / FILE) as connection:
        connection.execute(change)
    with (
        pytest.raises(StoreError, match="not a run of holdfast, or damaged"),
        Store.open(store.folder) as found,
    ):
        found.records()


def test_another_sqlite_file_is_no_run(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE) as connection:
        connection.execute("CREATE TABLE shopping (list TEXT)")
    with pytest.raises(StoreError, match="not a run of holdfast"):
        Store.open(tmp_path)


def test_another_version_is_named(store: Store) -> None:
    store.close()
    with sqlite3.connect(store.folder / FILE) as connection:
        connection.execute("UPDATE meta SET value = '99' WHERE name = 'version'")
    with pytest.raises(StoreError, match=r"another version of holdfast .format 99, this one reads 2 and 3"):
        Store.open(store.folder)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder that holds 300 kB and no more."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = shutil.which("mount") or pytest.skip("there is no mount command for a small disk")
    command = [mount, "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {tried.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=False)


def test_a_full_disk_says_so_and_keeps_what_was_written(small_disk: Path) -> None:
    store = Store.create(small_disk / "run")
    written: list[int] = []

    def fill() -> None:
        for index in range(10_000):
            store.write([rich_record(index)])
            written.append(index)

    with pytest.raises(StoreError, match=r"cannot write the run.*Is the disk full"):
        fill()
    assert len(written) > 3
    assert [r.key.index for r in store.records()] == written
    with pytest.raises(StoreError, match="cannot be written"):
        store.export(small_disk / "records.json")
    assert not list(small_disk.glob("records*"))


def test_writing_is_refused_in_words_when_sqlite_cannot(store: Store) -> None:
    """A full disk in miniature: the database may not grow by another page."""
    store.write([rich_record(0)])
    pages = store._connection.execute("PRAGMA page_count").fetchone()[0]
    store._connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match=r"database or disk is full.*What was written before is safe"):
        store.write([rich_record(i) for i in range(1, 400)])
    assert [r.key for r in store.records()] == [Key(0)]
    assert [r.key for r in reopened(store).records()] == [Key(0)]


# ---------------------------------------------------------------- out


@pytest.fixture
def full(store: Store) -> Store:
    store.write([rich_record(0), rich_record(1, 2), open_record(2)])
    return store


def no_constants(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def test_json_is_json(tmp_path: Path) -> None:
    store = Store.create(
        tmp_path / "run", Question(asked=Request(radius=math.inf), options={"domain": [0.0, 1.0]})
    )
    store.write([rich_record(0), open_record(2)])
    store.put_answers({Key(0): Answers((Likely(1, math.nan, math.nan), Likely(0, -math.inf, 0.0)))})
    text = store.export(tmp_path / "out" / "records.json").read_text()
    document = json.loads(text, parse_constant=no_constants)
    assert document["question"]["options"]["domain"] == [0.0, 1.0]
    assert document["question"]["asked"]["radius"] == "inf"
    first, second = document["records"]
    assert (first["input"], first["lower"]["value"], first["status"]) == (0, 0.1 + 0.2, "stopped")
    assert first["lower"]["settings"]["name"] == "a'b\"é"
    assert first["answers"]["before"][1] == {"label": 0, "output": "-inf", "share": 0.0}
    assert "answers" not in second
    assert float(second["upper"]["value"]) == math.inf


def test_csv_has_one_line_for_each_record(full: Store, tmp_path: Path) -> None:
    with full.export(tmp_path / "records.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(r["input"], r["frame"], r["lower"], r["upper"]) for r in rows] == [
        ("0", "", repr(0.1 + 0.2), repr(1 / 3 + 1)),
        ("1", "2", repr(0.1 + 0.2), repr(1 / 3 + 1)),
        ("2", "", "", ""),  # no method found either end
    ]
    assert rows[0]["upper_kind"] == "witnessed"


def test_parquet_reads_back(full: Store, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(full.export(tmp_path / "records.parquet"))
    assert table.column("upper").to_pylist() == [1 / 3 + 1, 1 / 3 + 1, None]
    assert table.column("frame").to_pylist() == [None, 2, None]


def test_parquet_without_pyarrow_names_the_extra(
    full: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"holdfast\[parquet\]"):
        full.export(tmp_path / "records.parquet")
    assert not list(tmp_path.glob("records*"))


def test_npz_holds_the_witnesses_without_pickle(full: Store, tmp_path: Path) -> None:
    with np.load(full.export(tmp_path / "witnesses.npz"), allow_pickle=False) as found:
        assert sorted(found) == ["0", "1_2"]
        witness = full.records()[0].bracket.upper.evidence.witness
        assert witness is not None
        assert np.array_equal(found["0"], witness.numpy())


def test_nothing_on_disk_is_a_pickle(full: Store, tmp_path: Path) -> None:
    full.put_inputs([torch.rand(3)], [0], [0], [""], [None])
    full.close()
    with sqlite3.connect(full.folder / FILE) as connection:
        blobs = [
            b
            for (b,) in connection.execute("SELECT upper_witness FROM record UNION ALL SELECT x FROM input")
            if b
        ]
    assert len(blobs) == 3
    assert all(blob.startswith(b"\x93NUMPY") for blob in blobs)


@pytest.mark.parametrize("ending", ["json", "csv", "npz"])
def test_an_empty_run_can_be_exported(store: Store, tmp_path: Path, ending: str) -> None:
    assert store.export(tmp_path / f"out.{ending}").stat().st_size > 0


def test_exports_that_cannot_be_written_are_refused(full: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"unknown ending; use one of .json, .csv"):
        full.export(tmp_path / "records.xls")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot be written"):
        full.export(tmp_path / "file" / "records.csv")
