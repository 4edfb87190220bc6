"""The network that a property is about, as one network: its inputs are searched, its outputs are constrained.

A property may speak of several networks, of inputs that are related to each other, and of products of inputs and
outputs (`Spec`). With searched inputs v, inputs x of the file and outputs y of its networks f_1, f_2, ...:

    x_i = sum of v_k over the sources k of i,    y = (f_1(x^1), f_2(x^2), ...),
    output = (y, products of elements of x and y).

The output is computed by torch operators from v, so every method that bounds a network bounds it too, and both
networks of a query see the same input.
"""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from holdfast.bounding import crown
from holdfast.bounding.graph import equivalence_check
from holdfast.bounding.graph.branch_difference import subtract_branches
from holdfast.bounding.graph.graph import Graph
from holdfast.errors import BadInput
from holdfast.network import Network
from holdfast.network.factories.assembly import AssemblyOptions
from holdfast.network.factories.onnx_file import parts_of_onnx_file
from holdfast.network.flat_tensors import FlatInterface, FlatTensor
from holdfast.property import Avoid
from holdfast.region import Box
from holdfast.verification.declared_networks import DeclaredNetwork, DeclaredTensor
from holdfast.verification.vnnlib import Name, Spec

TYPES = {
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
}


@dataclass(frozen=True)
class NetworkCall:
    """One declared network: the number of its model, its elements among all inputs, and its input's shape."""

    model: int
    begin: int
    size: int
    shape: tuple[int, ...]


class CombinedModule(nn.Module):
    """The networks of a property with its relations of inputs and its products, (batch, searched) -> outputs."""

    def __init__(self, models: Sequence[nn.Module], calls: Sequence[NetworkCall], spec: Spec) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.calls = tuple(calls)
        count = sum(call.size for call in calls)
        sources = spec.sources or tuple((i,) for i in range(count))
        self.identical = not spec.sources
        # Inputs with equally many summands are added up together, then put into the order of the file.
        self.depths = sorted({len(parts) for parts in sources})
        self.summands = nn.Module()
        for depth in self.depths:
            for k in range(depth):
                numbers = [parts[k] for parts in sources if len(parts) == depth]
                self.summands.register_buffer(f"{depth}_{k}", torch.tensor(numbers))
        placed = [i for depth in self.depths for i, parts in enumerate(sources) if len(parts) == depth]
        self.input_order: Tensor
        self.register_buffer("input_order", torch.tensor(placed, dtype=torch.int64).argsort())
        self.groups = product_groups(spec, count)
        self.factors = nn.Module()
        for g, (exponents, numbers_of) in enumerate(self.groups):
            for k in range(len(exponents)):
                self.factors.register_buffer(f"{g}_{k}", torch.tensor([n[k] for n in numbers_of]))
        order = [place for _, _, places in _group_constraints(spec, count) for place in places]
        self.order: Tensor
        self.register_buffer("order", torch.tensor(order, dtype=torch.int64).argsort())

    def forward(self, v: Tensor) -> Tensor:
        x = v if self.identical else self.file_inputs(v)
        outputs = [
            self.models[call.model](
                x[:, call.begin : call.begin + call.size].reshape(-1, *call.shape)
            ).flatten(1)
            for call in self.calls
        ]
        if not self.groups:
            return torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]
        both = torch.cat([x, *outputs], 1)
        products = [self.multiply(both, g, exponents) for g, (exponents, _) in enumerate(self.groups)]
        columns = torch.cat(products, 1).index_select(1, self.order)
        return torch.cat([*outputs, columns], 1)

    def file_inputs(self, v: Tensor) -> Tensor:
        """The inputs of the file: sums of searched inputs."""
        sums = []
        for depth in self.depths:
            total = v.index_select(1, self.summands.get_buffer(f"{depth}_0"))
            for k in range(1, depth):
                total = total + v.index_select(1, self.summands.get_buffer(f"{depth}_{k}"))
            sums.append(total)
        if len(sums) == 1:
            return sums[0]
        return torch.cat(sums, 1).index_select(1, self.input_order)

    def multiply(self, both: Tensor, group: int, exponents: tuple[int, ...]) -> Tensor:
        """The products of one group: of powers of the variables with these exponents."""
        product: Tensor | None = None
        for k, exponent in enumerate(exponents):
            chosen = both.index_select(1, self.factors.get_buffer(f"{group}_{k}"))
            power = chosen if exponent == 1 else chosen**exponent
            product = power if product is None else product * power
        assert product is not None
        return product


def product_groups(spec: Spec, inputs: int) -> list[tuple[tuple[int, ...], list[tuple[int, ...]]]]:
    """The products with the same exponents together: the exponents, and the numbers of the variables."""
    return [(exponents, numbers) for exponents, numbers, _ in _group_constraints(spec, inputs)]


