"""Skip-gram (Mikolov et al. 2013): a word's vector predicts the words around it, each against random negatives.

Maximised for every pair of a word w and a neighbour c: log s(x_c . u_w) + sum over negatives n of log s(-x_c . u_n), or
with hierarchical softmax the sum of log s(+-x_c . theta) over the inner nodes on the way to w. The neighbours in a
window share its negatives (Ji et al. 2016). Solved by compiled loops; the x are the encoder's table.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from firth.data.stream import CorpusView
from firth.encoders.tables import BagConfig, StaticConfig
from firth.errors import BadConfig
from firth.nn.huffman import Paths, huffman
from firth.objectives.hogwild import Chunks, Text, compiled, run_epochs, spread
from firth.objectives.passes import Passes
from firth.objectives.sampling import Sampler
from firth.objectives.solver import ROWS, Report, Solved, Solver


@dataclass(frozen=True)
class Loop:
    """A compiled loop with the arguments that stay the same in all its calls."""

    kernel: Callable[..., None]
    arrays: tuple[object, ...]
    """What decides which output rows predict a word, in the order the kernel takes it."""
    spare_rows: int
    """Rows at the end of both tables that hold the threads' local copies."""


class SkipGram(Solver):
    kernel = "skip_gram"
    fills = "static"
    reach = 0.5
    """Initial rows are uniform between minus this and this, divided by the width."""

    @dataclass(frozen=True)
    class Config:
        window: int = 5
        """The most words on either side; each word draws its own reach from 1 to this."""
        num_negatives: int = 5
        """Words drawn against each true one; 0 takes hierarchical softmax instead."""
        sample: float = 1e-3
        """Words more frequent than this share are dropped at random (Mikolov et al. 2013, the program's formula)."""
        power: float = 0.75
        """Negatives are drawn in proportion to counts to this power."""
        rate: float = 0.05
        """Learning rate of the first word; the released program has 0.025, but one pass learns more with twice that."""
        end_rate: float = 1e-5
        """Learning rate of the last word; between them it falls linearly."""

        def __post_init__(self) -> None:
            if self.window < 1 or self.num_negatives < 0 or not self.rate >= self.end_rate >= 0:
                raise BadConfig(
                    "Word vectors need a window of at least 1, negatives of at least 0, rate >= end_rate >= 0."
                )
            if self.sample < 0 or self.power < 0:
                raise BadConfig("Word vectors need a sample and a power of at least 0.")

    config: Config
    shape: StaticConfig | BagConfig

    def solve(self, stream: CorpusView, *, epochs: int, threads: int, report: Report, passes: Passes) -> Solved:
        config = self.config
        width = self.shape.width
        vocab_size = self.shape.vocab_size
        sigmoid = compiled().SIGMOID
        text = Text.of(stream, self.num_tokens, self.specials)
        loop = self.loop(width, text, threads)
        keep_V = text.keep(config.sample)
        x_in = np.zeros((vocab_size + loop.spare_rows, width), np.float32)
        x_out = np.zeros((self.num_tokens + loop.spare_rows, width), np.float32)
        tables = {"in": x_in[:vocab_size], "out": x_out[: self.num_tokens]}
        spread(tables["in"], reach=self.reach / width, seed=self.seed)

        def work(chunks: Chunks, schedule: np.ndarray, done: np.ndarray, thread: int) -> None:
            loop.kernel(
                text.ids, chunks, (text.words_V, keep_V), *loop.arrays, config.window, config.num_negatives, x_in,
                x_out, schedule, done, thread, sigmoid,
            )  # fmt: skip

        run_epochs(
            text,
            work,
            tables,
            epochs=epochs,
            threads=threads,
            seed=self.seed,
            rates=(config.rate, config.end_rate),
            report=report,
            passes=passes,
        )
        x_in[sorted(self.specials)] = 0
        vocabulary = int((text.counts_V > 0).sum())
        figures: dict[str, float] = {"words": int(text.num_words), "vocabulary": vocabulary}
        return {ROWS: tables["in"]}, figures

    def loop(self, width: int, text: Text, threads: int) -> Loop:
        """The compiled loop with a Huffman tree or a sampler of negatives, and the rows that threads copy."""
        negatives = self.config.num_negatives
        num_words = int((text.counts_V > 0).sum())
        if negatives:
            tree = Paths.none()
            sampler = Sampler.of_counts(text.counts_V, self.config.power)
            max_targets = negatives + 1
        else:
            tree = huffman(text.counts_V)
            sampler = Sampler.none()
            max_targets = int(np.diff(tree.bounds_V1).max())

        size, patience = self._local_copies(num_words, threads)
        # All threads need the most frequent words, which come first in the vocabulary, and the inner nodes near the
        # root of the tree, which come last.
        first_in = len(self.specials)
        first_out = first_in if negatives else num_words - 1 - size
        arrays = (
            (tree.bounds_V1, tree.nodes_P, tree.turns_P),
            (sampler.limit_V, sampler.alias_V),
            (first_in, first_out, size, patience),
            max_targets,
        )
        kernel = getattr(compiled().kernels(width), self.kernel)
        # Each copy has two rows: the copy itself and the row as of the last exchange.
        return Loop(kernel, arrays, spare_rows=2 * size * threads)

    def _local_copies(self, num_words: int, threads: int) -> tuple[int, int]:
        """How many rows each thread copies, and after how many visits it exchanges a copy."""
        loops = compiled()
        rate_of_all = max(self.config.rate * threads, 1e-9)
        patience = int(min(loops.VISITS, loops.UNSEEN / rate_of_all))
        if threads > 1 and patience > 2:
            return min(loops.SHARED, num_words - 1), patience
        return 0, patience
