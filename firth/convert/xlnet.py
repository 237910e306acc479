"""Hugging Face folders of XLNet (`xlnet`), read and written.

Their projections are tensors of width x heads x head width. The output layer is the input embedding and a bias. Reading
is strict: every tensor is used or is an error. What does not concern the weights (`mem_len`, `use_mems_eval`, settings
of heads for tasks) is ignored, except `summary_type`, which says where a sequence has its `<cls>`. XLNet has no longest
sequence in transformers; firth's is written as `n_positions`.
"""

import re
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from firth.convert import NestedModel, Weights
from firth.convert.huggingface import GOAL_PREFIX, QKV_PARTS, given_fields, pop_goal_tensors, refuse_other
from firth.convert.weight_files import read_tensors
from firth.encoders.xlnet import XLNet
from firth.errors import Damaged, Unsupported
from firth.files import JsonObject, read_json
from firth.nn.meta import on_meta_device

FIELDS = {
    "vocab_size": "vocab_size",
    "width": "d_model",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "ffn_width": "d_inner",
    "max_positions": "n_positions",
    "activation": "ff_activation",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "norm_eps": "layer_norm_eps",
    "init_std": "initializer_range",
}
"""Fields of firth's config -> keys of `config.json`."""
REQUIRED = ("vocab_size", "width", "num_layers", "num_heads", "ffn_width")
FIXED: dict[str, object] = {
    "attn_type": "bi",
    "bi_data": False,
    "clamp_len": -1,
    "same_length": False,
    "tie_word_embeddings": True,
    "untie_r": True,
}
"""The only allowed values of these keys of `config.json`."""
SUMMARIES = {True: "last", False: "first"}
"""`cls_last` -> `summary_type`."""
NAMES = (
    (r"^tokens\.", "word_embedding."),
    (r"^query$", "mask_emb"),
    (r"^blocks\.", "layer."),
    (r"attention_norm\.", "rel_attn.layer_norm."),
    (r"ffn_norm\.", "ff.layer_norm."),
    (r"\.ffn\.up\.", ".ff.layer_1."),
    (r"\.ffn\.down\.", ".ff.layer_2."),
    (r"attention\.(query|key|value)\.weight", lambda found: f"rel_attn.{found[1][0]}"),
    (r"attention\.out\.weight", "rel_attn.o"),
    (r"attention\.relative\.weight", "rel_attn.r"),
    (r"attention\.content_bias", "rel_attn.r_w_bias"),
    (r"attention\.position_bias", "rel_attn.r_r_bias"),
    (r"attention\.segment_bias", "rel_attn.r_s_bias"),
    (r"attention\.segments_2HK", "rel_attn.seg_embed"),
)
"""Patterns in firth's names, with query, key and value separate -> replacements, applied in order."""
PREFIX = "transformer."
OUTPUT = "lm_loss.weight"
OUTPUT_BIAS = "lm_loss.bias"
GOAL = "permutation_lm"
_INPUTS_FIRST = re.compile(r"rel_attn\.[qkvr]$")
"""Projections whose first dimension is that of their inputs."""


def read(folder: Path) -> Weights:
    """The content of a folder; raises when anything in it is not understood."""
    config = _config(folder, read_json(folder / "config.json"))
    tensors = {name.removeprefix(PREFIX): tensor for name, tensor in read_tensors(folder).items()}

    # Each step below removes what it uses, so that what remains is unused.
    encoder = _pop_encoder(folder, tensors, config)
    if OUTPUT in tensors and not torch.equal(tensors.pop(OUTPUT), encoder["tokens.weight"]):
        raise Unsupported(f"{folder} has an output embedding of its own; firth's is tied to the input's.")
    goals: dict[str, dict[str, Tensor]] = {}
    if OUTPUT_BIAS in tensors:
        goals[GOAL] = {"bias": tensors.pop(OUTPUT_BIAS)}
    pop_goal_tensors(tensors, goals)
    if tensors:
        raise Unsupported(
            f"{folder} has the tensor {next(iter(tensors))}, which firth would not use ({len(tensors)} such in all)."
        )
    return Weights("xlnet", config, encoder, goals)


