"""Latent semantic analysis (Deerwester et al. 1990): the truncated SVD of the documents' tf-idf rows.

Solved without gradients by random projection and power iterations (Halko et al. 2011, algorithm 4.4). A word's vector
is its right singular vector times its idf, so a text's mean vector points where its folded-in document would.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from firth import chance
from firth.data.documents import Counts, count_words, idf
from firth.data.stream import Stream
from firth.encoders.static import Static
from firth.errors import BadConfig, BadInput
from firth.tensors import Encoder, Objective
from firth.tokenizers.vocab import Vocab


class Lsa(Objective):
    @dataclass(frozen=True)
    class Config:
        idf: Literal["smooth", "plain", "none"] = "smooth"
        """How rare words gain weight, as in tf-idf."""
        num_iterations: int = 5
        """Power iterations: more of them part close singular values better."""
        spare: int = 10
        """Dimensions computed and thrown away, which make the kept ones exact."""

        def __post_init__(self) -> None:
            if self.num_iterations < 0 or self.spare < 0:
                raise BadConfig("LSA needs num_iterations and spare dimensions of at least 0.")

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        self.config, self.vocab, self.seed = config, vocab, seed
        if not isinstance(encoder, Static):
            raise BadConfig("LSA fills a table of word vectors; its encoder must be static.")

    @torch.no_grad()
    def solve(self, encoder: Encoder, stream: Stream, *, report: Callable[[float], None], **_: Any) -> dict[str, float]:
        assert isinstance(encoder, Static)
        report(0.0)
        counts = count_words(stream, encoder.vocab_size, without=self.vocab.specials)
        weights_V = idf(counts, encoder.vocab_size, self.config.idf)
        num_words = len(np.unique(counts.words_M))
        if encoder.width > min(len(counts), num_words):
            raise BadInput(
                f"The text has {len(counts)} documents and {num_words} words, too few for {encoder.width} dimensions; "
                "lower the width."
            )
        matrix_DV = tf_idf_rows(counts, weights_V)
        values_K, vectors_VK = truncated_svd(matrix_DV, encoder.width, config=self.config, seed=self.seed)
        encoder.table.weight.copy_(vectors_VK * torch.from_numpy(weights_V).float()[:, None])
        report(1.0)
        explained = float((values_K**2).sum() / (matrix_DV.values() ** 2).sum())
        return {"documents": len(counts), "share_of_variation": explained}


def tf_idf_rows(counts: Counts, weights_V: np.ndarray) -> Tensor:
    """The documents as sparse rows of length 1."""
    values_M = counts.counts_M * weights_V[counts.words_M]
    norms_D = np.sqrt(np.bincount(counts.owners_M, values_M**2, len(counts)))
    values_M = values_M / np.maximum(norms_D, 1e-12)[counts.owners_M]
    places = torch.from_numpy(np.stack([counts.owners_M, counts.words_M.astype(np.int64)]))
    shape = (len(counts), len(weights_V))
    values = torch.from_numpy(values_M).float()
    return torch.sparse_coo_tensor(places, values, shape, check_invariants=True, is_coalesced=True)


def truncated_svd(matrix_DV: Tensor, rank: int, *, config: Lsa.Config, seed: int) -> tuple[Tensor, Tensor]:
    """The largest singular values and their right vectors; a vector's largest entry is positive."""
    size = min(rank + config.spare, *matrix_DV.shape)
    key = chance.key(seed, "lsa")
    places = np.arange(matrix_DV.shape[1])[:, None], np.arange(size)
    # Normal numbers by Box and Muller.
    radius = np.sqrt(-2 * np.log1p(-chance.uniform(key, *places, 0)))
    start_VK = torch.from_numpy(radius * np.cos(2 * np.pi * chance.uniform(key, *places, 1))).float()
    across = matrix_DV.t().coalesce()
    basis_DK = torch.linalg.qr(torch.sparse.mm(matrix_DV, start_VK)).Q
    for _ in range(config.num_iterations):
        basis_VK = torch.linalg.qr(torch.sparse.mm(across, basis_DK)).Q
        basis_DK = torch.linalg.qr(torch.sparse.mm(matrix_DV, basis_VK)).Q
    vectors_VK, values_K, _ = torch.linalg.svd(torch.sparse.mm(across, basis_DK), full_matrices=False)
    peaks_1K = vectors_VK.gather(0, vectors_VK.abs().argmax(0, keepdim=True))
    return values_K[:rank], (vectors_VK * peaks_1K.sign())[:, :rank]
