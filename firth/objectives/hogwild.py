"""What word2vec's objectives share: a stream cut into chunks, the rows they train, and threads that share these.

In: a stream, an encoder's table and a kernel. Out: the table, filled. One thread gives the same bits every time;
several write to the same rows without waiting for each other (Hogwild, Recht et al. 2011).
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from threading import Thread
from types import ModuleType
from typing import Any

import numpy as np

from firth import chance
from firth.data.stream import Stream
from firth.errors import BadInput, Unsupported
from firth.files import forget_pages
from firth.objectives.passes import Passes
from firth.objectives.sampling import as_bits, keep_rates
from firth.objectives.solver import Report

CHUNK = 10_000
"""Words of a chunk at most; no window goes over its border."""
_WAIT = 0.5


@dataclass(frozen=True)
class Text:
    """A stream as the kernels read it."""

    ids: np.ndarray
    starts_C: np.ndarray
    ends_C: np.ndarray
    words_V: np.ndarray
    """For each id of the stream its row, or -1 for what is no word."""
    counts_V: np.ndarray

    @property
    def num_words(self) -> int:
        return int((self.ends_C - self.starts_C).sum())

    def keep(self, sample: float) -> np.ndarray:
        return as_bits(keep_rates(self.counts_V, sample))

    @classmethod
    def of(cls, stream: Stream, num_tokens: int, specials: Collection[int]) -> "Text":
        """The stream's documents, long ones in several chunks."""
        shards = stream.shards
        starts = np.asarray(shards.sentences[shards.documents[stream.documents_D]])
        ends = np.asarray(shards.sentences[shards.documents[stream.documents_D + 1]])
        forget_pages(shards.sentences)
        pieces = -(-(ends - starts) // CHUNK)
        first = np.repeat(np.cumsum(pieces) - pieces, pieces)
        starts_C = np.repeat(starts, pieces) + (np.arange(pieces.sum()) - first) * CHUNK
        ends_C = np.minimum(starts_C + CHUNK, np.repeat(ends, pieces))
        words_V, counts_V = np.arange(num_tokens, dtype=np.int32), np.array(shards.counts, np.int64)
        special = sorted(specials)
        words_V[special], counts_V[special] = -1, 0
        if not counts_V.any():
            raise BadInput(f"{shards.folder} has no word of the vocabulary; lower min_count or give more text.")
        return cls(np.asarray(shards.ids).view(np.ndarray), starts_C, ends_C, words_V, counts_V)


def compiled() -> ModuleType:
    """The kernels of words; numba is needed only here."""
    try:
        from firth.objectives import word_kernels
    except ImportError:
        raise Unsupported("Training word vectors needs numba: pip install 'firth[vectors]'.") from None
    return word_kernels


def spread(rows: np.ndarray, *, reach: float, seed: int) -> np.ndarray:
    """The rows, now spread evenly from -reach to reach: what kernels begin with and train in place."""
    compiled().spread(rows, reach, chance.key(seed, "word vectors"))
    return rows


def run_epochs(
    text: Text,
    work: Callable[..., None],
    tables: Mapping[str, np.ndarray],
    *,
    epochs: int,
    threads: int,
    seed: int,
    rates: tuple[float, float],
    report: Report,
    passes: Passes,
) -> None:
    """Calls `work(chunks, plan, done, me)` in threads, each with its own share of the chunks, in every epoch."""
    sizes_C = text.ends_C - text.starts_C
    plan = np.array([*rates, float(max(1, text.num_words * epochs))])
    cuts = np.searchsorted(np.cumsum(sizes_C), np.arange(1, threads) * (text.num_words / threads))
    bounds = [0, *cuts.tolist(), len(text.starts_C)]
    empty, done = np.zeros(0, np.int64), np.zeros(threads, np.int64)
    work((empty, empty, np.zeros(0, np.uint64)), plan, done, 0)  # compiles
    first = passes.restore(tables)
    done += [first * int(sizes_C[a:b].sum()) for a, b in pairwise(bounds)]
    report(first / epochs)
    for epoch in range(first, epochs):
        keys = chance.bits(chance.key(seed, "windows", epoch), np.arange(len(text.starts_C)))
        shares = [(text.starts_C[a:b], text.ends_C[a:b], keys[a:b]) for a, b in pairwise(bounds)]

        def beat() -> None:
            forget_pages(text.ids)
            report(float(done.sum() / plan[2]))

        in_threads(work, [(share, plan, done, me) for me, share in enumerate(shares)], beat)
        if epoch + 1 < epochs:
            passes.keep(epoch + 1, tables)


def in_threads(
    work: Callable[..., None], calls: Sequence[tuple[Any, ...]], beat: Callable[[], None] = lambda: None
) -> None:
    """Makes all calls at once, each in a thread; `beat` is called now and then until all have ended."""
    failures = list[Exception]()

    def guarded(*call: Any) -> None:
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
            beat()
    if failures:
        raise failures[0]
