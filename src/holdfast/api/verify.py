"""`hf.verify` and `hf.reach`: can a forbidden output happen, and which outputs can come out of a box of
inputs?
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from holdfast.api.argument_names import explain_arguments
from holdfast.api.arguments import (
    ModelLike,
    StopOption,
    as_network,
    check_methods,
    check_number,
    check_search,
    check_stop,
    show,
)
from holdfast.api.progress import ProgressOption, check_progress, progress_display
from holdfast.api.requests import reach_request
from holdfast.api.results import AnswerList, RangeList
from holdfast.api.single_results import Verification, verification_of
from holdfast.bounding.branching.subproblem_queue import Branching
from holdfast.errors import BadInput
from holdfast.method import Method
from holdfast.network import Network
from holdfast.region import Box
from holdfast.solver import Sink, solve
from holdfast.verification.combined_network import open_declared
from holdfast.verification.declared_networks import DeclaredNetwork
from holdfast.verification.ranges import ranges_of
from holdfast.verification.reach import reach_methods, reach_problems, reach_stop
from holdfast.verification.verify import read_in_time, unread_verdict
from holdfast.verification.verify import verify as answer_specification
from holdfast.verification.vnnlib import Spec


@explain_arguments(
    "hf.verify answers a VNN-LIB file. For a region and a property ask hf.worst(net, region, property).",
    property="hf.verify answers a VNN-LIB file. For a region and a property ask hf.worst(net, region, property).",
)
def verify(
    net: ModelLike | Mapping[str, ModelLike],
    spec: Spec | str | Path,
    *,
    stop: StopOption = None,
    seconds: float | None = None,
    seed: int = 0,
    methods: Sequence[Method[Any] | Branching[Any] | str] | str | None = None,
    judges: Sequence[Network] = (),
    store: Sink | None = None,
    progress: ProgressOption = None,
) -> Verification:
    """Decide whether anything that a VNN-LIB specification forbids can happen.

    Args:
        net: a torch module in evaluation mode, the path of an .onnx file, or a hf.Network; for a VNN-LIB 2
            property of several networks a dict of them, by the names that it declares. A network with several
            inputs or outputs, or with inner values, is given as the path of its file.
        spec: the path of a VNN-LIB file, or the specification that `holdfast.verification.vnnlib.read_vnnlib`
            returns.
        stop: when to stop: hf.Stop(seconds=...), or a number of seconds; the answer is then "timeout". Reading
            the property counts.
            Without it the search ends when the question is settled, which may be never.
        seconds: the same as a number for `stop`.
        seed: decides every random number.
        methods: InputSplit or ActivationSplit, to choose how subproblems are split; or any methods, as
            instances or names. Default: by inputs where few of them vary, else by ReLUs.
        judges: the same network on other machines; a counterexample counts only where they agree.
        store: keeps every record while it is made.
        progress: None: a bar in a terminal or notebook. False: nothing. A function: it is called with every
            report.

    Returns: The verdict: .answer is "sat" (.witness is a counterexample, replayed through the model), "unsat"
    (proved), "timeout" or "unknown".
    """
    check_search(seed, store)
    check_progress(progress)
    limit, chosen = check_stop(stop, seconds), check_methods(methods, (Method, Branching))
    if not isinstance(spec, Spec | str | Path):
        raise BadInput(
            f"spec: expected the path of a VNN-LIB file, or what read_vnnlib returns, got {show(spec)}."
        )
    if isinstance(judges, Network) or not all(isinstance(judge, Network) for judge in judges):
        raise BadInput("judges: expected a list of hf.Network.")
    asked = read_in_time(spec, limit)
    if asked is None:
        return verification_of(unread_verdict(limit))
    networks = _networks_for(asked, net)
    with progress_display(progress, "verify") as report:
        verdict = answer_specification(
            networks,
            asked,
            stop=limit,
            seed=seed,
            methods=chosen,
            judges=judges,
            store=store,
            progress=report,
        )
    return verification_of(verdict)


def _networks_for(spec: Spec, given: ModelLike | Mapping[str, ModelLike]) -> Network | dict[str, Network]:
    """Open the models; files of networks with several tensors as the property declares these."""
    declared = {network.name: network for network in spec.networks}
    if isinstance(given, Mapping) and declared:
        if not all(isinstance(name, str) for name in given):
            raise BadInput(f"net: expected a dict with the names {', '.join(declared)}.")
        opened: dict[int, Network] = {}
        for name, model in given.items():
            if id(model) not in opened:
                opened[id(model)] = _open_model(model, declared.get(name), f"net[{name!r}]")
        return {name: opened[id(model)] for name, model in given.items()}
    only = [network for network in spec.networks if not network.equal_to]
    return _open_model(given, only[0] if len(only) == 1 else None, "net")


def _open_model(model: object, declared: DeclaredNetwork | None, name: str) -> Network:
    if declared is not None and not declared.is_plain and isinstance(model, str | Path):
        return open_declared(model, declared)
    return as_network(model, name=name)


@explain_arguments()
def reach(
    net: ModelLike,
    box: Box | tuple[Tensor, Tensor],
    outputs: int | Sequence[int] | None = None,
    *,
    rows: Tensor | None = None,
    tolerance: float = 1e-2,
    stop: StopOption = None,
    seconds: float | None = None,
    seed: int = 0,
    methods: Sequence[Method[Any] | Branching[Any] | str] | str | None = None,
    store: Sink | None = None,
    progress: ProgressOption = None,
) -> RangeList:
    """Bracket the smallest and the largest value of each output over each box of inputs, to a tolerance.

    Args:
        net: a torch module in evaluation mode, the path of an .onnx file, a fitted estimator, or a
            hf.Network.
        box: a hf.Box, which holds one box for each row of its batch; or (lower, upper), of one input or of a
            batch.
        outputs: which outputs, by number. Default: all.
        rows: (combinations, outputs): bound these linear combinations of the outputs instead.
        tolerance: how close the proved bound and the value that was found have to be.
        stop: when to stop: hf.Stop(seconds=...), or a number of seconds. Without it the search ends at the
            tolerance.
        seconds: the same as a number for `stop`.
        seed: decides every random number.
        methods: InputSplit or ActivationSplit, to choose how subproblems are split; or any methods, as
            instances or names. Default: by inputs where few of them vary, else by ReLUs.
        store: keeps every record while it is made.
        progress: None: a bar in a terminal or notebook. False: nothing. A function: it is called with every
            report.

    Returns: A list with one range for each output of each box. The proved bounds are about the network in
    real arithmetic. The values inside of them were computed by its copy in float64, or by the network itself
    where there is none. Where the network's own value lies beyond a proved bound by its rounding, the bound
    is moved out to it.
    """
    check_search(seed, store)
    check_progress(progress)
    limit, chosen = check_stop(stop, seconds), check_methods(methods, (Method, Branching))
    exactness = check_number("tolerance", tolerance, above=0)
    if outputs is not None and (
        isinstance(outputs, bool | str | float) or not isinstance(outputs, int | Sequence)
    ):
        raise BadInput(f"outputs: expected the number of an output, or several, got {show(outputs)}.")
    if isinstance(outputs, Sequence) and not all(isinstance(one, int) for one in outputs):
        raise BadInput(f"outputs: expected whole numbers, got {show(outputs)}.")
    if not isinstance(box, Box | tuple | list):
        raise BadInput(
            f"box: expected hf.Box.between(lower, upper), or a pair (lower, upper), got {show(box)}."
        )
    network = as_network(net)
    problems = reach_problems(network, box, outputs, rows=rows)
    used = reach_methods(problems, exactness, chosen)
    with progress_display(progress, "reach") as report:
        records = solve(problems, used, reach_stop(limit, exactness), seed=seed, store=store, progress=report)
    answered = AnswerList(
        network,
        tuple(problems),
        tuple(records),
        "reach",
        reach_request(problems[0].region, outputs, rows, exactness),
    )
    return RangeList(ranges_of(records, exactness, network), answered)
