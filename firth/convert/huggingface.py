"""Hugging Face's model folders: `config.json` and `model.safetensors` under their names, both ways.

A `Layout` says how a model type names what an encoder of ours has; `layouts.py` has one row for each type. Reading is
strict: every tensor is used, or on the short list of known extras, or an error.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from firth import encoders
from firth.convert import Weights
from firth.errors import BadInput, Damaged, Unsupported
from firth.files import read_json
from firth.tensors import Encoder

TABLE = "embeddings.tokens.weight"
POSITIONS = "embeddings.positions.weight"
OURS = "goals."
"""Heads that Hugging Face's model has no place for are kept under `goals.GOAL.NAME`."""
REQUIRED = ("vocab_size", "width", "num_layers", "num_heads", "ffn_width")


@dataclass(frozen=True)
class Layout:
    """A model type of Hugging Face's."""

    model_type: str
    encoder: str
    """Our encoder, by name."""
    prefix: str
    """What their encoder's tensors begin with in a model with heads."""
    fields: Mapping[str, str]
    """Fields of our encoder's config -> theirs."""
    names: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]
    """Patterns in our names, with query, key and value apart -> theirs, applied in order."""
    heads: Mapping[str, Mapping[str, str]]
    """For each goal our names of its tensors -> theirs."""
    architectures: Mapping[tuple[str, ...], str]
    """Goals that a model has -> their class."""
    tied: tuple[str, ...] = ()
    """Tensors that must be the input embedding again."""
    extras: tuple[str, ...] = ("embeddings.position_ids",)
    """Tensors that hold nothing new."""
    implied: Mapping[str, Any] = field(default_factory=dict)
    """Fields of our config that all models of this type have."""
    usual: Mapping[str, Any] = field(default_factory=dict)
    """Fields of our config that hold where `config.json` is silent and our own default is another."""
    fixed: Mapping[str, Any] = field(default_factory=lambda: {"position_embedding_type": "absolute"})
    """Values of `config.json` that may be no others."""
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields of a goal's config that all models of this type have."""
    pad_id: int | None = None
    """Where given, positions count from the padding token's id plus one, which is this unless `config.json` says."""

    def read(self, folder: Path) -> Weights:
        """Reads a folder; raises when anything in it is not understood."""
        values = read_json(folder / "config.json")
        tensors = self._prefixed({_modern(name): tensor for name, tensor in read_tensors(folder).items()})
        config = self._config(folder, values, tensors)
        goals = {
            goal: {ours: tensors.pop(theirs) for ours, theirs in names.items()}
            for goal, names in self.heads.items()
            if all(theirs in tensors for theirs in names.values())
        }
        for name in [name for name in tensors if name.startswith(OURS)]:
            goal, _, rest = name.removeprefix(OURS).partition(".")
            goals.setdefault(goal, {})[rest] = tensors.pop(name)
        wanted = self.encoder_names(config)
        missing = [theirs for theirs in wanted.values() if theirs not in tensors]
        if missing:
            raise Damaged(f"{folder} lacks the tensor {missing[0]} ({len(missing)} missing in all).")
        encoder = {ours: tensors.pop(theirs) for ours, theirs in wanted.items()}
        self._account_for(folder, tensors, encoder[TABLE])
        encoder[POSITIONS] = encoder[POSITIONS][self._first_position(values.get("pad_token_id")) :]
        settings = {goal: self.settings[goal] for goal in goals if goal in self.settings}
        return Weights(self.encoder, config, _fuse(encoder), goals, settings)

    def tensors_of(self, encoder: Encoder, goals: Mapping[str, nn.Module], *, pad_id: int) -> dict[str, Tensor]:
        """All weights under Hugging Face's names."""
        split: dict[str, Tensor] = {}
        for name, parameter in encoder.named_parameters():
            parts = parameter.detach().chunk(3) if ".qkv." in name else (parameter.detach(),)
            split |= {one: part.contiguous() for one, part in zip(_apart(name), parts, strict=True)}
        # No token ever stands at the rows before the first position.
        unused = split[POSITIONS].new_zeros(self._first_position(pad_id), split[POSITIONS].shape[1])
        split[POSITIONS] = torch.cat([unused, split[POSITIONS]])
        named = {theirs: split[ours] for ours, theirs in self.encoder_names(encoder.config).items()}
        for goal, head in goals.items():
            names = self.heads.get(goal) or {name: f"{OURS}{goal}.{name}" for name in head.state_dict()}
            # Cloned, because a goal may share tensors with the encoder.
            named |= {theirs: head.state_dict()[ours].contiguous().clone() for ours, theirs in names.items()}
        return named

    def beside(self, goals: Mapping[str, nn.Module]) -> dict[str, tuple[Encoder, Mapping[str, nn.Module]]]:
        """Models with folders of their own inside the folder."""
        return {}

    def config_json(self, encoder: Encoder, goals: Mapping[str, Any], *, pad_id: int) -> dict[str, Any]:
        """What transformers reads as `config.json`."""
        known = {name: getattr(encoder.config, name) for name in self.fields}
        known["max_positions"] += self._first_position(pad_id)
        if "embedding_width" in known:
            known["embedding_width"] = encoder.table_width
        kept = tuple(goal for goal in self.heads if goal in goals)
        return {
            "architectures": [self.architectures.get(kept, self.architectures[()])],
            "model_type": self.model_type,
            **{self.fields[name]: value for name, value in known.items()},
            **self.fixed,
            "pad_token_id": pad_id,
            "dtype": "float32",
        }

    def suits(self, encoder: Encoder, goals: Mapping[str, Any]) -> bool:
        """Whether a model can be written in this layout without loss."""
        config = encoder.config
        return (
            encoders.name_of(encoder) == self.encoder
            and all(getattr(config, name) == value for name, value in self.implied.items())
            and all(
                (getattr(goals[goal].config, name) or getattr(config, name)) == value
                for goal, fields in self.settings.items()
                if goal in goals
                for name, value in fields.items()
            )
        )

    def encoder_names(self, config: Any) -> dict[str, str]:
        """Our name -> theirs for every tensor of the encoder, with query, key and value apart."""
        with torch.device("meta"):
            names = [name for name, _ in encoders.resolve(self.encoder)(config).named_parameters()]
        return {one: self.prefix + self._translate(one) for name in names for one in _apart(name)}

    def _translate(self, name: str) -> str:
        for pattern, replacement in self.names:
            name = re.sub(pattern, replacement, name)
        return name

    def _prefixed(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """A bare encoder's tensors get the names they have in a model with heads."""
        if any(name.startswith(self.prefix) for name in tensors):
            return tensors
        of_heads = {theirs for names in self.heads.values() for theirs in names.values()} | set(self.tied)
        return {
            name if name in of_heads or name.startswith(OURS) else self.prefix + name: tensor
            for name, tensor in tensors.items()
        }

    def _first_position(self, pad_id: int | None) -> int:
        if self.pad_id is None:
            return 0
        return (self.pad_id if pad_id is None else pad_id) + 1

    def _config(self, folder: Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Any:
        where = folder / "config.json"
        for name, value in {"is_decoder": False, **self.fixed}.items():
            if values.get(name, value) != value:
                raise Unsupported(f"{where} has {name} = {values[name]!r}; firth's {self.encoder} has {value!r}.")
        if missing := [self.fields[name] for name in REQUIRED if self.fields[name] not in values]:
            raise BadInput(f"{where} lacks '{missing[0]}'.")
        known = {ours: values[theirs] for ours, theirs in self.fields.items() if theirs in values}
        if self.encoder == "bert" and known.get("embedding_width") == known["width"]:
            known["embedding_width"] = 0  # no projection
        if wrong := [name for name in known if type(known[name]) is str and name != "activation"]:
            raise Damaged(f"{where}: '{self.fields[wrong[0]]}' must be a number; it is {known[wrong[0]]!r}.")
        if "max_positions" in known:
            known["max_positions"] -= self._first_position(values.get("pad_token_id"))
        cls = encoders.resolve(self.encoder).Config
        pooler = {} if "pooler" in self.implied else {"pooler": self._has_pooler(tensors)}
        return cls(**{**self.usual, **known, **pooler, **self.implied})

    def _has_pooler(self, tensors: Mapping[str, Tensor]) -> bool:
        return self.prefix + self._translate("pooler.dense.weight") in tensors

    def _account_for(self, folder: Path, rest: Mapping[str, Tensor], table: Tensor) -> None:
        for name in self.tied:
            if name in rest and not torch.equal(rest[name], table):
                raise Unsupported(f"{folder} has an output embedding of its own; firth's is tied to the input's.")
        known = {*self.tied, *self.extras}
        strange = [name for name in rest if name not in known and name.removeprefix(self.prefix) not in known]
        if strange:
            raise Unsupported(
                f"{folder} has the tensor {strange[0]}, which firth would not use ({len(strange)} such in all)."
            )


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors file or files, as float32."""
    index = folder / "model.safetensors.index.json"
    files = sorted(set(read_json(index)["weight_map"].values())) if index.exists() else ["model.safetensors"]
    tensors: dict[str, Tensor] = {}
    for name in files:
        path = folder / name
        if not path.exists():
            other = [p.name for p in folder.glob("*.bin")] + [p.name for p in folder.glob("*.ckpt*")]
            hint = f" ({other[0]} is of another format; bring it in with `firth import`)" if other else ""
            raise BadInput(f"{folder} has no {name}{hint}.")
        try:
            with safe_open(path, framework="pt") as file:
                tensors |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, json.JSONDecodeError) as error:
            raise Damaged(f"{path} cannot be read ({error}); fetch or make it again.") from None
    return {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}


def _apart(name: str) -> tuple[str, ...]:
    """A tensor's name; three for the fused query, key and value."""
    return tuple(name.replace("qkv", part) for part in ("query", "key", "value")) if ".qkv." in name else (name,)


def _fuse(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    fused = {name: t for name, t in tensors.items() if not re.search(r"attention\.(query|key|value)\.", name)}
    for name in tensors:
        if ".query." in name:
            parts = [tensors[name.replace("query", part)] for part in ("query", "key", "value")]
            fused[name.replace("query", "qkv")] = torch.cat(parts)
    return fused


def _modern(name: str) -> str:
    """The oldest files call layer norm's weight and bias gamma and beta."""
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name))
