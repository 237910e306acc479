"""Hugging Face's BERT folders: `config.json` and `model.safetensors` under their names, both ways.

Reading is strict: every tensor is used, or on the short list of known extras, or an error.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from firth.encoders.bert import Bert
from firth.errors import BadInput, Damaged, Unsupported
from firth.files import read_json

FIELDS = {
    "vocab_size": "vocab_size",
    "width": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "ffn_width": "intermediate_size",
    "max_positions": "max_position_embeddings",
    "num_segments": "type_vocab_size",
    "activation": "hidden_act",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "norm_eps": "layer_norm_eps",
    "init_std": "initializer_range",
}
ENCODER_NAMES = (
    (r"embeddings\.tokens\.", "embeddings.word_embeddings."),
    (r"embeddings\.positions\.", "embeddings.position_embeddings."),
    (r"embeddings\.segments\.", "embeddings.token_type_embeddings."),
    (r"embeddings\.norm\.", "embeddings.LayerNorm."),
    (r"blocks\.(\d+)\.", r"encoder.layer.\1."),
    (r"attention\.out\.", "attention.output.dense."),
    (r"attention_norm\.", "attention.output.LayerNorm."),
    (r"\.up\.", ".intermediate.dense."),
    (r"\.down\.", ".output.dense."),
    (r"ffn_norm\.", "output.LayerNorm."),
)
GOAL_NAMES = {
    "masked_lm": {
        "head.dense.weight": "cls.predictions.transform.dense.weight",
        "head.dense.bias": "cls.predictions.transform.dense.bias",
        "head.norm.weight": "cls.predictions.transform.LayerNorm.weight",
        "head.norm.bias": "cls.predictions.transform.LayerNorm.bias",
        "head.bias": "cls.predictions.bias",
    },
    "next_sentence": {"head.weight": "cls.seq_relationship.weight", "head.bias": "cls.seq_relationship.bias"},
}
KNOWN_EXTRAS = {
    "embeddings.position_ids": "a constant",
    "cls.predictions.decoder.weight": "the input embedding again",
    "cls.predictions.decoder.bias": "cls.predictions.bias again",
}
ARCHITECTURES = {
    ("masked_lm", "next_sentence"): "BertForPreTraining",
    ("masked_lm",): "BertForMaskedLM",
    ("next_sentence",): "BertForNextSentencePrediction",
    (): "BertModel",
}


@dataclass(frozen=True)
class Weights:
    """A folder's content under our names."""

    config: Bert.Config
    encoder: Mapping[str, Tensor]
    goals: Mapping[str, Mapping[str, Tensor]]


def read(folder: Path) -> Weights:
    """Reads a BERT folder; raises when anything in it is not understood."""
    values = read_config(folder)
    tensors = {_modern(name): tensor for name, tensor in read_tensors(folder).items()}
    if not any(name.startswith("bert.") for name in tensors):
        tensors = {name if name.startswith("cls.") else f"bert.{name}": t for name, t in tensors.items()}
    config = Bert.Config(**{**values, "pooler": "bert.pooler.dense.weight" in tensors})
    goals = {
        goal: {ours: tensors.pop(theirs) for ours, theirs in names.items()}
        for goal, names in GOAL_NAMES.items()
        if all(theirs in tensors for theirs in names.values())
    }
    wanted = _encoder_names(config)
    missing = [f"bert.{theirs}" for theirs in wanted.values() if f"bert.{theirs}" not in tensors]
    if missing:
        raise Damaged(f"{folder} lacks the tensor {missing[0]} ({len(missing)} missing in all).")
    encoder = {ours: tensors.pop(f"bert.{theirs}") for ours, theirs in wanted.items()}
    _account_for(folder, tensors, encoder, goals)
    return Weights(config, _fuse(encoder, config), goals)


def tensors_of(encoder: Bert, goals: Mapping[str, torch.nn.Module]) -> dict[str, Tensor]:
    """All weights under Hugging Face's names."""
    ours = {name: p.detach().contiguous() for name, p in encoder.named_parameters()}
    split: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        if ".qkv." in name:
            parts = tensor.chunk(3)
            split |= {name.replace("qkv", part): t for part, t in zip(("q", "k", "v"), parts, strict=True)}
        else:
            split[name] = tensor
    named = {f"bert.{theirs}": split[ours].contiguous() for ours, theirs in _encoder_names(encoder.config).items()}
    for goal, names in GOAL_NAMES.items():
        if goal in goals:
            head = dict(goals[goal].named_parameters())
            named |= {theirs: head[ours].detach().contiguous() for ours, theirs in names.items()}
    return named


