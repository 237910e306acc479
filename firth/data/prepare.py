"""Text files -> shards, in parallel and in little memory.

One process reads, cleans and drops duplicates, in order; chunks of clean text go to worker processes that split
sentences and encode; their arrays are appended in order. So the bytes written do not depend on the number of workers.
Workers are plain interpreters that speak over pipes: they import neither torch nor the caller's script.
"""

import os
import signal
import struct
import subprocess
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, cast

import numpy as np

from firth import chance, tokenizers
from firth.corpus.cleaning import clean_documents, drop_duplicates
from firth.corpus.readers import TABLES, Documents, Paths, expected_bytes, find_files, read_documents
from firth.corpus.sentences import split
from firth.data.health import Measures, health
from firth.data.shards import TOKENIZER, id_dtype, write_shards
from firth.data.simhash import drop_near_duplicates
from firth.errors import BadConfig, BadInput, Unsupported
from firth.files import ending
from firth.tokenizers.words import has_chinese
from firth.types import Document

CHUNK = 1 << 19  # characters of text in one piece of work
_BATCH = 1 << 16  # characters encoded at once: the library's encodings take fifty times the text's room
_SIZE = struct.Struct("<q")

Progress = Callable[[int, int, int], None]
"""Called with bytes read, bytes expected (a guess for compressed files) and tokens written."""


def prepare(
    paths: Paths,
    out: Path,
    *,
    tokenizer: Any,
    documents: Documents = "blank-line",
    field: str = "text",
    repair: bool = False,
    processes: int = 2,
    replace: bool = False,
    near: int | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Writes shards of the text in `paths` to the folder `out`, and gives its health.

    With `near`, documents whose fingerprints differ from an earlier one's in at most so many bits are left out too.
    `fresh` says that the vocabulary was trained on this very text.
    """
    if processes < 0:
        raise BadConfig(f"processes must be 0 (no workers) or more; it is {processes}.")
    tally: Counter[str] = Counter()
    measures, files = Measures(), find_files(paths, tally=tally)
    expected = expected_bytes(files)
    texts = clean_documents(read_documents(files, documents=documents, field=field, tally=tally), repair=repair)
    kept = drop_duplicates(texts, tally=tally)
    chunks = _chunks(kept if near is None else drop_near_duplicates(kept, within=near, tally=tally))
    with write_shards(Path(out), tokenizer, replace=replace) as writer:
        workers = min(processes, expected // CHUNK)  # starting one is not worth it for less
        for chunk in _encode_all(chunks, tokenizer, folder=writer.folder / TOKENIZER, processes=workers):
            ended = writer.append(chunk.ids, chunk.starts, lengths=chunk.lengths, ends=chunk.ends)
            measures.add(chunk.lengths, ended, characters=chunk.characters)
            if progress:
                progress(tally["bytes"], expected, writer.num_tokens)
        if not writer.num_tokens:
            raise BadInput(f"Nothing is left of {files[0]} after cleaning; check that it holds text.")
        report = health(measures, writer.counts, unknown=tokenizer.vocab.unk, tally=tally, fresh=fresh)
        report["warnings"] += _tables(files)
        writer.info = {"documents_by": documents, "repair": repair, "health": report}
    return report


def _tables(files: list[Path]) -> Iterator[str]:
    """A sentence where files end as tables do."""
    tables = [path for path in files if ending(path) in TABLES]
    if tables:
        others = f" and {len(tables) - 1:,} more" if len(tables) > 1 else ""
        yield (
            f"{tables[0]}{others}: the rows of a table were read as prose, with all their columns; write the one of "
            "the text to a .txt file first (such as cut -f 2 ROWS.tsv > TEXT.txt), or JSON lines, which have --field."
        )


def sample_texts(
    paths: Paths,
    budget_bytes: int,
    *,
    seed: int = 0,
    documents: Documents = "blank-line",
    field: str = "text",
    repair: bool = False,
) -> Iterator[str]:
    """Clean lines of about `budget_bytes` of documents, drawn by a key, to train a vocabulary on; all if that is less.

    The share to draw is guessed from file sizes; where the guess is far too low, drawing ends at twice the budget.
    """
    files = find_files(paths)
    rate = budget_bytes / max(expected_bytes(files), 1)
    found: Iterable[Document] = read_documents(files, documents=documents, field=field)
    if rate < 1:
        found = (document for document, u in zip(found, _draws(seed), strict=False) if u < rate)
    left = 2 * budget_bytes
    for document in drop_duplicates(clean_documents(found, repair=repair)):
        yield from document.lines
        left -= sum(len(line.encode()) for line in document.lines)
        if left < 0:
            return


def _draws(seed: int) -> Iterator[float]:
    key, block = chance.key(seed, "vocabulary sample"), np.arange(4096)
    while True:
        yield from chance.uniform(key, block).tolist()
        block = block + len(block)


def _chunks(documents: Iterable[Document]) -> Iterator[bytes]:
    """Lines as UTF-8, an empty one after each document; a long document may go over several chunks."""
    lines, size = list[str](), 0
    for document in documents:
        for line in (*document.lines, ""):
            lines.append(line)
            size += len(line)
            if size >= CHUNK:
                yield "\n".join(lines).encode()
                lines, size = [], 0
    if lines:
        yield "\n".join(lines).encode()


@dataclass(frozen=True, slots=True)
class Chunk:
    """Encoded sentences: ids end to end, their word starts, lengths (none 0) and after how many a document ends."""

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    ends: np.ndarray
    characters: int

    def parts(self) -> tuple[bytes, ...]:
        return tuple(x.tobytes() for x in (self.ids, self.starts, self.lengths, self.ends, np.int64(self.characters)))

    @classmethod
    def from_parts(cls, parts: list[bytes], dtype: np.dtype[Any]) -> "Chunk":
        dtypes: tuple[Any, ...] = (dtype, np.bool_, np.int64, np.int64, np.int64)
        ids, starts, lengths, ends, characters = (np.frombuffer(p, d) for p, d in zip(parts, dtypes, strict=True))
        return cls(ids, starts, lengths, ends, int(characters[0]))


def encode_chunk(tokenizer: Any, text: bytes) -> Chunk:
    """What a worker does with a chunk: split into sentences, encode, find where words start."""
    sentences, ends, lead = list[str](), list[int](), ""
    for line in text.decode().split("\n"):
        if line:
            found = split(line)
            sentences += _spaced(line, found, lead) if getattr(tokenizer, "keeps_space", False) else found
            lead = "\n"
        else:
            ends.append(len(sentences))
            lead = ""
    parts = [_encode(tokenizer, batch) for batch in _batches(sentences)] or [_encode(tokenizer, [])]
    ids, starts, lengths = (np.concatenate(column) for column in zip(*parts, strict=True))
    kept = np.concatenate([[0], np.cumsum(lengths > 0)])  # a sentence of, say, one combining mark has no tokens
    return Chunk(ids, starts, lengths[lengths > 0], kept[ends], sum(map(len, sentences)))


def _spaced(line: str, sentences: list[str], lead: str) -> list[str]:
    """The sentences of a line, each with what stands before it: a space, nothing (in Chinese) or the end of a line."""
    spaced, at = list[str](), 0
    for sentence in sentences:
        place = line.find(sentence, at)
        spaced.append((lead if not spaced else " " if place != at else "") + sentence)
        at = place + len(sentence)
    return spaced


def _batches(sentences: list[str]) -> Iterator[list[str]]:
    batch, size = list[str](), 0
    for sentence in sentences:
        batch.append(sentence)
        size += len(sentence)
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encode(tokenizer: Any, sentences: list[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, word starts and lengths. Only Chinese needs a segmenter; elsewhere a piece tells whether it starts a word,
    unless the tokenizer says that only the text does."""
    dtype, by_text = id_dtype(len(tokenizer.vocab)), getattr(tokenizer, "words_by_text", False)
    chinese = [by_text or has_chinese(sentence) for sentence in sentences]
    plain = tokenizer.ids_batch([s for s, c in zip(sentences, chinese, strict=True) if not c])
    if not any(chinese):
        lengths = np.fromiter(map(len, plain), np.int64, len(plain))
        ids = np.fromiter(chain.from_iterable(plain), dtype, int(lengths.sum()))
        return ids, ~tokenizer.continues[ids], lengths
    segmented = iter(tokenizer.word_starts_batch([s for s, c in zip(sentences, chinese, strict=True) if c]))
    others = ((row, ~tokenizer.continues[row]) for row in (np.array(ids, dtype) for ids in plain))
    rows = [next(segmented) if c else next(others) for c in chinese]
    lengths = np.fromiter((len(ids) for ids, _ in rows), np.int64, len(rows))
    ids, starts = (np.concatenate(column) for column in zip(*rows, strict=True))
    return ids.astype(dtype), starts.astype(bool), lengths


def _encode_all(chunks: Iterable[bytes], tokenizer: Any, *, folder: Path, processes: int) -> Iterator[Chunk]:
    """The chunks encoded, in order; at most twice as many as there are workers are under way."""
    if processes == 0:
        yield from (encode_chunk(tokenizer, chunk) for chunk in chunks)
        return
    with ExitStack() as stack:
        idle: SimpleQueue[_Worker] = SimpleQueue()
        for _ in range(processes):
            idle.put(stack.enter_context(_Worker(folder, id_dtype(len(tokenizer.vocab)))))
        pool = stack.enter_context(ThreadPoolExecutor(processes))
        waiting: deque[Future[Chunk]] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(_delegate, idle, chunk))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _delegate(idle: "SimpleQueue[_Worker]", chunk: bytes) -> Chunk:
    worker = idle.get()
    try:
        return worker.encode(chunk)
    finally:
        idle.put(worker)


