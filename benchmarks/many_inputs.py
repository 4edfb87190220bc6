"""One run with many inputs: bytes per record, CPU seconds and peak memory of each operation on the run.

The operations are write, open, export, judge, compare and show. The records are those that `holdfast radius`
writes for a small network: 512 digits are really measured. Their inputs and records are then written again
and again under other numbers, in batches, each first as interrupted and then as finished, as the solver does.
Every step runs in a process of its own, so that its peak memory is its own.

    python -m benchmarks.many_inputs --counts 1000 10000 100000
"""

import argparse
import contextlib
import importlib
import io
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

REAL = 512  # Inputs that are really measured; their records are copied for the rest.
BATCH = 128


def asked(real: Path, folder: Path, count: int) -> None:
    """Measure the inputs, and write the records that the others are copies of."""
    import torch

    import holdfast as hf
    from holdfast.datasets import digits
    from holdfast.question import DataDescription, ModelDescription, Question, Request

    torch.manual_seed(0)
    data = digits("train")
    x, y = data.x.reshape(len(data.x), -1)[:REAL], data.y[:REAL]
    net = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
    descent = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(200):
        descent.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        descent.step()
    network = hf.Network.from_torch(net.eval(), domain=(0, 1))
    question = Question(
        model=ModelDescription("two layers", fingerprint=network.fingerprint),
        data=DataDescription("digits", "digits"),
        asked=Request("inf"),
    )
    with hf.Store.create(real, question) as store:
        said = network(x).argmax(-1).tolist()
        store.put_inputs(list(x), y.tolist(), said, [str(k) for k in range(REAL)], [None] * REAL)
        hf.radius(network, x, y, norm=math.inf, store=store)


def write(real: Path, folder: Path, count: int) -> None:
    import torch

    from holdfast.result import Key
    from holdfast.store import Store

    with Store.read(real) as source, Store.create(folder, source.question) as store:
        records, inputs = source.records(), source.inputs()
        rows = [inputs[k % REAL] for k in range(count)]
        store.put_inputs(
            _Made([torch.from_numpy(stored.x) for stored in inputs], count),
            [stored.label for stored in rows],
            [stored.prediction for stored in rows],
            [str(k) for k in range(count)],
            [None] * count,
        )
        for first in range(0, count, BATCH):
            some = [replace(records[k % REAL], key=Key(k)) for k in range(first, min(count, first + BATCH))]
            store.write([replace(record, status="interrupted") for record in some])
            store.write(some)


class _Made(list):  # type: ignore[type-arg]
    """Inputs that are computed on access; each differs slightly from all others."""

    def __init__(self, real: list[object], count: int) -> None:
        super().__init__(real)
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: int) -> object:  # type: ignore[override]
        made = list.__getitem__(self, place % REAL).clone()
        made[0] += place * 1e-7
        return made


def open_again(real: Path, folder: Path, count: int) -> None:
    """Open the run as `resume` does: check every database page, then look up one batch at a time."""
    from holdfast.result import Key
    from holdfast.store import Store

    with Store.open(folder) as store:
        assert store.counts() == {"finished": count} or sum(store.counts().values()) == count
        for first in range(0, count, BATCH):
            assert len(store.load_known([Key(k) for k in range(first, first + BATCH)])) == min(
                BATCH, count - first
            )


def command(*words: object) -> None:
    from holdfast.cli import main

    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main([str(word) for word in words])


STEPS = {
    "nothing but the imports": lambda real, folder, count: None,
    "write": write,
    "open again": open_again,
    "export csv": lambda real, folder, count: command("export", folder, folder.parent / "records.csv"),
    "export json": lambda real, folder, count: command("export", folder, folder.parent / "records.json"),
    "gate": lambda real, folder, count: command("gate", folder, "--at", "0.05", "--min-certified", "0"),
    "compare with itself": lambda real, folder, count: command("compare", folder, folder),
    "report": lambda real, folder, count: command("report", folder, "-o", folder.parent / "report.html"),
    "merge (copy)": lambda real, folder, count: command("merge", folder, "-o", folder.parent / "copy"),
}


def step(name: str, real: Path, folder: Path, count: int) -> tuple[float, float]:
    """CPU seconds without the imports, and peak MB.

    This process stays small: a child inherits its parent's peak.
    """
    words = [
        sys.executable,
        "-m",
        "benchmarks.many_inputs",
        "--step",
        name,
        str(real),
        str(folder),
        str(count),
    ]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-3000:]}")
    seconds, peak = json.loads(done.stdout)
    print(f"{count:,} inputs, {name}: {seconds:.1f} CPU s, peak {peak:,.0f} MB", file=sys.stderr, flush=True)
    return seconds, peak


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--counts", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--step", nargs=4, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.step:
        name, real, folder, count = chosen.step
        for needed in (
            "holdfast.cli",
            "holdfast.cli.views.gate",
            "holdfast.store.merge",
            "holdfast.report.page",
            "holdfast.datasets",
        ):
            importlib.import_module(needed)
        began = time.process_time()
        {**STEPS, "ask": asked}[name](Path(real), Path(folder), int(count))
        print(
            json.dumps(
                [time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000]
            )
        )
        return
    with tempfile.TemporaryDirectory(prefix="many-inputs-") as place:
        real, table = Path(place) / "real", {}
        step("ask", real, real, REAL)
        for count in chosen.counts:
            folder = Path(place) / str(count) / "run"
            folder.parent.mkdir()
            table[count] = {name: step(name, real, folder, count) for name in STEPS}
            size = (folder / "run.sqlite").stat().st_size
            pages = sorted(folder.parent.glob("report*.html"))
            first, last = pages[0].stat().st_size, sum(page.stat().st_size for page in pages)
            print(
                f"{count:,} inputs: {size / count:,.0f} bytes per record with its input and history; "
                f"report: {len(pages)} pages, the first "
                f"{first / 1e6:.1f} MB, all {last / 1e6:.1f} MB",
                flush=True,
            )
    print("| step | " + " | ".join(f"{count:,}: CPU s | peak MB" for count in chosen.counts) + " |")
    print("|---|" + "---|---|" * len(chosen.counts))
    for name in STEPS:
        cells = [f"{table[count][name][0]:.1f} | {table[count][name][1]:,.0f}" for count in chosen.counts]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
