"""Denoising (BART, Lewis et al. 2020, section 2.2): the encoder reads a corrupted text, the decoder writes all of it.

Corruption, in any mix and in this order: the sentences change places (`permute`); spans of words, of Poisson lengths,
become one `[MASK]` each, and an empty span inserts one (`infill`); words become `[MASK]` token by token (`mask`) or
disappear (`delete`); the text begins at another word and continues at its start (`rotate`). Loss: cross-entropy of the
original text and the end.
"""

from dataclasses import dataclass, replace
from math import exp

import numpy as np

from firth import rng
from firth.data.packing import Pack, PairLengths, Plan
from firth.data.sources import PackedIds, Tokens, in_every_sequence, lay_end_to_end, lay_framed
from firth.data.stream import CorpusView
from firth.errors import BadConfig
from firth.objectives.reconstruction import Pair, ReconstructionConfig, ReconstructionObjective
from firth.objectives.word_spans import PackText, place_spans, rounded, text_of
from firth.ragged import owners_of, places_of

# What the random numbers of a text are for: the last counter of each draw.
_PERMUTED = 0
_SENTENCE = 1
_TAKEN = 2
_LENGTH = 3
_PLACE = 4
_INSERT = 5
_WORD = 6
_ROTATED = 7
_FIRST = 8


