"""Clean documents -> arrays of token ids with the borders of words, sentences and documents.

In: documents. Out: `Chunk`s, which `ShardWriter` appends. Text goes to the encoder in chunks of lines, so that another
process can encode them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, compress
from typing import NamedTuple

import numpy as np

from firth.corpus.sentences import split
from firth.data.shards import id_dtype
from firth.ragged import bounds_of
from firth.tokenizers import Tokenizer
from firth.tokenizers.segmentation import has_chinese
from firth.types import Document

CHUNK = 1 << 19
"""Characters of text in one piece of work."""
_BATCH = 1 << 16
"""Characters encoded at once: the library's encodings take fifty times the memory of the text."""
NUM_PARTS = 6
"""Messages that an encoded chunk is sent in."""
_LANGUAGE = "\x1e"
"""The character that begins a line which says the number of the next lines' language; clean text does not have it."""
_CONTINUED = "\x1f"
"""The first line of a chunk that begins in the middle of a document; clean text does not have it either."""


def chunks_of(documents: Iterable[Document], languages: Sequence[str] = ()) -> Iterator[bytes]:
    """Lines as UTF-8, an empty one after each document; a long document may be spread over several chunks.

    Where texts have languages, a line of its own says the language of those after it, where that changes.
    """
    numbers = {language: number for number, language in enumerate(languages)}
    lines: list[str] = []
    size = 0
    last_language = ""
    for document in documents:
        for line, language in _with_languages(document):
            if language and language != last_language:
                lines.append(f"{_LANGUAGE}{numbers[language]}")
                last_language = language
            lines.append(line)
            size += len(line)
            if size >= CHUNK:
                yield "\n".join(lines).encode()
                lines = []
                size = 0
                # Another process may read the next chunk, so that each says where it begins and its first language.
                last_language = ""
                if line:
                    lines.append(_CONTINUED)
    if lines:
        yield "\n".join(lines).encode()


def _with_languages(document: Document) -> Iterator[tuple[str, str]]:
    """The lines of a document with their languages, and the empty line that ends it."""
    for number, line in enumerate(document.lines):
        language = ""
        if document.languages:
            language = document.languages[number if document.is_pair else 0]
        yield line, language
    yield "", ""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Encoded sentences, end to end."""

    ids: np.ndarray
    starts: np.ndarray
    """For each token: does it start a word?"""
    lengths: np.ndarray
    """Tokens of each sentence; none is 0."""
    ends: np.ndarray
    """The numbers of sentences after which a document ends."""
    languages: np.ndarray
    """The number of each sentence's language; 0 if none were given."""
    characters: int

    def parts(self) -> tuple[bytes, ...]:
        """The chunk as `NUM_PARTS` messages to another process."""
        return (
            self.ids.tobytes(),
            self.starts.tobytes(),
            self.lengths.tobytes(),
            self.ends.tobytes(),
            self.languages.tobytes(),
            np.int64(self.characters).tobytes(),
        )

    @classmethod
    def from_parts(cls, parts: list[bytes], dtype: np.dtype[np.unsignedinteger]) -> "Chunk":
        """The chunk of these messages; `dtype` is that of the ids."""
        ids, starts, lengths, ends, languages, characters = parts
        return cls(
            ids=np.frombuffer(ids, dtype),
            starts=np.frombuffer(starts, np.bool_),
            lengths=np.frombuffer(lengths, np.int64),
            ends=np.frombuffer(ends, np.int64),
            languages=np.frombuffer(languages, np.uint8),
            characters=int(np.frombuffer(characters, np.int64)[0]),
        )


def encode_documents(tokenizer: Tokenizer, documents: Iterable[Document], languages: Sequence[str] = ()) -> Chunk:
    """Some whole documents, encoded a chunk at a time."""
    # One chunk at least, so that there is something to concatenate.
    chunks = list(chunks_of(documents, languages)) or [b""]
    parts = [encode_chunk(tokenizer, chunk) for chunk in chunks]
    # Ends are counted from the beginning of a chunk.
    ends = []
    num_before = 0
    for part in parts:
        ends.append(part.ends + num_before)
        num_before += len(part.lengths)
    return Chunk(
        ids=np.concatenate([part.ids for part in parts]),
        starts=np.concatenate([part.starts for part in parts]),
        lengths=np.concatenate([part.lengths for part in parts]),
        ends=np.concatenate(ends),
        languages=np.concatenate([part.languages for part in parts]),
        characters=sum(part.characters for part in parts),
    )


