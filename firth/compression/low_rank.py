"""Linear layers become products of two narrow matrices, by a singular value decomposition with a rank for each layer.

In: a model with Transformer blocks. Out: the same with `LowRankLinear` where that has fewer weights. What is kept is
the product on real inputs, not the matrix: with M the second moments of a layer's inputs and M = C C', the SVD is that
of W C, and W becomes U S V' C^-1 cut at the rank (Chen et al. 2021, DRONE). The inputs are those of the rows to
learn from, or of the sample texts that come with firth. Each matrix gets the smallest rank that keeps a
share of the squared singular values, so easy matrices get a low rank and hard ones a high rank or none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from firth.checkpoint import Checkpoint
from firth.compression.input_moments import calibration_batches, input_moments
from firth.compression.method import CompressionJob, Method, MethodConfig
from firth.compression.structure import block_encoder, block_sizes, with_sizes
from firth.config import check_counts
from firth.errors import BadConfig
from firth.nn.transformer import BlockSizes

LAYERS = {
    "qkv_rank": "attention.qkv",
    "out_rank": "attention.out",
    "up_rank": "ffn.up",
    "down_rank": "ffn.down",
}
"""Fields of `BlockSizes` -> the layers whose rank they are."""
ENERGIES = (0.999, 0.998, 0.995, 0.99, 0.98, 0.97, 0.95, 0.93, 0.9, 0.87, 0.84, 0.8, 0.75, 0.7, 0.65, 0.6, 0.5)
DAMPING = 1e-4
"""Added to the second moments, as a share of their mean, so that they have an inverse."""


class LowRank(Method):
    """Linear layers become products of two narrow matrices (SVD), with a rank for each layer."""

    name = "low-rank"

    @dataclass(frozen=True)
    class Config(MethodConfig):
        energy: float = 0.95
        """The share of the squared singular values that each matrix keeps; it decides its rank."""
        multiple: int = 8
        """Ranks are multiples of this, as the CPU's vectors like it."""
        max_rows: int = 500
        """The most rows whose inputs are looked at."""

        def __post_init__(self) -> None:
            if not 0 < self.energy <= 1:
                raise BadConfig(f"energy must be above 0 and up to 1; it is {self.energy}.")
            check_counts(multiple=self.multiple, max_rows=self.max_rows)

    config: Config

    @classmethod
    def strengths(cls, original: Checkpoint, config: Config) -> Sequence[Config]:
        block_encoder(original)
        return [replace(config, energy=energy) for energy in ENERGIES]

    @property
    def described(self) -> str:
        return f"ranks that keep {self.config.energy:.1%} of the squared singular values"

    def compress(self, job: CompressionJob) -> Checkpoint:
        encoder = block_encoder(job.original)
        moments = input_moments(encoder, calibration_batches(job, max_rows=self.config.max_rows))
        state = dict(encoder.state_dict())
        sizes = []
        for number, size in enumerate(block_sizes(encoder)):
            sizes.append(self._reduce_block(state, size, f"blocks.{number}.", moments))
        return with_sizes(job.original, sizes, state)

    def _reduce_block(
        self,
        state: dict[str, Tensor],
        size: BlockSizes,
        prefix: str,
        moments: Mapping[str, Tensor],
    ) -> BlockSizes:
        """Replaces the matrices of a block in `state` where a product is smaller; returns the block's sizes."""
        for field, layer in LAYERS.items():
            name = prefix + layer
            if getattr(size, field):  # it is of low rank already
                continue
            weight_ED = state[f"{name}.weight"]
            first_RD, second_ER = factors(
                weight_ED, moments[name], energy=self.config.energy, multiple=self.config.multiple
            )
            rank = len(first_RD)
            if rank * sum(weight_ED.shape) >= weight_ED.numel():
                continue
            del state[f"{name}.weight"]
            state[f"{name}.first.weight"] = first_RD
            state[f"{name}.second.weight"] = second_ER
            state[f"{name}.second.bias"] = state.pop(f"{name}.bias")
            size = replace(size, **{field: rank})
        return size


def factors(weight_ED: Tensor, moments_DD: Tensor, *, energy: float, multiple: int) -> tuple[Tensor, Tensor]:
    """Two matrices whose product is nearest to the weights for inputs with these second moments."""
    damping = DAMPING * moments_DD.diagonal().mean() + 1e-12
    damped_DD = moments_DD + damping * torch.eye(len(moments_DD), dtype=torch.float64)
    root_DD = torch.linalg.cholesky(damped_DD)
    left_ER, values_R, right_RD = torch.linalg.svd(weight_ED.double() @ root_DD, full_matrices=False)
    kept_R = values_R.square().cumsum(0) / values_R.square().sum()
    enough = int((kept_R < energy).sum()) + 1
    rank = min(-(-enough // multiple) * multiple, len(values_R))
    # Both factors get the root of the singular values, so that their weights are of similar size.
    roots_R = values_R[:rank].sqrt()
    second_ER = left_ER[:, :rank] * roots_R
    unscaled_DR = torch.linalg.solve_triangular(root_DD.T, right_RD[:rank].T, upper=True)
    first_RD = (unscaled_DR * roots_R).T
    return first_RD.float().contiguous(), second_ER.float().contiguous()
