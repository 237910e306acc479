"""T5's relative positions (Raffel et al. 2019, section 2.1): a learned bias for each head and bucket of distances.

In: the positions of queries and keys. Out: what is added to their scores. Small distances have a bucket each; larger
ones share buckets whose sizes grow logarithmically, up to a largest distance. In an encoder half of the buckets are
for keys after the query. In a decoder there are no such keys.
"""

import math

import torch
from torch import Tensor, nn

from firth.nn.attention import DistanceBias


class RelativePositions(nn.Module):
    def __init__(self, num_heads: int, *, num_buckets: int, max_distance: int, causal: bool) -> None:
        super().__init__()
        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.causal = causal
        self.table = nn.Embedding(num_buckets, num_heads)

    def bias(self, longest: int) -> DistanceBias:
        """The bias of self-attention in one pass over sequences of at most this length."""
        distances_R = torch.arange(1 - longest, longest, device=self.table.weight.device)
        return DistanceBias(self.table(self.buckets(distances_R)), longest)

    def buckets(self, distances: Tensor) -> Tensor:
        """The bucket of each distance, which is the key's position minus the query's."""
        num_buckets = self.num_buckets
        first = torch.zeros_like(distances)
        if self.causal:
            distances = (-distances).clamp(min=0)
        else:
            num_buckets //= 2
            first = torch.where(distances > 0, num_buckets, 0)
            distances = distances.abs()
        num_exact = num_buckets // 2
        # Logarithmic from num_exact to max_distance; clamped from below because log(0) has no bucket.
        farthest = math.log(self.max_distance / num_exact)
        steps = torch.log(distances.clamp(min=1) / num_exact) / farthest
        shared = num_exact + (steps * (num_buckets - num_exact)).long()
        shared = shared.clamp(max=num_buckets - 1)
        return first + torch.where(distances < num_exact, distances, shared)
