"""A Ray cluster of two nodes on this machine: one node is lost in the middle, an actor is killed, and no record is another."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_worker_faults import COUNT, Counting, problem, seen

from holdfast.batch_solver import BatchWorker
from holdfast.execution.ray import Ray
from holdfast.solver import Progress, Stop, solve

ray = pytest.importorskip("ray", reason="needs the extra ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")


def made() -> BatchWorker:
    return BatchWorker([problem()], [Counting()], Stop(), 0, hashed=False)


@pytest.fixture
def cluster() -> Iterator[Any]:
    found = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    second = found.add_node(num_cpus=1)
    ray.init(
        address=found.address,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": os.path.dirname(__file__)}},
    )
    yield found, second
    ray.shutdown()
    found.shutdown()


def actors() -> list[int]:
    """The processes of those that are alive: Ray names them after their class."""
    named = [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"ray::_Actor" in path.read_bytes()]
    return [int(path.parent.name) for path in named]


def test_a_lost_node_and_a_killed_actor_cost_no_record(cluster: Any) -> None:
    nodes, second = cluster
    expected = solve([problem()], [Counting()], batch=2)
    lost: list[str] = []

    def lose(now: Progress) -> None:
        if not lost and now.done >= 2:
            nodes.remove_node(second, allow_graceful=False)
            lost.append("node")
        elif lost == ["node"] and now.done >= 6:
            os.kill(actors()[0], signal.SIGKILL)
            lost.append("actor")

    found = solve([problem()], [Counting()], batch=2, executor=Ray(made, workers=2), progress=lose)
    assert lost == ["node", "actor"]
    assert len(found) == COUNT
    assert list(map(seen, found)) == list(map(seen, expected))
