"""Sentence order prediction (Lan et al. 2019, section 3.1).

Cut: pairs of consecutive pieces of one document as `pairs.py` makes them. Half of the pairs are swapped. Loss:
cross-entropy over whether they are in order. The topic gives no hint, as it does in next sentence prediction.
"""

from dataclasses import dataclass

import numpy as np

from firth import rng
from firth.config import check_rates
from firth.data.packing import Plan
from firth.data.stream import CorpusView
from firth.objectives.pairs import PairCutter, PairObjective, truncate
from firth.types import ShareFigure

# Labels as in the released models.
IN_ORDER = 0
SWAPPED = 1


class SentenceOrder(PairObjective):
    name = "sentence_order"
    other_losses = ("sentence_order",)
    shares = {"sentence_order_accuracy": ShareFigure("Orders of sentences told right", chance=0.5)}

    @dataclass(frozen=True)
    class Config:
        swap_rate: float = 0.5
        """Share of pairs whose two parts change places."""
        short_rate: float = 0.1
        """Share of pairs with a random shorter length."""
        fresh: bool = True
        """Draw new pairs every epoch; otherwise an epoch repeats the pairs of the first."""

        def __post_init__(self) -> None:
            check_rates(swap_rate=self.swap_rate, short_rate=self.short_rate)

    config: Config

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        key = rng.epoch_key(self.seed, "pairs", epoch, fresh=self.config.fresh)
        room = self.max_length - self.frame.size(2)
        walk = PairCutter(stream, key=key, room=room, short_rate=self.config.short_rate)
        first, second, _ = walk.pairs()
        number = np.arange(len(first))
        draws = rng.uniform(key, number, 9)
        pieces = truncate(np.stack([first, second], 1), room, draws)
        is_swapped = rng.uniform(key, number, 10) < self.config.swap_rate
        pieces[is_swapped] = pieces[is_swapped][:, ::-1]
        labels = np.where(is_swapped, SWAPPED, IN_ORDER)
        return self.plan(pieces, labels)
