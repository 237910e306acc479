"""Vectors of names fused with the states of a frozen encoder (ERNIE, Zhang et al. 2019; K-Adapter, Wang et al. 2021).

In: a batch and the states of some layers. Out: what is added to the states. A table holds vectors of names (words with
vectors of word2vec or GloVe), by a hash of their token ids. A token at which a name begins gets the name's vector e:
gelu(W_t x + W_e e + b), projected back (ERNIE's equation 3). There is one such layer for each layer of the encoder
that is read, and each also reads what the one below it added, as in K-Adapter. Only these layers learn.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from firth.nn.adapters import INITIAL_STD
from firth.nn.layout import token_sequences
from firth.tensors import Batch

_MULTIPLIER = 0x1E3779B97F4A7C15
"""Odd and below 2**63; sums and products of hashes wrap around."""


class NameTable(nn.Module):
    """The vectors of names; its tensors are filled by whoever knows the names, and never learn."""

    def __init__(self, num_names: int, width: int, *, longest: int, vocab_size: int) -> None:
        super().__init__()
        self.longest = longest
        """Tokens of the longest name."""
        self.keys_M = _fixed(torch.zeros(num_names, dtype=torch.long))
        """Hashes of the names, ascending."""
        self.vectors_ME = _fixed(torch.zeros(num_names, width))
        self.continues_V = _fixed(torch.zeros(vocab_size, dtype=torch.bool))
        """True for the ids of pieces that continue a word."""

    def forward(self, batch: Batch) -> Tensor:
        """For each token the vector of the longest name that begins there, or zeros: N x E."""
        rows_N = self.find(batch.ids_N, batch.bounds_B1)
        vectors_NE: Tensor = self.vectors_ME[rows_N.clamp(min=0)]
        return vectors_NE * (rows_N >= 0)[:, None]

    def find(self, ids_N: Tensor, bounds_B1: Tensor) -> Tensor:
        """For each token the number of the longest name that begins there and consists of whole words; -1 for none."""
        place_N = torch.arange(len(ids_N), device=ids_N.device)
        sequence_N = token_sequences(bounds_B1, len(ids_N))
        end_N = bounds_B1.long()[sequence_N + 1]
        continues_N = self.continues_V[ids_N]
        # Behind the last token there is none that continues a word.
        continues_N1 = torch.cat([continues_N, continues_N.new_zeros(1)])
        rows_N = torch.full_like(ids_N, -1)
        for size, hash_N in enumerate(_window_hashes(ids_N, self.longest), 1):
            window_end_N = place_N + size
            after_N = window_end_N.clamp(max=len(ids_N))
            ends_with_word_N = (after_N == end_N) | ~continues_N1[after_N]
            is_whole_N = ~continues_N & (window_end_N <= end_N) & ends_with_word_N
            row_N = torch.searchsorted(self.keys_M, hash_N)
            row_N = row_N.clamp(max=len(self.keys_M) - 1)
            is_name_N = is_whole_N & (self.keys_M[row_N] == hash_N)
            rows_N = torch.where(is_name_N, row_N, rows_N)  # longer names come later and win
        return rows_N


class KnowledgeLayers(nn.Module):
    """One fusion layer for each layer of the encoder that is read."""

    def __init__(self, num_layers: int, width: int, *, name_width: int, fusion_width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(FusionLayer(width, name_width, fusion_width) for _ in range(num_layers))

    def forward(self, layers: list[Tensor], names_NE: Tensor) -> Tensor:
        """What is added to the last of these states."""
        added_ND = torch.zeros_like(layers[0])
        for fuse, x_ND in zip(self.layers, layers, strict=True):
            added_ND = fuse(x_ND + added_ND, names_NE)
        return added_ND


class FusionLayer(nn.Module):
    """gelu(W_t x + W_e e + b), projected back; starts near zero."""

    def __init__(self, width: int, name_width: int, fusion_width: int) -> None:
        super().__init__()
        self.from_state = nn.Linear(width, fusion_width)
        self.from_name = nn.Linear(name_width, fusion_width, bias=False)
        self.out = nn.Linear(fusion_width, width)
        nn.init.normal_(self.out.weight, std=INITIAL_STD)
        nn.init.zeros_(self.out.bias)

    def forward(self, x_ND: Tensor, names_NE: Tensor) -> Tensor:
        hidden_NF = gelu(self.from_state(x_ND) + self.from_name(names_NE.to(x_ND.dtype)))
        added_ND: Tensor = self.out(hidden_NF)
        return added_ND


def name_key(ids: list[int]) -> int:
    """The hash of a name's token ids."""
    *_, hash_N = _window_hashes(torch.tensor(ids), len(ids))
    return int(hash_N[0])


def _window_hashes(ids_N: Tensor, longest: int) -> list[Tensor]:
    """For windows of 1, 2 ... tokens: the hash of the window that begins at each token.

    The hash of ids i, j, k is ((i + 1) m + j + 1) m + k + 1, and so on, modulo 2**64. A window that ends behind the
    last token goes on at the first one; it is no name's.
    """
    hash_N = torch.zeros_like(ids_N)
    hashes = []
    for offset in range(longest):
        hash_N = hash_N * _MULTIPLIER + ids_N.roll(-offset) + 1
        hashes.append(hash_N)
    return hashes


def _fixed(tensor: Tensor) -> nn.Parameter:
    """A tensor that does not learn.

    It is a parameter and no buffer, because training states and model folders hold the parameters of features
    (`Features.own_parameters`). Whole numbers and booleans stay exact in half precision (`train.parallel`).
    """
    return nn.Parameter(tensor, requires_grad=False)
