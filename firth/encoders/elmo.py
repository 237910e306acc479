"""ELMo (Peters et al. 2018): words from their characters (Kim et al. 2015; Józefowicz et al. 2016), LSTMs both ways.

In: a batch whose tokens have their characters as parts; in a batch without parts a token is spelled by the bytes of its
id. Out: for each word three vectors, its own (twice, concatenated) and two layers of forward and backward states. The
characters are allennlp's 262: the bytes from 1 on, begin and end of a sentence and of a word, and padding; 0 is unused.
"""

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth.errors import BadConfig
from firth.nn.dropout import Dropout
from firth.nn.recurrent import ClippedLSTM, Memory
from firth.nn.walk import Walk
from firth.tensors import Batch, Encoder, States

NUM_CHARACTERS = 262
WORD_BEGINS = 259
WORD_ENDS = 260
PADDING = 261
SPELLED_BYTES = 3
"""Bytes of an id that spell a token without characters."""


class Elmo(Encoder):
    @dataclass(frozen=True)
    class Config:
        vocab_size: int = 30000
        """Tokens that a language model's head chooses from; the encoder itself reads characters."""
        width: int = 1024
        """Width of every state, half of it for each direction."""
        num_layers: int = 2
        """Number of LSTM layers."""
        cell_width: int = 4096
        """Width of an LSTM's cell, which is projected to half the width of the states."""
        clip: float = 3.0
        """Cells and projections stay between minus this and this."""
        character_width: int = 16
        """Width of a character's vector."""
        filters: tuple[tuple[int, int], ...] = (
            (1, 32),
            (2, 32),
            (3, 64),
            (4, 128),
            (5, 256),
            (6, 512),
            (7, 1024),
        )
        """Filters over characters: pairs of how many characters a filter sees and how many such filters there are."""
        num_highways: int = 2
        """Number of highway layers over the filters."""
        max_characters: int = 50
        """Characters of a word, its begin and end included; shorter words are padded."""
        activation: str = "relu"
        """Activation of the filters."""
        dropout: float = 0.1
        """Share of a layer's inputs set to zero in training."""

        def __post_init__(self) -> None:
            filter_numbers = list(chain.from_iterable(self.filters))
            sizes = [self.width, self.cell_width, self.character_width, self.num_layers, self.vocab_size]
            is_odd = self.width % 2 == 1
            has_bad_size = min([*filter_numbers, *sizes]) < 1
            if has_bad_size or is_odd or self.num_highways < 0 or self.clip <= 0 or not filter_numbers:
                raise BadConfig("ELMo needs sizes of at least 1, an even width, some filters and a clip above 0.")
            are_pairs = all(len(pair) == 2 for pair in self.filters)
            if not are_pairs or max(size for size, _ in self.filters) > self.max_characters:
                raise BadConfig("ELMo's filters are pairs: characters seen (at most max_characters), and how many.")
            if not 0 <= self.dropout < 1 or self.activation not in ("relu", "tanh"):
                raise BadConfig("ELMo needs a dropout of at least 0 and below 1, and the activation relu or tanh.")

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.width = config.width
        self.vocab_size = config.vocab_size
        self.num_layers = config.num_layers
        self.words = WordReader(config)
        half = config.width // 2
        self.blocks = nn.ModuleList()
        for _ in range(config.num_layers):
            self.blocks.append(ClippedLSTM(half, half, cell_width=config.cell_width, clip=config.clip))
        self.dropout = Dropout(config.dropout)

    def forward(self, batch: Batch, *, layers: bool = False, attention: bool = False) -> States:
        kept, _ = self.read(batch)
        shown = tuple(kept) if layers else ()
        return States(kept[-1], self.words.characters.weight, layers=shown)

    def read(self, batch: Batch, memory: list[Memory] | None = None) -> tuple[list[Tensor], list[Memory]]:
        """The states of all layers, and each layer's memory at the ends of the sequences, from which reading can go on.

        Memories are in the order of the batch's sequences. There are none if a sequence is empty.
        """
        parts_M, part_bounds_N1 = characters_of(batch)
        word_ND = self.words(parts_M, part_bounds_N1)
        walk = Walk(batch.bounds_B1, word_ND.device)
        # The backward direction reads the mirrored sequences. Row -> token, of both directions.
        rows_2N = torch.stack([walk.rows_N, walk.mirror_N[walk.rows_N]])
        kept = [torch.cat([word_ND, word_ND], 1)]
        memories: list[Memory] = []
        rank_B = walk.order_B.argsort()
        x_2ND = word_ND[rows_2N]
        for depth, block in enumerate(self.blocks):
            before: Memory | None = None
            if memory:
                out, cell = memory[depth]
                before = (out[:, walk.order_B], cell[:, walk.order_B])
            out_2ND, (out, cell) = block(self.dropout(x_2ND), walk, before)
            # A residual connection around every layer but the first.
            x_2ND = out_2ND + x_2ND if depth else out_2ND
            # Back to the tokens' own order.
            forward_ND = x_2ND[0, walk.place_N]
            backward_ND = x_2ND[1, walk.place_N[walk.mirror_N]]
            kept.append(torch.cat([forward_ND, backward_ND], 1))
            if out.shape[1] == len(rank_B):
                memories.append((out[:, rank_B], cell[:, rank_B]))
        return kept, memories


