"""The dashboard and the alerts ask for what the service counts, and for nothing else."""

import json
import re
from pathlib import Path

from holdfast.monitor.service.metrics import Metrics

DOCS = Path(__file__).parents[2] / "docs" / "grafana"


def told() -> set[str]:
    metrics = Metrics()
    metrics.count_answer("/score", 200, 0.01)
    return set(re.findall(r"^holdfast_\w+", metrics.text(), re.MULTILINE))


def test_every_number_of_the_dashboard_is_one_that_is_told() -> None:
    board = json.loads((DOCS / "dashboard.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert {name for text in asked for name in re.findall(r"holdfast_\w+", text)} == told()
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_every_alert_asks_for_what_is_told() -> None:
    rules = re.findall(r"expr: (.*)", (DOCS / "alerts.yml").read_text())
    assert len(rules) == 5
    assert {name for rule in rules for name in re.findall(r"holdfast_\w+", rule)} < told()
