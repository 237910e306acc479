"""tf-idf (Spärck Jones 1972): one-hot vectors weighted by how few documents have the word.

In: a stream of documents. Out: the weights of a one-hot encoder. Solved by counting, without gradients. With
`idf=none` the encoder stays plain one-hot: the mean over a text is its bag of words, the maximum says which words it
has.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from firth.data.documents import count_words, idf
from firth.data.stream import CorpusView
from firth.encoders.tables import OneHotConfig
from firth.objectives.solver import Report, Solved, Solver


class TfIdf(Solver):
    fills = "one_hot"

    @dataclass(frozen=True)
    class Config:
        idf: Literal["smooth", "plain", "none"] = "smooth"
        """How rare words gain weight: log((1 + n) / (1 + df)) + 1, log(n / df), or not at all."""

    config: Config
    shape: OneHotConfig

    def solve(self, stream: CorpusView, *, report: Report, **_: object) -> Solved:
        report(0.0)
        vocab_size = self.shape.vocab_size
        counts = count_words(stream, vocab_size, without=self.specials)
        weights_V = idf(counts, vocab_size, self.config.idf).astype(np.float32)
        weights_V[sorted(self.specials)] = 0
        report(1.0)
        return {"weight_V": weights_V}, {"documents": len(counts), "entries": len(counts.words_M)}
