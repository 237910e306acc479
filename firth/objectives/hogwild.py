"""What word2vec's objectives share: a stream cut into chunks, initial rows, and threads that train the same tables.

In: a stream, an encoder's table and a kernel. Out: the table, trained in place. One thread gives the same bits every
time. Several threads write to the same rows without locks (Hogwild, Recht et al. 2011).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Thread
from types import ModuleType

import numpy as np

from firth import rng
from firth.data.stream import CorpusView
from firth.errors import BadInput, absent
from firth.files import forget_pages
from firth.objectives.passes import Passes
from firth.objectives.sampling import as_bits, keep_rates
from firth.objectives.solver import Report
from firth.ragged import places_of

CHUNK = 10_000
"""The most words in a chunk; no window crosses the border between two chunks."""
_WAIT = 0.5
"""Seconds between two progress reports."""

Chunks = tuple[np.ndarray, np.ndarray, np.ndarray]
"""The starts, ends and random keys of some chunks."""
Work = Callable[[Chunks, np.ndarray, np.ndarray, int], None]
"""Trains on chunks; takes the schedule of the learning rate, the words done by each thread and the thread's number."""


@dataclass(frozen=True)
class Text:
    """A stream in the form the kernels read."""

    ids: np.ndarray
    starts_C: np.ndarray
    ends_C: np.ndarray
    words_V: np.ndarray
    """For each id of the stream its row, or -1 for special tokens."""
    counts_V: np.ndarray

    @property
    def num_words(self) -> int:
        """The number of tokens in all chunks."""
        return int((self.ends_C - self.starts_C).sum())

    def keep(self, sample: float) -> np.ndarray:
        """The keep rates of subsampling as 32-bit limits."""
        return as_bits(keep_rates(self.counts_V, sample))

    @classmethod
    def of(cls, stream: CorpusView, num_tokens: int, specials: Collection[int]) -> "Text":
        """The stream's documents; long documents are cut into several chunks."""
        shards = stream.shards
        starts = np.asarray(shards.sentences[shards.documents[stream.documents_D]])
        ends = np.asarray(shards.sentences[shards.documents[stream.documents_D + 1]])
        forget_pages(shards.sentences)
        starts_C, ends_C = _cut(starts, ends)
        words_V = np.arange(num_tokens, dtype=np.int32)
        counts_V = np.array(shards.counts, np.int64)
        special = sorted(specials)
        words_V[special] = -1
        counts_V[special] = 0
        if not counts_V.any():
            raise BadInput(f"{shards.folder} has no word of the vocabulary; lower `min_count=` or give more text.")
        ids = np.asarray(shards.ids).view(np.ndarray)
        return cls(ids, starts_C, ends_C, words_V, counts_V)


def _cut(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cuts documents into chunks of at most CHUNK words; returns the chunks' starts and ends."""
    pieces = -(-(ends - starts) // CHUNK)
    number_in_document = places_of(pieces)
    starts_C = np.repeat(starts, pieces) + number_in_document * CHUNK
    ends_C = np.minimum(starts_C + CHUNK, np.repeat(ends, pieces))
    return starts_C, ends_C


def compiled() -> ModuleType:
    """The kernels of word vectors; numba is imported only here."""
    try:
        from firth.objectives import word_kernels
    except ImportError:
        raise absent("numba", extra="vectors", user="Training word vectors") from None
    return word_kernels


def spread(rows: np.ndarray, *, reach: float, seed: int) -> np.ndarray:
    """Fills the rows with uniform numbers from -reach to reach, in place, and returns them."""
    compiled().spread(rows, reach, rng.key(seed, "word vectors"))
    return rows


def run_epochs(
    text: Text,
    work: Work,
    tables: Mapping[str, np.ndarray],
    *,
    epochs: int,
    threads: int,
    seed: int,
    rates: tuple[float, float],
    report: Report,
    passes: Passes,
) -> None:
    """Runs `work` in threads, each on its own share of the chunks, in every epoch.

    `tables` are the arrays that `work` trains; they are restored from and written to `passes`. `rates` are the first
    and the last learning rate.
    """
    sizes_C = text.ends_C - text.starts_C
    first_rate, last_rate = rates
    total = float(max(1, text.num_words * epochs))
    schedule = np.array([first_rate, last_rate, total])
    done = np.zeros(threads, np.int64)
    nothing = np.zeros(0, np.int64)
    # The first call compiles the kernel, in this thread.
    work((nothing, nothing, np.zeros(0, np.uint64)), schedule, done, 0)

    # Every thread gets chunks with about the same number of words.
    words_per_thread = text.num_words / threads
    wanted_cuts = np.arange(1, threads) * words_per_thread
    cuts = np.searchsorted(np.cumsum(sizes_C), wanted_cuts)
    bounds = [0, *cuts.tolist(), len(text.starts_C)]
    spans = list(pairwise(bounds))

    first = passes.restore(tables)
    for thread, (start, end) in enumerate(spans):
        done[thread] += first * int(sizes_C[start:end].sum())
    report(first / epochs)

    def progress() -> None:
        forget_pages(text.ids)
        report(float(done.sum() / total))

    for epoch in range(first, epochs):
        epoch_key = rng.key(seed, "windows", epoch)
        keys = rng.bits(epoch_key, np.arange(len(text.starts_C)))
        calls = []
        for thread, (start, end) in enumerate(spans):
            own = slice(start, end)
            chunks = (text.starts_C[own], text.ends_C[own], keys[own])
            calls.append((chunks, schedule, done, thread))
        in_threads(work, calls, progress)
        if epoch + 1 < epochs:
            passes.keep(epoch + 1, tables)


def _no_progress() -> None:
    pass


def in_threads(
    work: Callable[..., None],
    calls: Sequence[tuple[object, ...]],
    progress: Callable[[], None] = _no_progress,
) -> None:
    """Makes all calls of `work` at once, each in a thread; calls `progress` every half second until all have ended.

    Raises the first exception of any call.
    """
    failures = list[Exception]()

    def guarded(*call: object) -> None:
        try:
            work(*call)
        except Exception as error:
            failures.append(error)

    workers = [Thread(target=guarded, args=call, daemon=True) for call in calls]
    for worker in workers:
        worker.start()
    for worker in workers:
        while worker.is_alive():
            worker.join(_WAIT)
            progress()
    if failures:
        raise failures[0]
