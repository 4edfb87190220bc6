"""`hf.load`: inputs and labels as a network takes them."""

from pathlib import Path

from holdfast.api.arguments import ModelLike, as_network, check_flag, check_number, check_whole, show
from holdfast.errors import BadInput
from holdfast.reading.data import Data
from holdfast.reading.data import load as read


def load(
    data: object,
    net: ModelLike,
    *,
    scale: float | None = None,
    limit: int | None = None,
    text_column: str | None = None,
    label_column: str | None = None,
    labels: str | Path | None = None,
    only_correct: bool = False,
) -> Data:
    """Read inputs and labels as the network takes them.

    Args:
        data: the path of a table (.csv, .parquet), of a folder of pictures, of arrays (.npz, .npy) or of
            texts (.tsv), package.module:function, or an object: a DataFrame, a data set, a pair (x, y), a
            dict with x and y.
        net: a torch module in evaluation mode, the path of an .onnx file, a fitted estimator, or a
            hf.Network.
        scale: the numbers are divided by this: 255 for bytes.
        limit: the number of inputs that are read.
        text_column: the column of a table that holds texts, where its name does not say so.
        label_column: the column of a table that holds labels, where its name does not say so.
        labels: a file of labels: .npy, or .txt with one a line.
        only_correct: leave out misclassified inputs.

    Returns: Data with x, y, names, classes, columns, lengths and notes, which say what was guessed. Without
    labels y is what the network says.
    """
    if scale is not None:
        check_number("scale", scale, above=0)
    if limit is not None:
        check_whole("limit", limit, at_least=1)
    check_flag("only_correct", only_correct)
    for name, value in (("text_column", text_column), ("label_column", label_column)):
        if value is not None and not isinstance(value, str):
            raise BadInput(f"{name}: expected the name of a column, got {show(value)}.")
    if labels is not None and not isinstance(labels, str | Path):
        raise BadInput(
            f"labels: expected the path of a file, got {show(labels)}; labels in memory go with the "
            "inputs: (x, y)."
        )
    return read(
        data,
        as_network(net),
        scale=scale,
        limit=limit,
        text_column=text_column,
        label_column=label_column,
        labels=labels,
        only_correct=only_correct,
    )
