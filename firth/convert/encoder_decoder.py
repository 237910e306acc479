"""Hugging Face folders of encoder-decoders: what `t5` and `bart` folders have in common, read and written.

One embedding, `shared`, serves both halves. Copies of it may be in a file; they must be equal to it. Reading is strict:
every tensor is used, or is on the short list of known extras, or is an error. A model that the layout cannot hold
without loss is written in firth's own.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from firth import encoders
from firth.convert import NestedModel, Weights, own
from firth.convert.huggingface import GOAL_PREFIX, pop_goal_tensors
from firth.convert.weight_files import read_tensors
from firth.errors import BadInput, Damaged, Unsupported
from firth.files import JsonObject, read_json
from firth.nn.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from firth.nn.meta import on_meta_device

PARTS = {".qkv.": (".query.", ".key.", ".value."), ".kv.": (".key.", ".value."), ".q.": (".query.",)}
"""The projections of attention that firth computes in one product -> the same, each by itself."""
TOKENS = "tokens.weight"
OUTPUT = "output.weight"
OUTPUT_BIAS = "output_bias_V"
HEAD = "lm_head.weight"
HEAD_BIAS = "final_logits_bias"
GOALS = "goals"
"""A key of `config.json`: the goals of a model, because one may have no tensors."""


@dataclass(frozen=True)
class EncoderDecoderLayout:
    """A family of model types. Subclasses know their configs and rename what differs."""

    encoder: str
    """The name of firth's encoder."""
    prefix: str
    """The prefix of the network's tensors in a model with an output layer."""
    names: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]
    """Patterns in firth's names, with query, key and value separate -> replacements, applied in order."""
    extras: tuple[str, ...] = ()
    """Patterns of tensors that contain no additional information."""

    def config_of(self, path: Path, values: JsonObject, tensors: dict[str, Tensor]) -> EncoderDecoderConfig:
        """The encoder's config, from `config.json` and from the tensors; may remove tensors without information."""
        raise NotImplementedError

    def values_of(self, config: EncoderDecoderConfig) -> dict[str, object]:
        """The content of `config.json` that follows from the encoder's config."""
        raise NotImplementedError

    def suits(self, encoder: EncoderDecoder, goals: Mapping[str, nn.Module]) -> bool:
        """Whether a model can be written in this layout without loss."""
        raise NotImplementedError

    def to_ours(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Tensors with firth's names as they are in the folder -> as firth has them."""
        return tensors

    def to_theirs(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inverse of `to_ours`."""
        return tensors

    def read(self, folder: Path) -> Weights:
        """The content of a folder; raises when anything in it is not understood."""
        path = folder / "config.json"
        values = read_json(path)
        tensors = self._with_prefix(read_tensors(folder))
        goals: dict[str, dict[str, Tensor]] = {goal: {} for goal in values.get(GOALS, ())}
        # Each step below removes what it uses, so that what remains is unused.
        pop_goal_tensors(tensors, goals)
        self._drop_copies(folder, tensors)
        config = self.config_of(path, values, tensors)
        encoder: dict[str, Tensor] = {}
        for name, their_name in self.tensor_names(config).items():
            if their_name not in tensors:
                raise Damaged(f"{folder} lacks the tensor {their_name}.")
            encoder[name] = tensors.pop(their_name)
        extras = "|".join(self.extras)
        unknown = [name for name in tensors if not re.fullmatch(extras, name)]
        if unknown:
            raise Unsupported(
                f"{folder} has the tensor {unknown[0]}, which firth would not use ({len(unknown)} such in all)."
            )
        return Weights(self.encoder, config, _joined(self.to_ours(encoder)), goals)

    def tensors_of(self, encoder: EncoderDecoder, goals: Mapping[str, nn.Module], *, pad_id: int) -> dict[str, Tensor]:
        """All weights, with Hugging Face's names."""
        if not self.suits(encoder, goals):
            return own.tensors_of(encoder, goals)
        ours = self.to_theirs(_apart(encoder))
        tensors: dict[str, Tensor] = {}
        for name, their_name in self.tensor_names(encoder.config).items():
            tensors[their_name] = ours[name]
        for goal, head in goals.items():
            for name, tensor in head.state_dict().items():
                # Cloned, because a goal may share tensors with the encoder.
                tensors[f"{GOAL_PREFIX}{goal}.{name}"] = tensor.contiguous().clone()
        return tensors

    def config_json(self, encoder: EncoderDecoder, goals: Mapping[str, nn.Module], *, pad_id: int) -> dict[str, object]:
        """The content of `config.json`, as transformers reads it."""
        if not self.suits(encoder, goals):
            return own.config_json(encoder, goals, pad_id=pad_id)
        values = self.values_of(encoder.config)
        values["is_encoder_decoder"] = True
        values["pad_token_id"] = pad_id
        values["dtype"] = "float32"
        values[GOALS] = list(goals)
        return values

    def nested_models(self, goals: Mapping[str, nn.Module]) -> dict[str, NestedModel]:
        """None: only ELECTRA has a second model."""
        return {}

    def tensor_names(self, config: EncoderDecoderConfig) -> dict[str, str]:
        """Firth's name -> Hugging Face's for every tensor, with query, key and value separate."""
        # On the meta device, only the names are made: no memory is used for weights.
        with on_meta_device():
            encoder = encoders.resolve(self.encoder)(config)
        names: dict[str, str] = {}
        for joined_name, _ in encoder.named_parameters():
            for name in _separate_names(joined_name):
                names[name] = self._translate(name)
        return names

    def _translate(self, name: str) -> str:
        if name == OUTPUT:
            return HEAD
        if name == OUTPUT_BIAS:
            return HEAD_BIAS
        if name == TOKENS:
            return f"{self.prefix}shared.weight"
        for pattern, replacement in self.names:
            name = re.sub(pattern, replacement, name)
        return self.prefix + name

    def _with_prefix(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """The tensors of a network without an output layer, renamed as in a model with one."""
        if not self.prefix or any(name.startswith(self.prefix) for name in tensors):
            return tensors
        renamed: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            is_apart = name in (HEAD, HEAD_BIAS) or name.startswith(GOAL_PREFIX)
            prefix = "" if is_apart else self.prefix
            renamed[prefix + name] = tensor
        return renamed

    def _drop_copies(self, folder: Path, tensors: dict[str, Tensor]) -> None:
        """Removes copies of the embedding; raises if the halves have different ones."""
        shared = f"{self.prefix}shared.weight"
        copies = [f"{self.prefix}{half}.embed_tokens.weight" for half in ("encoder", "decoder")]
        if shared not in tensors:
            # Some files hold the copies only.
            found = [name for name in copies if name in tensors]
            if not found:
                raise Damaged(f"{folder} lacks the tensor {shared}.")
            tensors[shared] = tensors[found[0]]
        for name in copies:
            if name in tensors and not torch.equal(tensors.pop(name), tensors[shared]):
                raise Unsupported(f"{folder} has an embedding for each half; firth's encoder-decoders share one.")
        if HEAD in tensors and torch.equal(tensors[HEAD], tensors[shared]):
            del tensors[HEAD]


def known_fields(
    path: Path,
    values: JsonObject,
    *,
    required: Mapping[str, str],
    optional: Mapping[str, str],
) -> dict[str, Any]:
    """The values of these keys of `config.json` under firth's names; raises if a required one is missing."""
    missing = [key for key in required.values() if values.get(key) is None]
    if missing:
        raise BadInput(f"{path} lacks '{missing[0]}'.")
    known: dict[str, Any] = {}
    for name, key in {**required, **optional}.items():
        value = values.get(key)
        if value is None:
            continue
        if type(value) is str and name != "activation":
            raise Damaged(f"{path}: '{key}' must be a number; it is {value!r}.")
        known[name] = value
    if known.get("decoder_layers") == known["num_layers"]:
        known["decoder_layers"] = 0  # as many as the encoder half has
    return known


def _separate_names(name: str) -> tuple[str, ...]:
    """The name of a tensor; several names for projections that firth joins."""
    for joined, parts in PARTS.items():
        if joined in name:
            return tuple(name.replace(joined, part) for part in parts)
    return (name,)


def _apart(encoder: EncoderDecoder) -> dict[str, Tensor]:
    """The parameters of an encoder-decoder, with query, key and value separate."""
    apart: dict[str, Tensor] = {}
    for joined_name, parameter in encoder.named_parameters():
        names = _separate_names(joined_name)
        for name, part in zip(names, parameter.detach().chunk(len(names)), strict=True):
            apart[name] = part.contiguous()
    return apart


def _joined(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of `_apart`."""
    joined: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        kind = "cross" if ".cross." in name else "self"
        if not re.search(r"\.(query|key|value)\.", name):
            joined[name] = tensor
        elif kind == "self" and ".query." in name:
            parts = [tensors[name.replace(".query.", part)] for part in PARTS[".qkv."]]
            joined[name.replace(".query.", ".qkv.")] = torch.cat(parts)
        elif kind == "cross" and ".query." in name:
            joined[name.replace(".query.", ".q.")] = tensor
        elif kind == "cross" and ".key." in name:
            parts = [tensor, tensors[name.replace(".key.", ".value.")]]
            joined[name.replace(".key.", ".kv.")] = torch.cat(parts)
    return joined
