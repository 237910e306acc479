"""Next sentence prediction (Devlin et al. 2018, section 3.1, task 2).

Cut: pairs as `pairs.py` makes them. Half keep their true second part, half get one from another document. Loss:
cross-entropy over whether the second part follows the first.
"""

from dataclasses import dataclass

import numpy as np

from firth import rng
from firth.config import check_rates
from firth.data.packing import Plan
from firth.data.stream import CorpusView
from firth.errors import BadInput
from firth.objectives.pairs import PairCutter, PairObjective, truncate
from firth.types import ShareFigure

# Labels as in the released models.
IS_NEXT = 0
IS_RANDOM = 1


class NextSentence(PairObjective):
    name = "next_sentence"
    other_losses = ("next_sentence",)
    shares = {"next_sentence_accuracy": ShareFigure("Sentence pairs told right", chance=0.5)}

    @dataclass(frozen=True)
    class Config:
        random_rate: float = 0.5
        """Share of pairs whose second part comes from another document."""
        short_rate: float = 0.1
        """Share of pairs with a random shorter length."""
        fresh: bool = True
        """Draw new pairs every epoch; otherwise an epoch repeats the pairs of the first."""

        def __post_init__(self) -> None:
            check_rates(random_rate=self.random_rate, short_rate=self.short_rate)

    config: Config

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        if len(stream.documents_D) < 2:
            raise BadInput(
                "Next-sentence pairs need at least two documents; prepare the text with `documents='line'`, which cuts "
                "it finer, or choose a recipe without pairs."
            )
        config = self.config
        key = rng.epoch_key(self.seed, "pairs", epoch, fresh=self.config.fresh)
        room = self.max_length - self.frame.size(2)
        walk = PairCutter(stream, key=key, room=room, short_rate=config.short_rate, random_rate=config.random_rate)
        first, second, is_random = walk.pairs()
        draws = rng.uniform(key, np.arange(len(first)), 9)
        pieces = truncate(np.stack([first, second], 1), room, draws)
        labels = np.where(is_random, IS_RANDOM, IS_NEXT)
        return self.plan(pieces, labels)
