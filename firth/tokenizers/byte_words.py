"""Text as GPT-2's tokenizer sees it before any merge: stretches, words, and letters that stand for bytes.

In: text; out: word counts to learn merges from, and where words begin. For learning, Chinese words are those of the
segmenter: a run of Chinese characters has no spaces and would otherwise be one word, hardly ever met twice.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from tokenizers import pre_tokenizers

from firth.tokenizers.words import CHINESE, chinese_borders, chinese_starts, has_chinese, has_segmenter, repair

SPACES = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_stretch = re.compile(f" ?[^{SPACES}]+|[{SPACES}]+(?![^{SPACES}])|[{SPACES}]")
"""Where GPT-2's regular expression always cuts: between what is and what is not space, one space going with a word."""
_ascii_word = re.compile("'(?:s|t|re|ve|m|ll|d)[A-Za-z0-9]*| ?[A-Za-z0-9]+| ?[^ A-Za-z0-9]+| +(?![^ ])| ")
"""In ASCII it also cuts between what is and what is not a letter or digit, save for the endings it knows."""
_space = re.compile(f"[{SPACES}]")
_chinese = re.compile(f"[{CHINESE}]")
_LONGEST_WORD = 100
"""Longer words (links, keys) teach nothing."""


def starts_with_space(text: str) -> bool:
    return _space.match(text) is not None


def stretches(text: str) -> list[str]:
    """The text cut where the regular expression always cuts, so that each stretch can be encoded by itself."""
    if text.isascii() and text.isprintable():
        return _ascii_word.findall(text)
    found: list[str] = []
    for stretch in _stretch.findall(text):
        if stretch.isascii() and stretch.isprintable():
            found += _ascii_word.findall(stretch)
        else:
            found.append(stretch)
    return found


def byte_letters() -> list[str]:
    """GPT-2's letter for each byte: printable Latin-1 stands for itself, the others for letters from U+0100 on."""
    shown = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(0x100, 0x200))
    return [chr(byte if byte in shown else next(hidden)) for byte in range(256)]


def word_borders(text: str) -> np.ndarray:
    """Marks the characters that begin a word."""
    border = np.zeros(len(text) + 1, bool)
    if has_chinese(text) and not has_segmenter():
        border[[match.start() for match in _chinese.finditer(text)]] = True
        text = _chinese.sub(" ", text)
    border[chinese_borders(text)] = True
    return border


def count_words(texts: Iterable[str]) -> dict[str, int]:
    """How often each word occurs, as letters for its bytes; Chinese words as the segmenter cuts them."""
    found: Counter[str] = Counter()
    for text in map(repair, texts):
        if has_chinese(text):
            for stretch in _stretch.findall(text):
                found.update(_parted(stretch) if has_chinese(stretch) else (stretch,))
        else:
            found.update(stretches(text))
    cutter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words: defaultdict[str, int] = defaultdict(int)
    for stretch, count in found.items():
        for word, (start, end) in cutter.pre_tokenize_str(stretch):
            if end - start <= _LONGEST_WORD:
                words[word] += count
    return words


def _parted(stretch: str) -> list[str]:
    """A stretch cut before every Chinese word and behind Chinese characters."""
    positions, begins = chinese_starts(stretch)
    chinese = np.zeros(len(stretch) + 1, bool)
    chinese[positions] = True
    cut = np.zeros(len(stretch) + 1, bool)
    cut[positions] = begins
    cut[1:] |= chinese[:-1] & ~chinese[1:]
    cut[0] = cut[-1] = True
    cut[1] &= stretch[0] != " "
    return [stretch[a:b] for a, b in pairwise(np.flatnonzero(cut).tolist())]