class Denoising(ReconstructionObjective):
    word_losses = {"denoising": "token of the text"}

    @dataclass(frozen=True)
    class Config(ReconstructionConfig):
        infill: float = 0.3
        """Share of the words in spans that become one mask token each."""
        span_length: float = 3.0
        """Mean number of words in a span: the parameter of the Poisson distribution."""
        mask: float = 0.0
        """Share of the words whose tokens become a mask token each."""
        delete: float = 0.0
        """Share of the words that are left out."""
        permute: float = 1.0
        """Share of the texts whose sentences are shuffled."""
        rotate: float = 0.0
        """Share of the texts that begin at a random word and continue at their start."""

        def __post_init__(self) -> None:
            super().__post_init__()
            shares = (self.infill, self.mask, self.delete, self.permute, self.rotate)
            are_shares = all(0 <= share <= 1 for share in shares)
            changed_words = self.infill + self.mask + self.delete
            if not are_shares or changed_words >= 1:
                raise BadConfig(
                    "Denoising needs shares between 0 and 1, and infill, mask and delete must add up to less than 1."
                )
            if not 1 <= self.span_length <= 100:
                raise BadConfig("objectives.denoising.span_length must be at least 1 and at most 100.")

    config: Config

    def pair_lengths(self, sizes_S: np.ndarray) -> PairLengths:
        config = self.config
        kept_S = (1 - config.infill - config.delete) * sizes_S
        # A mask token for each span, and one more where spans are drawn at all.
        masks_S = config.infill * sizes_S / config.span_length + (config.infill > 0)
        source_S = np.minimum(kept_S + masks_S + self.vocab.frame.size(), self.max_length)
        is_random = config.infill + config.delete > 0
        spread = 0.03 if is_random else 0.0
        return PairLengths(source_S, sizes_S + 1, self.max_length, source_spread=spread)

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        return replace(super().sequences(stream, epoch), has_sentences=True)

    def pair(self, pack: Pack, key: np.uint64) -> Pair:
        original = text_of(pack)
        num_sequences = len(original.rows_B)
        behind_all = int(original.sizes_B.max(initial=0))
        ends = in_every_sequence((self.vocab.sep,), num_sequences, place=behind_all)
        whole = Tokens(original.sequence_T, original.offsets_T, original.ids_T)
        written = lay_end_to_end([whole, ends], num_sequences)
        text = self._permuted(original, pack, key)
        return Pair(self._source(text, key), written, self.start)

    def _permuted(self, text: PackText, pack: Pack, key: np.uint64) -> PackText:
        """The text with the sentences of some sequences in random order."""
        assert pack.sentence_starts_N is not None
        rows_T = text.rows_B[text.sequence_T]
        # The number of each token's sentence, from 0 on in every pack; what is there of a cut sentence counts as one.
        is_first_T = pack.sentence_starts_N[pack.ordinary_N] | (text.offsets_T == 0)
        sentence_T = np.cumsum(is_first_T) - 1
        # Of random numbers by the place where a sentence begins, which does not depend on the rest of the pack.
        first_T = np.flatnonzero(is_first_T)[sentence_T]
        first_offset_T = text.offsets_T[first_T]
        draws_T = rng.uniform(key, rows_T, first_offset_T, _SENTENCE)
        is_permuted_B = rng.uniform(key, text.rows_B, _PERMUTED) < self.config.permute
        ranks_T = np.where(is_permuted_B[text.sequence_T], draws_T, 0.0)
        order = np.lexsort((sentence_T, ranks_T, text.sequence_T))
        is_word_start_T = text.word_starts_T | (text.offsets_T == 0)
        return replace(text, ids_T=text.ids_T[order], word_starts_T=is_word_start_T[order])

    def _source(self, text: PackText, key: np.uint64) -> PackedIds:
        """What is left of a text, in which places count in twos: an odd one is a token's, an even one is before it."""
        sizes_J, counts_B, inserts_B = self._span_sizes(text, key)
        spans = place_spans(text, sizes_J, counts_B, min_gap=0, key=key, purpose=_PLACE)
        span_places_J = 2 * text.offsets_T[spans.first_J] + 1
        masks_J = np.full(len(sizes_J), self.vocab.mask)
        marks = Tokens(spans.sequence_J, span_places_J, masks_J)
        is_outside_T = np.ones(len(text.ids_T), bool)
        is_outside_T[spans.tokens()] = False
        left = self._masked_and_deleted(text, is_outside_T, key)
        inserted = self._inserted(text, inserts_B, key)
        corrupted = [inserted, marks, left]
        parts = [self._rotated(text, part, key) for part in corrupted]
        return lay_framed(parts, len(text.rows_B), frame=self.vocab.frame)

    def _masked_and_deleted(self, text: PackText, is_outside_T: np.ndarray, key: np.uint64) -> Tokens:
        """The tokens outside of spans, of which some words are masked and some are left out."""
        words = text.words
        word_T = owners_of(words.ends_W - words.first_W)
        draws_T = self._word_draws(text, key)[word_T]
        # Shares are of all words, but only those outside of spans are drawn.
        draws_T = draws_T * (1 - self.config.infill)
        is_masked_T = draws_T < self.config.mask
        is_deleted_T = ~is_masked_T & (draws_T < self.config.mask + self.config.delete)
        ids_T = np.where(is_masked_T, self.vocab.mask, text.ids_T)
        places_T = 2 * text.offsets_T + 1
        kept = np.flatnonzero(is_outside_T & ~is_deleted_T)
        return Tokens(text.sequence_T[kept], places_T[kept], ids_T[kept])

    def _span_sizes(self, text: PackText, key: np.uint64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The words of each span, the spans of each sequence, and how many empty spans each has.

        Lengths are drawn until they reach the share of the words; the last one ends there.
        """
        wanted_B = self.config.infill * text.words.counts_B
        taken_B = rounded(wanted_B, text.rows_B, key=key, purpose=_TAKEN)
        # More draws than are ever needed: empty spans are rare unless the mean is small.
        most_taken = taken_B.max(initial=0)
        num_draws = int(np.ceil(4 * most_taken)) + 8
        rows_B1 = text.rows_B[:, None]
        draws_BK = rng.uniform(key, rows_B1, np.arange(num_draws), _LENGTH)
        cumulative = _poisson(self.config.span_length)
        lengths_BK = np.searchsorted(cumulative, draws_BK, side="right")
        # The words that are still to be taken before each draw.
        before_BK = np.cumsum(lengths_BK, 1) - lengths_BK
        missing_BK = taken_B[:, None] - before_BK
        is_used_BK = missing_BK > 0
        sizes_BK = np.minimum(lengths_BK, missing_BK)
        is_span_BK = is_used_BK & (sizes_BK > 0)
        is_insert_BK = is_used_BK & (sizes_BK == 0)
        return sizes_BK[is_span_BK], is_span_BK.sum(1), is_insert_BK.sum(1)

    def _word_draws(self, text: PackText, key: np.uint64) -> np.ndarray:
        """A random number for each word."""
        words = text.words
        rows_W = text.rows_B[words.sequence_W]
        return rng.uniform(key, rows_W, text.offsets_T[words.first_W], _WORD)

    def _inserted(self, text: PackText, counts_B: np.ndarray, key: np.uint64) -> Tokens:
        """Mask tokens before random words or at the end."""
        words = text.words
        # For each inserted token its sequence, and its number among those of the sequence.
        sequence_I = owners_of(counts_B)
        number_I = places_of(counts_B)
        num_words_I = words.counts_B[sequence_I]
        word_I = rng.below(key, num_words_I + 1, text.rows_B[sequence_I], number_I, _INSERT)
        is_at_end_I = word_I == num_words_I
        # At the end there is no word; the first one stands in for it until its offset is replaced.
        existing_word_I = np.where(is_at_end_I, 0, word_I)
        word_in_pack_I = words.starts_B[sequence_I] + existing_word_I
        word_offsets_I = text.offsets_T[words.first_W[word_in_pack_I]]
        offsets_I = np.where(is_at_end_I, text.sizes_B[sequence_I], word_offsets_I)
        masks_I = np.full(len(sequence_I), self.vocab.mask)
        return Tokens(sequence_I, 2 * offsets_I, masks_I)

    def _rotated(self, text: PackText, tokens: Tokens, key: np.uint64) -> Tokens:
        """Tokens whose sequences begin at another word, where they are drawn for it."""
        words = text.words
        is_rotated_B = rng.uniform(key, text.rows_B, _ROTATED) < self.config.rotate
        number_B = rng.below(key, words.counts_B, text.rows_B, _FIRST)
        first_word_B = words.starts_B + number_B
        word_offset_B = text.offsets_T[words.first_W[first_word_B]]
        first_B = np.where(is_rotated_B, word_offset_B, 0)
        num_places_B = 2 * text.sizes_B + 1
        shift_B = 2 * first_B
        sequence_N = tokens.sequence_N
        shifted_N = tokens.places_N - shift_B[sequence_N]
        return replace(tokens, places_N=shifted_N % num_places_B[sequence_N])


def _poisson(mean: float) -> np.ndarray:
    """The cumulative probabilities of 0, 1, 2 ... under a Poisson distribution."""
    probability = exp(-mean)
    cumulative = [probability]
    number = 0
    while cumulative[-1] < 1 - 1e-9 and number < 10 * mean + 20:
        number += 1
        probability *= mean / number
        cumulative.append(cumulative[-1] + probability)
    return np.array(cumulative)
