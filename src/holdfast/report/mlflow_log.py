"""A run in MLflow: its question as parameters, its results as metrics, its folder and page as artifacts.

A share or mean is logged only if something was measured, since MLflow shows every number alike.
"""

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import BadInput
from holdfast.report import write_report
from holdfast.report.pairing import Run, load
from holdfast.report.summary import mean_of
from holdfast.report.verdict import is_correct, tally
from holdfast.store import Store

ARTIFACTS = "holdfast"  # The folder of the artifacts in an MLflow run.
LONGEST_PARAMETER = 500  # Characters of a parameter's value; older MLflow servers store no more.


def log_to_mlflow(
    run: str | Path | Store, *, at: float | None = None, prefix: str = "robustness", client: Any = None
) -> dict[str, float]:
    """Log a run to the active MLflow run, and return the metrics.

    Args:
        run: the folder of a run, or an open store.
        at: a radius (or score): the shares of inputs that are certified, broken and unknown there are logged
            too. They are shares of all inputs.
        prefix: begins the names of parameters and metrics, as in "robustness.inputs".
        client: an object with log_params, log_metrics and log_artifacts. None: the package mlflow
            (pip install 'holdfast[mlflow]').
    """
    if client is None:
        try:
            import mlflow
        except ImportError as error:
            raise BadInput("MLflow is not installed: pip install 'holdfast[mlflow]'.") from error
        client = mlflow
    if not isinstance(run, Store):
        with Store.read(run) as store:
            return log_to_mlflow(store, at=at, prefix=prefix, client=client)
    found = load(run)
    metrics = {f"{prefix}.{name}": value for name, value in metrics_of(found, at).items()}
    with tempfile.TemporaryDirectory() as folder:
        run.copy_to(Path(folder) / "run")
        write_report(run, Path(folder) / "report.html")
        client.log_params({f"{prefix}.{name}": value for name, value in parameters_of(run).items()})
        client.log_metrics(metrics)
        client.log_artifacts(folder, artifact_path=ARTIFACTS)
    return metrics


def metrics_of(run: Run, at: float | None) -> dict[str, float]:
    """The numbers of a run by name; a number that was not measured is left out.

    `mean_certified` and `mean_witnessed` are means over the inputs with a finite bound of that kind, and
    `inputs_with_certified` and `inputs_with_witnessed` count these.
    """
    measured = [row for row in run.rows if row.measured]
    found = {"inputs": float(len(run.rows) + run.silent), "inputs_measured": float(len(measured))}
    for name, bound_of in (("certified", run.sense.proved_bound), ("witnessed", run.sense.witnessed_bound)):
        values = [bound_of(row.bracket).value for row in measured]
        finite = [value for value in values if math.isfinite(value)]
        found[f"inputs_with_{name}"] = float(len(finite))
        if finite:
            found[f"mean_{name}"] = mean_of(finite)
    if run.labelled and run.rows:
        found["accuracy"] = sum(map(is_correct, run.rows)) / (len(run.rows) + run.silent)
    if at is not None:
        counts = tally(run.rows, at, silent=run.silent)
        found["at"] = at
        if counts.count > counts.not_measured:
            for name in ("certified", "broken", "unknown"):
                found[f"{name}_share"] = getattr(counts, name) / counts.count
            found["not_measured_share"] = counts.not_measured / counts.count
    return found


def parameters_of(store: Store) -> Mapping[str, str]:
    """The question of a run by name, without what was left to its default."""
    question = store.question
    given = {
        "command": question.command,
        "model": question.model.name,
        "model_fingerprint": question.model.fingerprint,
        "data": question.data.name,
        "domain": question.model.domain,
        **vars(question.asked),
        **vars(question.means),
    }
    return {
        name: str(value)[:LONGEST_PARAMETER]
        for name, value in given.items()
        if value not in (None, "", (), {})
    }
