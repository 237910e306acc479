"""The settings that a search tries: a number of a trial in, `key=value` changes out, always the same for one seed.

Trial 0 has the usual settings, so that a search never ends with something worse than these without having seen it. All
others are drawn around them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from firth import rng
from firth.finetuning.usual_settings import NEW_PARTS_RATE

RATE_OCTAVES = 2.0
"""Rates are drawn between the usual one divided and multiplied by 2 to this power."""
EPOCH_SHARES = (0.5, 1.0, 1.0, 2.0)
BATCHES = (8, 16, 32)
LAYER_DECAYS = (0.7, 0.8, 0.9, 1.0)
WARMUPS = (0.06, 0.1, 0.3)
REINIT_LAYERS = (0, 0, 1, 2)
METHODS = ("full", "full", "full", "adapters")
FULL_ONLY = ("transfer.reinit_layers", "transfer.frozen_layers", "transfer.unfreeze_every")
"""Settings that go with method=full alone."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class UsualSettings:
    """What fine-tuning takes if nothing is searched: the user's own settings, and the usual values of all others."""

    rate: float
    epochs: float
    batch_size: int
    layer_decay: float
    warmup_rate: float
    num_layers: int
    """Layers that can begin with new weights."""
    reinit_layers: int = 0
    has_blocks: bool = True
    """Whether adapters can be put into it."""


@dataclass(frozen=True)
class TrialSettings:
    """A point of the space."""

    method: str
    rate: float
    epochs: float
    batch_size: int
    layer_decay: float
    warmup_rate: float
    reinit_layers: int

    def changes(self) -> list[str]:
        """The settings as `key=value`, without the epochs, which depend on the rung."""
        return [
            f"transfer.mode={self.method}",
            f"train.optim.rate={self.rate:.3g}",
            f"batch_size={self.batch_size}",
            f"transfer.layer_decay={self.layer_decay}",
            f"train.optim.warmup_rate={self.warmup_rate}",
            f"transfer.reinit_layers={self.reinit_layers}",
        ]


FIELD_KEYS = {
    "method": "transfer.mode",
    "rate": "train.optim.rate",
    "epochs": "epochs",
    "batch_size": "batch_size",
    "layer_decay": "transfer.layer_decay",
    "warmup_rate": "train.optim.warmup_rate",
    "reinit_layers": "transfer.reinit_layers",
}
"""What is searched: fields of `TrialSettings`, and their keys in the settings of a run."""


def draw(number: int, usual: UsualSettings, *, seed: int, fixed: Mapping[str, str]) -> TrialSettings:
    """The settings of a trial; `fixed` are the user's own, by their keys, which are not searched."""
    first = TrialSettings(
        method=fixed.get("transfer.mode", "full"),
        rate=usual.rate,
        epochs=usual.epochs,
        batch_size=usual.batch_size,
        layer_decay=usual.layer_decay,
        warmup_rate=usual.warmup_rate,
        reinit_layers=usual.reinit_layers,
    )
    if number == 0:
        return first
    drawn = _drawn(rng.key(seed, "tune", number), usual, fixed)
    given = {name: getattr(first, name) for name, key in FIELD_KEYS.items() if key in fixed}
    return replace(drawn, **given)


def _drawn(key: np.uint64, usual: UsualSettings, fixed: Mapping[str, str]) -> TrialSettings:
    """A point drawn around the usual settings, by a method that goes with the user's own."""
    method = fixed.get("transfer.mode") or _pick(METHODS, key, 0)
    needs_full = not usual.has_blocks or any(name in fixed for name in FULL_ONLY)
    if method == "adapters" and needs_full and "transfer.mode" not in fixed:
        method = "full"
    usual_rate = usual.rate if method == "full" else NEW_PARTS_RATE
    octave = RATE_OCTAVES * (2 * float(rng.uniform(key, 1)) - 1)
    most_layers = max(0, usual.num_layers // 4) if method == "full" else 0
    return TrialSettings(
        method=method,
        rate=float(f"{usual_rate * 2**octave:.3g}"),
        epochs=usual.epochs * _pick(EPOCH_SHARES, key, 2),
        batch_size=_pick(BATCHES, key, 3),
        layer_decay=_pick(LAYER_DECAYS, key, 4),
        warmup_rate=_pick(WARMUPS, key, 5),
        reinit_layers=min(most_layers, _pick(REINIT_LAYERS, key, 6)),
    )


def _pick(values: Sequence[Value], key: np.uint64, counter: int) -> Value:
    return values[int(rng.below(key, len(values), counter))]
