"""GloVe (Pennington et al. 2014): vectors whose products are the logarithms of how often words stand together.

Minimised: sum of f(X_ij) (w_i . v_j + b_i + c_j - log X_ij)^2 over all pairs that occur, with f(x) = (x / most)^power
up to `most` and 1 above (equations 8 and 9), by AdaGrad over the pairs, shuffled. The result is w + v.
"""

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from firth import chance
from firth.data.counts import Entries, count_pairs, shuffled
from firth.data.stream import Stream
from firth.errors import BadConfig, BadInput
from firth.objectives.hogwild import Text, compiled, in_threads
from firth.objectives.passes import ROOM, Passes
from firth.objectives.solver import ROWS, Report, Solved, Solver


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

    def solve(self, stream: Stream, *, epochs: int, threads: int, report: Report, passes: Passes) -> Solved:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix=f".{ROOM}.", dir=passes.folder) as place:
            entries = self.entries(stream, Path(place))
            counting, tables = time.perf_counter() - began, self._begin(self.shape.width)
            loss = self._descend(tables, entries, epochs=epochs, threads=threads, report=report, passes=passes)
        rows = tables[0][:, :-1] + tables[1][:, :-1]
        rows[sorted(self.specials)] = 0
        return {ROWS: rows}, {"pairs": len(entries), "counting_seconds": counting, "loss": loss / len(entries)}

    def entries(self, stream: Stream, folder: Path) -> Entries:
        """How often words of the stream stand near each other, in files; shuffled once, as in the released program."""
        rows = chunks(Text.of(stream, self.num_tokens, self.specials))
        ordered = count_pairs(rows, self.num_tokens, window=self.config.window, folder=folder)
        if not len(ordered):
            raise BadInput(f"{stream.shards.folder} has no two words near each other; give more text.")
        mixed = shuffled(ordered, chance.key(self.seed, "pairs"), folder=folder)
        ordered.remove()
        return mixed

    def _begin(self, width: int) -> list[np.ndarray]:
        """Both tables with their biases, and their sums of squared gradients, which begin at 1."""
        tables = [np.empty((self.num_tokens, width + 1), np.float32) for _ in range(2)]
        for place, table in enumerate(tables):
            compiled().spread(table, 0.5 / (width + 1), chance.key(self.seed, "glove", place))
        return [*tables, *(np.ones_like(table) for table in tables)]

    def _descend(
        self,
        tables: list[np.ndarray],
        entries: Entries,
        *,
        epochs: int,
        threads: int,
        report: Report,
        passes: Passes,
    ) -> float:
        """Goes over the pairs so many times; gives the last loss."""
        from firth.objectives.glove_kernels import glove_kernel

        kernel, config = glove_kernel(tables[0].shape[1] - 1), self.config
        done, losses = np.zeros(threads, np.int64), np.zeros(threads)
        most, power, rate = np.float32(config.most), np.float32(config.power), np.float32(config.rate)
        same = (entries.keys_E, entries.weights_E, most, power, self.num_tokens, tuple(tables), rate, done, losses)
        kernel(0, 0, *same, 0)  # compiles
        cuts = np.linspace(0, len(entries), threads + 1).astype(np.int64)
        shares = [(first, last, *same, me) for me, (first, last) in enumerate(pairwise(cuts.tolist()))]
        state = {str(place): table for place, table in enumerate(tables)}
        first = passes.restore(state)
        report(first / epochs)

        def beat() -> None:
            entries.forget()
            report((first + done.sum() / len(entries)) / epochs)

        for epoch in range(first, epochs):
            in_threads(kernel, shares, beat)
            if epoch + 1 < epochs:
                passes.keep(epoch + 1, state)
        return float(losses.sum())


def chunks(text: Text) -> Iterator[np.ndarray]:
    """The words of each chunk; what is not on the list is left out, as if the words beside it were neighbours."""
    for start, end in zip(text.starts_C.tolist(), text.ends_C.tolist(), strict=True):
        row = text.words_V[text.ids[start:end]]
        yield row[row >= 0]
