"""Read .npz files, and .npy files with their labels in a second file."""

import re
from collections.abc import Sequence
from pathlib import Path

from holdfast.files import read_array, read_arrays
from holdfast.network.fingerprint import combine_hashes, of_file
from holdfast.network.flat_tensors import FlatTensor
from holdfast.network.several_inputs import join_values
from holdfast.reading.labels import read_labels
from holdfast.reading.loaded import LoadedData, of_mapping

PLAIN = "It must be written by numpy.savez with plain arrays (no Python objects)."


def read_npz(path: Path, tensors: Sequence[FlatTensor] = ()) -> LoadedData:
    """Read x and y. tensors: of a network with several inputs, whose arrays stand by their names instead of x."""
    held: dict[str, object] = dict(read_arrays(path, PLAIN))
    if tensors and "x" not in held:
        x = join_values(tensors, held, str(path))
        held = {
            "x": x,
            **{name: value for name, value in held.items() if name not in {t.name for t in tensors}},
        }
    return of_mapping(held, str(path), of_file(path))


def read_npy(path: Path) -> LoadedData:
    """Read x, and y from the matching file: x.npy and y.npy, test_images.npy and test_labels.npy."""
    held: dict[str, object] = {"x": read_array(path, "Write it by numpy.save, with plain numbers.")}
    candidates = [path.with_name(name) for name in _label_files(path.name)]
    labels = next((other for other in candidates if other.is_file()), None)
    if labels is None:
        return of_mapping(held, str(path), of_file(path))
    return of_mapping(
        {**held, "y": read_labels(labels)}, str(path), combine_hashes(of_file(path), of_file(labels))
    )


def _label_files(name: str) -> list[str]:
    parts = re.split(r"([^A-Za-z0-9]+)", name.removesuffix(".npy"))
    swap = {
        "x": ("y", "Y"),
        "X": ("y", "Y"),
        "images": ("labels",),
        "data": ("labels",),
        "inputs": ("labels",),
        "features": ("labels",),
    }
    return [
        "".join([*parts[:k], other, *parts[k + 1 :]]) + ".npy"
        for k, part in enumerate(parts)
        for other in swap.get(part, ())
    ]
