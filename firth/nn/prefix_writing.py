"""How a masked language model learns to write and writes: source and target in one sequence (Dong et al. 2019).

The sequence is `source target`, both with their special tokens, read by the prefix mask: all tokens see the source, and
those of the target only what comes before them. To learn, a share of the target's tokens is hidden by [MASK] and
predicted (`pair_batch`, `mask_targets`). To write, a [MASK] is put behind what is written so far and scored
(`PrefixScores`, which `nn.decoding.write` takes as its model): nothing that was written sees it, so with a key-value
cache a step reads only the last token and that [MASK].

Sources are arrays of ids with their special tokens, such as `[CLS] a text [SEP]`; targets end with the token that ends
a text.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from firth.nn.kv_cache import KeyValueCache
from firth.nn.likelihood import IGNORE
from firth.ragged import bounds_of
from firth.tensors import Batch, Encoder, States

OutputLayer = Callable[[Tensor, Tensor], Tensor]
"""States and the input embedding -> scores over the vocabulary, such as a `nn.heads.VocabularyHead`."""


def pair_batch(sources: Sequence[np.ndarray], targets: Sequence[np.ndarray], *, target_segment: int = 1) -> Batch:
    """Each source with its target behind it; `prefix_B` are the lengths of the sources."""
    ids = [np.concatenate(pair) for pair in zip(sources, targets, strict=True)]
    lengths = [len(row) for row in ids]
    positions = [np.arange(length) for length in lengths]
    segments = []
    for source, target in zip(sources, targets, strict=True):
        segments.append(np.repeat([0, target_segment], [len(source), len(target)]))
    ids_N = np.concatenate(ids).astype(np.int64)
    positions_N = np.concatenate(positions)
    segments_N = np.concatenate(segments)
    bounds_B1 = bounds_of(lengths).astype(np.int32)
    source_lengths = [len(source) for source in sources]
    return Batch(
        ids_N=torch.from_numpy(ids_N),
        positions_N=torch.from_numpy(positions_N),
        segments_N=torch.from_numpy(segments_N),
        bounds_B1=torch.from_numpy(bounds_B1),
        max_length=max(lengths),
        prefix_B=torch.tensor(source_lengths),
    )


def mask_targets(batch: Batch, draws_N: Tensor, *, mask: int | Tensor, rate: float) -> tuple[Batch, Tensor]:
    """The batch with the tokens of targets whose draw is below `rate` hidden, and their ids as labels_N.

    `draws_N` are uniform numbers in [0, 1); the paper hides 70 %. Tokens that are not hidden have no label.
    """
    assert batch.prefix_B is not None
    lengths_B = batch.bounds_B1.long().diff()
    prefix_N = torch.repeat_interleave(batch.prefix_B, lengths_B, output_size=batch.num_tokens)
    is_hidden_N = (batch.positions_N >= prefix_N) & (draws_N < rate)
    labels_N = torch.where(is_hidden_N, batch.ids_N, IGNORE)
    ids_N = torch.where(is_hidden_N, mask, batch.ids_N)
    return replace(batch, ids_N=ids_N), labels_N


class PrefixScores:
    """The scores of the next tokens of some targets, by an encoder that reads prefixes and takes a cache."""

    def __init__(
        self,
        encoder: Encoder,
        output: OutputLayer,
        sources: Sequence[np.ndarray],
        *,
        mask: int,
        longest: int,
        target_segment: int = 1,
    ) -> None:
        """`longest` is the number of tokens of the longest target."""
        self.encoder = encoder
        self.output = output
        self.sources = sources
        self.mask = mask
        self.target_segment = target_segment
        self.device = next(encoder.parameters()).device
        self.prefix_B = torch.tensor([len(source) for source in sources], device=self.device)
        capacity = max(map(len, sources)) + longest + 1
        self.cache = KeyValueCache(encoder.num_layers, len(sources), capacity)

    def first(self) -> Tensor:
        """Scores (B x V) of each target's first token."""
        masks = [np.array([self.mask])] * len(self.sources)
        return self._read(pair_batch(self.sources, masks, target_segment=self.target_segment))

    def next(self, parents: list[int], tokens: list[int]) -> Tensor:
        """The same for new targets: each is the target in row `parent` of the last call with one more token."""
        rows = torch.tensor(parents)
        self.cache.keep(rows)
        self.prefix_B = self.prefix_B[rows.to(self.device)]
        num_targets = len(tokens)
        ids_N = torch.tensor(tokens).repeat_interleave(2)
        ids_N[1::2] = self.mask
        # The cache holds all tokens before these, so their number is the position of the first.
        positions_N = self.cache.lengths_B.cpu().repeat_interleave(2)
        positions_N[1::2] += 1
        segments_N = torch.full_like(ids_N, self.target_segment)
        bounds_B1 = torch.arange(0, 2 * num_targets + 1, 2, dtype=torch.int32)
        return self._read(Batch(ids_N, positions_N, segments_N, bounds_B1, 2))

    def _read(self, batch: Batch) -> Tensor:
        """Reads new tokens, of which the last one of each sequence is the [MASK] to score."""
        batch = replace(batch.to(self.device), prefix_B=self.prefix_B)
        states: States = self.encoder(batch, cache=self.cache)
        # The cache forgets the [MASK]: the next token takes its place.
        self.cache.lengths_B = self.cache.lengths_B - 1
        last_B = batch.bounds_B1[1:].long() - 1
        return self.output(states.last_ND[last_B], states.table_VD)