def encode_chunk(tokenizer: Tokenizer, text: bytes) -> Chunk:
    """What a worker does with a chunk of lines: split into sentences, encode, find where words start."""
    found = _sentences_of(text, keeps_space=tokenizer.keeps_space)
    # An empty batch, so that there is something to concatenate.
    batches = list(_batches(found.sentences)) or [[]]
    parts = [_encode(tokenizer, batch) for batch in batches]
    ids_parts, starts_parts, lengths_parts = zip(*parts, strict=True)
    lengths = np.concatenate(lengths_parts)
    # A sentence of, say, one combining mark has no tokens. It is dropped, and later document ends move.
    has_tokens = lengths > 0
    num_kept_before = bounds_of(has_tokens)
    return Chunk(
        ids=np.concatenate(ids_parts),
        starts=np.concatenate(starts_parts),
        lengths=lengths[has_tokens],
        ends=num_kept_before[found.ends],
        languages=np.array(found.languages, np.uint8)[has_tokens],
        characters=sum(len(sentence) for sentence in found.sentences),
    )


class _Sentences(NamedTuple):
    """The sentences of a chunk of lines."""

    sentences: list[str]
    ends: list[int]
    """The numbers of sentences after which a document ends."""
    languages: list[int]
    """The number of each sentence's language."""


def _sentences_of(text: bytes, *, keeps_space: bool) -> _Sentences:
    """The sentences of a chunk; with `keeps_space` each has the white space before it."""
    found = _Sentences([], [], [])
    language = 0
    lead = ""
    for line in text.decode().split("\n"):
        # An empty line ends a document.
        if not line:
            found.ends.append(len(found.sentences))
            lead = ""
            continue
        if line == _CONTINUED:
            lead = "\n"
            continue
        if line.startswith(_LANGUAGE):
            language = int(line.removeprefix(_LANGUAGE))
            continue
        sentences = split(line)
        if keeps_space:
            sentences = _with_leading_space(line, sentences, lead)
        found.sentences.extend(sentences)
        found.languages.extend([language] * len(sentences))
        lead = "\n"
    return found


def _with_leading_space(line: str, sentences: list[str], lead: str) -> list[str]:
    """The sentences of a line, each with what comes before it: a space or nothing (in Chinese).

    The first sentence gets `lead`: the line break before the line, or nothing at the start of a document.
    """
    spaced: list[str] = []
    end = 0
    for sentence in sentences:
        start = line.find(sentence, end)
        if not spaced:
            before = lead
        elif start != end:
            before = " "
        else:
            before = ""
        spaced.append(before + sentence)
        end = start + len(sentence)
    return spaced


def _batches(sentences: list[str]) -> Iterator[list[str]]:
    """The sentences in lists of about `_BATCH` characters."""
    batch: list[str] = []
    size = 0
    for sentence in sentences:
        batch.append(sentence)
        size += len(sentence)
        if size >= _BATCH:
            yield batch
            batch = []
            size = 0
    if batch:
        yield batch


def _encode(tokenizer: Tokenizer, sentences: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids and word starts of all sentences end to end, and the length of each sentence.

    Only Chinese needs a word segmenter. Elsewhere a piece shows whether it starts a word, unless the tokenizer says
    that only the text does.
    """
    dtype = id_dtype(len(tokenizer.vocab))
    is_segmented = [tokenizer.words_by_text or has_chinese(sentence) for sentence in sentences]
    is_plain = [not segmented for segmented in is_segmented]
    plain = tokenizer.ids_batch(list(compress(sentences, is_plain)))
    if not any(is_segmented):
        # The fast path: no array for each sentence.
        lengths = np.fromiter(map(len, plain), np.int64, len(plain))
        ids = np.fromiter(chain.from_iterable(plain), dtype, int(lengths.sum()))
        return ids, ~tokenizer.continues[ids], lengths

    # Encode both kinds in batches, then put them back in order.
    chinese = list(compress(sentences, is_segmented))
    next_plain = iter(plain)
    next_segmented = iter(tokenizer.word_starts_batch(chinese))
    ids_rows = []
    starts_rows = []
    for segmented in is_segmented:
        if segmented:
            row, starts = next(next_segmented)
        else:
            row = np.array(next(next_plain), dtype)
            starts = ~tokenizer.continues[row]
        ids_rows.append(row)
        starts_rows.append(starts)
    lengths = np.fromiter(map(len, ids_rows), np.int64, len(ids_rows))
    return np.concatenate(ids_rows).astype(dtype), np.concatenate(starts_rows).astype(bool), lengths
