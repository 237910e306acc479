"""A line of text -> its sentences, in English and Chinese and both mixed.

Text without Chinese goes to sentencex (rules and abbreviations). Text with Chinese is cut after 。！？；… and after ! ?
that follow a Chinese character, closing quotes and brackets staying with their sentence; pieces that hold ends of
Latin-script sentences are then cut by sentencex.
"""

import re

from firth.errors import Unsupported

_HAN = "\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_EAST_ASIAN = re.compile(f"[\u3001-\u30ff\uff01-\uffee{_HAN}]")
# An end before a closing title mark belongs to the title, one before a comma to a quotation. Runs are possessive, so
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
    sentences: list[str] = []
    for piece in _split_chinese(text):
        if _LATIN_END.search(piece):
            sentences += _split_english(piece)
        else:
            sentences.append(piece)
    return sentences


def _split_chinese(text: str) -> list[str]:
    pieces = []
    start = 0
    num_quotes = 0  # straight quotes so far: an odd number means that one is open
    for match in _END.finditer(text):
        end = match.end()
        has_quote = match[1] != ""
        if has_quote:
            num_quotes += text.count('"', start, end - 1)
            is_open = num_quotes % 2 == 1
            if is_open:
                num_quotes += 1  # it closes the open one and stays with this sentence
            else:
                end -= 1  # it opens the next sentence
        else:
            num_quotes += text.count('"', start, end)
        pieces.append(text[start:end])
        start = end
    pieces.append(text[start:])
    return _strip(pieces)


def _split_english(text: str) -> list[str]:
    # Imported here: programs that only read prepared text do not need sentencex.
    try:
        from sentencex import segment
    except ImportError:
        raise Unsupported("Finding the sentences of a text needs sentencex: pip install sentencex.") from None
    return _strip(segment("en", text))


def _strip(sentences: list[str]) -> list[str]:
    stripped = [sentence.strip() for sentence in sentences]
    return [sentence for sentence in stripped if sentence]
