"""tf-idf (Spärck Jones 1972): one-hot vectors weighted by how few documents have the word.

Solved by counting, without gradients. With `idf=none` the encoder stays plain one-hot: the mean over a text is then its
bag of words, the maximum says which words it has.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from firth.data.documents import count_words, idf
from firth.data.stream import Stream
from firth.encoders.one_hot import OneHot
from firth.errors import BadConfig
from firth.tensors import Encoder, Objective
from firth.tokenizers.vocab import Vocab


class TfIdf(Objective):
    @dataclass(frozen=True)
    class Config:
        idf: Literal["smooth", "plain", "none"] = "smooth"
        """How rare words gain weight: log((1 + n) / (1 + df)) + 1, log(n / df), or not at all."""

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config, self.vocab = config, vocab
        if not isinstance(encoder, OneHot):
            raise BadConfig("tf-idf weighs one-hot vectors; its encoder must be one_hot.")

    @torch.no_grad()
    def solve(self, encoder: Encoder, stream: Stream, *, report: Callable[[float], None], **_: Any) -> dict[str, float]:
        assert isinstance(encoder, OneHot)
        report(0.0)
        counts = count_words(stream, encoder.vocab_size, without=self.vocab.specials)
        weights = idf(counts, encoder.vocab_size, self.config.idf)
        weights[sorted(self.vocab.specials)] = 0
        encoder.weight_V.copy_(torch.from_numpy(weights))
        report(1.0)
        return {"documents": len(counts), "entries": len(counts.words_M)}
