"""Hugging Face folders of GPT-2 (`gpt2`) and GPT (`openai-gpt`), read and written.

Their linear layers are transposed (inputs x outputs). The language model's head is the input embedding and has no
tensors. Reading is strict: every tensor is used, or is on the short list of known extras, or is an error. In
transformers, the feed-forward layer of an `openai-gpt` is always four times as wide as the states; firth allows other
widths and writes them as `n_inner`.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from firth.convert import NestedModel, Weights
from firth.convert.huggingface import GOAL_PREFIX, given_fields, pop_goal_tensors, refuse_other
from firth.convert.weight_files import read_tensors
from firth.encoders.gpt import GPT
from firth.errors import Damaged, Unsupported
from firth.files import JsonObject, read_json
from firth.nn.meta import on_meta_device

# GPT-2 has its layer norms before attention and feed-forward ("pre"), GPT after them ("post").
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
"""Fields of firth's config -> keys of `config.json`."""
REQUIRED = ("vocab_size", "width", "num_layers", "num_heads")
FIXED = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}
"""The only allowed values of these keys of `config.json`."""
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
"""Firth's names -> those of `openai-gpt`, which does not have the second one."""
HEAD_CLASSES = {"pre": "GPT2LMHeadModel", "post": "OpenAIGPTLMHeadModel"}
BARE_CLASSES = {"pre": "GPT2Model", "post": "OpenAIGPTModel"}
PREFIX = "transformer."
HEAD = "lm_head.weight"
_EXTRA = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)|position_ids")
"""Masks and counters, which are not learned."""


def read(folder: Path) -> Weights:
    """The content of a folder; raises when anything in it is not understood."""
    values = read_json(folder / "config.json")
    config = _config(folder, values)
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in read_tensors(folder).items()}

    # Each step below removes what it uses, so that what remains is unused.
    encoder = _pop_encoder(folder, tensors, config)
    if HEAD in tensors and not torch.equal(tensors.pop(HEAD), encoder["tokens.weight"]):
        raise Unsupported(f"{folder} has an output embedding of its own; firth's is tied to the input's.")
    # The head has no tensors, so only the class tells whether there is one.
    goals: dict[str, dict[str, Tensor]] = {}
    if values.get("architectures") != [BARE_CLASSES[config.norm]]:
        goals["causal_lm"] = {}
    pop_goal_tensors(tensors, goals)
    unknown = [name for name in tensors if not _EXTRA.fullmatch(name)]
    if unknown:
        raise Unsupported(
            f"{folder} has the tensor {unknown[0]}, which firth would not use ({len(unknown)} such in all)."
        )
    return Weights("gpt", config, encoder, goals)


def tensors_of(encoder: GPT, goals: Mapping[str, nn.Module], *, pad_id: int = 0) -> dict[str, Tensor]:
    """All weights, with Hugging Face's names."""
    parameters = dict(encoder.named_parameters())
    tensors: dict[str, Tensor] = {}
    for name, their_name in _names(encoder.config).items():
        tensor = _transposed(their_name, parameters[name].detach())
        tensors[PREFIX + their_name] = tensor.contiguous()
    for goal, head in goals.items():
        for name, tensor in head.state_dict().items():
            # Cloned, because a goal may share tensors with the encoder.
            tensors[f"{GOAL_PREFIX}{goal}.{name}"] = tensor.contiguous().clone()
    return tensors


def config_json(encoder: GPT, goals: Mapping[str, nn.Module], *, pad_id: int) -> dict[str, object]:
    """The content of `config.json`, as transformers reads it."""
    config = encoder.config
    classes = HEAD_CLASSES if "causal_lm" in goals else BARE_CLASSES
    values: dict[str, object] = {
        "architectures": [classes[config.norm]],
        "model_type": TYPES[config.norm],
    }
    for name, key in FIELDS.items():
        values[key] = getattr(config, name)
    if config.norm == "post":
        values["afn"] = ACTIVATIONS.get(config.activation, config.activation)
    else:
        values["activation_function"] = config.activation
    values["embd_pdrop"] = config.dropout
    if config.norm == "post":
        values["tie_word_embeddings"] = True
    else:
        values.update(FIXED)
    values["pad_token_id"] = pad_id
    values["dtype"] = "float32"
    return values


def nested_models(goals: Mapping[str, nn.Module]) -> dict[str, NestedModel]:
    """None: a GPT has no second model."""
    return {}


def _config(folder: Path, values: JsonObject) -> GPT.Config:
    """The encoder's config from the content of `config.json`."""
    path = folder / "config.json"
    model_type = values.get("model_type")
    if model_type not in TYPES.values():
        raise Unsupported(f"{path} is of type '{model_type}'; a GPT is of type gpt2 or openai-gpt.")
    refuse_other(path, values, FIXED, encoder="GPT")
    known = given_fields(path, values, FIELDS, required=REQUIRED)
    # transformers' defaults where they differ from firth's.
    known.setdefault("ffn_width", 4 * known["width"])
    known.setdefault("attention_dropout", 0.1)
    # The two model types name the activation differently.
    if model_type == TYPES["pre"]:
        return GPT.Config(**known, activation=values.get("activation_function", "gelu_new"))
    known.setdefault("max_positions", 512)
    activation = values.get("afn", "gelu")
    for name, their_name in ACTIVATIONS.items():
        if their_name == activation:
            activation = name
            break
    return GPT.Config(**known, norm="post", activation=activation)


def _pop_encoder(folder: Path, tensors: dict[str, Tensor], config: GPT.Config) -> dict[str, Tensor]:
    """Removes all tensors of the encoder, and returns them with firth's names."""
    names = _names(config)
    missing = [their_name for their_name in names.values() if their_name not in tensors]
    if missing:
        raise Damaged(f"{folder} lacks the tensor {missing[0]} ({len(missing)} missing in all).")
    encoder: dict[str, Tensor] = {}
    for name, their_name in names.items():
        encoder[name] = _transposed(their_name, tensors.pop(their_name))
    return encoder


def _names(config: GPT.Config) -> dict[str, str]:
    """Firth's name -> Hugging Face's for every tensor."""
    # On the meta device, only the names are made: no memory is used for weights.
    with on_meta_device():
        encoder = GPT(config)
    tables = TABLES[config.norm]
    names: dict[str, str] = {}
    for name, _ in encoder.named_parameters():
        names[name] = tables.get(name) or _translate(name)
    return names


def _translate(name: str) -> str:
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _transposed(their_name: str, tensor: Tensor) -> Tensor:
    """The matrix of a linear layer the other way round; other tensors as they are."""
    is_linear_weight = ".c_" in their_name and tensor.ndim == 2
    return tensor.T if is_linear_weight else tensor
