"""Text as GPT-2's tokenizer sees it before any merge: chunks, words, and the letters that represent bytes.

In: text; out: word counts to learn merges from, and where words begin. For learning, Chinese words are those of the
segmenter: a run of Chinese characters has no spaces and would otherwise be one long word that hardly ever repeats.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from tokenizers import pre_tokenizers

from firth.tokenizers.segmentation import CHINESE, chinese_borders, chinese_starts, has_chinese, has_segmenter, repair

SPACES = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_chunk = re.compile(f" ?[^{SPACES}]+|[{SPACES}]+(?![^{SPACES}])|[{SPACES}]")
"""Where GPT-2's regular expression always cuts: between space and non-space; a single space stays with its word."""
_ascii_word = re.compile("'(?:s|t|re|ve|m|ll|d)[A-Za-z0-9]*| ?[A-Za-z0-9]+| ?[^ A-Za-z0-9]+| +(?![^ ])| ")
"""In ASCII it also cuts between alphanumeric and other characters, except for the English endings it knows."""
_space = re.compile(f"[{SPACES}]")
_chinese = re.compile(f"[{CHINESE}]")
_LONGEST_WORD = 100
"""Longer words (links, keys) are not used to learn merges."""


def starts_with_space(text: str) -> bool:
    return _space.match(text) is not None


def split_chunks(text: str) -> list[str]:
    """The text cut where the regular expression always cuts, so that each chunk can be encoded by itself."""
    if text.isascii() and text.isprintable():
        return _ascii_word.findall(text)
    chunks: list[str] = []
    for chunk in _chunk.findall(text):
        if chunk.isascii() and chunk.isprintable():
            chunks += _ascii_word.findall(chunk)
        else:
            chunks.append(chunk)
    return chunks


def byte_letters() -> list[str]:
    """GPT-2's letter for each byte: printable Latin-1 is its own letter, other bytes get letters from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    letters = []
    next_free = 0x100
    for byte in range(256):
        if byte in printable:
            letters.append(chr(byte))
        else:
            letters.append(chr(next_free))
            next_free += 1
    return letters


def word_borders(text: str) -> np.ndarray:
    """For each character, and the end of the text: does a word begin here?"""
    is_border = np.zeros(len(text) + 1, bool)
    if has_chinese(text) and not has_segmenter():
        # Without a segmenter every Chinese character counts as a word.
        chinese_positions = [match.start() for match in _chinese.finditer(text)]
        is_border[chinese_positions] = True
        text = _chinese.sub(" ", text)
    is_border[chinese_borders(text)] = True
    return is_border


def count_words(texts: Iterable[str]) -> dict[str, int]:
    """How often each word occurs, spelled in byte letters; Chinese words as the segmenter cuts them."""
    chunk_counts: Counter[str] = Counter()
    for text in texts:
        chunk_counts.update(_chunks_to_count(repair(text)))

    # Each distinct chunk goes through the library's regular expression once.
    pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    word_counts: defaultdict[str, int] = defaultdict(int)
    for chunk, count in chunk_counts.items():
        for word, (start, end) in pre_tokenizer.pre_tokenize_str(chunk):
            if end - start <= _LONGEST_WORD:
                word_counts[word] += count
    return word_counts


def _chunks_to_count(text: str) -> list[str]:
    """Like `split_chunks`, but Chinese runs are cut into words."""
    if not has_chinese(text):
        return split_chunks(text)
    chunks: list[str] = []
    for chunk in _chunk.findall(text):
        if has_chinese(chunk):
            chunks += _split_chinese_words(chunk)
        else:
            chunks.append(chunk)
    return chunks


def _split_chinese_words(chunk: str) -> list[str]:
    """A chunk cut before every Chinese word and after each run of Chinese characters."""
    positions, begins_word = chinese_starts(chunk)
    is_chinese = np.zeros(len(chunk) + 1, bool)
    is_chinese[positions] = True
    cuts_before = np.zeros(len(chunk) + 1, bool)
    cuts_before[positions] = begins_word
    cuts_before[1:] |= is_chinese[:-1] & ~is_chinese[1:]
    cuts_before[0] = True
    cuts_before[-1] = True
    if chunk[0] == " ":
        cuts_before[1] = False  # the space in front stays with the first word
    places = np.flatnonzero(cuts_before).tolist()
    return [chunk[start:end] for start, end in pairwise(places)]
