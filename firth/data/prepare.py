"""Text files -> shards, in parallel and in little memory.

One process reads, cleans and drops duplicates, in order. Chunks of clean text go to worker processes that split
sentences and encode. Their arrays are appended in order, so the bytes written do not depend on the number of workers.
Workers are plain interpreters that communicate over pipes: they import neither torch nor the caller's script.
"""

import os
import signal
import struct
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain, compress
from pathlib import Path
from queue import SimpleQueue
from typing import IO

import numpy as np

from firth import tokenizers
from firth.corpus.cleaning import clean_documents, drop_duplicates
from firth.corpus.languages import TextSource, find_sources, language_names, read_sources
from firth.corpus.readers import TABLES, Documents, Paths
from firth.corpus.sentences import split
from firth.data.health import Health, Measures, health
from firth.data.shards import TOKENIZER, ShardWriter, id_dtype, write_shards
from firth.data.simhash import drop_near_duplicates
from firth.engines.interpreter import package_path
from firth.errors import BadConfig, BadInput, Unsupported
from firth.files import ending
from firth.tokenizers import Tokenizer
from firth.tokenizers.segmentation import has_chinese
from firth.types import Document

CHUNK = 1 << 19
"""Characters of text in one piece of work."""
_BATCH = 1 << 16
"""Characters encoded at once: the library's encodings take fifty times the memory of the text."""
_SIZE = struct.Struct("<q")
"""The header of a message between processes: its number of bytes."""
_NUM_PARTS = 6
"""Messages that an encoded chunk is sent in."""
_LANGUAGE = "\x1e"
"""The character that begins a line which says the number of the next lines' language; clean text does not have it."""
_CONTINUED = "\x1f"
"""The first line of a chunk that begins in the middle of a document; clean text does not have it either."""

Progress = Callable[[int, int, int], None]
"""Called with bytes read, bytes expected (a guess for compressed files) and tokens written."""


