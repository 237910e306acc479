"""Neighbour initialisation: first weights with which some attention heads already look at the tokens next to theirs.

A masked language model with learned positions stays near the unigram floor until a head of its first block happens to
look at a neighbour; that can take a third of a short run. Here the position table starts as sinusoids, and every head
of the first block starts with queries and keys that find the token a fixed number of places away: -1, +1, -2, +2 ...
(in a decoder -1, -2, -3 ...). Only initial weights are changed. The architecture and the saved folder stay those of the
plain model.

An encoder-decoder also stays long where it writes without reading its source. Its cross-attention starts with queries
and keys that find the same token in the source. The encoder's state there holds the token's neighbours, and so the
token to write next.

With p_t = (sin wt, cos wt) for each frequency w, a rotation by w * shift takes p_t to p_(t + shift). Queries that hold
rotated positions and keys that hold plain ones have the product sum_w cos(w * (t + shift - s)), which is largest at
s = t + shift.
"""

import math

import numpy as np
import torch
from torch import Tensor, nn

from firth import rng
from firth.nn.attention_layers import CrossAttention, SelfAttention

POSITION_SCALE = 1.4
"""Amplitude of the sinusoids over `init_std`: after the norm their sines are about 1."""
SEGMENT_SCALE = 0.1
"""Segment rows are drawn this much smaller: a larger offset would drown the positions."""
PEAK_LOGIT = 9.0
"""Attention logit at the neighbour itself; the others are near 0. At 4 the effect is lost."""
SAME_TOKEN_LOGIT = 16.0
"""Cross-attention logit at the same token if both halves had the same states; they are only similar."""


def frequencies(width: int) -> Tensor:
    """width / 2 frequencies, evenly over (0, pi) and shuffled, so that any run of them covers the whole range."""
    count = width // 2
    evenly = math.pi * (torch.arange(count) + 0.5) / count
    key = rng.key("neighbour frequencies")
    order = rng.permutation(key, count)
    return evenly[torch.from_numpy(order.astype(np.int64))]


@torch.no_grad()
def start_positions(table: nn.Embedding, *, init_std: float) -> None:
    """Fills a position table with sinusoids: columns 2f and 2f + 1 hold sine and cosine of frequency f."""
    num_positions, width = table.weight.shape
    angles_TF = torch.arange(num_positions)[:, None] * frequencies(width)
    pairs_TF2 = torch.stack([angles_TF.sin(), angles_TF.cos()], -1)
    sinusoids_TE = POSITION_SCALE * init_std * pairs_TF2.flatten(1)
    table.weight[:, : sinusoids_TE.shape[1]] = sinusoids_TE


@torch.no_grad()
def start_projection(project: nn.Linear) -> None:
    """A projection from the embedding to the states starts as the identity, so that positions survive it.

    From a narrow embedding, only the first rows; from a wide one, only the first columns.
    """
    shared = min(project.in_features, project.out_features)
    project.weight[:shared] = torch.eye(shared, project.in_features)


def neighbour_of(head: int, *, causal: bool) -> int:
    """How many places away the token is that this head looks at: even heads look back and odd ones ahead.

    In a causal layer all look back.
    """
    if causal:
        return -(head + 1)
    distance = head // 2 + 1
    return -distance if head % 2 == 0 else distance


@torch.no_grad()
def start_heads(attention: SelfAttention, *, embedding_width: int) -> None:
    """Adds to every head the weights that look at one neighbour.

    The states must hold the positions in their first `embedding_width` columns, as `start_positions` wrote them.
    """
    head_width = attention.qkv.in_features // attention.num_heads
    per_head = head_width // 2
    # A narrow network over a wide embedding has room for the first of its frequencies only.
    num_usable = min(embedding_width, attention.qkv.in_features) // 2
    all_frequencies = frequencies(embedding_width)[:num_usable]
    # The fused projection holds queries, keys and values one after another, each head by head.
    query_rows, key_rows, _ = attention.qkv.weight.chunk(3)
    strength = math.sqrt(PEAK_LOGIT * math.sqrt(head_width) / per_head)
    for head in range(attention.num_heads):
        shift = neighbour_of(head, causal=attention.causal)
        # Every head has frequencies of its own as long as there are enough.
        chosen = (head * per_head + torch.arange(per_head)) % len(all_frequencies)
        angle = all_frequencies[chosen] * shift
        sine_row = head * head_width + 2 * torch.arange(per_head)
        cosine_row = sine_row + 1
        sine_column = 2 * chosen
        cosine_column = sine_column + 1
        query_rows[sine_row, sine_column] += strength * angle.cos()
        query_rows[sine_row, cosine_column] += strength * angle.sin()
        query_rows[cosine_row, sine_column] -= strength * angle.sin()
        query_rows[cosine_row, cosine_column] += strength * angle.cos()
        key_rows[sine_row, sine_column] += strength
        key_rows[cosine_row, cosine_column] += strength


@torch.no_grad()
def start_cross_attention(attention: CrossAttention) -> None:
    """Adds to every head the weights that look at the same token in the source: each reads columns of its own."""
    head_width = attention.out.in_features // attention.num_heads
    width = attention.q.in_features
    scale = attention.scale or head_width**-0.5
    strength = math.sqrt(SAME_TOKEN_LOGIT / (head_width * scale))
    key_rows, _ = attention.kv.weight.chunk(2)
    for head in range(attention.num_heads):
        row = head * head_width + torch.arange(head_width)
        column = row % width
        attention.q.weight[row, column] += strength
        key_rows[row, column] += strength
