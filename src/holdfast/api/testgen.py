"""`hf.testgen`: new test inputs that raise the coverage of a network."""

# ruff: noqa: PT028 - testgen is no test, whatever its name

from collections.abc import Sequence
from typing import get_args

import torch
from torch import Tensor

from holdfast.api.argument_names import explain_arguments
from holdfast.api.arguments import (
    DomainOption,
    ModelLike,
    StopOption,
    as_network,
    check_choice,
    check_classes,
    check_number,
    check_stop,
    check_unit,
    check_whole,
    float_inputs,
)
from holdfast.api.progress import ProgressOption, check_progress, progress_display
from holdfast.api.radius import Inputs, LabelsOption
from holdfast.api.single_results import GeneratedTests, generated_tests
from holdfast.coverage.criteria import Criterion
from holdfast.coverage.neurons import Per
from holdfast.coverage.testgen import testgen as generate
from holdfast.errors import BadInput
from holdfast.region.units import Unit


@explain_arguments("The classes are y=.")
def testgen(
    net: ModelLike,
    x: Inputs,
    criterion: Criterion = "neuron",
    *,
    y: LabelsOption = None,
    train: Tensor | None = None,
    domain: DomainOption = None,
    layers: Sequence[str] | None = None,
    per: Per = "element",
    threshold: float = 0.0,
    sections: int = 10,
    unit: Unit | None = None,
    changes: int | None = None,
    tests: int | None = None,
    tries: int = 3,
    beam: int = 16,
    batch: int = 32,
    stop: StopOption = None,
    seconds: float | None = None,
    seed: int = 0,
    progress: ProgressOption = None,
) -> GeneratedTests:
    """Generate test inputs that raise the coverage of a network.

    Each differs in a few units from one of x, and together they cover as much of the network as possible.

    Args:
        net: a torch module in evaluation mode, the path of an .onnx file, or a hf.Network.
        x: (batch, *shape), the seeds.
        criterion: "neuron": every neuron above `threshold`. "multisection": in each of `sections` equal parts
            of the range it has on `train`. "boundary": below that range, and above it.
        y: the classes of x, as numbers or names. A test is adversarial if its seed is classified correctly
            and the test is not; without y, if the class changes.
        train: the inputs from which the range of each neuron is taken. Default: x.
        domain: the lowest and highest value of an input, as in (0, 1). A hf.Network has its own.
        layers: names of layers (`holdfast inspect` shows them). Default: all hidden activation functions and
            recurrent layers.
        per: "element": every number of a feature map, or of a state at each step, is a neuron. "channel":
            their mean over all positions.
        threshold: above this value a neuron fires.
        sections: how many parts of a neuron's range "multisection" has.
        unit: what counts as one change: "pixel", "frame" or "number". Default: pixels for images, else
            numbers.
        changes: the largest number of changed units in a test.
        tests: the largest number of tests.
        tries: how many seeds are tried for an item, the nearest first.
        beam: how many units are tried alone in each step.
        batch: how many items are worked on at once.
        stop: when to stop: a hf.Stop (seconds for the whole call, queries for each item), or a number of
            seconds. What was found by then is returned.
        seconds: the same as a number for `stop`.
        seed: decides every random number.
        progress: None: a bar in a terminal or notebook. False: nothing. A function: it is called with every
            report.

    What is not reached stays uncovered and is counted. Whether a test still shows what its seed showed is for
    people to judge.
    """
    check_progress(progress)
    check_choice("criterion", criterion, get_args(Criterion))
    check_choice("per", per, get_args(Per))
    check_unit(unit)
    check_number("threshold", threshold)
    for name, value in (("sections", sections), ("tries", tries), ("beam", beam), ("batch", batch)):
        check_whole(name, value, at_least=1)
    for name, most in (("changes", changes), ("tests", tests)):
        if most is not None:
            check_whole(name, most, at_least=1)
    check_whole("seed", seed)
    if layers is not None and (isinstance(layers, str) or not all(isinstance(one, str) for one in layers)):
        raise BadInput(
            "layers: expected a list of names, as in ['conv1', 'relu2']; `holdfast inspect` shows them."
        )
    limit = check_stop(stop, seconds)
    network = as_network(net, domain=domain, x=x)
    seeds = float_inputs(network, x)
    data = None if train is None else float_inputs(network, train, "train")
    labels = check_classes(network, y, len(seeds))
    with progress_display(progress, "testgen") as report:
        found = generate(
            network,
            seeds,
            criterion,
            y=None if labels is None else torch.as_tensor(labels),
            train=data,
            layers=layers,
            per=per,
            threshold=threshold,
            sections=sections,
            unit=unit,
            changes=changes,
            tests=tests,
            tries=tries,
            beam=beam,
            batch=batch,
            stop=limit,
            seed=seed,
            progress=report,
        )
    return generated_tests(found)


testgen.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it
