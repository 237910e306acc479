"""Hugging Face's folders of GPT-2 (`gpt2`) and GPT (`openai-gpt`), both ways.

Their linear layers lie transposed (inputs x outputs). The language model's head is the input embedding and has no
tensors. Reading is strict: every tensor is used, or on the short list of known extras, or an error. A GPT whose
feed-forward layer is not four times as wide as its states, which transformers does not have, differs by `n_inner`.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from firth.convert import Weights
from firth.convert.huggingface import OURS, read_tensors
from firth.encoders.gpt import GPT
from firth.errors import BadInput, Damaged, Unsupported
from firth.files import read_json

TYPES = {"pre": "gpt2", "post": "openai-gpt"}
FIELDS = {
    "vocab_size": "vocab_size",
    "width": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "ffn_width": "n_inner",
    "max_positions": "n_positions",
    "dropout": "resid_pdrop",
    "attention_dropout": "attn_pdrop",
    "norm_eps": "layer_norm_epsilon",
    "init_std": "initializer_range",
}
FIXED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
"""Values of `config.json` that may be no others."""
NAMES = (
    (r"^blocks\.", "h."),
    (r"attention\.qkv\.", "attn.c_attn."),
    (r"attention\.out\.", "attn.c_proj."),
    (r"attention_norm\.", "ln_1."),
    (r"\.ffn\.up\.", ".mlp.c_fc."),
    (r"\.ffn\.down\.", ".mlp.c_proj."),
    (r"ffn_norm\.", "ln_2."),
    (r"^norm\.", "ln_f."),
)
TABLES = {
    "pre": {"tokens.weight": "wte.weight", "positions.weight": "wpe.weight"},
    "post": {"tokens.weight": "tokens_embed.weight", "positions.weight": "positions_embed.weight"},
}
ACTIVATIONS = {"gelu_new": "gelu", "gelu": "gelu_exact"}
"""Ours -> what `openai-gpt` calls it; the second it does not have."""
ARCHITECTURES = {"pre": ("GPT2LMHeadModel", "GPT2Model"), "post": ("OpenAIGPTLMHeadModel", "OpenAIGPTModel")}
PREFIX, HEAD = "transformer.", "lm_head.weight"
_EXTRA = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)|position_ids")
"""Masks and counts, which hold nothing learned."""


def read(folder: Path) -> Weights:
    """Reads a folder; raises when anything in it is not understood."""
    values = read_json(folder / "config.json")
    config = _config(folder, values)
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in read_tensors(folder).items()}
    wanted = _names(config)
    if missing := [theirs for theirs in wanted.values() if theirs not in tensors]:
        raise Damaged(f"{folder} lacks the tensor {missing[0]} ({len(missing)} missing in all).")
    encoder = {ours: _turned(theirs, tensors.pop(theirs)) for ours, theirs in wanted.items()}
    if HEAD in tensors and not torch.equal(tensors.pop(HEAD), encoder["tokens.weight"]):
        raise Unsupported(f"{folder} has an output embedding of its own; firth's is tied to the input's.")
    goals: dict[str, dict[str, Tensor]] = {}
    if values.get("architectures") != [ARCHITECTURES[config.norm][1]]:
        goals["causal_lm"] = {}
    for name in [name for name in tensors if name.startswith(OURS)]:
        goal, _, rest = name.removeprefix(OURS).partition(".")
        goals.setdefault(goal, {})[rest] = tensors.pop(name)
    if strange := [name for name in tensors if not _EXTRA.fullmatch(name)]:
        raise Unsupported(
            f"{folder} has the tensor {strange[0]}, which firth would not use ({len(strange)} such in all)."
        )
    return Weights("gpt", config, encoder, goals)


def tensors_of(encoder: GPT, goals: Mapping[str, nn.Module], *, pad_id: int = 0) -> dict[str, Tensor]:
    """All weights under Hugging Face's names."""
    ours = dict(encoder.named_parameters())
    named = {
        PREFIX + theirs: _turned(theirs, ours[name].detach()).contiguous()
        for name, theirs in _names(encoder.config).items()
    }
    heads = {f"{OURS}{goal}.{name}": t for goal, head in goals.items() for name, t in head.state_dict().items()}
    return named | {name: tensor.contiguous().clone() for name, tensor in heads.items()}


def config_json(encoder: GPT, goals: Mapping[str, Any], *, pad_id: int) -> dict[str, Any]:
    """What transformers reads as `config.json`."""
    config = encoder.config
    post = config.norm == "post"
    activation = {"afn": ACTIVATIONS.get(config.activation, config.activation)} if post else {}
    return {
        "architectures": [ARCHITECTURES[config.norm]["causal_lm" not in goals]],
        "model_type": TYPES[config.norm],
        **{theirs: getattr(config, ours) for ours, theirs in FIELDS.items()},
        **(activation or {"activation_function": config.activation}),
        "embd_pdrop": config.dropout,
        **({"tie_word_embeddings": True} if post else FIXED),
        "pad_token_id": pad_id,
        "dtype": "float32",
    }


def beside(goals: Mapping[str, nn.Module]) -> dict[str, Any]:
    return {}


def _config(folder: Path, values: Mapping[str, Any]) -> GPT.Config:
    where = folder / "config.json"
    norm: Any = next((norm for norm, kind in TYPES.items() if kind == values.get("model_type")), None)
    if norm is None:
        raise Unsupported(f"{where} is of type '{values.get('model_type')}'; a GPT is of type gpt2 or openai-gpt.")
    for name, value in FIXED.items():
        if values.get(name, value) != value:
            raise Unsupported(f"{where} has {name} = {values[name]!r}; firth's GPT has {value!r}.")
    known = {ours: values[theirs] for ours, theirs in FIELDS.items() if values.get(theirs) is not None}
    if missing := [FIELDS[name] for name in ("vocab_size", "width", "num_layers", "num_heads") if name not in known]:
        raise BadInput(f"{where} lacks '{missing[0]}'.")
    known = {"ffn_width": 4 * known["width"], "attention_dropout": 0.1, **known}
    if norm == "pre":
        return GPT.Config(**known, activation=values.get("activation_function", "gelu_new"))
    theirs = values.get("afn", "gelu")
    activation = next((ours for ours, name in ACTIVATIONS.items() if name == theirs), theirs)
    return GPT.Config(**{"max_positions": 512, **known}, norm=norm, activation=activation)


def _names(config: GPT.Config) -> dict[str, str]:
    """Our name -> theirs for every tensor."""
    with torch.device("meta"):
        names = [name for name, _ in GPT(config).named_parameters()]
    return {name: TABLES[config.norm].get(name) or _translate(name) for name in names}


def _translate(name: str) -> str:
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _turned(theirs: str, tensor: Tensor) -> Tensor:
    return tensor.T if ".c_" in theirs and tensor.ndim == 2 else tensor
