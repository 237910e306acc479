"""Translation language model (Conneau & Lample 2019, section 3.3): masked LM over texts and their translations.

Cut: a document in two languages is a pair, one sequence `text, translation`; every other document is cut into runs, as
for the masked LM. So one run reads pairs and monolingual text. Corruption: as the masked LM's, in both texts of a pair;
the positions of the translation start again at 0, so that a token's place says nothing of the length of the other text.
Loss: cross-entropy at the chosen tokens. Language embeddings are `batches.segments=languages`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from firth import rng
from firth.data.packing import Pack, Plan
from firth.data.stream import CorpusView
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.pairs import truncate
from firth.tensors import Batch, Loss, States

NAME = "translation_lm"
MASKED = "masked_lm"


class TranslationLM(MaskedLM):
    word_losses = {NAME: "masked token"}

    @dataclass(frozen=True)
    class Config(MaskedLM.Config):
        restart_positions: bool = True
        """Whether the positions of a translation start again at 0; otherwise they go on behind the text."""

    config: Config

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        """Pairs and runs, with the place where each one's translation begins as a label; 0 for a run."""
        monolingual = stream.part(~stream.is_pair_D)
        parallel = stream.part(stream.is_pair_D)
        pieces: list[np.ndarray] = []
        if len(monolingual.documents_D):
            runs_SP2 = super().sequences(monolingual, epoch).pieces_SP2
            pieces.append(_with_second(runs_SP2))
        num_runs = sum(map(len, pieces))
        if len(parallel.documents_D):
            pieces.append(self._pairs(parallel, epoch))
        pieces_S22 = np.concatenate(pieces)
        frame = self.vocab.frame
        first_sizes_S = pieces_S22[:, 0, 1] - pieces_S22[:, 0, 0]
        second_S = len(frame.opening) + first_sizes_S + len(frame.between)
        second_S[:num_runs] = 0
        return Plan(pieces_S22, {NAME: second_S}, frame=frame)

    def _pairs(self, parallel: CorpusView, epoch: int) -> np.ndarray:
        """The token ranges of each text and its translation, cut to the longest sequence; S x 2 x 2."""
        starts_D = parallel.starts_S[parallel.bounds_D1[:-1]]
        ends_D = parallel.ends_S[parallel.bounds_D1[1:] - 1]
        # The translation begins with the first sentence in another language than the document's first.
        is_second_S = parallel.sentence_languages_S != np.repeat(
            parallel.languages_D2[:, 0], np.diff(parallel.bounds_D1)
        )
        num_first_D = np.add.reduceat(~is_second_S, parallel.bounds_D1[:-1])
        border_D = parallel.starts_S[parallel.bounds_D1[:-1] + num_first_D]
        first_D2 = np.stack([starts_D, border_D], 1)
        second_D2 = np.stack([border_D, ends_D], 1)
        room = self.max_length - self.vocab.frame.size(2)
        key = rng.epoch_key(self.seed, "pairs", epoch, fresh=self.config.fresh)
        draws_D = rng.uniform(key, parallel.documents_D)
        return truncate(np.stack([first_D2, second_D2], 1), room, draws_D)

    def corrupt(self, pack: Pack, epoch: int) -> None:
        super().corrupt(pack, epoch)
        # Only now: positions also distinguish the random draws of a sequence's tokens.
        if self.config.restart_positions:
            second_N = pack.labels[NAME][pack.sequence_N]
            is_translation_N = (second_N > 0) & (pack.positions_N >= second_N)
            pack.positions_N = np.where(is_translation_N, pack.positions_N - second_N, pack.positions_N)

    def loss(self, states: States, batch: Batch) -> Loss:
        masked = super().loss(states, batch)
        total = masked.sums[MASKED]
        correct = masked.tallies[f"{MASKED}_correct"]
        return Loss({NAME: total}, {f"{NAME}_correct": correct})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {NAME: super().counts(batch)[MASKED]}


def _with_second(pieces_SP2: np.ndarray) -> np.ndarray:
    """Single texts with an empty second one; texts in two segments as they are."""
    if pieces_SP2.shape[1] == 2:
        return pieces_SP2
    ends_S1 = pieces_SP2[:, :, 1]
    empty_S12 = np.stack([ends_S1, ends_S1], -1)
    return np.concatenate([pieces_SP2, empty_S12], 1)
