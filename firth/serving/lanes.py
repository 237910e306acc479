"""What may be computed together: for each kind of question a lane, in which many requests share one packed batch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from firth.data.items import Item
from firth.inference.inputs import Cut, Masked
from firth.inference.model import Model
from firth.types import Fill, Prediction


@dataclass(frozen=True)
class VectorLane:
    model: Model
    pooling: str | None = None
    normalise: bool | None = None

    def compute(self, payloads: Sequence[Cut]) -> list[np.ndarray]:
        return self.model.vectors(payloads, pooling=self.pooling, normalise=self.normalise)


@dataclass(frozen=True)
class FillLane:
    model: Model
    top: int

    def compute(self, payloads: Sequence[Masked]) -> list[list[Fill]]:
        return self.model.fill_all(payloads, top=self.top)


@dataclass(frozen=True)
class PredictLane:
    model: Model
    task: str

    def compute(self, payloads: Sequence[Sequence[Item]]) -> list[list[Prediction]]:
        found = iter(self.model.predict_items(list(chain.from_iterable(payloads)), task=self.task))
        return [[next(found) for _ in items] for items in payloads]


@dataclass(frozen=True, eq=False)
class OwnLane:
    """A question that shares its batch with no other."""

    run: Callable[[Any], Any]

    def compute(self, payloads: Sequence[Any]) -> list[Any]:
        return [self.run(payload) for payload in payloads]
