"""fastText (Bojanowski et al. 2017): skip-gram in which a word is the mean of itself and its character n-grams.

In: a stream of words and their tokenizer, which knows their parts. Out: a bag's table, filled: also words that training
never saw get vectors, from their n-grams. The word's own mean predicts its neighbours, each against fresh negatives.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from firth.data.stream import Stream
from firth.encoders.bag import Bag
from firth.errors import BadConfig
from firth.objectives.hogwild import Report, Text, compiled, first_rows, run_epochs
from firth.objectives.passes import Passes
from firth.objectives.skip_gram import SkipGram, aims
from firth.tensors import Encoder, Objective
from firth.tokenizers.subwords import END
from firth.tokenizers.vocab import Vocab


class Subwords(Objective):
    @dataclass(frozen=True)
    class Config(SkipGram.Config):
        sample: float = 1e-4
        """Words more frequent than this share are dropped by chance."""
        rate: float = 0.05
        """Learning rate of the first word."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if self.num_negatives < 1:
                raise BadConfig("Subwords are trained against negatives: num_negatives must be at least 1.")

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config, self.vocab, self.seed = config, vocab, seed
        if not isinstance(encoder, Bag):
            raise BadConfig("Subwords fill a table of parts; their encoder must be bag.")

    @torch.no_grad()
    def solve(
        self,
        encoder: Encoder,
        stream: Stream,
        *,
        epochs: int,
        threads: int,
        tokenizer: Any,
        report: Report,
        passes: Passes | None = None,
        **_: Any,
    ) -> dict[str, float]:
        assert isinstance(encoder, Bag)
        if not hasattr(tokenizer, "word_parts"):
            raise BadConfig("fastText needs words with parts: prepare the text with --tokenizer subwords.")
        config, text = self.config, Text.of(stream, self.vocab)
        module, _loops = compiled(encoder.width)
        from firth.objectives.subword_kernels import bag_kernels

        kernel, keep, bags = bag_kernels(encoder.width).skip_gram, text.keep(config.sample), all_parts(tokenizer)
        words, _tree, sampler, _room = aims(text, config.num_negatives, config.power)
        x_in = first_rows(encoder.table.weight, seed=self.seed, reach=1 / encoder.width)
        x_out = np.zeros((len(self.vocab), encoder.width), np.float32)

        def work(chunks: Any, plan: np.ndarray, done: np.ndarray, me: int) -> None:
            kernel(
                text.ids, chunks, (words, keep), bags, sampler, config.window, config.num_negatives, x_in, x_out,
                plan, done, me, module.SIGMOID,
            )  # fmt: skip

        rates = (config.rate, config.end_rate)
        run_epochs(
            text, work, {"in": x_in, "out": x_out}, epochs=epochs, threads=threads, seed=self.seed, rates=rates,
            report=report, passes=passes or Passes(),
        )  # fmt: skip
        encoder.table.weight[sorted(self.vocab.specials)] = 0
        return {"words": int(text.num_words), "vocabulary": int((text.counts_V > 0).sum())}


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
