"""Hugging Face model folders: `config.json` and `model.safetensors` with their names, read and written.

A `HuggingFaceLayout` says how a model type names the parts of one of firth's encoders; `layouts.py` has one for each
type. Reading is strict: every tensor is used, or is on the short list of known extras, or is an error.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from firth import encoders
from firth.convert import HEAD, EncoderConfig, NestedModel, Weights
from firth.convert.task_heads import drop_head, pop_head
from firth.convert.weight_files import read_tensors
from firth.errors import BadInput, Damaged, Unsupported
from firth.files import JsonObject, read_json
from firth.nn.meta import on_meta_device
from firth.tensors import Encoder

TOKENS = "embeddings.tokens.weight"
POSITIONS = "embeddings.positions.weight"
GOAL_PREFIX = "goals."
"""A head that Hugging Face's model does not have is saved as `goals.GOAL.NAME`."""
REQUIRED = ("vocab_size", "width", "num_layers", "num_heads", "ffn_width")
QKV_PARTS = ("query", "key", "value")


@dataclass(frozen=True)
class HuggingFaceLayout:
    """A model type of Hugging Face's."""

    model_type: str
    encoder: str
    """The name of firth's encoder."""
    prefix: str
    """The prefix of the encoder's tensors in a model with heads."""
    fields: Mapping[str, str]
    """Fields of firth's encoder config -> keys of `config.json`."""
    names: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]
    """Patterns in firth's names, with query, key and value separate -> replacements, applied in order."""
    heads: Mapping[str, Mapping[str, str]]
    """For each goal: firth's names of its tensors -> Hugging Face's."""
    architectures: Mapping[tuple[str, ...], str]
    """The goals that a model has -> the class in transformers."""
    optional: tuple[str, ...] = ()
    """Hugging Face's names of tensors of a head that only some models have."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Goals that have the head of another goal -> that goal. `config.json` then names them as `goals`."""
    tied: tuple[str, ...] = ()
    """Tensors that must equal the input embedding."""
    extras: tuple[str, ...] = ("embeddings.position_ids",)
    """Tensors that contain no additional information."""
    implied: Mapping[str, object] = field(default_factory=dict)
    """Fields of firth's config that all models of this type have."""
    usual: Mapping[str, object] = field(default_factory=dict)
    """Defaults for fields that `config.json` does not set, where they differ from firth's own defaults."""
    fixed: Mapping[str, object] = field(default_factory=lambda: {"position_embedding_type": "absolute"})
    """The only allowed values of some keys of `config.json`."""
    settings: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Fields of a goal's config that all models of this type have."""
    joined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Tensors that a file stores as one, by a part of their name -> that part in the names of the pieces, in order."""
    pad_id: int | None = None
    """If set, positions count from the padding token's id plus one. This is its id unless `config.json` has one."""

    def read(self, folder: Path) -> Weights:
        """The content of a folder; raises when anything in it is not understood."""
        config_path = folder / "config.json"
        values = self.modern_values(config_path, read_json(config_path))
        stored = self.modern_tensors(read_tensors(folder))
        found: dict[str, Tensor] = {}
        for name, tensor in stored.items():
            found[_modern_name(name)] = tensor
        task = None
        if (folder / HEAD).exists():
            # A model that firth fine-tuned: its folder repeats the head for transformers.
            drop_head(self.model_type, values, found)
        else:
            task = pop_head(self.model_type, values, found)
        tensors = self._with_prefix(found)
        config = self._config(folder, values, tensors)

        # Each step below removes what it uses, so that what remains is unused.
        goals = self._pop_heads(tensors)
        for alias, goal in self.aliases.items():
            if alias in values.get("goals", ()) and goal in goals:
                goals[alias] = goals.pop(goal)
        pop_goal_tensors(tensors, goals)
        encoder = self._pop_encoder(folder, tensors, config)
        self._check_unused(folder, tensors, encoder[TOKENS])

        if POSITIONS in encoder:
            first_position = self._first_position(values.get("pad_token_id"))
            encoder[POSITIONS] = encoder[POSITIONS][first_position:]
        settings = {goal: self.settings[goal] for goal in goals if goal in self.settings}
        return Weights(self.encoder, config, _fuse_qkv(encoder), goals, settings, task)

    def modern_values(self, path: Path, values: JsonObject) -> JsonObject:
        """The content of `config.json` with the keys of `fields`; for types that nest or rename some."""
        return values

    def modern_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a file, with joined ones separate; types whose files had other names before rename them."""
        separate: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            joined = [whole for whole in self.joined if whole in name]
            if not joined:
                separate[name] = tensor
                continue
            whole = joined[0]
            parts = self.joined[whole]
            for part, piece in zip(parts, tensor.chunk(len(parts)), strict=True):
                separate[name.replace(whole, part)] = piece
        return separate

    def _join(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `modern_tensors`."""
        for whole, parts in self.joined.items():
            first_part = parts[0]
            first_names = [name for name in tensors if first_part in name]
            for name in first_names:
                pieces = []
                for part in parts:
                    part_name = name.replace(first_part, part)
                    pieces.append(tensors.pop(part_name))
                whole_name = name.replace(first_part, whole)
                tensors[whole_name] = torch.cat(pieces)
        return tensors

    def tensors_of(self, encoder: Encoder, goals: Mapping[str, nn.Module], *, pad_id: int) -> dict[str, Tensor]:
        """All weights, with Hugging Face's names."""
        ours = _split_qkv(encoder)
        if POSITIONS in ours:
            # No token ever has a position before the first one: those rows are zeros.
            width = ours[POSITIONS].shape[1]
            unused = ours[POSITIONS].new_zeros(self._first_position(pad_id), width)
            ours[POSITIONS] = torch.cat([unused, ours[POSITIONS]])

        tensors: dict[str, Tensor] = {}
        for name, their_name in self.encoder_names(encoder.config).items():
            tensors[their_name] = ours[name]
        tensors = self._join(tensors)
        for goal, head in goals.items():
            state = head.state_dict()
            owner = self._head_of(goal, goals)
            names = self.heads.get(owner)
            if not names:
                names = {name: f"{GOAL_PREFIX}{goal}.{name}" for name in state}
            for name, their_name in names.items():
                if name not in state and their_name in self.optional:
                    continue
                # Cloned, because a goal may share tensors with the encoder.
                tensors[their_name] = state[name].contiguous().clone()
        return tensors

    def nested_models(self, goals: Mapping[str, nn.Module]) -> dict[str, NestedModel]:
        """Models to save in subfolders, by the subfolder's name: none, unless a subclass has some."""
        return {}

    def config_json(self, encoder: Encoder, goals: Mapping[str, nn.Module], *, pad_id: int) -> dict[str, object]:
        """The content of `config.json`, as transformers reads it."""
        known = {name: getattr(encoder.config, name) for name in self.fields}
        # Hugging Face counts the unused rows before the first position.
        known["max_positions"] += self._first_position(pad_id)
        if "embedding_width" in known:
            # In firth's config 0 means "as wide as the states". Hugging Face wants the number.
            known["embedding_width"] = encoder.table_width
        owners = {goal: self._head_of(goal, goals) for goal in goals}
        known_goals = tuple(goal for goal in self.heads if goal in owners.values())
        architecture = self.architectures.get(known_goals, self.architectures[()])

        values: dict[str, object] = {"architectures": [architecture], "model_type": self.model_type}
        for name, value in known.items():
            values[self.fields[name]] = value
        values.update(self.fixed)
        values["pad_token_id"] = pad_id
        values["dtype"] = "float32"
        aliased = [goal for goal, owner in owners.items() if goal != owner]
        if aliased:
            values["goals"] = aliased
        return values

    def suits(self, encoder: Encoder, goals: Mapping[str, nn.Module]) -> bool:
        """Whether a model can be written in this layout without loss."""
        if encoders.name_of(encoder) != self.encoder:
            return False
        for name, value in self.implied.items():
            if getattr(encoder.config, name) != value:
                return False
        for goal, fields in self.settings.items():
            if goal not in goals:
                continue
            for name, value in fields.items():
                # A goal whose own field is empty uses the encoder's value.
                own_value = getattr(goals[goal].config, name)
                used = own_value or getattr(encoder.config, name)
                if used != value:
                    return False
        return True

    def _head_of(self, goal: str, goals: Mapping[str, nn.Module]) -> str:
        """The goal whose head's names a goal uses: its own, or those of the goal that it is an alias of."""
        owner = self.aliases.get(goal, goal)
        is_free = owner == goal or owner not in goals
        return owner if is_free else goal

    def encoder_names(self, config: EncoderConfig) -> dict[str, str]:
        """Firth's name -> Hugging Face's for every tensor of the encoder, with query, key and value separate."""
        # On the meta device, only the names are made: no memory is used for weights.
        with on_meta_device():
            encoder = encoders.resolve(self.encoder)(config)
        names: dict[str, str] = {}
        for fused_name, _ in encoder.named_parameters():
            for name in _separate_names(fused_name):
                names[name] = self.prefix + self._translate(name)
        return names

    def _translate(self, name: str) -> str:
        for pattern, replacement in self.names:
            name = re.sub(pattern, replacement, name)
        return name

    def _with_prefix(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of an encoder without heads, renamed as in a model with heads."""
        # For example, BertForMaskedLM saves `bert.embeddings...`, BertModel saves `embeddings...`.
        if any(name.startswith(self.prefix) for name in tensors):
            return tensors
        head_names = set(self.tied)
        for names in self.heads.values():
            head_names.update(names.values())
        renamed: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            if name in head_names or name.startswith(GOAL_PREFIX):
                renamed[name] = tensor
            else:
                renamed[self.prefix + name] = tensor
        return renamed

    def _pop_heads(self, tensors: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """Removes the heads of which all tensors are present, and returns them with firth's names."""
        goals: dict[str, dict[str, Tensor]] = {}
        for goal, names in self.heads.items():
            required = set(names.values()) - set(self.optional)
            if not required <= tensors.keys():
                continue
            goals[goal] = {}
            for name, their_name in names.items():
                if their_name in tensors:
                    goals[goal][name] = tensors.pop(their_name)
        return goals

    def _pop_encoder(self, folder: Path, tensors: dict[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
        """Removes all tensors of the encoder, and returns them with firth's names."""
        names = self.encoder_names(config)
        missing = [their_name for their_name in names.values() if their_name not in tensors]
        if missing:
            raise Damaged(f"{folder} lacks the tensor {missing[0]} ({len(missing)} missing in all).")
        return {name: tensors.pop(their_name) for name, their_name in names.items()}

    def _first_position(self, pad_id: int | None) -> int:
        """The row of the position table that the first token of a sequence uses."""
        if self.pad_id is None:
            return 0
        if pad_id is None:
            return self.pad_id + 1
        return pad_id + 1

    def _config(self, folder: Path, values: JsonObject, tensors: Mapping[str, Tensor]) -> EncoderConfig:
        """The encoder's config, from `config.json` and from whether there is a pooler among the tensors."""
        path = folder / "config.json"
        self._check_values(path, values)
        known = {name: values[key] for name, key in self.fields.items() if key in values}
        if self.encoder == "bert" and known.get("embedding_width") == known["width"]:
            known["embedding_width"] = 0  # no projection
        for name, value in known.items():
            if type(value) is str and not name.endswith("activation"):
                raise Damaged(f"{path}: '{self.fields[name]}' must be a number; it is {value!r}.")
        if "max_positions" in known:
            known["max_positions"] -= self._first_position(values.get("pad_token_id"))
        config_class = encoders.resolve(self.encoder).Config
        if "pooler" not in self.implied and hasattr(config_class, "pooler"):
            pooler_weight = self.prefix + self._translate("pooler.dense.weight")
            known["pooler"] = pooler_weight in tensors
        config: EncoderConfig = config_class(**{**self.usual, **known, **self.implied})
        return config

    def _check_values(self, path: Path, values: JsonObject) -> None:
        """Raises if a required key is missing, or a value asks for something that firth's encoder does not do."""
        # A model with `is_decoder` has causal attention.
        refuse_other(path, values, {"is_decoder": False, **self.fixed}, encoder=self.encoder)
        for name in REQUIRED:
            key = self.fields[name]
            if key not in values:
                raise BadInput(f"{path} lacks '{key}'.")

    def _check_unused(self, folder: Path, unused: Mapping[str, Tensor], tokens_VD: Tensor) -> None:
        """Raises if a tied tensor differs from the input embedding, or if an unused tensor is not a known extra."""
        for name in self.tied:
            if name in unused and not torch.equal(unused[name], tokens_VD):
                raise Unsupported(f"{folder} has an output embedding of its own; firth's is tied to the input's.")
        known = {*self.tied, *self.extras}
        unknown = []
        for name in unused:
            if name not in known and name.removeprefix(self.prefix) not in known:
                unknown.append(name)
        if unknown:
            raise Unsupported(
                f"{folder} has the tensor {unknown[0]}, which firth would not use ({len(unknown)} such in all)."
            )


def refuse_other(path: Path, values: JsonObject, fixed: Mapping[str, object], *, encoder: str) -> None:
    """Raises if `config.json` asks for something that firth's encoder does not do."""
    for key, value in fixed.items():
        if values.get(key, value) != value:
            raise Unsupported(f"{path} has {key} = {values[key]!r}; firth's {encoder} has {value!r}.")


def given_fields(
    path: Path, values: JsonObject, fields: Mapping[str, str], *, required: Sequence[str]
) -> dict[str, Any]:
    """The fields of firth's config that `config.json` gives a value; `fields` has the key of each."""
    given: dict[str, Any] = {}
    for name, key in fields.items():
        if values.get(key) is not None:
            given[name] = values[key]
    for name in required:
        if name not in given:
            raise BadInput(f"{path} lacks '{fields[name]}'.")
    return given


def pop_goal_tensors(tensors: dict[str, Tensor], goals: dict[str, dict[str, Tensor]]) -> None:
    """Moves the tensors named `goals.GOAL.NAME` to `goals[GOAL][NAME]`."""
    names = [name for name in tensors if name.startswith(GOAL_PREFIX)]
    for name in names:
        goal, _, rest = name.removeprefix(GOAL_PREFIX).partition(".")
        goals.setdefault(goal, {})[rest] = tensors.pop(name)


def _separate_names(name: str) -> tuple[str, ...]:
    """The name of a tensor; three names for a fused query, key and value."""
    if ".qkv." not in name:
        return (name,)
    return tuple(name.replace("qkv", part) for part in QKV_PARTS)


def _split_qkv(encoder: Encoder) -> dict[str, Tensor]:
    """The parameters of an encoder, with query, key and value separate."""
    split: dict[str, Tensor] = {}
    for fused_name, parameter in encoder.named_parameters():
        parts: tuple[Tensor, ...] = (parameter.detach(),)
        if ".qkv." in fused_name:
            parts = parameter.detach().chunk(3)
        for name, part in zip(_separate_names(fused_name), parts, strict=True):
            split[name] = part.contiguous()
    return split


def _fuse_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `_split_qkv`: query, key and value become one tensor."""
    fused: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not re.search(r"attention\.(query|key|value)\.", name):
            fused[name] = tensor
    for name in tensors:
        if ".query." in name:
            # Three tensors of D x D -> one of 3D x D.
            part_names = [name.replace("query", part) for part in QKV_PARTS]
            parts = [tensors[part_name] for part_name in part_names]
            fused_name = name.replace("query", "qkv")
            fused[fused_name] = torch.cat(parts)
    return fused


def _modern_name(name: str) -> str:
    """The oldest files call the weight and bias of a layer norm gamma and beta."""
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
