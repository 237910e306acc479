"""Where words begin in Chinese text, which has no spaces: rjieba's words inside runs of Chinese characters.

In goes text (any text), out come positions of characters. Borders elsewhere are spaces and punctuation. `segmented_by`
puts another segmenter in rjieba's place.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.util import find_spec

import numpy as np

from firth.errors import Unsupported

# What BERT's normaliser takes for Chinese, so that each of these characters is a token of its own.
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
"""Texts -> the words of each, which spell the text without its spaces."""
_own: ContextVar[Segment | None] = ContextVar("segmenter", default=None)
_surrogate = re.compile("[\ud800-\udfff]")


def has_chinese(text: str) -> bool:
    return not text.isascii() and _chinese.search(text) is not None


def has_segmenter() -> bool:
    """Whether rjieba is installed, as it is wherever text is prepared."""
    return find_spec("rjieba") is not None


def repair(text: str) -> str:
    """`text` with each lone surrogate, which no UTF-8 can hold, replaced by U+FFFD: positions stay as they are."""
    return text if text.isascii() else _surrogate.sub("\ufffd", text)


def chinese_starts(text: str) -> tuple[np.ndarray, np.ndarray]:
    """The positions of the Chinese characters, and for each whether it begins a word."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    chinese = _is_chinese(codes)
    if not chinese.any():  # then the segmenter and its dictionary need not be there
        return np.empty(0, np.int64), np.empty(0, bool)
    if segment := _own.get():
        return np.flatnonzero(chinese), _starts(text, segment)[chinese]
    try:
        import rjieba
    except ImportError:
        raise Unsupported("Finding the words of Chinese text needs rjieba: pip install rjieba.") from None
    kept = chinese.copy()
    kept[1:] |= chinese[:-1]  # one blank after a run stands for all that parts it from the next
    blanked = np.where(chinese, codes, ord(" "))[kept].tobytes().decode("utf-32-le")
    lengths = np.fromiter(map(len, rjieba.cut(blanked, True)), np.int64)
    begins = np.zeros(len(blanked), bool)
    begins[np.cumsum(lengths) - lengths] = True
    return np.flatnonzero(chinese), begins[chinese[kept]]


@contextmanager
def segmented_by(segment: Segment) -> Iterator[None]:
    """Within it, Chinese words are found by `segment` (in this thread, not in worker processes)."""
    token = _own.set(segment)
    try:
        yield
    finally:
        _own.reset(token)


def _starts(text: str, segment: Segment) -> np.ndarray:
    """Marks the characters of a text of several lines that begin a word."""
    lengths = np.array([len(word) for words in segment(text.split("\n")) for word in words], np.int64)
    shown = np.flatnonzero(~np.fromiter(map(str.isspace, text), bool, len(text)))
    begins = np.zeros(len(text), bool)
    begins[shown[np.cumsum(lengths) - lengths]] = True
    return begins


def chinese_borders(text: str) -> np.ndarray:
    """The positions in `text` where a word begins, Chinese or not."""
    from tokenizers.pre_tokenizers import BertPreTokenizer  # a large library, which most who are here do not need

    positions, begins = chinese_starts(text)
    border, chinese = np.zeros(len(text), bool), np.zeros(len(text), bool)
    chinese[positions] = True
    border[[start for _, (start, _) in BertPreTokenizer().pre_tokenize_str(repair(text))]] = True
    spaces = np.fromiter(map(str.isspace, text), bool, len(text))
    border[1:] |= chinese[:-1] & ~spaces[1:]
    border[positions] = begins
    return np.flatnonzero(border)


def _is_chinese(codes: np.ndarray) -> np.ndarray:
    chinese = np.zeros(len(codes), bool)
    for first, last in _RANGES:
        chinese |= (codes >= first) & (codes <= last)
    return chinese
