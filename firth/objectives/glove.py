"""GloVe (Pennington et al. 2014): vectors whose products are the logarithms of co-occurrence counts.

Minimised: sum of f(X_ij) (w_i . v_j + b_i + c_j - log X_ij)^2 over all pairs that occur, with f(x) = (x / most)^power
up to `most` and 1 above (equations 8 and 9), by AdaGrad over the shuffled pairs. The result is w + v.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from firth import rng
from firth.data.counts import Entries, count_pairs, shuffled
from firth.data.stream import CorpusView
from firth.encoders.tables import StaticConfig
from firth.errors import BadConfig, BadInput
from firth.objectives.hogwild import Text, compiled, in_threads
from firth.objectives.passes import ROOM, Passes
from firth.objectives.solver import ROWS, Report, Solved, Solver


@dataclass(frozen=True)
class Tables:
    """What AdaGrad trains. Every row has a vector and, in its last column, a bias."""

    words: np.ndarray
    """w and b of the paper."""
    contexts: np.ndarray
    """v and c of the paper."""
    word_squares: np.ndarray
    """The sums of squared gradients of `words`."""
    context_squares: np.ndarray

    def all(self) -> tuple[np.ndarray, ...]:
        """The arrays in the order the kernel takes them."""
        return self.words, self.contexts, self.word_squares, self.context_squares


class Glove(Solver):
    fills = "static"

    @dataclass(frozen=True)
    class Config:
        window: int = 10
        """Words on either side that count, each by one over its distance."""
        most: float = 10.0
        """Pairs that occur more often than this weigh no more (x_max in the paper: 100, for billions of words; for tens
        of millions 10 gives better vectors)."""
        power: float = 0.75
        """How fast the weight of rarer pairs falls (alpha in the paper)."""
        rate: float = 0.05
        """AdaGrad's rate."""

        def __post_init__(self) -> None:
            if self.window < 1 or self.most <= 0 or self.rate <= 0 or self.power < 0:
                raise BadConfig("GloVe needs a window of at least 1, most and rate above 0 and a power of at least 0.")

    config: Config
    shape: StaticConfig

    def solve(self, stream: CorpusView, *, epochs: int, threads: int, report: Report, passes: Passes) -> Solved:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix=f".{ROOM}.", dir=passes.folder) as folder:
            entries = self.entries(stream, Path(folder))
            counting_seconds = time.perf_counter() - began
            tables = self._initial_tables(self.shape.width)
            loss = self._train(tables, entries, epochs=epochs, threads=threads, report=report, passes=passes)
        # The last column holds the biases.
        word_vectors = tables.words[:, :-1]
        context_vectors = tables.contexts[:, :-1]
        rows = word_vectors + context_vectors
        rows[sorted(self.specials)] = 0
        num_pairs = len(entries)
        figures = {"pairs": num_pairs, "counting_seconds": counting_seconds, "loss": loss / num_pairs}
        return {ROWS: rows}, figures

    def entries(self, stream: CorpusView, folder: Path) -> Entries:
        """The co-occurrence counts of the stream, in files; shuffled once, as in the released program."""
        text = Text.of(stream, self.num_tokens, self.specials)
        ordered = count_pairs(words_of_chunks(text), self.num_tokens, window=self.config.window, folder=folder)
        if not len(ordered):
            raise BadInput(f"{stream.shards.folder} has no two words near each other; give more text.")
        mixed = shuffled(ordered, rng.key(self.seed, "pairs"), folder=folder)
        ordered.remove()
        return mixed

    def _initial_tables(self, width: int) -> Tables:
        """Uniform random rows, as in the released program; the sums of squared gradients begin at 1."""
        reach = 0.5 / (width + 1)
        words = np.empty((self.num_tokens, width + 1), np.float32)
        contexts = np.empty((self.num_tokens, width + 1), np.float32)
        compiled().spread(words, reach, rng.key(self.seed, "glove", 0))
        compiled().spread(contexts, reach, rng.key(self.seed, "glove", 1))
        return Tables(words, contexts, np.ones_like(words), np.ones_like(contexts))

    def _train(
        self,
        tables: Tables,
        entries: Entries,
        *,
        epochs: int,
        threads: int,
        report: Report,
        passes: Passes,
    ) -> float:
        """Trains the tables in this many passes over the pairs; returns the loss of the last pass."""
        from firth.objectives.glove_kernels import glove_kernel

        config = self.config
        kernel = glove_kernel(tables.words.shape[1] - 1)
        done = np.zeros(threads, np.int64)
        losses = np.zeros(threads)
        arguments = (
            entries.keys_E,
            entries.weights_E,
            np.float32(config.most),
            np.float32(config.power),
            self.num_tokens,
            tables.all(),
            np.float32(config.rate),
            done,
            losses,
        )
        # The first call compiles the kernel, in this thread.
        kernel(0, 0, *arguments, 0)
        cuts = np.linspace(0, len(entries), threads + 1).astype(np.int64)
        calls = []
        for thread, (first, last) in enumerate(pairwise(cuts.tolist())):
            calls.append((first, last, *arguments, thread))

        state = {str(number): table for number, table in enumerate(tables.all())}
        first_epoch = passes.restore(state)
        report(first_epoch / epochs)

        def progress() -> None:
            entries.forget()
            report((first_epoch + done.sum() / len(entries)) / epochs)

        for epoch in range(first_epoch, epochs):
            in_threads(kernel, calls, progress)
            if epoch + 1 < epochs:
                passes.keep(epoch + 1, state)
        return float(losses.sum())


def words_of_chunks(text: Text) -> Iterator[np.ndarray]:
    """The words of each chunk. Special tokens are left out, so the words on their two sides become neighbours."""
    for start, end in zip(text.starts_C.tolist(), text.ends_C.tolist(), strict=True):
        words = text.words_V[text.ids[start:end]]
        yield words[words >= 0]
