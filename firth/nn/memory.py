"""Keys and values remembered, so that a causal model that goes on with a text reads only what is new.

In: the bounds of the sequences' new tokens. Out: a layout for each layer, whose attention first remembers the new keys
and values and then looks back at all of the sequence. What is remembered of B sequences lies padded to one length.
"""

from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from firth.nn.attention import Layout


class Memory:
    """What all layers remember of B sequences of at most `capacity` tokens."""

    def __init__(self, num_layers: int, num_sequences: int, capacity: int) -> None:
        self.capacity, self.lengths_B = capacity, torch.zeros(num_sequences, dtype=torch.long)
        self.past: list[Tensor | None] = [None] * num_layers

    def layouts(self, bounds_B1: Tensor, max_length: int) -> list[Layout]:
        """One for each layer, for one pass over new tokens that lie so; afterwards they count as read."""
        new_B, before_B = bounds_B1.long().diff(), self.lengths_B
        sequence_N = torch.repeat_interleave(torch.arange(len(new_B)), new_B)
        step_N = torch.arange(len(sequence_N)) - bounds_B1.long()[sequence_N]
        self.lengths_B = before_B + new_B
        longest, width = int(self.lengths_B.max()), int(new_B.max())
        seen_BL = before_B[:, None] + torch.arange(width)
        mask_B1LS = torch.arange(longest) <= seen_BL[:, None, :, None]
        recall = partial(self._recall, sequence_N=sequence_N, step_N=step_N, before_B=before_B, mask_B1LS=mask_B1LS)
        return [Layout(bounds_B1, max_length, recall=partial(recall, layer=layer)) for layer in range(len(self.past))]

    def keep(self, rows: Tensor) -> None:
        """Forgets all sequences but these."""
        self.lengths_B = self.lengths_B[rows]
        self.past = [None if past is None else past[:, rows] for past in self.past]

    def _recall(
        self,
        qkv_N3HK: Tensor,
        *,
        layer: int,
        sequence_N: Tensor,
        step_N: Tensor,
        before_B: Tensor,
        mask_B1LS: Tensor,
    ) -> Tensor:
        """What every new token takes from itself and all tokens before it."""
        num, _, width, longest = mask_B1LS.shape
        heads = qkv_N3HK.shape[2:]
        past_2BSHK = self.past[layer]
        if past_2BSHK is None:
            past_2BSHK = self.past[layer] = qkv_N3HK.new_zeros(2, num, self.capacity, *heads)
        past_2BSHK[:, sequence_N, before_B[sequence_N] + step_N] = qkv_N3HK[:, 1:].transpose(0, 1)
        q_BLHK = qkv_N3HK.new_zeros(num, width, *heads)
        q_BLHK[sequence_N, step_N] = qkv_N3HK[:, 0]
        keys, values = past_2BSHK[:, :, :longest].transpose(2, 3)
        out_BHLK = scaled_dot_product_attention(q_BLHK.transpose(1, 2), keys, values, mask_B1LS)
        return out_BHLK.transpose(1, 2)[sequence_N, step_N]
