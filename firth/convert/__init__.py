"""Other people's files: reading them, and writing files they can read.

A model folder's `config.json` names its `model_type`; `LAYOUTS` says what reads and writes it. That has
`read(folder) -> Weights`, `tensors_of(encoder, goals, pad_id=)`, `config_json(encoder, goals, pad_id=)` and
`beside(goals)`: models with folders of their own inside the folder, by name, each an encoder and its goals.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

LAYOUTS = {
    "bert": "firth.convert.layouts:BERT",
    "roberta": "firth.convert.layouts:ROBERTA",
    "xlm-roberta": "firth.convert.layouts:XLM_ROBERTA",
    "albert": "firth.convert.layouts:ALBERT",
    "electra": "firth.convert.layouts:ELECTRA",
    "distilbert": "firth.convert.layouts:DISTILBERT",
}
LAYOUTS |= dict.fromkeys(("gpt", "gpt2", "openai-gpt"), "firth.convert.gpt")
OWN = "firth.convert.own"
"""The layout of encoders that have no public one."""


@dataclass(frozen=True)
class Weights:
    """A folder's content under our names."""

    encoder_name: str
    config: Any
    encoder: "Mapping[str, Tensor]"
    goals: "Mapping[str, Mapping[str, Tensor]]"
    settings: "Mapping[str, Mapping[str, Any]]" = field(default_factory=dict)
    """What the folder's type says of the goals' configs."""


def layout(model_type: str) -> Any:
    """What reads and writes folders of this type: a module, or an object in one."""
    module, _, name = LAYOUTS.get(model_type, OWN).partition(":")
    found = import_module(module)
    return getattr(found, name) if name else found