class WordReader(nn.Module):
    """A word's vector from its characters: filters, the maximum over the word, highways, a projection."""

    def __init__(self, config: Elmo.Config) -> None:
        super().__init__()
        self.limit = config.max_characters
        self.widest = max(size for size, _ in config.filters)
        self.activate = torch.relu if config.activation == "relu" else torch.tanh
        self.characters = nn.Embedding(NUM_CHARACTERS, config.character_width)
        self.filters = nn.ModuleList()
        for size, count in config.filters:
            self.filters.append(nn.Conv1d(config.character_width, count, size))
        width = sum(count for _, count in config.filters)
        self.highways = nn.ModuleList(Highway(width) for _ in range(config.num_highways))
        self.project = nn.Linear(width, config.width // 2)
        self._initialise()

    def _initialise(self) -> None:
        """There is no norm here, so weights are scaled by the number of terms they sum. The table's variance is 1/3."""
        nn.init.uniform_(self.characters.weight, -1, 1)
        for part in self.modules():
            if isinstance(part, nn.Conv1d):
                nn.init.normal_(part.weight, std=(3 / part.weight[0].numel()) ** 0.5)
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=part.in_features**-0.5)

    def forward(self, parts_M: Tensor, part_bounds_N1: Tensor) -> Tensor:
        """A vector for every word from its characters.

        In training, words that occur several times are computed once. In evaluation they are not, because the last
        bits of a word's vector would then depend on how many other words the batch has.
        """
        ids_NL = self._padded(parts_M, part_bounds_N1)
        if not self.training:
            return self._vectors(ids_NL)
        ids_UL, word_N = distinct(ids_NL)
        return self._vectors(ids_UL)[word_N]

    def _vectors(self, ids_UL: Tensor) -> Tensor:
        """A vector for each row of characters."""
        x_UEL = self.characters(ids_UL).transpose(1, 2)
        filtered = []
        for convolution in self.filters:
            # The maximum over the word.
            highest_UF = convolution(x_UEL).amax(2)
            filtered.append(self.activate(highest_UF))
        x_UF = torch.cat(filtered, 1)
        for highway in self.highways:
            x_UF = highway(x_UF)
        out_UD: Tensor = self.project(x_UF)
        return out_UD

    def _padded(self, parts_M: Tensor, part_bounds_N1: Tensor) -> Tensor:
        """The characters of each word in a row, followed by padding."""
        sizes_N = part_bounds_N1.diff()
        longest = int(sizes_N.max()) if len(sizes_N) else 0
        # Filters that see only padding all give the same value, so one such position is enough for their maximum.
        length = min(self.limit, longest + self.widest)
        num_words = len(sizes_N)
        words_N = torch.arange(num_words, device=parts_M.device)
        owner_M = torch.repeat_interleave(words_N, sizes_N)
        part_M = torch.arange(len(parts_M), device=parts_M.device)
        place_M = part_M - part_bounds_N1[owner_M]
        inside_M = place_M < length
        ids_NL = parts_M.new_full((num_words, length), PADDING)
        ids_NL[owner_M[inside_M], place_M[inside_M]] = parts_M[inside_M]
        return ids_NL


class Highway(nn.Module):
    """x + g (relu(W x) - x) with a learned gate g (Srivastava et al. 2015), nearly closed at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.change = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        nn.init.constant_(self.gate.bias, -2.0)

    def forward(self, x_NF: Tensor) -> Tensor:
        changed_NF = F.relu(self.change(x_NF))
        gate_NF = self.gate(x_NF).sigmoid()
        return torch.lerp(x_NF, changed_NF, gate_NF)


def distinct(ids_NL: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct rows ids_UL, and for each row the number of its distinct row.

    Rows are compared by a hash of all their characters; if two different rows share a hash, all rows are returned.
    """
    places_L = torch.arange(1, ids_NL.shape[1] + 1, device=ids_NL.device)
    # Odd, so that no bit of a character is lost.
    factors_L = places_L * 0x1E3779B97F4A7C15 | 1
    mixed_NL = (ids_NL + 1) * factors_L
    folded_NL = mixed_NL ^ (mixed_NL >> 29)
    hash_N = folded_NL.sum(1)
    _, word_N = torch.unique(hash_N, return_inverse=True)
    count = int(word_N.max()) + 1 if len(word_N) else 0
    rows_N = torch.arange(len(ids_NL), device=ids_NL.device)
    behind_all_U = rows_N.new_full((count,), len(rows_N))
    first_U = behind_all_U.scatter_reduce(0, word_N, rows_N, "amin")
    ids_UL = ids_NL[first_U]
    if torch.equal(ids_UL[word_N], ids_NL):
        return ids_UL, word_N
    return ids_NL, rows_N


def characters_of(batch: Batch) -> tuple[Tensor, Tensor]:
    """The characters of all tokens, end to end, and where each token's begin."""
    if batch.parts_M is not None and batch.part_bounds_N1 is not None:
        return batch.parts_M, batch.part_bounds_N1.long()
    ids_N = batch.ids_N
    # The bytes of an id, lowest first; byte b is character b + 1.
    digits = [1 + ids_N // 256**power % 256 for power in range(SPELLED_BYTES)]
    begins = torch.full_like(ids_N, WORD_BEGINS)
    ends = torch.full_like(ids_N, WORD_ENDS)
    parts_NL = torch.stack([begins, *digits, ends], 1)
    part_bounds_N1 = torch.arange(len(ids_N) + 1, device=ids_N.device) * parts_NL.shape[1]
    return parts_NL.flatten(), part_bounds_N1
