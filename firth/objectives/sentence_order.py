"""Sentence order prediction (Lan et al. 2019, section 3.1).

Cut: pairs of consecutive pieces of one document as `pairs.py` makes them; half of the pairs are swapped. Loss:
cross-entropy over whether they stand in their order. Topic alone cannot tell, as it can in next sentence prediction.
"""

from dataclasses import dataclass

import numpy as np

from firth import chance
from firth.config import check_rates
from firth.data.packing import Plan
from firth.data.stream import Stream
from firth.objectives.pairs import PairGoal, Walk, truncate

IN_ORDER, SWAPPED = 0, 1
"""Labels as in the released models."""


class SentenceOrder(PairGoal):
    name = "sentence_order"

    @dataclass(frozen=True)
    class Config:
        swap_rate: float = 0.5
        """Share of pairs whose two parts change places."""
        short_rate: float = 0.1
        """Share of pairs drawn to a random shorter length."""
        fresh: bool = True
        """Draw new pairs every epoch; otherwise an epoch repeats the pairs of the first."""

        def __post_init__(self) -> None:
            check_rates(swap_rate=self.swap_rate, short_rate=self.short_rate)

    def sequences(self, stream: Stream, epoch: int) -> Plan:
        key, room = self.key(epoch), self.max_length - self.frame.size(2)
        first, second, _ = Walk(stream, key=key, room=room, short_rate=self.config.short_rate).pairs()
        number = np.arange(len(first))
        pieces = truncate(np.stack([first, second], 1), room, chance.uniform(key, number, 9))
        swapped = chance.uniform(key, number, 10) < self.config.swap_rate
        pieces[swapped] = pieces[swapped][:, ::-1]
        return self.plan(pieces, np.where(swapped, SWAPPED, IN_ORDER))
