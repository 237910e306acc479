"""fastText (Bojanowski et al. 2017): skip-gram in which a word is the mean of itself and its character n-grams.

In: a stream of words and their tokenizer, which knows their parts. Out: a bag's table, filled: also words that training
never saw get vectors, from their n-grams. The word's own mean predicts its neighbours, each against fresh negatives.
The changes of its rows are summed over the window, where the released program steps after each neighbour.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from firth.errors import BadConfig
from firth.objectives.hogwild import Text, compiled
from firth.objectives.sampling import Sampler
from firth.objectives.skip_gram import SkipGram
from firth.tokenizers.subwords import END


class Subwords(SkipGram):
    fills = "bag"
    reach = 1.0

    @dataclass(frozen=True)
    class Config(SkipGram.Config):
        sample: float = 1e-4
        """Words more frequent than this share are dropped by chance."""
        power: float = 0.75
        """Negatives are drawn in proportion to counts to this power; the paper and its program have 0.5, but over our
        Chinese text 0.75 came nearer to people's judgements (wordsim-240 and -297: 0.445 and 0.385, not 0.424 and
        0.370)."""
        rate: float = 0.05
        """Learning rate of the first word."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.num_negatives < 1:
                raise BadConfig("Subwords are trained against negatives: num_negatives must be at least 1.")

    def __init__(self, config: Any, shape: Any, *, tokenizer: Any, seed: int) -> None:
        super().__init__(config, shape, tokenizer=tokenizer, seed=seed)
        if not hasattr(tokenizer, "word_parts"):
            raise BadConfig("fastText needs words with parts: prepare the text with --tokenizer subwords.")
        compiled()  # raises without numba
        self.parts = all_parts(tokenizer)

    def loop(self, width: int, text: Text, threads: int) -> tuple[Any, tuple[Any, ...], int]:
        """The compiled loop, the parts of all words, and what negatives are drawn from."""
        from firth.objectives.subword_kernels import bag_kernels

        sampler = Sampler.of_counts(text.counts_V, self.config.power)
        return bag_kernels(width).skip_gram, (self.parts, (sampler.limit_V, sampler.alias_V)), 0


def all_parts(tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
    """The parts of every word of a list, end to end, and where each word's begin; special tokens have none."""
    from firth.objectives.subword_kernels import ngram_parts

    vocab, config = tokenizer.vocab, tokenizer.config
    plain = [i not in vocab.specials for i in range(len(vocab))]
    data = [f"<{word}>".encode() if ok and word != END else b"" for word, ok in zip(vocab.tokens, plain, strict=True)]
    bounds = np.cumsum([0, *map(len, data)])
    own = np.where(plain, np.arange(len(vocab)), -1).astype(np.int32)
    joined = np.frombuffer(b"".join(data), np.uint8)
    sizes = config.min_ngram, config.max_ngram, max(1, config.num_buckets)
    parts: tuple[np.ndarray, np.ndarray] = ngram_parts(joined, bounds, *sizes, len(vocab), own)
    return parts
