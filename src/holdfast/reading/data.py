"""Load inputs, labels and substitutes from files and functions, and check them before any long work.

Each form of data is read by its own module; here the result becomes inputs of the network.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from holdfast.errors import BadInput
from holdfast.files import explained_errors, read_json, read_text
from holdfast.network import Network
from holdfast.network.callable_fingerprint import of_value
from holdfast.network.fingerprint import combine_hashes, of_file, of_tensors, of_text
from holdfast.network.text import Texts, number_of
from holdfast.reading.arrays import read_npy, read_npz
from holdfast.reading.labels import number_labels, read_labels
from holdfast.reading.loaded import LoadedData, real_numbers
from holdfast.reading.objects import of_object
from holdfast.reading.pictures import ENDINGS, OTHERS, read_pictures
from holdfast.reading.read_settings import ReadSettings
from holdfast.reading.source import array, call
from holdfast.reading.tables import of_table, read_csv, read_parquet

EXPECTED = (
    'Expected an object of lists, as in {"good": ["fine", "great"]}, or for each text a list with a list for '
    'each of its words, as in [[[], ["movie"]]].'
)
Reading = Callable[[Sequence[str], Sequence[str] | None], Texts]
PLAIN = ReadSettings()
FORMS = (
    "a .csv or .parquet table, a folder with a folder of pictures for each class, a .npz file with x and y, "
    "a .npy "
    "file, a .tsv file of label and text, or package.module:function"
)
# Formats that are not read, and what to do instead.
NEAREST = {
    (".xlsx", ".xls", ".ods", ".numbers"): "a spreadsheet; save the sheet as .csv",
    (
        ".json",
        ".jsonl",
        ".ndjson",
    ): "JSON; write it as .csv, or give package.module:function that returns its rows as a list of dicts",
    (
        ".pkl",
        ".pickle",
        ".joblib",
        ".pt",
        ".pth",
    ): "opening it can run code that it contains; write it as .npz "
    "(numpy.savez(file, x=..., y=...)), or give package.module:function that loads it",
    (".h5", ".hdf5", ".mat", ".safetensors"): "arrays; write them as .npz (numpy.savez(file, x=..., y=...))",
    (".feather", ".arrow", ".orc"): "a table; write it as .parquet or .csv",
    (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z"): "compressed; unpack it first",
    (*ENDINGS, *OTHERS): "one picture; give the folder with a folder of pictures for each class",
    (
        ".wav",
        ".flac",
        ".mp3",
        ".ogg",
    ): "a recording; give its samples as .npz, prepared as for the training of the network",
}
AT_ONCE = 1024  # Inputs in one batch when classes are predicted (a choice; bounds memory).
FEW = 5  # Left-out inputs that a note names; of the others only the number is given.


@dataclass(frozen=True)
class Data:
    """Inputs as rows of numbers or token ids, with labels, names and notes."""

    x: list[Tensor]
    y: Tensor
    names: list[str]
    classes: list[str] | None
    lengths: list[int] | None
    fingerprint: str
    columns: list[str] | None = None  # Names of the numbers of an input that is a row of a table.

    labelled: bool = True  # False: y is the prediction of the network.
    places: list[int] | None = None  # Indices among the inputs that were read, if some were left out.
    notes: tuple[str, ...] = ()  # How the data were read, for the user.

    def first_inputs(self, count: int | None) -> "Data":
        return self if count is None else self.only(range(min(count, len(self.x))))

    def only(self, places: Sequence[int]) -> "Data":
        """Some of the inputs, in this order."""
        lengths = None if self.lengths is None else [self.lengths[k] for k in places]
        x, names = [self.x[k] for k in places], [self.names[k] for k in places]
        return replace(self, x=x, y=self.y[list(places)], names=names, lengths=lengths)

    def chosen(self, values: Sequence[Any]) -> list[Any]:
        """Select, from values for all inputs that were read, those of the inputs in use."""
        places = range(len(self.x)) if self.places is None else self.places
        return [values[k] for k in places if k < len(values)]

    @property
    def rows(self) -> list[Tensor]:
        """The inputs without padding."""
        return (
            self.x
            if self.lengths is None
            else [row[:length] for row, length in zip(self.x, self.lengths, strict=True)]
        )

    def stack_inputs(self, source: str) -> Tensor:
        """All inputs in one tensor."""
        shapes = sorted({tuple(row.shape) for row in self.rows})
        if len(shapes) > 1:
            raise BadInput(
                f"{source}: inputs have shapes {shapes[0]} and {shapes[1]}; here all must have the same "
                "shape, so use a part of them."
            )
        return torch.stack(self.rows)


def load(
    data: object,
    net: Network,
    *,
    scale: float | None = None,
    limit: int | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    labels: str | Path | None = None,
    only_correct: bool = False,
) -> Data:
    """Load inputs and labels for a network, from anything that `--data` takes or from an object.

    Args:
        data: a path, package.module:function, a DataFrame, a data set or a pair (x, y).
        scale: divide the numbers by this: 255 for bytes, as in pictures.
        limit: use only the first `limit` inputs.
        text_column, label_column: columns of a table with texts and labels, if their names do not identify
            them.
        labels: a file of labels: .npy, or .txt with one a line.
        only_correct: leave out inputs that the network misclassifies.

    Returns:
        x, y, names, classes, columns, lengths, and notes that report every guess. Without labels, y is the
        prediction of the network.
    """
    how = ReadSettings(
        text_column=text_column,
        label_column=label_column,
        labels=None if labels is None else str(labels),
        only_correct=only_correct,
    )
    return load_in_use(str(data) if isinstance(data, Path) else data, net, scale, limit, how)


def load_in_use(
    given: object,
    net: Network,
    scale: float | None,
    limit: int | None,
    how: ReadSettings,
    *,
    labels: bool = True,
) -> Data:
    """The data in use: predictions replace missing labels if needed, and some inputs are left out."""
    if how.only_correct and not labels:
        raise BadInput("--only-correct needs classes, and this question has none. Leave it out.")
    data = load_data(given, net, scale=scale, limit=None if how.only_correct else limit, how=how)
    if how.only_correct:
        return _correct(data, net, _name_source(given), limit)
    if data.labelled or not labels:
        return data
    own = f"{_name_source(given)} holds no labels: the class of each input is the prediction of the network"
    return replace(
        data,
        y=torch.tensor(_predict_classes(net, data, range(len(data.x)), _name_source(given))),
        notes=(*data.notes, own),
    )


def _name_source(given: object) -> str:
    return given if isinstance(given, str) else f"the {type(given).__name__}"


def load_data(
    given: object,
    net: Network,
    *,
    scale: float | None = None,
    limit: int | None = None,
    how: ReadSettings = PLAIN,
    reading: Reading | None = None,
) -> Data:
    """Load a file, a folder, the result of a function or an object. Without labels, y is -1.

    reading: texts and their locations -> tokens; None: the tokenizer of the network.
    """
    source = _name_source(given)
    found = (
        _read_source(given, net, limit, how)
        if isinstance(given, str)
        else of_object(given, source, net, how, limit)
    )
    if found.texts is not None:
        places = [f"{source}, {found.where(place)}" for place in range(len(found.texts))]
        tokens = read_texts(net, found.texts, source, places, reading).tokens
        # The hash includes the tokens: another tokenizer gives other data.
        known = combine_hashes(found.fingerprint, of_value(tokens)) if found.fingerprint else ""
        found = replace(
            found, x=tokens, names=found.texts if found.names is None else found.names, fingerprint=known
        )
    assert found.x is not None
    if len(found.x) == 0:
        raise BadInput(f"{source}: x is empty: there is no input.")
    rows = [_scale_row(real_numbers(row, "x", source), scale, net, source) for row in found.x]
    count = len(rows)
    names = [
        str(n)
        for n in _one_per_input(range(count) if found.names is None else found.names, count, "names", source)
    ]
    lengths = None
    if found.lengths is not None:
        lengths = (
            real_numbers(
                np.asarray(_one_per_input(found.lengths, count, "lengths", source)), "lengths", source
            )
            .long()
            .tolist()
        )
    x, columns = [_fit_shape(row, net) for row in rows], None
    if found.columns is not None:
        # A window names its features, which are the same in every frame; other inputs name each number.
        features = x[0].shape[-1] if x[0].ndim == 2 else 0
        each = features if np.ndim(found.columns) and len(found.columns) == features else x[0].numel()
        columns = [
            str(c) for c in _one_per_input(found.columns, each, "columns", source, "numbers in an input")
        ]
    fingerprint, given = found.fingerprint, found.y
    if how.labels is not None:
        given = read_labels(Path(how.labels))
    outputs = cache(
        lambda: net.outputs_for(_centre(net, x[0] if lengths is None else x[0][: lengths[0]])[None])
    )
    y, classes, notes = torch.full((count,), -1), _names(found.classes, net), tuple[str, ...]()
    if given is not None:
        if net.labels is not None and np.asarray(given).dtype.kind not in "UO":
            given = net.places_of(given)
        y, classes, notes = number_labels(
            replace(found, y=_one_per_input(given, count, "y", source)), source, net.classes, outputs
        )
    if net.classes is not None and len(net.classes) != outputs() != 1:
        raise BadInput(
            f"{len(net.classes)} classes are named, but {net.name} has {outputs()} outputs. Name all of "
            "them, in order."
        )
    if not fingerprint:
        fingerprint = of_tensors(
            {**{str(i): row for i, row in enumerate(rows)}, **({} if given is None else {"y": y})}
        )
    if how.labels is not None:
        fingerprint = combine_hashes(fingerprint, of_file(Path(how.labels)))
    data = Data(
        x, y, names, classes, lengths, fingerprint, columns, given is not None, notes=(*found.notes, *notes)
    )
    return data.first_inputs(limit)


def _names(classes: Any, net: Network) -> list[str] | None:
    known = classes if net.classes is None else net.classes
    return None if known is None else [str(name) for name in known]


def _read_source(source: str, net: Network, limit: int | None, how: ReadSettings) -> LoadedData:
    """Read the source with the module for its form."""
    path = Path(source)
    ending = path.suffix.lower()
    if ending == ".npz":
        return read_npz(path, net.input_tensors)
    if ending == ".npy":
        return read_npy(path)
    if ending in (".tsv", ".txt") and net.vectors is not None:
        return _text(path, net, how)
    if ending in (".csv", ".tsv", ".txt"):
        return of_table(read_csv(path), net, how)
    if ending == ".parquet":
        return of_table(read_parquet(path), net, how)
    if path.is_dir():
        return read_pictures(path, net, limit)
    if ":" in source and not path.exists():
        return of_object(call(source, "data"), source, net, how, limit)
    near = next((text for endings, text in NEAREST.items() if ending in endings), f"give {FORMS}")
    raise BadInput(f"data {source!r}: {near}.")


def _correct(data: Data, net: Network, source: str, limit: int | None) -> Data:
    """The first `limit` inputs that the network classifies correctly."""
    if not data.labelled:
        raise BadInput(
            f"--only-correct: {source} holds no labels to compare with. Give them with --labels, or leave it "
            "out."
        )
    right, wrong, seen = list[int](), list[str](), 0
    while seen < len(data.x) and (limit is None or len(right) < limit):
        some = range(seen, min(len(data.x), seen + AT_ONCE))
        said = _predict_classes(net, data, some, source)
        for place, number in zip(some, said, strict=True):
            if limit is not None and len(right) == limit:
                break
            seen = place + 1
            if number == int(data.y[place]):
                right.append(place)
            else:
                name = data.classes[number] if data.classes and number < len(data.classes) else number
                wrong.append(f"{data.names[place][:40]} (predicted {name})")
    if not right:
        raise BadInput(
            f"--only-correct: {net.name} misclassifies all {seen} inputs, {wrong[0]} first. Are the classes "
            "in the order of its "
            f"outputs (--classes), and the data scaled as for its training (--scale, --mean, --std)?"
        )
    more = f" and {len(wrong) - FEW} more" if len(wrong) > FEW else ""
    named = ", ".join(wrong[:FEW])
    left_out = f"{len(wrong)} of the first {seen} inputs, which {net.name} misclassifies: {named}{more}"
    kept = data.only(right)
    mark = combine_hashes(data.fingerprint, of_text(f"only correct {right}"))
    return replace(
        kept,
        places=right,
        fingerprint=mark,
        notes=(*data.notes, *([f"--only-correct leaves out {left_out}"] if wrong else [])),
    )


def _centre(net: Network, row: Tensor) -> Tensor:
    return row.to(net.device) if row.is_floating_point() else net.embed(row)


def _predict_classes(net: Network, data: Data, places: Sequence[int], source: str) -> list[int]:
    """The predicted class of each input, in batches of the same shape."""
    rows = data.rows
    groups: dict[tuple[int, ...], list[int]] = {}
    for place in places:
        groups.setdefault(tuple(rows[place].shape), []).append(place)
    said: dict[int, int] = {}
    with explained_errors(
        source,
        f"{net.name} cannot evaluate all inputs",
        "Leave out the inputs that it cannot take.",
        BadInput,
    ):
        for members in groups.values():
            net.outputs_for(_centre(net, rows[members[0]])[None])
            for at in range(0, len(members), AT_ONCE):
                some = members[at : at + AT_ONCE]
                said |= dict(
                    zip(
                        some,
                        net(torch.stack([_centre(net, rows[k]) for k in some])).argmax(-1).tolist(),
                        strict=True,
                    )
                )
    return [said[place] for place in places]


def _one_per_input(values: Any, count: int, what: str, source: str, of: str = "rows") -> Any:
    """The values, if there is one for each input; else BadInput."""
    with explained_errors(
        source, f"{what} cannot be read", f"Give one for each of its {count} {of}.", BadInput
    ):
        np.ndim(values)
    found = 1 if np.ndim(values) == 0 else len(values)
    if np.ndim(values) == 0 or found != count:
        raise BadInput(
            f"{source}: x has {count} {of}, {what} has {found if np.ndim(values) else 'no axis'}; give one "
            "for each."
        )
    return values


def _text(path: Path, net: Network, how: ReadSettings) -> LoadedData:
    """Read lines of label, tab, text; or a table, if the first line names columns."""
    lines = [(place, line) for place, line in enumerate(read_text(path).split("\n"), 1) if line.strip()]
    cut = [line.partition("\t") for _, line in lines]
    labels = [label.strip() for label, _, _ in cut]
    classes = {str(name) for name in (*(net.classes or ()), *(net.labels or ()))}
    if len(lines) > 1 and cut[0][1]:
        is_heading = not labels[0].isdecimal() and labels[0] not in {*labels[1:], *classes}
    else:
        is_heading = False
    if is_heading:
        return of_table(read_csv(path), net, how)
    odd = next(
        (k for k, (label, tab, text) in enumerate(cut) if not (tab and label.strip() and text.split())), None
    )
    if odd is not None:
        raise BadInput(
            f"{path}, line {lines[odd][0]}: expected a class, a tab and a text, got {lines[odd][1][:60]!r}."
        )
    texts = [text for _, _, text in cut]
    return LoadedData(
        texts=texts,
        names=[text.strip() for text in texts],
        y=labels or None,
        fingerprint=of_file(path),
        where=lambda k: f"line {lines[k][0]}",
    )


def read_texts(
    net: Network, texts: Sequence[str], source: str, places: Sequence[str] | None, reading: Reading | None
) -> Texts:
    """Convert texts to tokens.

    Remarks about them become notes of the network, which a run saves and shows.
    """
    found = (reading or net.read_texts)(texts, places)
    net.notes = (*net.notes, *(f"{source}: {note}" if source else note for note in found.notes))
    return found


def load_mask(path: str, x: Sequence[Tensor], places: Sequence[int] | None = None) -> Tensor:
    """A .npy mask, true where a unit may change: one for all inputs, or one for each.

    Masks of inputs that are not used are left out.
    """
    mask = array(Path(path), "truth values")
    if mask.dtype != torch.bool:
        raise BadInput(
            f"{path}: holds {mask.dtype}, expected truth values: true for the units that may change."
        )
    if mask.numel() <= x[0].numel():
        return mask
    return mask[: len(x)] if places is None or len(mask) <= max(places) else mask[list(places)]


def read_substitutes(path: str) -> Any:
    """Read the JSON of substitutes as it is."""
    return read_json(Path(path), EXPECTED)


def load_substitutes(path: str, net: Network) -> dict[int, list[int]] | list[list[list[int]]]:
    """Read substitutes from JSON: an object word -> substitutes, or lists for each word of each text.

    Words are token ids if the network has no vocabulary.
    """
    if net.vectors is None:
        raise BadInput(f"{net.name} does not read tokens, so words cannot be substituted in it.")
    sets = read_substitutes(path)
    number = number_of(net.vocabulary or [str(i) for i in range(len(net.vectors))])
    strange: list[str] = []

    def word_numbers(words: list[Any]) -> list[int]:
        strange.extend(str(s) for s in words if str(s) not in number)
        return [number[str(s)] for s in words if str(s) in number]

    found: dict[int, list[int]] | list[list[list[int]]]
    if isinstance(sets, dict) and all(isinstance(words, list) for words in sets.values()):
        # A word outside the vocabulary occurs in no sentence that the network reads: its set is skipped.
        found = {number[word]: word_numbers(words) for word, words in sets.items() if word in number}
        if not found:
            raise BadInput(
                f"{path}: none of its {len(sets)} words is in the vocabulary of {net.name}, so no word could "
                "be replaced."
            )
    elif isinstance(sets, list) and all(
        isinstance(text, list) and all(isinstance(words, list) for words in text) for text in sets
    ):
        found = [[word_numbers(words) for words in text] for text in sets]
    else:
        raise BadInput(f"{path}: {EXPECTED}")
    if strange:
        warnings.warn(
            f"{path}: {len(strange)} substitutes are not in the vocabulary and are left out "
            f"({', '.join(strange[:3])} ...)."
        )
    return found


def _scale_row(row: Tensor, scale: float | None, net: Network, source: str) -> Tensor:
    """The numbers divided by the scale, in the arithmetic of the network, or token ids."""
    if scale is not None and not 0 < scale < math.inf:
        raise BadInput(f"scale {scale}: the data are divided by it, so it must be a number above 0.")
    if row.is_floating_point() or scale is not None:
        return (row.double() / scale).to(net.dtype) if scale is not None else net.exactly(row).to(row.device)
    if net.vectors is None:
        raise BadInput(
            f"{source}: x holds integers ({str(row.dtype).removeprefix('torch.')}), but {net.name} takes "
            "real numbers. Give the "
            "divisor: --scale 255 for bytes, --scale 1 to take them as they are. For token ids, give "
            "--vocabulary."
        )
    return row.long()


def _fit_shape(row: Tensor, net: Network) -> Tensor:
    """Add axes of size one (such as a channel) if only these are missing."""
    if net.shape is None or None in net.shape or net.vectors is not None:
        return row
    wanted = [d for d in net.shape if d is not None]
    squeezed = [d for d in wanted if d != 1]
    return (
        row.reshape(wanted)
        if [d for d in row.shape if d != 1] == squeezed and list(row.shape) != wanted
        else row
    )