def tensors_of(encoder: XLNet, goals: Mapping[str, nn.Module], *, pad_id: int = 0) -> dict[str, Tensor]:
    """All weights, with Hugging Face's names."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in encoder.named_parameters():
        parts: tuple[Tensor, ...] = (parameter.detach(),)
        if ".qkv." in name:
            parts = parameter.detach().chunk(3)
        for their_name, part in zip(_their_names(name), parts, strict=True):
            tensors[PREFIX + their_name] = _to_theirs(their_name, part, encoder.config)
    for goal, head in goals.items():
        for name, tensor in head.state_dict().items():
            their_name = OUTPUT_BIAS if goal == GOAL else f"{GOAL_PREFIX}{goal}.{name}"
            # Cloned, because a goal may share tensors with the encoder.
            tensors[their_name] = tensor.contiguous().clone()
    return tensors


def config_json(encoder: XLNet, goals: Mapping[str, nn.Module], *, pad_id: int) -> dict[str, object]:
    """The content of `config.json`, as transformers reads it."""
    config = encoder.config
    values: dict[str, object] = {
        "architectures": ["XLNetLMHeadModel" if GOAL in goals else "XLNetModel"],
        "model_type": "xlnet",
    }
    for name, key in FIELDS.items():
        values[key] = getattr(config, name)
    values["d_head"] = config.width // config.num_heads
    values["summary_type"] = SUMMARIES[config.cls_last]
    values.update(FIXED)
    values["pad_token_id"] = pad_id
    values["dtype"] = "float32"
    return values


def nested_models(goals: Mapping[str, nn.Module]) -> dict[str, NestedModel]:
    """None: an XLNet has no second model."""
    return {}


def _config(folder: Path, values: JsonObject) -> XLNet.Config:
    """The encoder's config from the content of `config.json`."""
    path = folder / "config.json"
    refuse_other(path, values, FIXED, encoder="XLNet")
    known = given_fields(path, values, FIELDS, required=REQUIRED)
    # transformers has one dropout for all.
    known.setdefault("dropout", 0.1)
    known.setdefault("attention_dropout", known["dropout"])
    summary = values.get("summary_type", SUMMARIES[True])
    return XLNet.Config(**known, cls_last=summary != SUMMARIES[False])


def _pop_encoder(folder: Path, tensors: dict[str, Tensor], config: XLNet.Config) -> dict[str, Tensor]:
    """Removes all tensors of the encoder, and returns them with firth's names."""
    # On the meta device, only the names are made: no memory is used for weights.
    with on_meta_device():
        shapes = XLNet(config).state_dict()
    all_names = chain.from_iterable(map(_their_names, shapes))
    missing = [their_name for their_name in all_names if their_name not in tensors]
    if missing:
        raise Damaged(f"{folder} lacks the tensor {missing[0]} ({len(missing)} missing in all).")
    encoder: dict[str, Tensor] = {}
    for name, expected in shapes.items():
        parts = []
        for their_name in _their_names(name):
            part = tensors.pop(their_name)
            parts.append(_to_ours(their_name, part))
        tensor = parts[0]
        if len(parts) > 1:
            tensor = torch.cat(parts)
        is_vector = expected.ndim == 1
        encoder[name] = tensor.flatten() if is_vector else tensor
    return encoder


def _their_names(name: str) -> list[str]:
    """Hugging Face's name of a tensor; three names for a fused query, key and value."""
    names = [name]
    if ".qkv." in name:
        names = [name.replace("qkv", part) for part in QKV_PARTS]
    return [_translate(one) for one in names]


def _translate(name: str) -> str:
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def _to_theirs(their_name: str, tensor: Tensor, config: XLNet.Config) -> Tensor:
    """A tensor in Hugging Face's shape: projections are D x H x K, biases H x K, the query's vector 1 x 1 x D."""
    if their_name == "mask_emb":
        return tensor.view(1, 1, -1).contiguous()
    if ".rel_attn." not in their_name or "layer_norm" in their_name:
        return tensor.contiguous()
    if _INPUTS_FIRST.search(their_name):
        tensor = tensor.T
    if tensor.ndim < 3:
        tensor = tensor.reshape(*tensor.shape[:-1], config.num_heads, -1)
    return tensor.contiguous()


def _to_ours(their_name: str, tensor: Tensor) -> Tensor:
    """A tensor of a projection as a linear layer's matrix; others as they are."""
    if _INPUTS_FIRST.search(their_name):
        return tensor.flatten(1).T
    if their_name.endswith("rel_attn.o"):
        return tensor.flatten(1)
    return tensor
