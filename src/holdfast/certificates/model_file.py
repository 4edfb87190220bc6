"""The model file that a certificate is about: the user's own .onnx file where the checker reads it, else a
description of the traced network.

A test at sample points, not a proof, compares the checker's program with the network before anything is claimed.
"""

import hashlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import holdfast_check
from holdfast.bounding.graph.equivalence_check import FINE, sampled_points
from holdfast.certificates.network_export import describe_network
from holdfast.certificates.tree_export import describe_trees
from holdfast.errors import HoldfastError, UnsupportedLayer
from holdfast.files import new_file
from holdfast.problem import Problem
from holdfast_check.trees import TreeSum

TREE_POINTS = 256  # Points around thresholds at which described trees are compared (chosen by hand).


def model_for(problem: Problem, folder: Path, source: Path | None) -> tuple[Path, holdfast_check.Model]:
    """Return the model file for the checker and its program: the user's own .onnx file if the checker reads
    it.
    """
    why = ""
    if source is not None and source.name.endswith((".onnx", ".onnx.gz")):
        try:
            opened = holdfast_check.Model.read_file(source)
            check_agreement(problem, opened)
            return source, opened
        except (UnsupportedLayer, holdfast_check.Rejected) as error:
            why = f"the checker cannot read {source.name}: {error}. "
    try:
        data = describe_model(problem)
    except HoldfastError as error:
        raise UnsupportedLayer(f"{why}{error}") from error
    path = folder / "model.safetensors"
    if path.exists() and path.read_bytes() != data:
        path = folder / f"model-{hashlib.sha256(data).hexdigest()[:8]}.safetensors"
    with new_file(path) as stream:
        stream.write(data)
    opened = holdfast_check.Model.read_file(path)
    check_agreement(problem, opened)
    return path, opened


def describe_model(problem: Problem) -> bytes:
    """The model of a problem as the bytes of a file in the checker's format."""
    trees = problem.network.trees
    if trees is not None:
        return describe_trees(trees)
    return describe_network(problem.network, problem.region.centre)


def check_agreement(problem: Problem, opened: holdfast_check.Model) -> None:
    """Raise unless program and network agree at the inputs and at random points, to 1e-9 of the largest
    output.
    """
    points = sampled_points(problem.region).double()
    if isinstance(opened.program, TreeSum):
        _check_trees(problem, opened.program, points)
        return
    twin = problem.network.double(problem.region.centre)
    said = (
        (twin or problem.network)(points.to((twin or problem.network).dtype))
        .double()
        .cpu()
        .numpy()
        .reshape(len(points), -1)
    )
    found = opened.program.value(points.cpu().numpy())
    wide = FINE if twin is not None else 1e-3
    if found.shape == said.shape and opened.program.ranked:
        found, wide = np.exp(found - found.max(1, keepdims=True)), 1e-3
        found = found / found.sum(1, keepdims=True)
        said = said if bool((said >= 0).all()) else np.exp(said)
    if found.shape != said.shape or not bool(
        (np.abs(found - said) <= wide * max(1.0, float(np.abs(said).max()))).all()
    ):
        raise UnsupportedLayer(
            f"{problem.network.name}: the checker's program gives other outputs than the network, so no "
            "certificate is written."
        )


def _check_trees(problem: Problem, model: TreeSum, points: Tensor) -> None:
    """Raise unless the described trees give the outputs of the model, up to the rounding of its sum, at points of the
    regions and on both sides of thresholds.
    """
    trees = problem.network.trees
    assert trees is not None
    columns = problem.network.columns
    # Numbers around thresholds are rows only if every number of a row is one of the table.
    numbers = columns is None or not (columns.indicators or any(column.worded for column in columns.each))
    every = torch.cat([points.cpu(), trees.probes(TREE_POINTS)]) if numbers else points.cpu()
    said = problem.network(every.to(problem.network.dtype)).double().cpu()
    found = torch.from_numpy(model.value_at(every.numpy()))
    if said.shape != found.shape or not bool(((found - said).abs() <= trees.rounding_error() + 1e-300).all()):
        raise UnsupportedLayer(
            f"{problem.network.name}: the trees as they are described give other outputs than the model, so no "
            "certificate is written."
        )
