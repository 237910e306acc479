"""A precision that is saved in a model's folder, and the encoder that predicts in it.

`firth.json` holds `precision`: its name, and the choices that were measured, by machine. A machine without a choice
measures once and caches its own, as for any other model.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import nn

from firth.checkpoint import Checkpoint
from firth.inference.fast_encoder import FastEncoder
from firth.inference.precision_choice import PRECISIONS, SavedChoices
from firth.nn.blocks import first_rows
from firth.tensors import Batch, Encoder, States

if TYPE_CHECKING:
    from firth.inference.precision_choice import EncoderCall

KEY = "precision"


@dataclass(frozen=True)
class SavedPrecision:
    name: str
    choices: SavedChoices


def saved_precision(checkpoint: Checkpoint) -> SavedPrecision:
    """The precision recorded in the folder; fp32 if there is none."""
    saved = checkpoint.info.get(KEY)
    if not isinstance(saved, dict) or saved.get("name") not in PRECISIONS:
        return SavedPrecision("fp32", {})
    choices = saved.get("choices")
    if not isinstance(choices, dict):
        choices = {}
    return SavedPrecision(saved["name"], choices)


class ServingEncoder(FastEncoder):
    """An encoder whose states a copy in another precision computes; its pooler stays exact."""

    def __init__(self, original: Encoder, fast: "EncoderCall") -> None:
        super().__init__(original)
        self.fast = fast
        self.eval()

    def fast_states(self, batch: Batch) -> States:
        states = self.fast(batch)
        pooler = getattr(self.original, "pooler", None)
        if not isinstance(pooler, nn.Module):
            return states
        return replace(states, pooled_BD=pooler(first_rows(states.last_ND, batch.bounds_B1)))
