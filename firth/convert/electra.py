"""ELECTRA's folders: a discriminator or a generator. Firth's own runs have the generator in a subfolder.

Both are written as transformers reads them. The generator must have the discriminator's embeddings, which is checked.
A discriminator that also predicts tokens itself has a masked-LM head, under the names of a generator's: transformers
opens its folder as `ElectraForPreTraining`, and as `ElectraForMaskedLM` that fills masks.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from firth.config import to_dict
from firth.convert import NestedModel, Weights
from firth.convert.huggingface import HuggingFaceLayout
from firth.errors import Unsupported
from firth.objectives.replaced_token import ReplacedToken
from firth.tensors import Encoder

DISCRIMINATOR_GOAL = "replaced_token"
GENERATOR_GOAL = "masked_lm"
GENERATOR = "generator"
"""The subfolder of the generator."""
GENERATOR_FIELDS = ("width", "num_layers", "num_heads", "ffn_width")
"""Fields of the generator's config that the objective's config repeats."""
CORRECTIVE = "corrective."
"""The prefix of the discriminator's own masked-LM head among the tensors of its objective."""


class Electra(HuggingFaceLayout):
    def read(self, folder: Path) -> Weights:
        """The discriminator, with the generator's tensors among those of its objective if there is a generator."""
        weights = super().read(folder)
        if DISCRIMINATOR_GOAL not in weights.goals:
            return weights
        if GENERATOR_GOAL in weights.goals:
            weights = _with_corrective_head(weights)
        if not (folder / GENERATOR).is_dir():
            return _with_generator(weights, {}, {"width": 0})

        generator = super().read(folder / GENERATOR)
        for name, tensor in generator.encoder.items():
            # The projection is the generator's own, because its width differs.
            is_shared = name.startswith("embeddings.") and "project" not in name
            if is_shared and not torch.equal(tensor, weights.encoder[name]):
                raise Unsupported(f"{folder / GENERATOR} does not share the embeddings of {folder}; keep them apart.")
        tensors: dict[str, Tensor] = {}
        for name, tensor in generator.encoder.items():
            tensors[f"generator.{name}"] = tensor
        for name, tensor in generator.goals[GENERATOR_GOAL].items():
            tensors[f"masked.{name}"] = tensor
        config = to_dict(generator.config)
        shape = {name: config[name] for name in GENERATOR_FIELDS}
        return _with_generator(weights, tensors, shape)

    def tensors_of(self, encoder: Encoder, goals: Mapping[str, nn.Module], *, pad_id: int) -> dict[str, Tensor]:
        """All weights, with those of the discriminator's own masked-LM head if it has one."""
        tensors = super().tensors_of(encoder, goals, pad_id=pad_id)
        objective = goals.get(DISCRIMINATOR_GOAL)
        if isinstance(objective, ReplacedToken) and objective.corrective is not None:
            state = objective.corrective.state_dict()
            for name, their_name in self.heads[GENERATOR_GOAL].items():
                tensors[their_name] = state[name].contiguous().clone()
        return tensors

    def nested_models(self, goals: Mapping[str, nn.Module]) -> dict[str, NestedModel]:
        """The generator, if the model has one."""
        objective = goals.get(DISCRIMINATOR_GOAL)
        if not isinstance(objective, ReplacedToken):
            return {}
        if objective.generator is None or objective.masked is None:
            return {}
        return {GENERATOR: NestedModel(objective.generator, {GENERATOR_GOAL: objective.masked})}


def _with_corrective_head(weights: Weights) -> Weights:
    """A discriminator's masked-LM head, moved to the tensors of its objective."""
    objective_tensors = dict(weights.goals[DISCRIMINATOR_GOAL])
    for name, tensor in weights.goals[GENERATOR_GOAL].items():
        objective_tensors[CORRECTIVE + name] = tensor
    goals = {**weights.goals, DISCRIMINATOR_GOAL: objective_tensors}
    settings = {**weights.settings, DISCRIMINATOR_GOAL: {"corrective_weight": 1.0}}
    del goals[GENERATOR_GOAL]
    return Weights(weights.encoder_name, weights.config, weights.encoder, goals, settings)


def _with_generator(weights: Weights, tensors: Mapping[str, Tensor], shape: Mapping[str, int]) -> Weights:
    """The discriminator's weights and settings with those of a generator; a width of 0 means no generator."""
    objective_tensors = {**weights.goals[DISCRIMINATOR_GOAL], **tensors}
    goals = {**weights.goals, DISCRIMINATOR_GOAL: objective_tensors}
    objective_settings = {**weights.settings.get(DISCRIMINATOR_GOAL, {}), "generator": dict(shape)}
    settings = {**weights.settings, DISCRIMINATOR_GOAL: objective_settings}
    return Weights(weights.encoder_name, weights.config, weights.encoder, goals, settings)
