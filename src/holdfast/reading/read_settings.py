"""Settings for reading data.

Nothing heavy is imported here: the command line builds its options from them.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ReadSettings:
    """How to read the data, and which inputs to use.

    text_column, label_column: columns of a table with texts and labels.
    labels: a file of labels: .npy, or .txt with one a line.
    only_correct: leave out inputs that the network misclassifies.
    """

    text_column: str | None = None
    label_column: str | None = None
    labels: str | None = None
    only_correct: bool = False
