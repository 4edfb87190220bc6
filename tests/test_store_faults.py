"""Real faults: two writers, copies taken while writing, damaged files, full disks, read-only folders, records changed by hand."""

import contextlib
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import truth
from holdfast.attacks import PGD
from holdfast.errors import Contradiction, StoreError
from holdfast.problem import Problem
from holdfast.question import DataDescription, Means, ModelDescription, Question, Request
from holdfast.region import Ball
from holdfast.result import Bound, Bracket, Evidence, Key, Record
from holdfast.solver import solve
from holdfast.store import FILE, Store
from holdfast.store.database import LOG
from holdfast.store.merge import merge
from holdfast.store.salvage import salvage

COUNT = 60
ASKED = Question(
    model=ModelDescription(fingerprint="net"),
    data=DataDescription(fingerprint="points", count=COUNT),
    asked=Request(norm="2"),
)
FAST = [PGD(rounds=1, steps=3)]


@pytest.fixture(scope="module")
def problem() -> Problem:
    known = truth.linear(5, shape=(40,), batch=COUNT)
    return truth.radius_problem(
        known.network(), Ball(known.x, torch.zeros(COUNT, dtype=torch.float64), 2), known.y
    )


@pytest.fixture(scope="module")
def calm(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    folder = tmp_path_factory.mktemp("calm") / "run"
    with Store.create(folder, ASKED) as store:
        store.put_inputs(list(problem.region.centre), [0] * COUNT, [0] * COUNT, [""] * COUNT, [None] * COUNT)
        solve([problem], FAST, batch=7, store=store)
    return folder


@pytest.fixture
def run(calm: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(calm, tmp_path / "run"))


def told(folder: Path) -> list[object]:
    """The records without the clock, witnesses included."""
    with Store.read(folder) as store:
        return [
            (replace(r, seconds=0.0, queries=0), None if r.witness is None else r.witness.tolist())
            for r in store.stream()
        ]


def resumed(folder: Path, problem: Problem) -> list[object]:
    with Store.open(folder) as store:
        solve([problem], FAST, batch=7, store=store)
    return told(folder)


@contextlib.contextmanager
def another(work: Callable[[Callable[[object], None]], None]) -> Iterator[Callable[[], str]]:
    """Another process that does the work, says lines meanwhile, and is killed in the end -> what reads its next line. It has no torch to
    load, which is most of what a process costs here."""
    heard, said = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        process = os.fork()
    if process == 0:
        with contextlib.suppress(BaseException), os.fdopen(said, "w") as speaker:
            work(lambda line: print(line, file=speaker, flush=True))
        os._exit(0)
    os.close(said)
    with os.fdopen(heard) as lines:
        try:
            yield lambda: lines.readline().rstrip("\n")
        finally:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)


def record(index: int, lower: float = 0.0, upper: float = 1.0, **said: object) -> Record:
    proof, shown = (
        Evidence("proved", "Certify"),
        Evidence("witnessed", "PGD", witness=torch.full((300,), float(index))),
    )
    whole = Record(
        Key(index),
        Bracket(Bound(lower, proof), Bound(upper, shown)),
        "finished",
        0.5,
        3,
        question="asked",
        means="means",
    )
    return replace(whole, **said)  # type: ignore[arg-type]


def kill_while_written(folder: Path, one: Record) -> None:
    """Leaves a log behind, as a killed process does."""

    def write(say: Callable[[object], None]) -> None:
        store = Store.open(folder) if folder.exists() else Store.create(folder)
        store.write([one])
        say("written")
        time.sleep(60)

    with another(write) as listen:
        assert listen() == "written"


# ---------------------------------------------------------------- one writer


def test_a_second_writer_is_told_who_holds_the_run_and_a_kill_gives_it_back(run: Path) -> None:
    def hold(say: Callable[[object], None]) -> None:
        with Store.open(run):
            say(os.getpid())
            time.sleep(60)

    with another(hold) as listen:
        with pytest.raises(StoreError, match=rf"being written by process {listen()} on .+, since 20"):
            Store.open(run)
        with Store.read(run) as store:  # readers are not in the way, nor is the writer in theirs
            assert len(store.records()) == COUNT
    Store.open(run).close()


