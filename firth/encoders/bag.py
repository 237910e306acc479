"""A token is the sum or mean of its parts: character n-grams (Bojanowski et al. 2017) or hand-written features.

In: a batch whose tokens have parts; in a batch without parts each token is its own only part. Out: a vector for every
token, and for every sequence the mean over all parts of all its tokens, which is what fastText classifies (Joulin et
al. 2016). A token without parts has a zero vector.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth.encoders.tables import BagConfig
from firth.nn.blocks import initialise
from firth.tensors import Batch, Encoder, States


class Bag(Encoder):
    Config = BagConfig

    def __init__(self, config: BagConfig) -> None:
        super().__init__()
        self.config = config
        self.width = config.width
        self.vocab_size = config.vocab_size
        self.table = nn.Embedding(config.vocab_size, config.width)
        initialise(self, std=config.init_std)

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        parts_M, part_bounds_N1 = parts_of(batch)
        x_ND = self._gather(parts_M, part_bounds_N1, self.config.combine)
        sequence_bounds_B1 = part_bounds_N1[batch.bounds_B1.long()]
        pooled_BD = self._gather(parts_M, sequence_bounds_B1, "mean")
        shown = (x_ND,) if layers else ()
        return States(x_ND, self.table.weight, pooled_BD, layers=shown)

    def _gather(self, parts_M: Tensor, bounds: Tensor, how: str) -> Tensor:
        """The sum or mean of the rows between each two bounds."""
        return F.embedding_bag(parts_M, self.table.weight, bounds, mode=how, include_last_offset=True)


def parts_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """The parts of all tokens, end to end, and where each token's begin."""
    if batch.parts_M is None or batch.part_bounds_N1 is None:
        return batch.ids_N, torch.arange(batch.num_tokens + 1, device=batch.ids_N.device)
    return batch.parts_M, batch.part_bounds_N1.long()
