"""Where words begin in Chinese text, which has no spaces: rjieba's words inside runs of Chinese characters.

In: any text; out: positions of characters. Elsewhere words are bounded by spaces and punctuation. `segmented_by` uses
another segmenter instead of rjieba.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec

import numpy as np

from firth.errors import Unsupported
from firth.ragged import starts_of

# The characters that BERT's normaliser treats as Chinese: each of them is a token of its own.
_RANGES = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
CHINESE = "".join(f"{chr(first)}-{chr(last)}" for first, last in _RANGES)
"""The inside of a regular expression's character class."""
_chinese = re.compile(f"[{CHINESE}]")
Segment = Callable[[Sequence[str]], list[list[str]]]
"""Texts -> the words of each; joined, they are the text without its spaces."""
_custom_segmenter: ContextVar[Segment | None] = ContextVar("segmenter", default=None)
_surrogate = re.compile("[\ud800-\udfff]")


def has_chinese(text: str) -> bool:
    return not text.isascii() and _chinese.search(text) is not None


def has_segmenter() -> bool:
    """Whether rjieba is installed. It is required to prepare text, not to use a model."""
    return find_spec("rjieba") is not None


def repair(text: str) -> str:
    """`text` with each lone surrogate, which UTF-8 cannot encode, replaced by U+FFFD; positions do not change."""
    if text.isascii():
        return text
    return _surrogate.sub("\ufffd", text)


def chinese_starts(text: str) -> tuple[np.ndarray, np.ndarray]:
    """The positions of the Chinese characters, and for each whether it begins a word."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    is_chinese = _is_chinese(codes)
    if not is_chinese.any():  # text without Chinese needs neither the segmenter nor its dictionary
        return np.empty(0, np.int64), np.empty(0, bool)
    positions = np.flatnonzero(is_chinese)
    segment = _custom_segmenter.get()
    if segment:
        return positions, _starts_by(segment, text)[is_chinese]
    try:
        import rjieba
    except ImportError:
        raise Unsupported("Finding the words of Chinese text needs rjieba: pip install rjieba.") from None

    # The segmenter sees only the Chinese runs, each followed by one blank in place of all other text up to the next.
    is_kept = is_chinese.copy()
    is_kept[1:] |= is_chinese[:-1]
    chinese_or_blank = np.where(is_chinese, codes, ord(" "))
    runs = chinese_or_blank[is_kept].tobytes().decode("utf-32-le")
    lengths = np.fromiter(map(len, rjieba.cut(runs, True)), np.int64)  # True: with its HMM for unknown words
    begins_word = np.zeros(len(runs), bool)
    begins_word[starts_of(lengths)] = True
    return positions, begins_word[is_chinese[is_kept]]


@contextmanager
def segmented_by(segment: Segment) -> Iterator[None]:
    """Within this context, `segment` finds the Chinese words (in this thread, not in worker processes)."""
    token = _custom_segmenter.set(segment)
    try:
        yield
    finally:
        _custom_segmenter.reset(token)


def _starts_by(segment: Segment, text: str) -> np.ndarray:
    """For each character of a text of several lines: does it begin a word?"""
    lengths_of_words = []
    for words in segment(text.split("\n")):
        lengths_of_words += [len(word) for word in words]
    lengths = np.array(lengths_of_words, np.int64)
    # Words do not contain the spaces of the text, so their lengths count the other characters only.
    is_space = np.fromiter(map(str.isspace, text), bool, len(text))
    visible_positions = np.flatnonzero(~is_space)
    begins_word = np.zeros(len(text), bool)
    begins_word[visible_positions[starts_of(lengths)]] = True
    return begins_word


def chinese_borders(text: str) -> np.ndarray:
    """The positions in `text` where a word begins, Chinese or not."""
    # Imported here: the library is large, and most callers of this module do not need it.
    from tokenizers.pre_tokenizers import BertPreTokenizer

    positions, begins_word = chinese_starts(text)
    is_border = np.zeros(len(text), bool)
    is_chinese = np.zeros(len(text), bool)
    is_chinese[positions] = True
    words = BertPreTokenizer().pre_tokenize_str(repair(text))
    is_border[[start for _, (start, _) in words]] = True
    is_space = np.fromiter(map(str.isspace, text), bool, len(text))
    is_border[1:] |= is_chinese[:-1] & ~is_space[1:]  # whatever follows Chinese begins a word
    is_border[positions] = begins_word
    return np.flatnonzero(is_border)


def _is_chinese(codes: np.ndarray) -> np.ndarray:
    is_chinese = np.zeros(len(codes), bool)
    for first, last in _RANGES:
        is_chinese |= (codes >= first) & (codes <= last)
    return is_chinese
