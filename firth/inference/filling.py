"""Texts with masks in, candidates for each mask out, by a masked language model's head."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from firth.data.packing import pack_tokens
from firth.errors import BadInput
from firth.objectives.masked_lm import MaskedLM
from firth.tensors import Encoder, States
from firth.tokenizers import Tokenizer
from firth.types import Fill

MASKS_AT_ONCE = 64
"""Masks that are scored together: each has a score for every token of the vocabulary."""


@dataclass(frozen=True)
class MaskedText:
    """A text ready for `MaskFiller.fill_batch`."""

    text: str
    ids: np.ndarray
    """Its tokens, with the special ones around it."""
    masks: np.ndarray
    """The positions of masks in `ids`."""
    spans: np.ndarray
    """Start and end of each mask in the text."""


@dataclass(frozen=True, eq=False)
class MaskFiller:
    """The encoder and the head that fill masks: the model's own, or those of ELECTRA's generator."""

    encoder: Encoder
    head: MaskedLM
    tokenizer: Tokenizer
    max_positions: int

    def tokenize(self, text: str, *, specials: bool = False) -> MaskedText:
        """The tokens of a text with masks; with `specials` other special tokens spelled in it are recognised too."""
        vocab = self.tokenizer.vocab
        mask_token = vocab.tokens[vocab.mask]
        # People write [mask], too. The spelling is as long, so places in the text stay the same.
        text = re.sub(re.escape(mask_token), lambda _: mask_token, text, flags=re.IGNORECASE)
        encoding = self.tokenizer.encode(text, specials=specials, masks=not specials)
        ids = vocab.frame.join(encoding.ids)
        masks = np.flatnonzero(ids == vocab.mask)
        if not len(masks):
            raise BadInput(f"The text has no {mask_token} to fill; write {mask_token} where a word is missing.")
        if len(ids) > self.max_positions:
            raise BadInput(
                f"The text has {len(ids):,} tokens, more than the model's {self.max_positions:,}; shorten it."
            )
        # Offsets are those of the text alone, without the opening special tokens.
        spans = encoding.offsets[masks - len(vocab.frame.opening)]
        return MaskedText(text, ids, masks, spans)

    @torch.inference_mode()
    def fill_batch(self, texts: Sequence[MaskedText], *, top: int = 5) -> list[list[Fill]]:
        """The candidates of several texts, computed as one batch: `top` for each mask, in order."""
        batch = pack_tokens([text.ids for text in texts])
        starts = batch.bounds_B1[:-1].tolist()
        positions = []
        for text, start in zip(texts, starts, strict=True):
            positions.append(text.masks + start)
        positions_P = np.concatenate(positions)
        candidates = self._candidates(self.encoder(batch), positions_P, top=top)
        filled = []
        for text in texts:
            fills: list[Fill] = []
            for span in text.spans:
                # Candidates come in the order of all masks, so the next ones are those of this mask.
                for probability, token in next(candidates):
                    fills.append(self._fill(text.text, span, token=token, probability=probability))
            filled.append(fills)
        return filled

    def _candidates(
        self,
        states: States,
        positions_P: np.ndarray,
        *,
        top: int,
    ) -> Iterator[Iterable[tuple[float, int]]]:
        """For each mask the probabilities and ids of its most likely tokens, without special ones."""
        vocab = self.tokenizer.vocab
        specials = sorted(vocab.specials)
        for start in range(0, len(positions_P), MASKS_AT_ONCE):
            some_P = torch.from_numpy(positions_P[start : start + MASKS_AT_ONCE])
            scores_PV = self.head.scores(states, some_P)
            # The output layer may have more rows than there are tokens.
            scores_PV = scores_PV[:, : len(vocab)]
            scores_PV[:, specials] = -torch.inf
            probabilities_PV = scores_PV.softmax(-1)
            best = probabilities_PV.topk(min(top, len(vocab) - len(specials)))
            for probabilities, tokens in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                yield zip(probabilities, tokens, strict=True)

    def _fill(self, text: str, span: np.ndarray, *, token: int, probability: float) -> Fill:
        """A candidate for the mask at `span`, and the text with it."""
        before = text[: span[0]]
        after = text[span[1] :]
        if self.tokenizer.pieces_hold_spaces:
            # A piece of byte-level BPE or SentencePiece contains the space before it.
            piece = self.tokenizer.spelled(token)
            if piece.startswith(" "):
                before = before.rstrip()
            joined = before + piece
            return Fill(piece.strip() or piece, probability, joined.lstrip() + after)
        piece = self.tokenizer.vocab.tokens[token]
        if self.tokenizer.continues[token]:
            # A piece that continues a word has no space before it.
            return Fill(piece, probability, before.rstrip() + piece.removeprefix("##") + after)
        return Fill(piece, probability, before + piece + after)
