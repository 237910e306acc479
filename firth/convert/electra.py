"""ELECTRA's folders: a discriminator, or a generator, and in a run of ours the generator in a folder of its own beside.

Both come out as transformers reads them. The generator has the discriminator's embeddings, and that is checked.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from firth.config import to_dict
from firth.convert import Weights
from firth.convert.huggingface import Layout
from firth.errors import Unsupported
from firth.objectives.replaced_token import ReplacedToken
from firth.tensors import Encoder

JUDGE, GENERATOR = "replaced_token", "generator"


class Electra(Layout):
    def read(self, folder: Path) -> Weights:
        found = super().read(folder)
        if JUDGE not in found.goals:
            return found
        if not (folder / GENERATOR).is_dir():
            return _with(found, {}, {"width": 0})
        drafts = super().read(folder / GENERATOR)
        names = [name for name in drafts.encoder if name.startswith("embeddings.") and "project" not in name]
        if not all(torch.equal(drafts.encoder[name], found.encoder[name]) for name in names):
            raise Unsupported(f"{folder / GENERATOR} does not share the embeddings of {folder}; keep them apart.")
        tensors = {f"generator.{name}": tensor for name, tensor in drafts.encoder.items()}
        tensors |= {f"masked.{name}": tensor for name, tensor in drafts.goals["masked_lm"].items()}
        shape = to_dict(drafts.config)
        return _with(found, tensors, {name: shape[name] for name in ("width", "num_layers", "num_heads", "ffn_width")})

    def beside(self, goals: Mapping[str, nn.Module]) -> dict[str, tuple[Encoder, Mapping[str, nn.Module]]]:
        goal = goals.get(JUDGE)
        if not isinstance(goal, ReplacedToken) or goal.generator is None or goal.masked is None:
            return {}
        return {GENERATOR: (goal.generator, {"masked_lm": goal.masked})}


def _with(found: Weights, tensors: Mapping[str, Any], shape: Mapping[str, int]) -> Weights:
    """The judge's weights and settings with those of a generator."""
    goals = {**found.goals, JUDGE: {**found.goals[JUDGE], **tensors}}
    settings = {**found.settings, JUDGE: {"generator": dict(shape)}}
    return Weights(found.encoder_name, found.config, found.encoder, goals, settings)
