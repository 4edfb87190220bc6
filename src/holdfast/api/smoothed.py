"""`hf.smoothed`: randomised smoothing."""

from holdfast.api.argument_names import explain_arguments
from holdfast.api.arguments import (
    ModelLike,
    StopOption,
    as_network,
    check_inputs,
    check_number,
    check_search,
    check_stop,
    check_whole,
)
from holdfast.api.progress import ProgressOption, check_progress, progress_display
from holdfast.api.radius import Inputs
from holdfast.api.results import SmoothedList
from holdfast.certify.smoothing import smoothed as smooth
from holdfast.errors import BadInput
from holdfast.solver import Sink


@explain_arguments(
    "The noise is sigma=.", y="The prediction of the smoothed model is certified: no classes are needed."
)
def smoothed(
    net: ModelLike,
    x: Inputs,
    *,
    sigma: float,
    samples: int = 10_000,
    confidence: float = 0.999,
    choosing: int = 100,
    seed: int = 0,
    stop: StopOption = None,
    seconds: float | None = None,
    store: Sink | None = None,
    progress: ProgressOption = None,
) -> SmoothedList:
    """Certify the smoothed classifier at every input (Cohen, Rosenfeld, Kolter 2019).

    The result is its class, and a radius that holds with a confidence.

    Args:
        net: a torch module in evaluation mode, the path of an .onnx file, a fitted estimator, or a
            hf.Network; black boxes too.
        x: (batch, *shape), the inputs.
        sigma: the standard deviation of the noise, in the units of the input.
        samples: draws that estimate the probability of the class.
        confidence: the probability with which the radius of an input holds.
        choosing: draws that choose the class.
        seed: decides every random number.
        stop: when to stop: a hf.Stop, or a number of seconds.
        seconds: the same as a number for `stop`.
        store: keeps every record while it is made.
        progress: None: a bar in a terminal or notebook. False: nothing. A function: it is called with every
            report.

    The radius is that of the smoothed classifier and says nothing about the network itself. It costs
    `choosing` + `samples` model queries for each input.
    """
    check_search(seed, store)
    check_progress(progress)
    check_number("sigma", sigma, above=0)
    check_whole("samples", samples, at_least=1)
    check_whole("choosing", choosing, at_least=1)
    if not 0 < check_number("confidence", confidence) < 1:
        raise BadInput(f"confidence: expected a number between 0 and 1, as in 0.999, got {confidence!r}.")
    limit = check_stop(stop, seconds)
    network = as_network(net, x=x)
    inputs = check_inputs(network, x)
    with progress_display(progress, "smoothed") as report:
        found = smooth(
            network,
            inputs,
            sigma=sigma,
            samples=samples,
            confidence=confidence,
            choosing=choosing,
            seed=seed,
            stop=limit,
            store=store,
            progress=report,
        )
    return SmoothedList(found)
