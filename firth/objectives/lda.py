"""Latent Dirichlet allocation, learned online (Hoffman et al. 2010, algorithm 2).

Solved without gradients: for some documents at a time the posterior over their topics is found with the topics as they
are (`encoders/topics.py`), and the topics move towards what these documents say, less and less as time goes by.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from firth import chance
from firth.data.documents import Counts, count_words
from firth.data.stream import Stream
from firth.encoders.topics import Topics
from firth.errors import BadConfig
from firth.objectives.solver import ROWS, Report, Solved, Solver


class Lda(Solver):
    fills = "topics"

    @dataclass(frozen=True)
    class Config:
        eta: float = 0.0
        """Pseudo-count of every word in every topic; 0 shares one among all topics."""
        documents: int = 256
        """Documents of a step."""
        offset: float = 10.0
        """Slows the first steps down (tau in the paper)."""
        decay: float = 0.7
        """How fast the steps shrink, above 0.5 and up to 1 (kappa in the paper)."""

        def __post_init__(self) -> None:
            if self.eta < 0 or self.documents < 1 or self.offset < 0 or not 0.5 < self.decay <= 1:
                raise BadConfig(
                    "LDA needs eta and offset of at least 0, some documents and a decay above 0.5, up to 1."
                )

    @torch.no_grad()
    def solve(self, stream: Stream, *, epochs: int, report: Report, **_: Any) -> Solved:
        config, shape = self.config, self.shape
        encoder, counts = Topics(shape), count_words(stream, shape.vocab_size, without=self.specials)
        eta = config.eta or 1 / shape.width
        dice = torch.Generator().manual_seed(int(chance.key(self.seed, "topics") >> np.uint64(1)))
        lambda_VK = (shape.init_std * torch.randn(shape.vocab_size, shape.width, generator=dice)).exp_()
        step, steps = 0, epochs * -(-len(counts) // config.documents)
        report(0.0)
        for epoch in range(epochs):
            order = chance.permutation(chance.key(self.seed, "lda", epoch), len(counts))
            for start in range(0, len(order), config.documents):
                some = counts.rows(order[start : start + config.documents])
                encoder.table.weight.copy_(expected(lambda_VK))
                rate = (config.offset + step + 1) ** -config.decay
                said_VK = eta + tallies(encoder, some) * (len(counts) / len(some))
                lambda_VK += rate * (said_VK - lambda_VK)
                step += 1
                report(step / steps)
        encoder.table.weight.copy_(expected(lambda_VK))
        encoder.table.weight[sorted(self.specials)] = 0
        figures = {"documents": len(counts), "steps": step, "perplexity": perplexity(encoder, counts, lambda_VK)}
        return {ROWS: encoder.table.weight.detach().numpy()}, figures


def expected(lambda_VK: Tensor) -> Tensor:
    """exp E[log probability] of each word in each topic, under Dirichlets with these pseudo-counts."""
    return torch.exp(torch.digamma(lambda_VK) - torch.digamma(lambda_VK.sum(0)))


def tallies(encoder: Topics, counts: Counts) -> Tensor:
    """How often each topic made each word of these documents."""
    words_M, counts_M = torch.from_numpy(counts.words_M).long(), torch.from_numpy(counts.counts_M).float()
    owners_M = torch.from_numpy(counts.owners_M)
    phi_MK, _ = encoder.posterior(encoder.table(words_M), owners_M, len(counts), counts_M)
    return torch.zeros_like(encoder.table.weight).index_add(0, words_M, phi_MK * counts_M[:, None])


def perplexity(encoder: Topics, counts: Counts, lambda_VK: Tensor) -> float:
    """Of the documents' words under each document's own mixture; some documents at a time."""
    total, beta_VK = 0.0, lambda_VK / lambda_VK.sum(0)
    for start in range(0, len(counts), 1024):
        some = counts.rows(np.arange(start, min(start + 1024, len(counts))))
        words_M, counts_M = torch.from_numpy(some.words_M).long(), torch.from_numpy(some.counts_M).float()
        owners_M = torch.from_numpy(some.owners_M)
        _, gamma_BK = encoder.posterior(encoder.table(words_M), owners_M, len(some), counts_M)
        theta_BK = gamma_BK / gamma_BK.sum(1, keepdim=True)
        total += float(((theta_BK[owners_M] * beta_VK[words_M]).sum(1).log() * counts_M).sum())
    return float(np.exp(-total / max(int(counts.counts_M.sum()), 1)))