def _group_constraints(
    spec: Spec, inputs: int
) -> list[tuple[tuple[int, ...], list[tuple[int, ...]], list[int]]]:
    """Groups of products: exponents, numbers of their variables among (inputs, outputs), and their columns."""
    found: dict[tuple[int, ...], tuple[list[tuple[int, ...]], list[int]]] = {}
    for place, product in enumerate(spec.columns):
        powers = sorted(((len(list(same)), name) for name, same in groupby(product)), reverse=True)
        numbers, places = found.setdefault(tuple(count for count, _ in powers), ([], []))
        numbers.append(tuple(_number(name, inputs) for _, name in powers))
        places.append(place)
    return [(exponents, *rest) for exponents, rest in found.items()]


def _number(name: Name, inputs: int) -> int:
    return name[1] if name[0] == "X" else inputs + name[1]


def open_declared(
    file: str | Path, declared: DeclaredNetwork, *, device: str = "cpu", black_box: bool = False
) -> Network:
    """Open an ONNX file with the inputs, outputs and inner values of a declaration, joined to one each."""
    parts = parts_of_onnx_file(
        file,
        AssemblyOptions(device=device),
        black_box=black_box,
        batched=True,
        constants=None,
        interface=interface_of(declared),
    )
    return Network(**vars(parts))


def interface_of(declared: DeclaredNetwork) -> FlatInterface:
    """The tensors of a declaration as the ONNX importer joins them."""
    inputs, outputs, hidden = (
        tuple(FlatTensor(tensor.onnx_name, tensor.shape) for tensor in tensors)
        for tensors in (declared.inputs, declared.outputs, declared.hidden)
    )
    return FlatInterface(inputs, outputs, hidden)


