"""`hf.saliency`: how much a change of each single unit matters."""

from collections.abc import Sequence

import torch
from torch import Tensor

from holdfast.api.argument_names import explain_arguments
from holdfast.api.arguments import (
    DomainOption,
    ModelLike,
    StopOption,
    as_network,
    check_bounded,
    check_classes,
    check_domain,
    check_mask,
    check_stop,
    check_unit,
    check_values,
    check_whole,
    float_inputs,
)
from holdfast.api.progress import ProgressOption, check_progress, progress_display
from holdfast.api.radius import Inputs, LabelsOption
from holdfast.api.single_results import SaliencyMap, saliency_map
from holdfast.hamming.saliency import Saliency, saliency_problem, stack_maps
from holdfast.network import Network
from holdfast.region.units import Unit
from holdfast.solver import solve


@explain_arguments()
def saliency(
    net: ModelLike,
    x: Inputs,
    y: LabelsOption = None,
    *,
    domain: DomainOption = None,
    unit: Unit | None = None,
    free: Tensor | None = None,
    values: Sequence[float] | Tensor | None = None,
    levels: int = 2,
    stop: StopOption = None,
    seconds: float | None = None,
    progress: ProgressOption = None,
) -> SaliencyMap:
    """Return how far changing each unit alone can lower the margin of the class.

    The map has the shape (batch, *unit shape), with NaN for units that may not change.

    Args:
        net: a torch module in evaluation mode, the path of an .onnx file, a fitted estimator, or a
            hf.Network.
        x: (batch, *shape), the inputs.
        y: the classes, as numbers or names. Default: the predicted ones.
        domain: the lowest and highest value that a unit may take. Default: the network's domain.
        unit: what changes as one: "pixel", "frame" or "number". Default: the pixels of an image, else
            numbers.
        free: bool, broadcast over (batch, *unit shape): the units that may change. Default: all.
        values: the values that a changed number may take, all of which are tried. Default: `levels` of them,
            evenly over the domain.
        levels: how many values are tried, the lowest and the highest included.
        stop: when to stop: a hf.Stop, or a number of seconds. Units that were not measured by then are NaN.
        seconds: the same as a number for `stop`.
        progress: None: a bar in a terminal or notebook. False: nothing. A function: it is called with every
            report.

    Only the model's answers are used, so any model will do. Zero: none of the values that were tried lowers
    the margin. The map is an
    estimate: values that were not tried are not covered.
    """
    check_progress(progress)
    check_unit(unit)
    check_whole("levels", levels, at_least=2)
    limit = check_stop(stop, seconds)
    bounds = None if domain is None else check_domain(domain)
    network = as_network(net, domain=None if isinstance(net, Network) else bounds, x=x)
    given = float_inputs(network, x)
    check_values(values)
    check_mask(free)
    check_bounded(network, bounds)
    allowed = None if free is None else torch.as_tensor(free)
    labels = check_classes(network, y, len(given))
    if labels is not None:
        labels = torch.as_tensor(labels)
    problem = saliency_problem(network, given, labels, domain=bounds, unit=unit, free=allowed, values=values)
    with progress_display(progress, "saliency") as report:
        records = solve([problem], [Saliency(levels)], limit, progress=report)
    return saliency_map(stack_maps(problem, records))