def test_a_child_that_outlives_its_killed_parent_does_not_keep_the_lease(run: Path) -> None:
    def parent(say: Callable[[object], None]) -> None:
        store = Store.open(run)
        if os.fork() == 0:
            say(os.getpid())
            time.sleep(60)
            os._exit(0)
        time.sleep(60)
        store.close()

    with another(parent) as listen:
        orphan = int(listen())
    try:
        Store.open(run).close()
    finally:
        os.kill(orphan, signal.SIGKILL)


def test_a_store_that_is_read_is_not_written(run: Path) -> None:
    with Store.read(run) as store, pytest.raises(StoreError, match="readonly"):
        store.write([record(1000)])


def test_a_reader_sees_one_moment(run: Path) -> None:
    with Store.open(run) as writer, Store.read(run) as store:
        before = store.counts()
        writer.write([record(1000)])
        assert store.counts() == before
        assert sum(writer.counts().values()) == sum(before.values()) + 1


# ---------------------------------------------------------------- only what is asked for


def test_known_gives_the_records_of_these_keys_alone(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run") as store:
        store.write([replace(record(i), aside={"path": torch.full((2,), float(i))}) for i in range(700)])
        found = store.load_known([Key(i) for i in range(0, 1400, 2)])
        assert list(found) == [Key(i) for i in range(0, 700, 2)]
        assert all(r.aside["path"].tolist() == [key.index] * 2 for key, r in found.items())
        assert store.counts() == {"finished": 700}
        assert [r.key.index for r in store.stream(690, 695)] == list(range(690, 696))
        assert store.load_known([]) == {}


def test_the_same_again_is_no_news_however_it_comes_back(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run") as store:
        store.write([record(0), record(1)])
    with Store.open(tmp_path / "run") as store:
        changes = store._connection.total_changes
        store.write([record(1, seconds=9.0), record(0)])
        assert store._connection.total_changes == changes
        store.write([record(0, 0.5)])
        assert [(e.key.index, e.lower) for e in store.history()] == [(0, 0.0), (1, 0.0), (0, 0.5)]


# ---------------------------------------------------------------- copies


def test_copies_taken_while_writing_hold_whole_records(tmp_path: Path) -> None:
    """By `merge` of one run always; by cp because the log is brought into the database only every 64 MB."""

    def write(say: Callable[[object], None]) -> None:
        with Store.create(tmp_path / "run") as store:
            for turn in range(10_000):
                store.write([record(turn * 20 + i, 0.0, 1.0 + turn) for i in range(20)])
                say(turn)
                time.sleep(0.01)

    counts = []
    with another(write) as listen:
        listen()
        for turn in range(6):
            if turn % 2:
                merge([tmp_path / "run"], tmp_path / f"copy{turn}")
            else:
                subprocess.run(["cp", "-r", str(tmp_path / "run"), str(tmp_path / f"copy{turn}")], check=True)
            for _ in range(5):
                listen()
    for turn in range(6):
        with Store.open(tmp_path / f"copy{turn}") as store:  # checks every page
            found = store.records()
        assert [r.key.index for r in found] == list(range(len(found)))
        assert len(found) % 20 == 0  # whole transactions
        assert [r.bracket for r in found] == [
            record(k, 0.0, 1.0 + k // 20).bracket for k in range(len(found))
        ]
        counts.append(len(found))
    assert counts == sorted(counts)
    assert len(set(counts)) > 3


# ---------------------------------------------------------------- damage


def truncated(share: float) -> Callable[[bytearray], bytearray]:
    return lambda data: data[: int(len(data) * share)]


def overwritten(filling: bytes, *pages: int) -> Callable[[bytearray], bytearray]:
    def damage(data: bytearray) -> bytearray:
        for page in pages:
            at = page * 4096 if page >= 0 else len(data) + page * 4096
            data[at : at + 4096] = filling
        return data

    return damage


NOISE = torch.randint(256, (4096,), generator=torch.Generator().manual_seed(0)).byte().numpy().tobytes()
DAMAGES = {
    "half of it": truncated(0.5),
    "nine tenths": truncated(0.9),
    "all but a few bytes": truncated(0.999),
    "a page of zeros": overwritten(b"\0" * 4096, -5),
    "noise in three pages": overwritten(NOISE, -3, -9, -15),
    "the first page of zeros": overwritten(b"\0" * 4096, 0),
    "the first page of noise, and others": overwritten(NOISE, 0, -4, -7),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run_is_found_salvaged_and_resumed(
    name: str, run: Path, calm: Path, problem: Problem, tmp_path: Path
) -> None:
    before = told(calm)
    data = DAMAGES[name](bytearray((run / FILE).read_bytes()))
    (run / FILE).write_bytes(data)
    with pytest.raises(StoreError, match="damaged"), Store.open(run) as store:
        store.records()
    found = salvage(run, tmp_path / "saved")
    assert (run / FILE).read_bytes() == data, "the damaged file is left as it is"
    assert f"{found.saved} of " in str(found)
    saved = told(tmp_path / "saved")
    assert len(saved) == found.saved < COUNT if name != "the first page of zeros" else found.saved == COUNT
    assert all(one in before for one in saved)
    assert found.saved > (COUNT / 4 if name != "half of it" else 0)
    with Store.open(tmp_path / "saved") as store:
        assert store.question == ASKED
        assert store.provenance["salvaged from"] == str(run)
        assert len(store.inputs()) in (0, COUNT)
    assert resumed(tmp_path / "saved", problem) == before


def test_a_run_without_its_log_is_one_of_an_earlier_moment(
    run: Path, calm: Path, problem: Problem, tmp_path: Path
) -> None:
    kill_while_written(tmp_path / "killed", record(0))
    assert (tmp_path / "killed" / LOG).stat().st_size > 0
    shutil.copytree(tmp_path / "killed", tmp_path / "other")
    with Store.read(tmp_path / "other") as store:
        assert len(store.records()) == 1
    (tmp_path / "killed" / LOG).unlink()
    with Store.open(tmp_path / "killed") as store:  # begun, and nothing lost but what the log held
        assert store.records() == []


def test_without_its_question_a_run_is_not_salvaged(run: Path, tmp_path: Path) -> None:
    data = bytearray((run / FILE).read_bytes())
    (run / FILE).write_bytes(overwritten(b"\0" * 4096, 1)(data))
    with pytest.raises(StoreError, match="the question of this run cannot be read"):
        salvage(run, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    with pytest.raises(StoreError, match="no run here"):
        salvage(tmp_path / "nowhere", tmp_path / "saved")


CHANGES = {
    "an end": (
        "UPDATE record SET body = replace(body, '\"finished\"', '\"closed\"') WHERE position = 7",
        "record of input 7 was changed",
    ),
    "a witness": (
        "UPDATE record SET upper_witness = zeroblob(9) WHERE position = 7",
        "record of input 7 was changed",
    ),
    "a column": ("UPDATE record SET upper = upper / 2 WHERE position = 7", "record of input 7 was changed"),
    "an input": ("UPDATE input SET label = 3 WHERE position = 7", "input 7 was changed"),
    "the question": (
        "UPDATE meta SET value = replace(value, '\"2\"', '\"1\"') WHERE name = 'question'",
        "the question was changed",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_was_changed_by_hand_is_said_and_left_out(
    name: str, run: Path, calm: Path, problem: Problem, tmp_path: Path
) -> None:
    change, message = CHANGES[name]
    with contextlib.closing(sqlite3.connect(run / FILE)) as connection, connection:
        assert connection.execute(change).rowcount == 1
    with pytest.raises(StoreError, match=message) as caught, Store.read(run) as store:
        assert list(store.stream_inputs()) + list(store.stream())
    assert str(caught.value).startswith(str(run))
    assert f"holdfast salvage {run}" in str(caught.value)
    if name == "the question":
        with pytest.raises(StoreError, match="the question of this run is damaged"):
            salvage(run, tmp_path / "saved")
        return
    found = salvage(run, tmp_path / "saved")
    assert (found.saved, found.changed) == ((COUNT, 0) if name == "an input" else (COUNT - 1, 1))
    assert found.inputs == (name != "an input")
    assert resumed(tmp_path / "saved", problem) == told(calm)


def test_a_record_whose_maps_are_lost_is_left_out(tmp_path: Path) -> None:
    with Store.create(tmp_path / "run") as store:
        store.write([replace(record(i), aside={"path": torch.arange(3)}) for i in range(3)])
    with contextlib.closing(sqlite3.connect(tmp_path / "run" / FILE)) as connection, connection:
        connection.execute("DELETE FROM artefact WHERE position = 1")
    assert salvage(tmp_path / "run", tmp_path / "saved").saved == 2
    with Store.read(tmp_path / "saved") as store:
        assert [r.key.index for r in store.records_with_artefacts() if r.aside] == [0, 2]


# ---------------------------------------------------------------- the disk


def test_a_file_that_may_not_grow_keeps_what_was_written(run: Path, calm: Path, problem: Problem) -> None:
    def fill(say: Callable[[object], None]) -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with Store.open(run) as store:
            resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
            for index in range(1000, 3000):
                try:
                    store.write([record(index)])
                except StoreError as error:
                    say(f"{index} {error}")
                    return

    with another(fill) as listen:
        last, message = listen().split(" ", 1)
    assert "cannot write the run" in message
    assert int(last) > 1010
    with Store.read(run) as store:
        assert [r.key.index for r in store.stream(1000)] == list(range(1000, int(last)))
    with Store.open(run) as store, store.transaction() as connection:
        connection.execute("DELETE FROM record WHERE position >= 1000")
    assert resumed(run, problem) == told(calm)


@pytest.fixture
def locked(run: Path) -> Iterator[Path]:
    """The run where nothing can be written: a mount that is read-only binds root too."""
    mount = shutil.which("mount")
    if os.geteuid():
        run.chmod(0o555)
        for file in run.iterdir():
            file.chmod(0o444)
        yield run
        run.chmod(0o755)
        return
    bound = (
        mount
        and not subprocess.run(
            [mount, "--bind", str(run), str(run)], capture_output=True, check=False
        ).returncode
    )
    if not bound:
        pytest.skip("root may write everywhere, and nothing can be mounted here")
    subprocess.run([mount or "", "-o", "remount,ro,bind", str(run)], check=True)
    yield run
    subprocess.run(["umount", "-l", str(run)], check=False)


def test_a_folder_that_cannot_be_written_is_read(locked: Path, calm: Path, tmp_path: Path) -> None:
    assert told(locked) == told(calm)
    with pytest.raises(StoreError, match=r"cannot be written .*copy it to a folder where you may write"):
        Store.open(locked)
    with Store.read(locked) as store:
        assert store.export(tmp_path / "records.csv").read_text().count("\n") == COUNT + 1


@pytest.mark.parametrize("memory", [True, False])
def test_a_left_over_log_is_read_where_nothing_can_be_written(
    memory: bool, run: Path, request: pytest.FixtureRequest
) -> None:
    kill_while_written(run, record(1000))
    assert (run / LOG).stat().st_size > 0
    if not memory:  # as where only the two files were copied
        (run / f"{FILE}-shm").unlink()
    locked = request.getfixturevalue("locked")
    if memory:
        with Store.read(locked) as store:
            assert sum(store.counts().values()) == COUNT + 1
    else:
        with pytest.raises(StoreError, match="Copy the folder to a place where you may write"):
            Store.read(locked)


def test_a_run_that_was_moved_goes_on(run: Path, calm: Path, problem: Problem, tmp_path: Path) -> None:
    with Store.open(run) as store, store.transaction() as connection:
        connection.execute("DELETE FROM record WHERE position % 3 = 0")
    kill_while_written(run, record(1000))
    with Store.open(run) as store, store.transaction() as connection:
        connection.execute("DELETE FROM record WHERE position = 1000")
    (tmp_path / "elsewhere").mkdir()
    run.rename(tmp_path / "elsewhere" / "renamed")
    assert resumed(tmp_path / "elsewhere" / "renamed", problem) == told(calm)


# ---------------------------------------------------------------- older runs


def test_a_run_of_format_2_is_read_and_gone_on_with(
    run: Path, calm: Path, problem: Problem, tmp_path: Path
) -> None:
    with contextlib.closing(sqlite3.connect(run / FILE)) as connection, connection:
        for table, column in (("record", "news"), ("record", "seal"), ("input", "seal")):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
        connection.execute("UPDATE meta SET value = '2' WHERE name = 'version'")
        connection.execute("DELETE FROM meta WHERE name = 'seal'")
    before = told(calm)
    assert told(run) == before
    with Store.read(run) as store:
        assert len(store.inputs()) == COUNT
    merge([run], tmp_path / "copy")
    assert told(tmp_path / "copy") == before
    assert salvage(run, tmp_path / "saved").saved == COUNT
    with Store.open(run) as store, store.transaction() as connection:
        connection.execute("DELETE FROM record WHERE position > 40")
    assert resumed(run, problem) == before


# ---------------------------------------------------------------- merging


def shard(folder: Path, problem: Problem, rows: range, number: int, **said: object) -> Path:
    asked = replace(ASKED, options={"batch": 7, "shard": f"{number}/3"}, **said)  # type: ignore[arg-type]
    with Store.create(folder, asked) as store:
        store.put_inputs(list(problem.region.centre), [0] * COUNT, [0] * COUNT, [""] * COUNT, [None] * COUNT)
        solve([problem.take(torch.tensor(rows))], FAST, batch=7, store=store)
    return folder


def test_shards_become_the_run_that_was_never_cut(calm: Path, problem: Problem, tmp_path: Path) -> None:
    parts = [shard(tmp_path / f"part{k}", problem, range(k, 50, 2), k) for k in range(2)]
    parts.append(shard(tmp_path / "part2", problem, range(0, 50, 7), 2))  # answered before by others
    merge(parts, tmp_path / "whole")
    assert len(told(tmp_path / "whole")) == 50
    with Store.read(tmp_path / "whole") as store:
        assert store.question.options == {"batch": 7}
        assert len(store.inputs()) == COUNT
        assert len(store.provenance["merged from"]) == 3
    assert resumed(tmp_path / "whole", problem) == told(calm)


def test_better_ends_of_two_runs_count_and_what_excludes_itself_is_raised(tmp_path: Path) -> None:
    ends = {"one": (0.25, 0.75), "two": (0.5, 1.0), "three": (0.8, 0.9)}
    for name, (lower, upper) in ends.items():
        with Store.create(tmp_path / name, ASKED) as store:
            store.write([record(0, lower, upper, status="stopped"), record(len(name))])
    merge([tmp_path / "one", tmp_path / "two"], tmp_path / "whole")
    with Store.read(tmp_path / "whole") as store:
        first, other = store.records()
    assert (first.bracket.lower.value, first.bracket.upper.value, first.status, first.seconds) == (
        0.5,
        0.75,
        "stopped",
        1.0,
    )
    assert other == record(3)
    with pytest.raises(Contradiction, match=r"input 0: .*at least 0.8 .*at most 0.75"):
        merge([tmp_path / "one", tmp_path / "three"], tmp_path / "never")
    assert not list(tmp_path.glob("never*"))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"asked": Request(norm="1")}, "norm is 2 there and 1 here"),
        ({"means": Means(tier="tight")}, "tier is None there and tight here"),
        (
            {"model": ModelDescription(fingerprint="other")},
            "the model's fingerprint is net there and other here",
        ),
        (
            {"data": DataDescription(fingerprint="others", count=COUNT)},
            "the data's fingerprint is points there and others here",
        ),
    ],
)
def test_runs_of_other_questions_are_not_merged(
    said: dict[str, object], message: str, tmp_path: Path
) -> None:
    Store.create(tmp_path / "one", ASKED).close()
    Store.create(tmp_path / "two", replace(ASKED, **said)).close()  # type: ignore[arg-type]
    with pytest.raises(StoreError, match=message):
        merge([tmp_path / "one", tmp_path / "two"], tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_a_folder_that_is_taken_is_left_alone(run: Path, calm: Path) -> None:
    with pytest.raises(StoreError, match="is taken"):
        merge([calm], run)
    with pytest.raises(StoreError, match="is taken"):
        salvage(calm, run)
