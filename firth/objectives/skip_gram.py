"""Skip-gram (Mikolov et al. 2013): a word's vector predicts the words around it, each against a few drawn at random.

Maximised for every pair of a word w and a neighbour c: log s(x_c . u_w) + sum over negatives n of log s(-x_c . u_n), or
with hierarchical softmax the sum of log s(+-x_c . theta) over the inner nodes on the way to w. A window's negatives are
shared by its neighbours (Ji et al. 2016). Solved by compiled loops; the x are the encoder's table.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from firth.data.stream import Stream
from firth.errors import BadConfig
from firth.nn.huffman import Paths, huffman
from firth.objectives.hogwild import Text, compiled, run_epochs, spread
from firth.objectives.passes import Passes
from firth.objectives.sampling import Sampler
from firth.objectives.solver import ROWS, Report, Solved, Solver


class SkipGram(Solver):
    kernel = "skip_gram"
    fills = "static"
    reach = 0.5
    """First rows go from minus to plus this, divided by the width."""

    @dataclass(frozen=True)
    class Config:
        window: int = 5
        """Words on either side at most; each word draws its own reach from 1 to this."""
        num_negatives: int = 5
        """Words drawn against each true one; 0 takes hierarchical softmax instead."""
        sample: float = 1e-3
        """Words more frequent than this share are dropped by chance (Mikolov et al. 2013, the program's formula)."""
        power: float = 0.75
        """Negatives are drawn in proportion to counts to this power."""
        rate: float = 0.05
        """Learning rate of the first word; the released program has 0.025, but one pass learns more with twice that."""
        end_rate: float = 1e-5
        """Learning rate of the last word; between them it falls in a straight line."""

        def __post_init__(self) -> None:
            if self.window < 1 or self.num_negatives < 0 or not self.rate >= self.end_rate >= 0:
                raise BadConfig(
                    "Word vectors need a window of at least 1, negatives of at least 0, rate >= end_rate >= 0."
                )
            if self.sample < 0 or self.power < 0:
                raise BadConfig("Word vectors need a sample and a power of at least 0.")

    def solve(self, stream: Stream, *, epochs: int, threads: int, report: Report, passes: Passes) -> Solved:
        config, module, width = self.config, compiled(), self.shape.width
        text = Text.of(stream, self.num_tokens, self.specials)
        kernel, arrays, spare = self.loop(width, text, threads)
        keep = text.keep(config.sample)
        x_in, x_out = (np.zeros((size + spare, width), np.float32) for size in (self.shape.vocab_size, self.num_tokens))
        tables = {"in": x_in[: self.shape.vocab_size], "out": x_out[: self.num_tokens]}
        spread(tables["in"], reach=self.reach / width, seed=self.seed)

        def work(chunks: Any, plan: np.ndarray, done: np.ndarray, me: int) -> None:
            kernel(
                text.ids, chunks, (text.words_V, keep), *arrays, config.window, config.num_negatives, x_in, x_out,
                plan, done, me, module.SIGMOID,
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
        return {ROWS: tables["in"]}, {"words": int(text.num_words), "vocabulary": int((text.counts_V > 0).sum())}

    def loop(self, width: int, text: Text, threads: int) -> tuple[Any, tuple[Any, ...], int]:
        """The compiled loop; what decides which rows predict a word: a tree or negatives, and how many at most; and how
        many rows the threads have for themselves."""
        negatives, num_words = self.config.num_negatives, int((text.counts_V > 0).sum())
        tree = Paths.none() if negatives else huffman(text.counts_V)
        sampler = Sampler.of_counts(text.counts_V, self.config.power) if negatives else Sampler.none()
        room = negatives + 1 if negatives else int(np.diff(tree.bounds_V1).max())
        # All threads need the most frequent words, which a list has first, and the nodes at a tree's root, its last.
        loops, first = compiled(), len(self.specials)
        patience = int(min(loops.VISITS, loops.UNSEEN / max(self.config.rate * threads, 1e-9)))
        size = min(loops.SHARED, num_words - 1) if threads > 1 and patience > 2 else 0
        shared = first, first if negatives else num_words - 1 - size, size, patience
        arrays = (tree.bounds_V1, tree.nodes_P, tree.turns_P), (sampler.limit_V, sampler.alias_V), shared, room
        return getattr(loops.kernels(width), self.kernel), arrays, 2 * size * threads