class _Worker:
    """Another interpreter that runs `work`."""

    def __init__(self, folder: Path, dtype: np.dtype[Any]) -> None:
        quiet = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
        place = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from firth.data.prepare import work; work()", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **quiet, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": place},
        )
        self.input, self.output = cast(IO[bytes], self.process.stdin), cast(IO[bytes], self.process.stdout)
        self.dtype = dtype

    def encode(self, chunk: bytes) -> Chunk:
        try:
            _send(self.input, chunk)
            return Chunk.from_parts([_receive(self.output) for _ in range(5)], self.dtype)
        except (EOFError, BrokenPipeError):
            code = self.process.wait()
            raise Unsupported(
                f"A preparation process ended (exit code {code}), perhaps for want of memory; use fewer."
            ) from None

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.output.close()
        with suppress(BrokenPipeError):
            self.input.close()
        self.process.wait()


def work() -> None:
    """The life of a worker: chunks come in over standard input, arrays go out over standard output, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    tokenizer = tokenizers.load(Path(sys.argv[1]))
    while True:
        try:
            chunk = _receive(sys.stdin.buffer)
        except EOFError:
            return
        for part in encode_chunk(tokenizer, chunk).parts():
            _send(sys.stdout.buffer, part)


def _send(pipe: IO[bytes], data: bytes) -> None:
    pipe.write(_SIZE.pack(len(data)))
    pipe.write(data)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> bytes:
    header = pipe.read(_SIZE.size)
    size = _SIZE.unpack(header)[0] if len(header) == _SIZE.size else 0
    data = pipe.read(size)
    if len(header) < _SIZE.size or len(data) < size:
        raise EOFError
    return data
