"""Span corruption (T5, Raffel et al. 2020, section 3.1.4): spans are replaced by sentinels and written behind them.

Corruption: spans of whole words with 15 % of a text's tokens, three tokens long on average, at random places that do
not touch. The source has a sentinel for each: `<extra_id_0>` for the first, `<extra_id_1>` for the second. The target
lists the spans, each behind its sentinel, then one more sentinel and the end. Unlike T5's program, which always begins
with text and ends with a span, all places are equally likely. Loss: cross-entropy of all tokens of the target.
"""

from dataclasses import dataclass

import numpy as np

from firth.data.packing import Pack, PairLengths
from firth.data.sources import Tokens, lay_end_to_end, lay_framed
from firth.errors import BadConfig
from firth.objectives.reconstruction import Pair, ReconstructionConfig, ReconstructionObjective, longest
from firth.objectives.word_spans import PackText, Spans, composition, place_spans, rounded, text_of
from firth.tensors import Encoder
from firth.tokenizers.vocab import Vocab


class SpanCorruption(ReconstructionObjective):
    word_losses = {"span_corruption": "token of a span"}

    @dataclass(frozen=True)
    class Config(ReconstructionConfig):
        rate: float = 0.15
        """Share of a text's tokens in spans; every text has at least one span."""
        span_length: float = 3.0
        """Mean number of tokens in a span."""
        sentinels: int = 100
        """Sentinel tokens that the vocabulary gets; the most spans of a sequence are one less."""

        def __post_init__(self) -> None:
            super().__post_init__()
            if not 0 < self.rate < 1 or self.span_length < 1 or self.sentinels < 2:
                raise BadConfig(
                    "Span corruption needs a rate between 0 and 1, a span_length of at least 1 and 2 or more sentinels."
                )

    config: Config

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__(config, encoder, vocab=vocab, max_length=max_length, seed=seed)
        self.sentinels = vocab.sentinels
        if len(self.sentinels) < 2:
            raise BadConfig("Span corruption needs a vocabulary with sentinel tokens (<extra_id_0>, <extra_id_1>).")

    def pair_lengths(self, sizes_S: np.ndarray) -> PairLengths:
        in_spans_S = self.config.rate * sizes_S
        spans_S = np.maximum(in_spans_S / self.config.span_length, 1)
        in_spans_S = np.maximum(in_spans_S, spans_S)
        source_S = sizes_S - in_spans_S + spans_S + self.vocab.frame.size()
        target_S = in_spans_S + spans_S + 2  # the last sentinel and the end
        max_target = longest(float(target_S.max(initial=1)), at_most=self.max_length)
        return PairLengths(source_S, target_S, max_target, source_spread=0.01, target_spread=0.05)

    def pair(self, pack: Pack, key: np.uint64) -> Pair:
        text = text_of(pack)
        spans = self._spans(text, key)
        return self._pair_of(text, spans)

    def _spans(self, text: PackText, key: np.uint64) -> Spans:
        """Random spans of whole words."""
        words_B = text.words.counts_B
        rows_B = text.rows_B
        # By words, so that on average the share of the tokens is right as well.
        taken_B = rounded(self.config.rate * words_B, rows_B, key=key, purpose=0)
        taken_B = taken_B.clip(min=1)
        wanted_B = self.config.rate * text.sizes_B / self.config.span_length
        counts_B = rounded(wanted_B, rows_B, key=key, purpose=1)
        counts_B = counts_B.clip(min=1)
        # Each span has a word, spans do not touch, and there is a sentinel for each and one for the end.
        num_others_B = words_B - taken_B
        counts_B = np.minimum(counts_B, taken_B)
        counts_B = np.minimum(counts_B, num_others_B + 1)
        counts_B = np.minimum(counts_B, len(self.sentinels) - 1)
        sizes_J, _ = composition(taken_B, counts_B, rows_B, key=key, purpose=2)
        return place_spans(text, sizes_J, counts_B, min_gap=1, key=key, purpose=3)

    def _pair_of(self, text: PackText, spans: Spans) -> Pair:
        num_sequences = len(text.rows_B)
        in_span = spans.tokens()
        is_read = np.ones(len(text.ids_T), bool)
        is_read[in_span] = False
        first_offsets_J = text.offsets_T[spans.first_J]
        marks = Tokens(spans.sequence_J, first_offsets_J, self.sentinels[spans.number_J])
        read = Tokens(text.sequence_T[is_read], text.offsets_T[is_read], text.ids_T[is_read])
        source = lay_framed([marks, read], num_sequences, frame=self.vocab.frame)

        # Of equal places the sentinel comes first, because it is the first part.
        missing = Tokens(text.sequence_T[in_span], text.offsets_T[in_span], text.ids_T[in_span])
        counts_B = np.bincount(spans.sequence_J, minlength=num_sequences)
        behind_all = np.full(num_sequences, int(text.sizes_B.max(initial=0)))
        sequences_B = np.arange(num_sequences)
        last_marks = Tokens(sequences_B, behind_all, self.sentinels[counts_B])
        seps_B = np.full(num_sequences, self.vocab.sep)
        ends = Tokens(sequences_B, behind_all + 1, seps_B)
        written = lay_end_to_end([marks, missing, last_marks, ends], num_sequences)
        return Pair(source, written, self.start)