def combine_networks(spec: Spec, networks: Sequence[Network]) -> Network:
    """Return the network that the property is about; the given one if it is about nothing else.

    Args:
        networks: the network of each declaration, as `match_networks` orders them. The
            outputs of each are its declared outputs and inner values one after the other.
    """
    check_types(spec, networks)
    if spec.is_plain:
        return networks[0]
    calls, begin = [], 0
    models: list[Network] = []
    for k, net in enumerate(networks):
        size = (
            sum(tensor.size for tensor in spec.networks[k].inputs)
            if spec.networks
            else _input_count(spec) // len(networks)
        )
        known = next((n for n, model in enumerate(models) if model is net), None)
        if known is None:
            known = len(models)
            models.append(net)
        shape = input_shape(net, size, spec.networks[k].name if spec.networks else spec.name)
        calls.append(NetworkCall(known, begin, size, shape))
        begin += size
    name = " and ".join(dict.fromkeys(net.name for net in networks))
    digest = _digest(spec, networks)
    if not all(net.differentiable for net in networks):
        module = CombinedModule([_Caller(net) for net in models], calls, spec)

        def ask(x: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
            with torch.no_grad():
                answer: np.ndarray[Any, Any] = module(torch.from_numpy(x)).cpu().numpy()
            return answer

        return Network.from_callable(ask, shape=(spec.inputs,), name=name, fingerprint=digest or None)
    if len({(net.dtype, net.device) for net in networks}) > 1:
        kinds = ", ".join(f"{net.name} is {net.dtype} on {net.device}" for net in networks)
        raise BadInput(
            f"{spec.name}: the networks compute in different types or places ({kinds}); convert them to one."
        )
    made = Network.from_torch(
        CombinedModule([net.module for net in models], calls, spec).eval(),
        shape=(spec.inputs,),
        name=name,
        device=networks[0].device,
        fingerprint=digest or None,
    )
    made.notes = tuple(dict.fromkeys(note for net in networks for note in net.notes))
    return made


def choose_graph(net: Network, graph: Graph, region: Box, rules: Avoid) -> Graph:
    """Return the graph with the better bounds: the given one, or two networks as one and its difference from it."""
    combined = getattr(net.module, "model", None)
    if not isinstance(combined, CombinedModule) or len(combined.calls) != 2:
        return graph
    size = graph.output.size - sum(len(numbers) for _, numbers in combined.groups)
    if size % 2:
        return graph
    changed = subtract_branches(graph, 0, size // 2, size // 2)
    if changed is None:
        return graph
    equivalence_check.check(net, changed, region)
    first, second = (_lowest_bounds(one, region, rules) for one in (graph, changed))
    return changed if bool((second > first).any()) else graph


def _lowest_bounds(graph: Graph, region: Box, rules: Avoid) -> Tensor:
    """(batch,): lower bounds of the score over the whole region by CROWN."""
    boxes = crown.propagate(graph, region)
    rows = crown.lower_bound(graph, boxes, rules.matrix.flatten(1, 2), rules.offset.flatten(1))
    return rows.nan_to_num(-torch.inf, torch.inf, -torch.inf).reshape(rules.offset.shape).amax(2).amin(1)


class _Caller(nn.Module):
    """A black box as a module."""

    def __init__(self, net: Network) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def _input_count(spec: Spec) -> int:
    return len(spec.sources) or spec.inputs


def _digest(spec: Spec, networks: Sequence[Network]) -> str:
    """A hash of the networks and of how the property joins them; "" if a network has none."""
    if not all(net.fingerprint for net in networks):
        return ""
    parts = [*(net.fingerprint for net in networks), repr(spec.columns), repr(spec.sources)]
    return f"combined {hashlib.sha256(chr(10).join(parts).encode()).hexdigest()}"


def match_networks(spec: Spec, given: "Network | Mapping[str, Network]") -> list[Network]:
    """Return the network of each declaration, in their order. BadInput if one is missing or there are others.

    Args:
        given: a single network, or networks by the names of their declarations. A declaration that is equal
            to another needs none.
    """
    if not spec.networks:
        if isinstance(given, Network):
            return [given]
        raise BadInput(f"{spec.name}: speaks of one network without a name; give the network itself.")
    needed = [network.name for network in spec.networks if not network.equal_to]
    if isinstance(given, Network):
        if len(needed) != 1:
            raise BadInput(
                f"{spec.name}: declares the networks {', '.join(needed)}; give one for each name "
                f"(--net {needed[-1]}=file.onnx, in Python a dict)."
            )
        given = {needed[0]: given}
    check_given_names(spec, given)
    for network in spec.networks:
        own, its = given.get(network.name), given.get(network.equal_to)
        if network.equal_to and own is not None and its is not None and not _same_network(own, its):
            raise BadInput(
                f"{spec.name}: {network.name} is equal-to {network.equal_to}, but another network is given for "
                "it. Give the same file, or none."
            )
    return [given[network.equal_to or network.name] for network in spec.networks]


def check_given_names(spec: Spec, given: Collection[str]) -> None:
    """Raise BadInput if a name is not declared, or if a declared network that needs a model is not named."""
    names = [network.name for network in spec.networks]
    unknown = next((name for name in given if name not in names), None)
    if unknown is not None:
        raise BadInput(f"{spec.name}: declares no network {unknown!r}; there are {', '.join(names)}.")
    needed = (network.name for network in spec.networks if not network.equal_to)
    missing = next((name for name in needed if name not in given), None)
    if missing is not None:
        raise BadInput(f"{spec.name}: no network is given for {missing!r} (--net {missing}=file.onnx).")


def _same_network(one: Network, other: Network) -> bool:
    return one is other or (bool(one.fingerprint) and one.fingerprint == other.fingerprint)


def check_types(spec: Spec, networks: Sequence[Network]) -> None:
    """Raise BadInput if a network computes in another type than its declaration says, unless that is real."""
    for declared, net in zip(spec.networks, networks, strict=False):
        for tensor in declared.tensors:
            kind = TYPES.get(tensor.kind)
            if kind is not None and net.differentiable and net.dtype != kind:
                raise BadInput(
                    f"{spec.name}:{tensor.line}: {tensor.name} is declared as {tensor.kind}, but {net.name} computes in "
                    f"{str(net.dtype).removeprefix('torch.')}. Declare it as that type, or as real."
                )


def input_shape(net: Network, inputs: int, name: str = "the property") -> tuple[int, ...]:
    """Return the shape of one input, which must have `inputs` elements.

    At most one open size is inferred from that.
    """
    known = (inputs,) if net.shape is None else net.shape
    fixed = math.prod(size for size in known if size is not None)
    if known.count(None) == 1 and fixed and inputs % fixed == 0:
        known = tuple(inputs // fixed if size is None else size for size in known)
    shape = tuple(size for size in known if size is not None)
    if not shape or len(shape) != len(known) or math.prod(shape) != inputs:
        shown = (
            " x ".join("any" if size is None else str(size) for size in known)
            or "one number without a batch axis"
        )
        raise BadInput(f"{name} has {inputs} inputs, but {net.name} takes {shown}.")
    return shape


def file_inputs(spec: Spec, searched: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the inputs of the file (inputs,) float64, added up in the type in which the network adds them."""
    searched = searched.flatten()
    if not spec.sources:
        return searched
    values = searched.to(dtype)
    sums = []
    for parts in spec.sources:
        total = values[parts[0]]
        for part in parts[1:]:
            total = total + values[part]
        sums.append(total)
    return torch.stack(sums).double()


def declared_values(spec: Spec, inputs: Tensor, outputs: Tensor) -> list[tuple[DeclaredTensor, list[float]]]:
    """Return each declared tensor with its numbers, in the order of declaration, from the file's inputs and outputs."""
    return [
        (
            tensor,
            (inputs if tensor.role == "input" else outputs)[
                tensor.begin : tensor.begin + tensor.size
            ].tolist(),
        )
        for network in spec.networks
        for tensor in network.tensors
    ]
