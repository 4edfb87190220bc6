"""What each record of a run is about, stored with names and units, so that every view can state it in words."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from holdfast import batch
from holdfast.certificates.claim import describe_region
from holdfast.certificates.names import as_labels, check_names, claim_names, names_in_comments, read_names
from holdfast.certificates.stated_claim import claim_body
from holdfast.commands.built import Built
from holdfast.errors import UnsupportedLayer
from holdfast.network.fingerprint import of_file
from holdfast.result import Key
from holdfast.store import Store

if TYPE_CHECKING:
    from holdfast.verification.instances import Instance
    from holdfast.verification.vnnlib import Spec
    from holdfast_check.claim_text import VariableLabel

MOST_RECORDS = 2000  # Records of a run whose claims are stored; a page shows no more rows (chosen by hand).
MOST_CASES = 100  # Cases of a VNN-LIB property whose claims are stored (chosen by hand).


def check_given_names(built: Built, names: str | None) -> None:
    """BadInput if the file of names does not fit the network."""
    given = {} if names is None else read_names(names)
    for asked in built.problems if given else ():
        size = int(asked.region.centre[0].numel())
        check_names(given, size, _outputs(built, asked.region.centre), str(names))


def keep_claims(store: Store, built: Built, names: str | None) -> None:
    """Store the claims of all rows of the problems: what each is about, with names, without its result."""
    given = {} if names is None else read_names(names)
    if sum(map(len, built.problems)) > MOST_RECORDS:
        return
    known, columns, classes = built.question.data, built.net.columns, built.question.data.classes
    inputs = known.columns if columns is None else tuple(column.name for column in columns.each)
    outputs_named = as_labels("Y", classes or ())
    for whole in built.problems:
        usual = {**as_labels("X", _each_number(inputs or (), whole.region.shape)), **outputs_named}
        asked = whole.lowest()
        try:
            describe_region(asked.take(torch.tensor([0], device=asked.region.centre.device)).region)
        except UnsupportedLayer:
            continue  # Words, counts of changes: the sentence of the question states these.
        size, outputs = int(asked.region.centre[0].numel()), _outputs(built, asked.region.centre)
        labels = claim_names(size, outputs, given, usual)
        found = dict[Key, dict[str, Any]]()
        for row, key in enumerate(asked.keys):
            part = asked.take(torch.tensor([row], device=asked.region.centre.device))
            body = claim_body(part.region, part.property, outputs, labels, part)
            if body is not None:
                found[key] = body
        store.put_claims(found)


def _each_number(names: Sequence[str], shape: Sequence[int]) -> Sequence[str]:
    """A name for each number of an input: for windows, the names of the features in each frame."""
    if len(shape) == 2 and len(names) == shape[1]:
        return [f"{name} step {frame}" for frame in range(shape[0]) for name in names]
    return names if len(names) == math.prod(shape) else ()


def _outputs(built: Built, centre: torch.Tensor) -> int:
    """The number of outputs of the network."""
    with torch.no_grad():
        return int(built.net(centre[:1].to(built.net.dtype)).flatten(1).shape[1])


def keep_property_claims(
    store: Store, place: int, spec: "Spec", instance: "Instance", given: Mapping[str, "VariableLabel"]
) -> None:
    """Store the claims of the cases of a VNN-LIB property about the outputs of one network over boxes."""
    from holdfast.verification.specification import Allowed, Forbidden

    if not spec.cases or not spec.is_plain or len(spec.cases) > MOST_CASES:
        return
    region, rules = Allowed.by(spec, (spec.inputs,)), Forbidden.by(spec)
    outputs = int(rules.matrix.shape[-1])
    labels = claim_names(spec.inputs, outputs, given, names_in_comments(instance.spec))
    digest = of_file(instance.model) if instance.model.is_file() else ""
    about = {"model": {"name": instance.model.name, "sha256": digest}}
    found = dict[Key, dict[str, Any]]()
    for case in range(len(spec.cases)):
        row = torch.tensor([case])
        body = claim_body(batch.take(region, row), batch.take(rules, row), outputs, labels)
        if body is not None:
            found[Key(place, case)] = {**body, **about}
    store.put_claims(found)