def config_json(config: Bert.Config, goals: Mapping[str, Any], *, pad_id: int) -> dict[str, Any]:
    """What transformers reads as `config.json`."""
    kept = tuple(goal for goal in GOAL_NAMES if goal in goals)
    return {
        "architectures": [ARCHITECTURES[kept]],
        "model_type": "bert",
        **{theirs: getattr(config, ours) for ours, theirs in FIELDS.items()},
        "pad_token_id": pad_id,
        "position_embedding_type": "absolute",
        "dtype": "float32",
    }


def read_config(folder: Path) -> dict[str, Any]:
    values = read_json(folder / "config.json")
    if values.get("model_type") != "bert":
        raise Unsupported(f"{folder}/config.json is of type '{values.get('model_type')}'; firth reads 'bert'.")
    if values.get("position_embedding_type", "absolute") != "absolute" or values.get("is_decoder"):
        raise Unsupported(f"{folder}/config.json asks for relative positions or a decoder, which this BERT is not.")
    required = {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"}
    if missing := sorted(required - values.keys()):
        raise BadInput(f"{folder}/config.json lacks '{missing[0]}'.")
    return {ours: values[theirs] for ours, theirs in FIELDS.items() if theirs in values}


def read_tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder's safetensors file or files, as float32."""
    index = folder / "model.safetensors.index.json"
    files = sorted(set(read_json(index)["weight_map"].values())) if index.exists() else ["model.safetensors"]
    tensors: dict[str, Tensor] = {}
    for name in files:
        path = folder / name
        if not path.exists():
            other = [p.name for p in folder.glob("*.bin")] + [p.name for p in folder.glob("*.ckpt*")]
            hint = f" ({other[0]} is of another format; save it as safetensors first)" if other else ""
            raise BadInput(f"{folder} has no {name}{hint}.")
        try:
            with safe_open(path, framework="pt") as file:
                tensors |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, json.JSONDecodeError) as error:
            raise Damaged(f"{path} cannot be read ({error}); fetch or make it again.") from None
    return {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}


def _encoder_names(config: Bert.Config) -> dict[str, str]:
    """Our name -> theirs for every tensor of the encoder, with query, key and value apart."""
    with torch.device("meta"):
        names = [name for name, _ in Bert(config).named_parameters()]
    apart = [name.replace("qkv", part) for name in names for part in (("q", "k", "v") if ".qkv." in name else ("",))]
    return {name: _translate(name) for name in apart}


def _translate(name: str) -> str:
    theirs = name
    for short, long in (("q", "query"), ("k", "key"), ("v", "value")):
        theirs = theirs.replace(f"attention.{short}.", f"attention.self.{long}.")
    for pattern, replacement in ENCODER_NAMES:
        theirs = re.sub(pattern, replacement, theirs)
    return theirs


def _fuse(encoder: Mapping[str, Tensor], config: Bert.Config) -> dict[str, Tensor]:
    fused = {name: t for name, t in encoder.items() if not re.search(r"attention\.[qkv]\.", name)}
    for layer in range(config.num_layers):
        for kind in ("weight", "bias"):
            parts = [encoder[f"blocks.{layer}.attention.{part}.{kind}"] for part in "qkv"]
            fused[f"blocks.{layer}.attention.qkv.{kind}"] = torch.cat(parts)
    return fused


def _modern(name: str) -> str:
    """The oldest files call layer norm's weight and bias gamma and beta."""
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name))


def _account_for(
    folder: Path, rest: dict[str, Tensor], encoder: Mapping[str, Tensor], goals: Mapping[str, Mapping[str, Tensor]]
) -> None:
    tied = rest.get("cls.predictions.decoder.weight")
    if tied is not None and not torch.equal(tied, encoder["embeddings.tokens.weight"]):
        raise Unsupported(f"{folder} has an output embedding of its own; firth's is tied to the input embedding.")
    strange = [name for name in rest if name.removeprefix("bert.") not in KNOWN_EXTRAS]
    if strange:
        raise Unsupported(
            f"{folder} has the tensor {strange[0]}, which firth would not use ({len(strange)} such in all)."
        )
