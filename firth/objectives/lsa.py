"""Latent semantic analysis (Deerwester et al. 1990): the truncated SVD of the documents' tf-idf rows.

In: a stream of documents. Out: the table of a static encoder. Solved without gradients by random projection and power
iterations (Halko et al. 2011, algorithm 4.4). A word's vector is its right singular vector times its idf, so a text's
mean vector has the direction of its folded-in document.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from firth import rng
from firth.data.documents import Counts, count_words, idf
from firth.data.stream import CorpusView
from firth.encoders.tables import StaticConfig
from firth.errors import BadConfig, BadInput
from firth.objectives.solver import ROWS, Report, Solved, Solver


class Lsa(Solver):
    fills = "static"

    @dataclass(frozen=True)
    class Config:
        idf: Literal["smooth", "plain", "none"] = "smooth"
        """How rare words gain weight, as in tf-idf."""
        num_iterations: int = 5
        """Power iterations: more of them separate close singular values better."""
        spare: int = 10
        """Extra dimensions that are computed and dropped, which make the kept ones exact."""

        def __post_init__(self) -> None:
            if self.num_iterations < 0 or self.spare < 0:
                raise BadConfig("LSA needs num_iterations and spare dimensions of at least 0.")

    config: Config
    shape: StaticConfig

    def solve(self, stream: CorpusView, *, report: Report, **_: object) -> Solved:
        report(0.0)
        vocab_size = self.shape.vocab_size
        width = self.shape.width
        counts = count_words(stream, vocab_size, without=self.specials)
        weights_V = idf(counts, vocab_size, self.config.idf)
        num_words = len(np.unique(counts.words_M))
        if width > min(len(counts), num_words):
            raise BadInput(
                f"The text has {len(counts)} documents and {num_words} words, too few for {width} dimensions; "
                "lower the width."
            )
        matrix_DV = tf_idf_rows(counts, weights_V)
        values_K, vectors_VK = truncated_svd(matrix_DV, width, config=self.config, seed=self.seed)
        rows_VK = vectors_VK.numpy() * weights_V.astype(np.float32)[:, None]
        report(1.0)
        explained = float((values_K**2).sum() / (matrix_DV.values() ** 2).sum())
        return {ROWS: rows_VK}, {"documents": len(counts), "share_of_variation": explained}


def tf_idf_rows(counts: Counts, weights_V: np.ndarray) -> Tensor:
    """The documents as sparse rows of length 1."""
    values_M = counts.counts_M * weights_V[counts.words_M]
    norms_D = np.sqrt(np.bincount(counts.owners_M, values_M**2, len(counts)))
    values_M = values_M / np.maximum(norms_D, 1e-12)[counts.owners_M]
    indices_2M = np.stack([counts.owners_M, counts.words_M.astype(np.int64)])
    return torch.sparse_coo_tensor(
        torch.from_numpy(indices_2M),
        torch.from_numpy(values_M).float(),
        (len(counts), len(weights_V)),
        check_invariants=True,
        is_coalesced=True,
    )


def truncated_svd(matrix_DV: Tensor, rank: int, *, config: Lsa.Config, seed: int) -> tuple[Tensor, Tensor]:
    """The largest singular values and their right vectors; the largest entry of a vector is positive."""
    size = min(rank + config.spare, *matrix_DV.shape)
    key = rng.key(seed, "lsa")
    rows_V1 = np.arange(matrix_DV.shape[1])[:, None]
    columns_K = np.arange(size)
    start_VK = torch.from_numpy(rng.normal(key, rows_V1, columns_K)).float()
    transposed_VD = matrix_DV.t().coalesce()
    # Each product is orthonormalised, so that the iterations do not collapse to the first vector.
    basis_DK = torch.linalg.qr(torch.sparse.mm(matrix_DV, start_VK)).Q
    for _ in range(config.num_iterations):
        basis_VK = torch.linalg.qr(torch.sparse.mm(transposed_VD, basis_DK)).Q
        basis_DK = torch.linalg.qr(torch.sparse.mm(matrix_DV, basis_VK)).Q
    vectors_VK, values_K, _ = torch.linalg.svd(torch.sparse.mm(transposed_VD, basis_DK), full_matrices=False)
    # The sign of a singular vector is arbitrary; this choice makes it reproducible.
    peaks_1K = vectors_VK.gather(0, vectors_VK.abs().argmax(0, keepdim=True))
    signed_VK = vectors_VK * peaks_1K.sign()
    return values_K[:rank], signed_VK[:, :rank]
