"""Raw documents -> clean documents without exact duplicates, in order.

Cleaning: Unicode NFC, no control, surrogate, replacement or invisible format characters (those that scripts need
stay: the joiners, Arabic and Syriac number signs, Mongolian separators), white space collapsed to single spaces; on
request text that was decoded wrongly once ("cafÃ©") is repaired by ftfy.

Duplicates: a document equal to an earlier one goes, whatever its length; a line equal to an earlier line goes if it has
at least `MIN_LINE_BYTES` bytes of UTF-8 (about ten English words or twenty Chinese characters), because short lines
("Yes.", headings) recur in good text and stand for different things each time.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b

import numpy as np

from firth.errors import Unsupported
from firth.types import Document

MIN_LINE_BYTES = 60
_BATCH = 1 << 20  # characters whose fingerprints are looked up together
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufff9-\uffff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]+"
)


def clean_line(line: str, *, repair: Callable[[str], str] | None = None) -> str:
    if not line.isascii():
        line = unicodedata.normalize("NFC", repair(line) if repair else line)
    line = " ".join(line.split())
    if line.isprintable():  # quick, and true of nearly every line: nothing invisible in it
        return line
    return " ".join(_INVISIBLE.sub("", line).split())


def clean_documents(documents: Iterable[Document], *, repair: bool = False) -> Iterator[Document]:
    """Documents with clean lines; what is empty then is left out."""
    mend = _mojibake_repair() if repair else None
    for document in documents:
        lines = tuple(clean for line in document.lines if (clean := clean_line(line, repair=mend)))
        if lines:
            yield Document(lines, document.source)


def drop_duplicates(documents: Iterable[Document], *, tally: Counter[str] | None = None) -> Iterator[Document]:
    """The documents without exact duplicates; the tally counts what was dropped and out of how much."""
    tally = Counter() if tally is None else tally
    seen, batch, size = Seen(), list[Document](), 0
    for document in documents:
        batch.append(document)
        size += sum(map(len, document.lines))
        if size > _BATCH:
            yield from _unseen(batch, seen, tally)
            batch, size = [], 0
    yield from _unseen(batch, seen, tally)


def _unseen(batch: list[Document], seen: "Seen", tally: Counter[str]) -> Iterator[Document]:
    """A document's fingerprint comes before those of its long lines; a document of one line has only its own."""
    rows = [[line.encode() for line in document.lines] for document in batch]
    texts = [text for row in rows for text in (b"\n".join(row), *(_long_lines(row)))]
    new = iter(seen.first_times(_fingerprints(texts)).tolist())
    for document, row in zip(batch, rows, strict=True):
        tally["documents_read"] += 1
        tally["lines_read"] += len(row)
        fresh = next(new)
        keep = [len(text) < MIN_LINE_BYTES or len(row) == 1 or next(new) for text in row]
        if not fresh:
            tally["duplicate_documents"] += 1
            continue
        tally["duplicate_lines"] += keep.count(False)
        if all(keep):
            yield document
        elif any(keep):
            yield Document(tuple(x for x, k in zip(document.lines, keep, strict=True) if k), document.source)
        else:
            tally["emptied_documents"] += 1


def _long_lines(row: list[bytes]) -> list[bytes]:
    return [text for text in row if len(text) >= MIN_LINE_BYTES] if len(row) > 1 else []


def _fingerprints(texts: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(blake2b(text, digest_size=8).digest() for text in texts), "<u8")


class Seen:
    """A set of 64-bit fingerprints in 8 bytes each: sorted runs, merged when two are of similar size.

    Among ten million texts the chance that any two different ones share a fingerprint is 3 in a million.
    """

    MAX_RUN = 1 << 21  # merging needs room for a second copy of a run, so runs stop growing here (16 MB)

    def __init__(self) -> None:
        self.runs: list[np.ndarray] = []

    def first_times(self, keys: np.ndarray) -> np.ndarray:
        """For each key in order: is this its first time? Remembers them all."""
        unique, first = np.unique(keys, return_index=True)
        known = np.zeros(len(unique), bool)
        for run in self.runs:
            place = np.minimum(np.searchsorted(run, unique), len(run) - 1)
            known |= run[place] == unique
        new = np.zeros(len(keys), bool)
        new[first[~known]] = True
        self._add(unique[~known])
        return new

    def _add(self, run: np.ndarray) -> None:
        while self.runs and len(self.runs[-1]) < min(2 * len(run), self.MAX_RUN - len(run)):
            run = np.concatenate([self.runs.pop(), run])
            run.sort()
        if len(run):
            self.runs.append(run)

    @property
    def nbytes(self) -> int:
        return sum(run.nbytes for run in self.runs)

    def __len__(self) -> int:
        return sum(map(len, self.runs))


def _mojibake_repair() -> Callable[[str], str]:
    try:
        from ftfy import fix_encoding
    except ImportError:
        raise Unsupported("Repairing wrongly decoded text needs ftfy: pip install 'firth[data]'.") from None
    return fix_encoding
