"""A line of text -> its sentences, in English and Chinese and both mixed.

Text without Chinese goes to sentencex (rules and abbreviations). Text with Chinese is cut after 。！？；… and after ! ?
that follow a Chinese character, closing quotes and brackets staying with their sentence; pieces that hold ends of
Latin-script sentences are then cut by sentencex.
"""

import re

from firth.errors import Unsupported

_HAN = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_EAST_ASIAN = re.compile(f"[\u3001-\u30ff\uff01-\uffee{_HAN}]")
# An end before a closing title mark is the title's own, one before a comma the quotation's. Runs are possessive, so
# that no shorter one is tried instead, and bounded, so that time stays linear in the length of the line.
_END = re.compile(
    f"(?:[。！？；…｡]|(?<=[{_HAN}])[!?])[。！？；…｡!?]{{0,30}}+(?![》〉])"
    '[”’」』）】〕)\\]。！？；…｡]{0,30}+("?+)(?![，、：,])'
)
_LATIN_END = re.compile(r"[.!?]\W{0,3}\s")


def split(text: str) -> list[str]:
    """The sentences of a line, without the white space around them."""
    if text.isascii() or not _EAST_ASIAN.search(text):
        return _split_english(text)
    return [sentence for piece in _split_chinese(text) for sentence in _split_latin(piece)]


def _split_chinese(text: str) -> list[str]:
    pieces, start, quotes = [], 0, 0
    for match in _END.finditer(text):
        end = match.end()
        if match[1]:  # a straight quote after an end closes only if one is open
            quotes += text.count('"', start, end - 1)
            if quotes % 2 == 0:
                end -= 1
            else:
                quotes += 1
        else:
            quotes += text.count('"', start, end)
        pieces.append(text[start:end])
        start = end
    return _strip([*pieces, text[start:]])


def _split_latin(piece: str) -> list[str]:
    return _split_english(piece) if _LATIN_END.search(piece) else [piece]


def _split_english(text: str) -> list[str]:
    # Imported here, because what reads prepared text needs no sentencex.
    try:
        from sentencex import segment
    except ImportError:
        raise Unsupported("Finding the sentences of a text needs sentencex: pip install sentencex.") from None
    return _strip(segment("en", text))


def _strip(sentences: list[str]) -> list[str]:
    return [clean for sentence in sentences if (clean := sentence.strip())]
