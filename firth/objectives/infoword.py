"""InfoWord (Kong et al. 2020): a text without one of its n-grams finds that n-gram among those of other texts.

Cut: every document into runs, as for masked LM, which usually follows. Corruption: an n-gram of whole words is masked
in every text, and appended to the pack as a sequence of its own. Loss: InfoNCE (section 4): the global vector of the
masked text, that of its `[CLS]` token, is compared by cosine with the vectors of all n-grams of the pack, each of which
the same encoder reads alone. This is Deep InfoMax (Hjelm et al. 2019) for text. Equal n-grams are no wrong answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.functional import cross_entropy, normalize

from firth import rng
from firth.data.packing import Pack, Plan, runs
from firth.data.sources import PackedIds, Tokens, lay_framed
from firth.data.stream import CorpusView
from firth.errors import BadConfig
from firth.nn.likelihood import IGNORE, scale_gradient
from firth.objectives.objective import Objective
from firth.objectives.word_spans import PackText, span_hashes, text_of
from firth.ragged import owners_of, ranges
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers.vocab import Vocab
from firth.types import ShareFigure

EXCLUDED = -1e4
"""The score of an n-gram that is not compared. Not minus infinity: a row of those has no gradient."""


class InfoWord(Objective):
    makes_pairs = True
    has_weights = False
    per_token = ()
    other_losses = ("infoword",)
    shares = {"infoword_accuracy": ShareFigure("Masked n-grams found among those of other texts")}

    @dataclass(frozen=True)
    class Config:
        max_words: int = 5
        """The longest n-gram in words; all lengths from 1 on are equally likely, up to half of a text."""
        max_tokens: int = 10
        """The longest n-gram in tokens; a longer one is cut to its first word."""
        temperature: float = 0.05
        """Divides the cosines; the smaller, the more the nearest wrong n-grams count."""
        weight: float = 1.0
        """How much this loss counts, compared with those of other objectives."""
        fresh: bool = True
        """Draw new cuts and n-grams every epoch; otherwise an epoch repeats those of the first."""

        def __post_init__(self) -> None:
            if min(self.max_words, self.max_tokens) < 1 or min(self.temperature, self.weight) <= 0:
                raise BadConfig(
                    "objectives.infoword needs max_words and max_tokens of at least 1, and a temperature and a weight "
                    "above 0."
                )

    config: Config

    def __init__(self, config: Config, encoder: Encoder, *, vocab: Vocab, max_length: int, seed: int) -> None:
        super().__init__()
        if encoder.causal:
            raise BadConfig("The objective infoword needs an encoder that reads in both directions, such as bert.")
        self.config = config
        self.cls_last = encoder.cls_last
        self.vocab = vocab
        self.max_length = max_length
        self.seed = seed

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        frame = self.vocab.frame
        key = rng.epoch_key(self.seed, "runs", epoch, fresh=self.config.fresh)
        plan = runs(stream, self.max_length, frame=frame, key=key)
        # Most n-grams are shorter than the longest.
        return replace(plan, appended=frame.size() + self.config.max_tokens // 2)

    def corrupt(self, pack: Pack, epoch: int) -> None:
        text = text_of(pack)
        key = rng.epoch_key(self.seed, "n-gram", epoch, fresh=self.config.fresh)
        first_B, ends_B = self._ngrams(text, key)
        chosen = np.flatnonzero(self._fits(pack, ends_B - first_B))
        first_J = first_B[chosen]
        ends_J = ends_B[chosen]
        tokens = ranges(first_J, ends_J)
        number = owners_of(ends_J - first_J)
        inside = Tokens(number, text.offsets_T[tokens], text.ids_T[tokens])
        ngrams = lay_framed([inside], len(chosen), frame=self.vocab.frame)
        self._set_targets(pack, chosen, ngrams, kinds=span_hashes(text.ids_T, first_J, ends_J))
        masked = np.flatnonzero(pack.ordinary_N)[tokens]
        pack.ids_N[masked] = self.vocab.mask
        pack.ordinary_N[masked] = False  # no other objective chooses them
        _append(pack, ngrams, pack.rows_B[chosen])

    def _ngrams(self, text: PackText, key: np.uint64) -> tuple[np.ndarray, np.ndarray]:
        """The first token of each text's n-gram, and the one after its last."""
        words = text.words
        max_words_B = np.minimum(self.config.max_words, words.counts_B // 2)
        max_words_B = max_words_B.clip(min=1)
        num_words_B = 1 + rng.below(key, max_words_B, text.rows_B, 0)
        num_places_B = words.counts_B - num_words_B + 1
        first_word_B = words.starts_B + rng.below(key, num_places_B, text.rows_B, 1)
        last_word_B = first_word_B + num_words_B - 1
        first_B = words.first_W[first_word_B]
        ends_B = words.ends_W[last_word_B]
        is_long_B = ends_B - first_B > self.config.max_tokens
        # Of an n-gram of too many tokens only the first word is taken.
        return first_B, np.where(is_long_B, words.ends_W[first_word_B], ends_B)

    def _fits(self, pack: Pack, sizes_B: np.ndarray) -> np.ndarray:
        """Which n-grams find room in the pack; a single word may still be too long."""
        is_short_B = sizes_B <= self.config.max_tokens
        framed_B = sizes_B + self.vocab.frame.size()
        num_tokens_B = len(pack.ids_N) + np.cumsum(is_short_B * framed_B)
        num_sequences_B = len(sizes_B) + np.cumsum(is_short_B)
        has_room_B = (num_tokens_B <= pack.num_tokens) & (num_sequences_B <= pack.max_sequences)
        return np.asarray(is_short_B & has_room_B)

    def _set_targets(self, pack: Pack, chosen: np.ndarray, ngrams: PackedIds, *, kinds: np.ndarray) -> None:
        """Where the vectors of texts and n-grams are; the number of rows is fixed."""
        size = pack.max_sequences // 2 + 1
        text_first_J = pack.bounds_B1[chosen]
        text_last_J = pack.bounds_B1[chosen + 1] - 1
        ngram_first_J = len(pack.ids_N) + ngrams.bounds_B1[:-1]
        ngram_last_J = len(pack.ids_N) + ngrams.bounds_B1[1:] - 1
        values = {
            "texts": text_first_J,
            "ngrams": ngram_first_J,
            "kinds": kinds,
            "real": np.ones(len(chosen), bool),
        }
        if self.cls_last:
            values["texts"] = text_last_J
            values["ngrams"] = ngram_last_J
        for name, array in values.items():
            padded = np.zeros(size, array.dtype)
            padded[: len(chosen)] = array
            pack.targets[f"infoword_{name}"] = padded

    def loss(self, states: States, batch: Batch) -> Loss:
        is_real_P = batch.targets["infoword_real"]
        kinds_P = batch.targets["infoword_kinds"]
        text_rows_P = batch.targets["infoword_texts"]
        ngram_rows_P = batch.targets["infoword_ngrams"]
        texts_PD = normalize(states.last_ND[text_rows_P].float(), dim=-1)
        ngrams_PD = normalize(states.last_ND[ngram_rows_P].float(), dim=-1)
        own_P = torch.arange(len(kinds_P), device=kinds_P.device)
        # The same n-gram of another text is no negative.
        is_same_PP = kinds_P[:, None] == kinds_P
        is_other_PP = own_P[:, None] != own_P
        is_excluded_PP = (is_same_PP & is_other_PP) | ~is_real_P
        scores_PP = texts_PD @ ngrams_PD.T / self.config.temperature
        scores_PP = scores_PP.masked_fill(is_excluded_PP, EXCLUDED)
        gold_P = torch.where(is_real_P, own_P, IGNORE)
        total = cross_entropy(scores_PP, gold_P, ignore_index=IGNORE, reduction="sum")
        correct = (scores_PP.argmax(-1) == gold_P).sum()
        return Loss({"infoword": scale_gradient(total, self.config.weight)}, {"infoword_correct": correct})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {"infoword": int(batch.targets["infoword_real"].sum())}


def _append(pack: Pack, packed_ids: PackedIds, rows: np.ndarray) -> None:
    """Adds sequences at the end of a pack."""
    starts = np.repeat(packed_ids.bounds_B1[:-1], packed_ids.lengths_B)
    num_before = len(pack.ids_N)
    num_added = len(packed_ids.ids_N)
    positions = np.arange(num_added) - starts
    ends = num_before + packed_ids.bounds_B1[1:]
    pack.ids_N = np.append(pack.ids_N, packed_ids.ids_N)
    pack.positions_N = np.append(pack.positions_N, positions)
    pack.segments_N = np.append(pack.segments_N, np.zeros_like(positions))
    pack.ordinary_N = np.append(pack.ordinary_N, np.zeros(num_added, bool))
    pack.word_starts_N = np.append(pack.word_starts_N, np.ones(num_added, bool))
    pack.bounds_B1 = np.append(pack.bounds_B1, ends)
    pack.rows_B = np.append(pack.rows_B, rows)
