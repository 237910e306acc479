"""Raw documents -> clean documents without exact duplicates, in order.

Cleaning: Unicode NFC, no control, surrogate, replacement or invisible format characters (those that scripts need
stay: the joiners, Arabic and Syriac number signs, Mongolian separators), white space collapsed to single spaces; on
request ftfy repairs text that was decoded with the wrong encoding ("cafÃ©").

Duplicates: a document equal to an earlier one is dropped, whatever its length; a line equal to an earlier line is
dropped if it has at least `MIN_LINE_BYTES` bytes of UTF-8 (about ten English words or twenty Chinese characters). Short
lines ("Yes.", headings) repeat in good text and mean different things each time.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from itertools import compress

import numpy as np

from firth.errors import BadInput, absent
from firth.types import Document

MIN_LINE_BYTES = 60
_BATCH = 1 << 20  # characters whose fingerprints are looked up together
_INVISIBLE = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ud800-\udfff"
    "\ufeff\ufff9-\uffff\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0001\U000e0020-\U000e007f]+"
)


def clean_line(line: str, *, repair: Callable[[str], str] | None = None) -> str:
    """The line in NFC, without invisible characters and with single spaces; `repair` fixes its encoding first."""
    if not line.isascii():
        if repair:
            line = repair(line)
        line = unicodedata.normalize("NFC", line)
    line = " ".join(line.split())
    if line.isprintable():  # a fast check that nearly every line passes: it has nothing invisible
        return line
    visible = _INVISIBLE.sub("", line)
    return " ".join(visible.split())


def clean_documents(documents: Iterable[Document], *, repair: bool = False) -> Iterator[Document]:
    """Documents with clean lines; lines and documents that are then empty are left out."""
    repair_line = _mojibake_repair() if repair else None
    for document in documents:
        lines = []
        for line in document.lines:
            cleaned = clean_line(line, repair=repair_line)
            if cleaned:
                lines.append(cleaned)
        if document.is_pair and len(lines) < len(document.lines):
            raise BadInput(f"{document.source}: one of the two texts is empty; fill it in or remove the pair.")
        if lines:
            yield replace(document, lines=tuple(lines))


def drop_duplicates(documents: Iterable[Document], *, tally: Counter[str] | None = None) -> Iterator[Document]:
    """The documents without exact duplicates; the tally counts what was read and what was dropped."""
    if tally is None:
        tally = Counter()
    seen = Seen()
    batch: list[Document] = []
    num_characters = 0
    for document in documents:
        batch.append(document)
        num_characters += sum(map(len, document.lines))
        if num_characters > _BATCH:
            yield from _unseen(batch, seen, tally)
            batch = []
            num_characters = 0
    yield from _unseen(batch, seen, tally)


def _unseen(batch: list[Document], seen: "Seen", tally: Counter[str]) -> Iterator[Document]:
    """The new documents of a batch, without the lines that were seen before."""
    encoded = []
    # A document's fingerprint comes before those of its long lines.
    texts = []
    for document in batch:
        lines = [line.encode() for line in document.lines]
        encoded.append(lines)
        texts.append(b"\n".join(lines))
        texts += [line for line in lines if _is_checked(line, document)]
    first_times = seen.first_times(fingerprints(texts))
    is_new = iter(first_times.tolist())
    for document, lines in zip(batch, encoded, strict=True):
        tally["documents_read"] += 1
        tally["lines_read"] += len(lines)
        document_is_new = next(is_new)
        # Lines that are not checked stay.
        keep = [not _is_checked(line, document) or next(is_new) for line in lines]
        if not document_is_new:
            tally["duplicate_documents"] += 1
            continue
        tally["duplicate_lines"] += keep.count(False)
        if all(keep):
            yield document
        elif any(keep):
            yield replace(document, lines=tuple(compress(document.lines, keep)))
        else:
            tally["emptied_documents"] += 1


def _is_checked(line: bytes, document: Document) -> bool:
    """Whether a line is compared with earlier lines: it is long, not the only one of its document, and no half of a
    pair."""
    return len(line) >= MIN_LINE_BYTES and len(document.lines) > 1 and not document.is_pair


def fingerprints(texts: list[bytes]) -> np.ndarray:
    """64 bits of each text, which are the same for equal texts."""
    digests = [blake2b(text, digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(digests), "<u8")


class Seen:
    """A set of 64-bit fingerprints in 8 bytes each: sorted runs, merged when two are of similar size.

    Among ten million texts the probability that any two different ones share a fingerprint is 3 in a million.
    """

    MAX_RUN = 1 << 21  # merging needs room for a second copy of a run, so runs stop growing here (16 MB)

    def __init__(self) -> None:
        self.runs: list[np.ndarray] = []

    def first_times(self, keys: np.ndarray) -> np.ndarray:
        """For each key in order: is this its first occurrence? Adds them all to the set."""
        unique, first_index = np.unique(keys, return_index=True)
        is_known = np.zeros(len(unique), bool)
        for run in self.runs:
            place = np.searchsorted(run, unique)
            place = np.minimum(place, len(run) - 1)
            is_known |= run[place] == unique
        is_first = np.zeros(len(keys), bool)
        is_first[first_index[~is_known]] = True
        self._add(unique[~is_known])
        return is_first

    def _add(self, run: np.ndarray) -> None:
        """Adds a sorted run, merged with earlier ones while they are less than twice its size."""
        while self.runs:
            room = self.MAX_RUN - len(run)
            if len(self.runs[-1]) >= min(2 * len(run), room):
                break
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
        raise absent("ftfy", extra="data", user="Repairing wrongly decoded text") from None
    return fix_encoding
