"""Plain text as the words of a vocabulary."""

from collections.abc import Collection

ENDS = ".,;:!?\"'()"


def words_of(text: str, vocabulary: Collection[str]) -> list[str]:
    """Split at blanks. Each word is taken as it stands if the vocabulary has it, else in lower case, else without the signs at its
    ends; one that is still not there stays as it is, for the monitor's policy on unknown words."""
    return [next((form for form in (word, word.lower(), word.lower().strip(ENDS)) if form in vocabulary), word) for word in text.split()]
