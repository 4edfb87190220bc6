"""The graph of a problem, and the assumptions of every certificate that uses it."""

from weakref import WeakKeyDictionary, WeakSet

from torch import Tensor

from holdfast.bounding.graph import equivalence_check
from holdfast.bounding.graph.fusion import single_input_network
from holdfast.bounding.graph.graph import Graph, build
from holdfast.network import Network
from holdfast.network.tokens import check_only_vectors_are_read
from holdfast.problem import Problem
from holdfast.property import BoundedProperty, Robustness, Targeted
from holdfast.region import Words

# The assumptions stored with every certificate, in the words that users read.
ASSUMPTIONS = (
    "the network computes in real arithmetic with its weights as stored",
    "constants that it computes from its weights alone are what float64 makes of them",
)

CHECKS = equivalence_check.CHECKS

_checked: "WeakSet[Problem]" = WeakSet()
_graphs: "WeakKeyDictionary[Network, dict[tuple[object, ...], Graph]]" = WeakKeyDictionary()


def graph_of(problem: Problem, *, executed: bool = False) -> Graph:
    """The network's graph for inputs of the problem's shape, built once and checked against the model.

    A class margin depends only on the order of the outputs, which a final softmax preserves, so it is left
    out. As executed, rounding may make two outputs of a softmax equal, so there it is kept.
    """
    known = _graphs.setdefault(problem.network, {})
    ranking = problem.bounds_radius and isinstance(problem.property, Robustness | Targeted) and not executed
    key = (problem.region.shape, ranking)
    if key not in known:
        graph = build(
            single_input_network(problem.network, problem.region.centre),
            problem.region.centre,
            ranking=ranking,
        )
        _check(problem, graph)
        known[key] = graph
    return known[key]


def checked_graph(problem: Problem, *, executed: bool = False) -> Graph:
    """The graph, checked against the model at this problem's inputs, too; UnsupportedLayer if they differ."""
    graph = graph_of(problem, executed=executed)
    if problem not in _checked:
        _check(problem, graph)
    return graph


def _check(problem: Problem, graph: Graph) -> None:
    if isinstance(problem.region, Words):  # the only region of embedded words
        check_only_vectors_are_read(problem.network, problem.region)
    equivalence_check.check(
        problem.network, graph, problem.region, single_input_network(problem.network, problem.region.centre)
    )
    _checked.add(problem)


def rows_of(problem: Problem, graph: Graph) -> tuple[Tensor, Tensor]:
    """The rows of the problem's property (batch, rows, outputs) and their offsets (batch, rows); one set may
    be shared by all inputs.
    """
    assert isinstance(problem.property, BoundedProperty)
    matrix, offset = (part.to(graph.device) for part in problem.property.rows(graph.output.size))
    return matrix.expand(len(problem), -1, -1), offset.expand(len(problem), -1)
