"""Load the network of a VNN-LIB property, and the same file in onnxruntime to check counterexamples."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.commands.options import ModelOptions
from holdfast.commands.reading.model import ONNX, load_network
from holdfast.errors import BadInput, MissingExtra, UnreadableFile
from holdfast.network import Network
from holdfast.network.fingerprint import of_file
from holdfast.network.flat_tensors import FlatInterface
from holdfast.network.onnx import session_of
from holdfast.verification.combined_network import (
    check_given_names,
    combine_networks,
    input_shape,
    interface_of,
    open_declared,
)
from holdfast.verification.declared_networks import DeclaredNetwork
from holdfast.verification.instances import Instance
from holdfast.verification.vnnlib import Spec


def load_networks(
    options: ModelOptions, spec: Spec, instance: Instance
) -> tuple[Network, tuple[Network, ...]]:
    """The network that a property is about, and the same files in onnxruntime if that is installed."""
    if not spec.networks:
        if instance.named:
            raise BadInput(
                f"{spec.name}: a property of VNN-LIB 1 speaks of one network without a name; leave the names out."
            )
        alone = load_judged(
            options, len(spec.sources) or spec.inputs, None if instance.typed else instance.model
        )
        if spec.is_plain:
            return alone
        return combine_networks(spec, [alone[0]]), tuple(combine_networks(spec, [net]) for net in alone[1])
    files = _declared_files(spec, instance)
    opened: dict[Path, tuple[Network, tuple[Network, ...]]] = {}
    found = []
    for declared in spec.networks:
        file = files[declared.equal_to or declared.name]
        if file not in opened:
            opened[file] = _open(options, declared, file, typed=instance.typed and file == instance.model)
        found.append(opened[file])
    judges: tuple[Network, ...] = ()
    if all(others for _, others in found):
        judges = (combine_networks(spec, [others[0] for _, others in found]),)
    return combine_networks(spec, [net for net, _ in found]), judges


def _declared_files(spec: Spec, instance: Instance) -> dict[str, Path]:
    """The file of each declared network that needs one."""
    needed = [network.name for network in spec.networks if not network.equal_to]
    given = dict(instance.named)
    if instance.model not in given.values():  # It has no name: it is the only one that is left.
        left = [name for name in needed if name not in given]
        if len(left) != 1:
            raise BadInput(
                f"{spec.name}: declares the networks {', '.join(needed)}, so {instance.model} needs a name: give it as "
                f"--net {needed[0]}={instance.model}, and one file for each other name."
            )
        given[left[0]] = instance.model
    check_given_names(spec, given)
    for network in spec.networks:
        own, its = given.get(network.name), given.get(network.equal_to)
        if network.equal_to and own is not None and its is not None and of_file(own) != of_file(its):
            raise BadInput(
                f"{spec.name}: {network.name} is equal-to {network.equal_to}, but {own} and {its} differ. Give the same "
                "file, or none."
            )
    return given


def _open(
    options: ModelOptions, declared: DeclaredNetwork, file: Path, *, typed: bool
) -> tuple[Network, tuple[Network, ...]]:
    """One declared network, and the same file in onnxruntime."""
    size = sum(tensor.size for tensor in declared.inputs)
    if declared.is_plain:
        return load_judged(options, size, None if typed else file)
    if not file.name.endswith(ONNX):
        raise BadInput(
            f"{file}: network {declared.name} has several inputs or outputs, or inner values; they are found by name "
            "and position in ONNX files only."
        )
    net = open_declared(file, declared, device=options.device, black_box=options.black_box)
    try:
        return net, (_through_onnxruntime(str(file), None, interface_of(declared)),)
    except MissingExtra:
        return net, ()


def load_judged(
    options: ModelOptions, inputs: int, file: Path | None = None
) -> tuple[Network, tuple[Network, ...]]:
    """The network, and the same file in onnxruntime if that is installed; file: as for `load_network`."""
    model = options.model if file is None else str(file)
    net = _fitting(options, inputs, file)
    if not model.endswith(ONNX) or options.constants:
        return net, ()
    try:
        return net, (_through_onnxruntime(model, options.output),)
    except MissingExtra:
        return net, ()


def _through_onnxruntime(model: str, output: str | None, interface: FlatInterface | None = None) -> Network:

    run = session_of(model, output, interface)
    rank = len(run.inputs[0].shape)

    def ask(x: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
        answers = [run(row.reshape((1,) * (rank - row.ndim) + row.shape)) for row in x]
        return np.stack([np.asarray(answer).flatten() for answer in answers])

    name = f"{model} in onnxruntime"
    return Network.from_callable(ask, name=name, fingerprint=name)


def _fitting(options: ModelOptions, inputs: int, file: Path | None) -> Network:
    """The network, without a batch axis if only then its input size is that of the property."""
    model = options.model if file is None else str(file)
    try:
        net = load_network(options, file)
        input_shape(net, inputs)
    except (BadInput, UnreadableFile) as error:
        if not model.endswith(ONNX) or options.unbatched:
            raise
        with suppress(BadInput, UnreadableFile):
            net = load_network(replace(options, unbatched=True), file)
            input_shape(net, inputs)
            return net
        raise error
    return net
