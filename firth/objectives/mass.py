"""MASS (Song et al. 2019): the encoder reads a text without one long fragment, and the decoder writes the fragment.

Corruption: a fragment of consecutive words, half of a text's tokens, at a random place. Of its tokens 80 % become
`[MASK]`, 10 % a random token, and 10 % stay (section 4.1). The decoder reads the fragment shifted by one, from `[MASK]`
on. It keeps the positions that its tokens have in the text, so that it sees nothing of the rest but through the
encoder (section 3.2). Loss: cross-entropy of the fragment's tokens.
"""

from dataclasses import dataclass

import numpy as np

from firth import rng
from firth.data.packing import Pack, PairLengths
from firth.data.sources import PackedIds
from firth.errors import BadConfig
from firth.objectives.reconstruction import Pair, ReconstructionConfig, ReconstructionObjective, longest
from firth.objectives.word_spans import PackText, text_of
from firth.ragged import bounds_of, ranges
from firth.tensors import Encoder
from firth.tokenizers.vocab import Vocab


class Mass(ReconstructionObjective):
    word_losses = {"mass": "fragment token"}

    @dataclass(frozen=True)
    class Config(ReconstructionConfig):
        rate: float = 0.5
        """Share of a text's tokens that the fragment has."""
        mask_share: float = 0.8
        """Of the fragment's tokens, the share that the encoder reads as the mask token."""
        random_share: float = 0.1
        """Of the fragment's tokens, the share that it reads as a random token; the rest stay as they are."""

        def __post_init__(self) -> None:
            super().__post_init__()
            shares = (self.mask_share, self.random_share, self.mask_share + self.random_share)
            are_shares = all(0 <= share <= 1 for share in shares)
            if not 0 < self.rate <= 1 or not are_shares:
                raise BadConfig("MASS needs a rate above 0 and up to 1, and shares that add up to at most 1.")

    config: Config

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__(config, encoder, vocab=vocab, max_length=max_length, seed=seed)
        self._ordinary_ids = np.setdiff1d(np.arange(len(vocab)), sorted(vocab.specials))

    def pair_lengths(self, sizes_S: np.ndarray) -> PairLengths:
        target_S = np.maximum(self.config.rate * sizes_S, 1)
        max_target = longest(self.config.rate * self.max_length, at_most=self.max_length)
        source_S = sizes_S + self.vocab.frame.size()
        return PairLengths(source_S, target_S, max_target, target_spread=0.03)

    def pair(self, pack: Pack, key: np.uint64) -> Pair:
        text = text_of(pack)
        first_B, ends_B = self._fragments(text, key)
        tokens = ranges(first_B, ends_B)
        written = PackedIds(text.ids_T[tokens], bounds_of(ends_B - first_B))
        ids_N = pack.ids_N.copy()
        places = np.flatnonzero(pack.ordinary_N)[tokens]
        ids_N[places] = self._replaced(text, tokens, key)
        source = PackedIds(ids_N, pack.bounds_B1)
        # The decoder's n-th input predicts the n-th token of the text.
        return Pair(source, written, self.vocab.mask, first_positions_B=first_B - text.starts_B)

    def _fragments(self, text: PackText, key: np.uint64) -> tuple[np.ndarray, np.ndarray]:
        """The first token of each sequence's fragment, and the one after its last: borders of words."""
        size_B = self.config.rate * text.sizes_B
        free_B = text.sizes_B - size_B
        draws_B = rng.uniform(key, text.rows_B, 0)
        first_B = text.starts_B + free_B * draws_B
        words = text.words
        # Both ends move to the word border nearest to them.
        last_word_B = words.starts_B + words.counts_B - 1
        first_word_B = np.minimum(_nearest(words.first_W, first_B), last_word_B)
        end_word_B = _nearest(words.ends_W, first_B + size_B)
        end_word_B = np.maximum(end_word_B, first_word_B)
        return words.first_W[first_word_B], words.ends_W[end_word_B]

    def _replaced(self, text: PackText, tokens: np.ndarray, key: np.uint64) -> np.ndarray:
        """What the encoder reads in place of the fragment's tokens."""
        rows = text.rows_B[text.sequence_T[tokens]]
        places = text.offsets_T[tokens]
        draws = rng.uniform(key, rows, places, 1)
        picks = rng.below(key, len(self._ordinary_ids), rows, places, 2)
        is_masked = draws < self.config.mask_share
        is_random = draws < self.config.mask_share + self.config.random_share
        kept_or_random = np.where(is_random, self._ordinary_ids[picks], text.ids_T[tokens])
        return np.where(is_masked, self.vocab.mask, kept_or_random)


def _nearest(borders: np.ndarray, places_B: np.ndarray) -> np.ndarray:
    """The number of the border nearest to each place; the borders ascend."""
    after_B = np.searchsorted(borders, places_B).clip(max=len(borders) - 1)
    before_B = (after_B - 1).clip(min=0)
    to_before_B = np.abs(places_B - borders[before_B])
    to_after_B = np.abs(borders[after_B] - places_B)
    return np.where(to_before_B < to_after_B, before_B, after_B)
