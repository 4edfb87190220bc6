"""What data do not say of themselves. Nothing heavy is imported here: the command line makes its options of this."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class How:
    """How the data are read, and which of them.

    text_column, label_column   the columns of a table that hold texts and labels.
    labels        a file of labels: .npy, or .txt with one a line.
    only_correct  without inputs of which the network says another class than their label.
    """

    text_column: str | None = None
    label_column: str | None = None
    labels: str | None = None
    only_correct: bool = False
