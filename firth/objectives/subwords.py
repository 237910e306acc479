"""fastText (Bojanowski et al. 2017): skip-gram in which a word is the mean of itself and its character n-grams.

In: a stream of words and their tokenizer, which knows their parts. Out: a bag's table, filled. Words that training
never saw get vectors too, from their n-grams. The word's mean predicts its neighbours, each against fresh negatives.
The changes of its rows are summed over the window; the released program takes a step after each neighbour.
"""

from dataclasses import dataclass

import numpy as np

from firth.encoders.tables import BagConfig
from firth.errors import BadConfig
from firth.objectives.hogwild import Text, compiled
from firth.objectives.sampling import Sampler
from firth.objectives.skip_gram import Loop, SkipGram
from firth.ragged import bounds_of
from firth.tokenizers import Tokenizer
from firth.tokenizers.subwords import END, Subwords


class SubwordSkipGram(SkipGram):
    fills = "bag"
    reach = 1.0

    @dataclass(frozen=True)
    class Config(SkipGram.Config):
        sample: float = 1e-4
        """Words more frequent than this share are dropped at random."""
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

    def __init__(self, config: Config, shape: BagConfig, *, tokenizer: Tokenizer, seed: int) -> None:
        super().__init__(config, shape, tokenizer=tokenizer, seed=seed)
        if not isinstance(tokenizer, Subwords):
            raise BadConfig("fastText needs words with parts: prepare the text with `tokenizer='subwords'`.")
        compiled()  # raises without numba
        self.parts = all_parts(tokenizer)

    def loop(self, width: int, text: Text, threads: int) -> Loop:
        """The compiled loop with the parts of all words and a sampler of negatives."""
        from firth.objectives.subword_kernels import bag_kernels

        sampler = Sampler.of_counts(text.counts_V, self.config.power)
        arrays = (self.parts, (sampler.limit_V, sampler.alias_V))
        return Loop(bag_kernels(width).skip_gram, arrays, spare_rows=0)


def all_parts(tokenizer: Subwords) -> tuple[np.ndarray, np.ndarray]:
    """The parts of every word in the vocabulary, end to end, and where each word's begin; special tokens have none."""
    from firth.objectives.subword_kernels import ngram_parts

    vocab = tokenizer.vocab
    config = tokenizer.config
    spellings = []
    own = np.arange(len(vocab), dtype=np.int32)
    for number, word in enumerate(vocab.tokens):
        is_special = number in vocab.specials
        if is_special:
            own[number] = -1
        # The end of a text is a word without n-grams.
        spelling = b"" if is_special or word == END else f"<{word}>".encode()
        spellings.append(spelling)
    sizes = [len(spelling) for spelling in spellings]
    bounds = bounds_of(sizes)
    joined = np.frombuffer(b"".join(spellings), np.uint8)
    num_buckets = max(1, config.num_buckets)
    parts: tuple[np.ndarray, np.ndarray] = ngram_parts(
        joined, bounds, config.min_ngram, config.max_ngram, num_buckets, len(vocab), own
    )
    return parts