def prepare(
    paths: Paths,
    out: Path,
    *,
    tokenizer: Tokenizer,
    documents: Documents = "blank-line",
    field: str = "text",
    repair: bool = False,
    processes: int = 2,
    replace: bool = False,
    near: int | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Health:
    """Writes shards of the text in `paths` to the folder `out`, and returns its health as plain JSON values.

    With `near`, documents whose fingerprints differ from an earlier one's in at most that many bits are dropped too.
    `fresh` says that the vocabulary was trained on this very text.
    """
    if processes < 0:
        raise BadConfig(f"processes must be 0 (no workers) or more; it is {processes}.")
    # Counts of what was read and dropped; every stage below adds its own.
    tally: Counter[str] = Counter()
    sources = find_sources(paths, tally=tally)
    languages = language_names(sources)
    # Generators: the text is never in memory as a whole.
    read = read_sources(sources, documents=documents, field=field, tally=tally)
    kept = drop_duplicates(clean_documents(read, repair=repair), tally=tally)
    if near is not None:
        kept = drop_near_duplicates(kept, within=near, tally=tally)
    # Starting a worker is not worth it for less than a chunk.
    expected = sum(source.expected_bytes() for source in sources)
    num_workers = min(processes, expected // CHUNK)

    def encoded(tokenizer_folder: Path) -> Iterator[Chunk]:
        chunks = _chunks(kept, languages)
        return _encode_all(chunks, tokenizer, folder=tokenizer_folder, num_workers=num_workers)

    return write_text(
        encoded,
        sources,
        Path(out),
        tokenizer=tokenizer,
        tally=tally,
        info={"documents_by": documents, "repair": repair},
        replace=replace,
        fresh=fresh,
        progress=progress,
    )


def write_text(
    encoded: Callable[[Path], Iterable["Chunk"]],
    sources: Sequence[TextSource],
    out: Path,
    *,
    tokenizer: Tokenizer,
    tally: Counter[str],
    info: Mapping[str, object],
    replace: bool,
    fresh: bool,
    progress: Progress | None,
) -> Health:
    """Writes encoded text in order; returns its health. `encoded` is called with the folder of the saved tokenizer.

    `tally` counts what was read and dropped while chunks are made, and `info` is added to `shards.json`.
    """
    languages = language_names(sources)
    expected = sum(source.expected_bytes() for source in sources)
    measures = Measures()
    with write_shards(out, tokenizer, replace=replace, languages=languages) as writer:
        for chunk in encoded(writer.folder / TOKENIZER):
            _append(writer, measures, chunk)
            if progress:
                progress(tally["bytes"], expected, writer.num_tokens)
        if not writer.num_tokens:
            raise BadInput(f"Nothing is left of {sources[0].files[0]} after cleaning; check that it holds text.")
        report = health(measures, writer.counts, unknown=tokenizer.vocab.unk, tally=tally, fresh=fresh)
        if languages:
            report["language_tokens"] = dict(zip(languages, writer.language_tokens.tolist(), strict=True))
        # Two columns of a parallel file are no mistake.
        _warn_of_tables(report, [path for source in sources if not source.is_parallel for path in source.files])
        writer.info |= {**info, "health": report}
    return report


def _append(writer: ShardWriter, measures: Measures, chunk: "Chunk") -> None:
    ended_documents = writer.append(
        chunk.ids, chunk.starts, lengths=chunk.lengths, ends=chunk.ends, languages=chunk.languages
    )
    measures.add(chunk.lengths, ended_documents, characters=chunk.characters)


def _warn_of_tables(report: Health, files: list[Path]) -> None:
    """Adds a warning where files have the suffix of a table."""
    tables = [path for path in files if ending(path) in TABLES]
    if not tables:
        return
    others = ""
    if len(tables) > 1:
        others = f" and {len(tables) - 1:,} more"
    report["warnings"].append(
        f"{tables[0]}{others}: the rows of a table were read as prose, with all their columns; write the one of "
        "the text to a .txt file first (such as cut -f 2 ROWS.tsv > TEXT.txt), or JSON lines, which have `field=`."
    )


def _chunks(documents: Iterable[Document], languages: Sequence[str] = ()) -> Iterator[bytes]:
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
        """The chunk as `_NUM_PARTS` messages to another process."""
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
    parts = [encode_chunk(tokenizer, chunk) for chunk in _chunks(documents, languages)] or [
        encode_chunk(tokenizer, b"")
    ]
    # Ends are counted from the beginning of a chunk.
    num_sentences = np.cumsum([0, *[len(part.lengths) for part in parts]])
    ends = [part.ends + before for part, before in zip(parts, num_sentences[:-1], strict=True)]
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
    sentences: list[str] = []
    ends: list[int] = []
    languages: list[int] = []
    language = 0
    lead = ""
    for line in text.decode().split("\n"):
        # An empty line ends a document.
        if not line:
            ends.append(len(sentences))
            lead = ""
            continue
        if line == _CONTINUED:
            lead = "\n"
            continue
        if line.startswith(_LANGUAGE):
            language = int(line.removeprefix(_LANGUAGE))
            continue
        found = split(line)
        if tokenizer.keeps_space:
            found = _with_leading_space(line, found, lead)
        sentences += found
        languages += [language] * len(found)
        lead = "\n"

    # An empty batch, so that there is something to concatenate.
    batches = list(_batches(sentences)) or [[]]
    parts = [_encode(tokenizer, batch) for batch in batches]
    ids_parts, starts_parts, lengths_parts = zip(*parts, strict=True)
    ids = np.concatenate(ids_parts)
    starts = np.concatenate(starts_parts)
    lengths = np.concatenate(lengths_parts)
    # A sentence of, say, one combining mark has no tokens. It is dropped, and later document ends move.
    has_tokens = lengths > 0
    num_kept_before = np.concatenate([[0], np.cumsum(has_tokens)])
    characters = sum(len(sentence) for sentence in sentences)
    kept_languages = np.array(languages, np.uint8)[has_tokens]
    return Chunk(ids, starts, lengths[has_tokens], num_kept_before[ends], kept_languages, characters)


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


def _encode_all(chunks: Iterable[bytes], tokenizer: Tokenizer, *, folder: Path, num_workers: int) -> Iterator[Chunk]:
    """The chunks encoded, in order; at most two chunks per worker are in progress."""
    if num_workers == 0:
        for chunk in chunks:
            yield encode_chunk(tokenizer, chunk)
        return
    dtype = id_dtype(len(tokenizer.vocab))
    with ExitStack() as stack:
        idle: SimpleQueue[_Worker] = SimpleQueue()
        for _ in range(num_workers):
            worker = stack.enter_context(_Worker(folder, dtype))
            idle.put(worker)
        pool = stack.enter_context(ThreadPoolExecutor(num_workers))
        # Results are taken in the order of submission, whichever worker is done first.
        waiting: deque[Future[Chunk]] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(_delegate, idle, chunk))
            if len(waiting) > 2 * num_workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _delegate(idle: "SimpleQueue[_Worker]", chunk: bytes) -> Chunk:
    """Has an idle worker encode the chunk; runs in a thread that waits for it."""
    worker = idle.get()
    try:
        return worker.encode(chunk)
    finally:
        idle.put(worker)


class _Worker:
    """Another interpreter that runs `work`; `folder` holds the tokenizer, `dtype` is that of its ids."""

    def __init__(self, folder: Path, dtype: np.dtype[np.unsignedinteger]) -> None:
        self.dtype = dtype
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from firth.data.prepare import work; work()", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_worker_environment(),
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.input: IO[bytes] = self.process.stdin
        self.output: IO[bytes] = self.process.stdout

    def encode(self, chunk: bytes) -> Chunk:
        try:
            _send(self.input, chunk)
            parts = [_receive(self.output) for _ in range(_NUM_PARTS)]
        except (EOFError, BrokenPipeError):
            code = self.process.wait()
            raise Unsupported(
                f"A preparation process ended (exit code {code}), perhaps because memory ran out; use fewer processes."
            ) from None
        return Chunk.from_parts(parts, self.dtype)

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        # Closed pipes end the worker's main loop.
        self.output.close()
        with suppress(BrokenPipeError):
            self.input.close()
        self.process.wait()


def _worker_environment() -> dict[str, str]:
    """One thread for each worker, and this very package on its path."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "RAYON_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": package_path(),
    }


def work() -> None:
    """The main loop of a worker: chunks come in over standard input, arrays go out over standard output."""
    # The parent decides when to stop: Ctrl-C reaches all processes of a terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tokenizer = tokenizers.load(Path(sys.argv[1]))
    while True:
        try:
            chunk = _receive(sys.stdin.buffer)
        except EOFError:
            return
        for part in encode_chunk(tokenizer, chunk).parts():
            _send(sys.stdout.buffer, part)


def _send(pipe: IO[bytes], data: bytes) -> None:
    """Writes a message: its size, then its bytes."""
    pipe.write(_SIZE.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes:
    """Reads a message; EOFError where the pipe ends before it does."""
    header = pipe.read(_SIZE.size)
    if len(header) < _SIZE.size:
        raise EOFError
    (size,) = _SIZE.unpack(header)
    data = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data
