"""One request in one process, in one and two workers, and on a local Ray cluster: seconds and agreement.

python -m benchmarks.executors --limit 64 --batch 8

Every executor starts a run of its own by the command line, in a process of its own. Seconds are those of the
whole command with its imports. The executors take turns for --rounds rounds; the smallest time is shown.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from holdfast.store import Store

QUESTION = (
    "radius",
    "-m",
    "holdfast.datasets.digits_networks:digits_lstm",
    "-d",
    "holdfast.datasets.digits:rows",
    "--domain",
    "0,1",
    "--norm",
    "2",
    "--frames",
    "all",
)
WAYS = {
    "here": ("--executor", "here"),
    "local, 1 worker": ("--executor", "local"),
    "local, 2 workers": ("--executor", "local", "--workers", "2"),
    "ray, 2 actors on 2 nodes": ("--executor", "ray", "--workers", "2"),
}


def run(words: list[str]) -> float:
    began = time.monotonic()
    code = "from holdfast.cli import main; main()"
    around = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code, *words], env=around, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return time.monotonic() - began


def ends(folder: Path) -> list[tuple[str, float, float, str]]:
    with Store.read(folder) as store:
        return [(str(r.key), r.bracket.lower.value, r.bracket.upper.value, r.status) for r in store.records()]


def far(one: list[tuple[str, float, float, str]], two: list[tuple[str, float, float, str]]) -> float:
    """The largest relative difference of a bound; infinite where keys or statuses differ."""
    if [(a[0], a[3]) for a in one] != [(b[0], b[3]) for b in two]:
        return float("inf")
    pairs = [(x, y) for a, b in zip(one, two, strict=True) for x, y in zip(a[1:3], b[1:3], strict=True)]
    return max((abs(x - y) / max(abs(x), abs(y)) for x, y in pairs if x != y), default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--without-ray", action="store_true")
    given = parser.parse_args()
    cluster = None
    ways = {name: words for name, words in WAYS.items() if not (given.without_ray and "ray" in name)}
    if not given.without_ray:
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        cluster.add_node(num_cpus=1)
        os.environ["RAY_ADDRESS"] = cluster.address
    least: dict[str, float] = {}
    found: dict[str, list[tuple[str, float, float, str]]] = {}
    with tempfile.TemporaryDirectory(prefix="executors-") as place:
        for turn in range(given.rounds):
            for name, words in ways.items():
                folder = Path(place, f"{turn}-{name}")
                spent = run(
                    [
                        *QUESTION,
                        "--limit",
                        str(given.limit),
                        "--batch",
                        str(given.batch),
                        *words,
                        "--out",
                        str(folder),
                    ]
                )
                least[name] = min(spent, least.get(name, spent))
                found[name] = ends(folder)
    if cluster is not None:
        cluster.shutdown()
    print(
        "| executor | seconds | against one process | largest relative difference of a bound |\n"
        "|---|---|---|---|"
    )
    for name, seconds in least.items():
        print(
            f"| {name} | {seconds:.1f} | {least['here'] / seconds:.2f} x | "
            f"{far(found[name], found['here']):.1g} |"
        )


if __name__ == "__main__":
    main()
