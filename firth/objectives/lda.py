"""Latent Dirichlet allocation, learned online (Hoffman et al. 2010, algorithm 2).

In: a stream of documents. Out: the table of `encoders/topics.py`. Solved without gradients, by mini-batches of
documents: the E-step finds the posterior over their topics, the M-step moves the topics towards what these documents
say, by smaller and smaller steps.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from firth import rng
from firth.data.documents import Counts, count_words
from firth.data.stream import CorpusView
from firth.encoders.tables import TopicsConfig
from firth.encoders.topics import Topics
from firth.errors import BadConfig
from firth.objectives.solver import ROWS, Report, Solved, Solver

_PERPLEXITY_DOCUMENTS = 1024
"""Documents whose perplexity is computed at once."""


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

    config: Config
    shape: TopicsConfig

    @torch.no_grad()
    def solve(self, stream: CorpusView, *, epochs: int, report: Report, **_: object) -> Solved:
        config = self.config
        shape = self.shape
        encoder = Topics(shape)
        counts = count_words(stream, shape.vocab_size, without=self.specials)
        eta = config.eta or 1 / shape.width
        # lambda_VK are the topics' pseudo-counts of words.
        key = rng.key(self.seed, "topics")
        generator = torch.Generator().manual_seed(int(key >> np.uint64(1)))
        normal_VK = torch.randn(shape.vocab_size, shape.width, generator=generator)
        lambda_VK = (shape.init_std * normal_VK).exp_()
        step = 0
        steps_per_epoch = -(-len(counts) // config.documents)
        num_steps = epochs * steps_per_epoch
        report(0.0)
        for epoch in range(epochs):
            order = rng.permutation(rng.key(self.seed, "lda", epoch), len(counts))
            for start in range(0, len(order), config.documents):
                batch = counts.rows(order[start : start + config.documents])
                encoder.table.weight.copy_(expected(lambda_VK))
                # rho_t = (tau + t)^-kappa, the weight of this batch.
                rate = (config.offset + step + 1) ** -config.decay
                # The topics if all documents were like these (lambda tilde in the paper).
                estimate_VK = eta + tallies(encoder, batch) * (len(counts) / len(batch))
                lambda_VK += rate * (estimate_VK - lambda_VK)
                step += 1
                report(step / num_steps)
        encoder.table.weight.copy_(expected(lambda_VK))
        encoder.table.weight[sorted(self.specials)] = 0
        figures = {"documents": len(counts), "steps": step, "perplexity": perplexity(encoder, counts, lambda_VK)}
        return {ROWS: encoder.table.weight.detach().numpy()}, figures


def expected(lambda_VK: Tensor) -> Tensor:
    """exp E[log probability] of each word in each topic, under Dirichlets with these pseudo-counts."""
    log_VK = torch.digamma(lambda_VK) - torch.digamma(lambda_VK.sum(0))
    return log_VK.exp()


def tallies(encoder: Topics, counts: Counts) -> Tensor:
    """The expected number of times that each topic made each word of these documents."""
    words_M, counts_M, owners_M = _as_tensors(counts)
    phi_MK, _ = encoder.posterior(encoder.table(words_M), owners_M, len(counts), counts_M)
    times_MK = phi_MK * counts_M[:, None]
    none_VK = torch.zeros_like(encoder.table.weight)
    return none_VK.index_add(0, words_M, times_MK)


def perplexity(encoder: Topics, counts: Counts, lambda_VK: Tensor) -> float:
    """The perplexity of the documents' words, each document under its own mixture of topics."""
    total = 0.0
    beta_VK = lambda_VK / lambda_VK.sum(0)
    for start in range(0, len(counts), _PERPLEXITY_DOCUMENTS):
        end = min(start + _PERPLEXITY_DOCUMENTS, len(counts))
        batch = counts.rows(np.arange(start, end))
        words_M, counts_M, owners_M = _as_tensors(batch)
        _, gamma_BK = encoder.posterior(encoder.table(words_M), owners_M, len(batch), counts_M)
        theta_BK = gamma_BK / gamma_BK.sum(1, keepdim=True)
        probability_M = (theta_BK[owners_M] * beta_VK[words_M]).sum(1)
        total += float((probability_M.log() * counts_M).sum())
    num_words = max(int(counts.counts_M.sum()), 1)
    return float(np.exp(-total / num_words))


def _as_tensors(counts: Counts) -> tuple[Tensor, Tensor, Tensor]:
    """The words of some documents, how often each occurs, and the number of its document."""
    words_M = torch.from_numpy(counts.words_M).long()
    counts_M = torch.from_numpy(counts.counts_M).float()
    owners_M = torch.from_numpy(counts.owners_M)
    return words_M, counts_M, owners_M
