"""Search by meaning and by words: an index of passages on disk, and the passages that fit a question best."""

from enum import StrEnum


class By(StrEnum):
    """What a question and a passage are compared by."""

    both = "both"
    meaning = "meaning"
    words = "words"
