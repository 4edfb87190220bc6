"""Networks from fitted estimators of scikit-learn, XGBoost and LightGBM."""

from typing import Any

import torch
from torch import nn

from holdfast.network.factories.assembly import AssemblyOptions, NetworkParts, OpenedModel, Source, assemble
from holdfast.network.model_identity import hash_or_note
from holdfast.region.columns import Columns


def parts_of_estimator(
    estimator: Any, options: AssemblyOptions, *, columns: Columns | None, name: str | None
) -> tuple[NetworkParts, NetworkParts | None]:
    """The parts of `Network.from_sklearn`, and those of the estimator itself where the network is a module
    read from it."""
    from holdfast.network.estimators import open_estimator  # scikit-learn is not needed to import the library

    opened, label = open_estimator(estimator, columns), name or type(estimator).__name__
    predict = estimator.predict
    is_own_method = getattr(predict, "__self__", None) is estimator
    digest, hash_notes = hash_or_note(predict if is_own_method else [estimator, predict])

    def make_parts(module: nn.Module, source: Source, notes: tuple[str, ...]) -> NetworkParts:
        return assemble(
            OpenedModel(
                module,
                name=label,
                source=source,
                device=torch.device("cpu"),
                notes=[*notes, *hash_notes],
                fingerprint=digest,
                shape=(len(opened.columns.features),),
            ),
            options,
        )

    parts = make_parts(opened.module, "black box" if opened.itself is None else "torch", opened.notes)
    parts.classes, parts.labels = opened.classes, opened.labels
    parts.columns, parts.trees = opened.columns, opened.trees
    own = None if opened.itself is None else make_parts(opened.itself, "black box", ())
    return parts, own
