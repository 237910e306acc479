"""Foreign model files: reading them, and writing files that other programs can read.

The `config.json` of a model folder names its `model_type`. `LAYOUTS` maps that type to the code that reads and writes
such a folder: a `FolderLayout`, which is either an object in a module or the module itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor, nn

    from firth.convert.task_heads import TaskWeights
    from firth.objectives.objective import Objective
    from firth.tensors import Encoder

LAYOUTS = {
    "bert": "firth.convert.layouts:BERT",
    "roberta": "firth.convert.layouts:ROBERTA",
    "xlm-roberta": "firth.convert.layouts:XLM_ROBERTA",
    "albert": "firth.convert.layouts:ALBERT",
    "electra": "firth.convert.layouts:ELECTRA",
    "distilbert": "firth.convert.layouts:DISTILBERT",
    # One module handles all GPTs. "gpt" is the encoder's name, the other two are model types.
    "gpt": "firth.convert.gpt",
    "gpt2": "firth.convert.gpt",
    "openai-gpt": "firth.convert.gpt",
    "t5": "firth.convert.t5:T5_FOLDER",
    # mBART's norms come before the sublayers; "bart" is also the encoder's name.
    "bart": "firth.convert.bart:BART_FOLDER",
    "mbart": "firth.convert.bart:BART_FOLDER",
    "xlnet": "firth.convert.xlnet",
    "mpnet": "firth.convert.mpnet:MPNET",
    # "deberta" and "nomic_bert" are also the encoders' names.
    "deberta": "firth.convert.deberta:DEBERTA",
    "deberta-v2": "firth.convert.deberta:DEBERTA",
    "nomic_bert": "firth.convert.rotary:NOMIC_BERT",
    "modernbert": "firth.convert.rotary:MODERNBERT",
}
HEAD = "head.safetensors"
"""The file of what fine-tuning added: the tasks' heads, adapters, the mix of frozen features."""
OWN = "firth.convert.own"
"""The layout of encoders that have no public one."""


class EncoderConfig(Protocol):
    """The part of an encoder's config that every encoder has."""

    @property
    def vocab_size(self) -> int: ...


@dataclass(frozen=True)
class Weights:
    """The content of a model folder, with firth's names."""

    encoder_name: str
    config: EncoderConfig
    encoder: "Mapping[str, Tensor]"
    goals: "Mapping[str, Mapping[str, Tensor]]"
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """By goal: the fields of its config that follow from the model type."""
    task: "TaskWeights | None" = None
    """The head of a task, if transformers wrote one."""


@dataclass(frozen=True)
class NestedModel:
    """A second model, saved in a subfolder of a model folder."""

    encoder: "Encoder"
    goals: "Mapping[str, Objective]"


class FolderLayout(Protocol):
    """Reads and writes model folders of one type."""

    def read(self, folder: Path) -> Weights:
        """The content of a folder; raises when anything in it is not understood."""
        ...

    def tensors_of(self, encoder: "nn.Module", goals: "Mapping[str, nn.Module]", *, pad_id: int) -> "dict[str, Tensor]":
        """All weights, with the names they have in `model.safetensors`."""
        ...

    def config_json(self, encoder: "nn.Module", goals: "Mapping[str, nn.Module]", *, pad_id: int) -> dict[str, object]:
        """The content of `config.json`."""
        ...

    def nested_models(self, goals: "Mapping[str, nn.Module]") -> dict[str, NestedModel]:
        """Models to save in subfolders, by the subfolder's name."""
        ...

    def suits(self, encoder: "Encoder", goals: "Mapping[str, nn.Module]") -> bool:
        """Whether a model can be written without loss. Only the layouts in `layouts.py` have this method."""
        ...


def layout(model_type: str) -> FolderLayout:
    """The layout for a `model_type` or an encoder's name; unknown ones get firth's own layout."""
    path = LAYOUTS.get(model_type, OWN)
    module_name, _, attribute = path.partition(":")
    found: FolderLayout = import_module(module_name)  # type: ignore[assignment]
    if attribute:
        found = getattr(found, attribute)
    return found
