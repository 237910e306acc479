"""Hugging Face folders of ModernBERT (`modernbert`) and NomicBERT (`nomic_bert`), read and written.

Both have rotary positions, whose settings `config.json` nests. NomicBERT's first folders have GPT-2's keys and other
names for the tensors; they are read too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from firth.convert.huggingface import HuggingFaceLayout
from firth.convert.layouts import EMBEDDINGS, FIELDS, head_names
from firth.encoders.modernbert import ModernBert
from firth.encoders.nomic_bert import NomicBert
from firth.errors import Damaged, Unsupported
from firth.files import JsonObject
from firth.tensors import Encoder

LOCAL = "sliding_attention"
GLOBAL = "full_attention"
THETA = "rope_theta"


@dataclass(frozen=True)
class ModernBertLayout(HuggingFaceLayout):
    def modern_values(self, path: Path, values: JsonObject) -> JsonObject:
        flat = dict(values)
        rotations = values.get("rope_parameters") or {}
        for kind, name in ((GLOBAL, "global_rope_theta"), (LOCAL, "local_rope_theta")):
            theta = _theta(path, rotations.get(kind) or {})
            if theta is not None:
                flat[name] = theta
        kinds = values.get("layer_types")
        if kinds and kinds != _layer_kinds(values.get("global_attn_every_n_layers", 3), len(kinds)):
            flat["global_attn_every_n_layers"] = _global_every(path, kinds)
        return flat

    def config_json(self, encoder: Encoder, goals: Mapping[str, nn.Module], *, pad_id: int) -> dict[str, object]:
        config: ModernBert.Config = encoder.config
        values = super().config_json(encoder, goals, pad_id=pad_id)
        thetas = {GLOBAL: config.global_theta, LOCAL: config.local_theta}
        values["rope_parameters"] = {kind: {"rope_type": "default", THETA: theta} for kind, theta in thetas.items()}
        values["layer_types"] = _layer_kinds(config.global_every, config.num_layers)
        values["embedding_dropout"] = config.dropout
        return values


def _theta(path: Path, rotation: JsonObject) -> float | None:
    """The base of a rotation; None if `config.json` leaves it to the default."""
    kind = rotation.get("rope_type", "default")
    if kind != "default":
        raise Unsupported(f"{path} has rotary positions of the type {kind!r}; firth has 'default'.")
    theta: float | None = rotation.get(THETA)
    return theta


def _layer_kinds(every: int, count: int) -> list[str]:
    """The kind of each layer, where every so many see all."""
    kinds = []
    for number in range(count):
        sees_all = number % every == 0
        kinds.append(GLOBAL if sees_all else LOCAL)
    return kinds


def _global_every(path: Path, kinds: list[str]) -> int:
    """How often a layer sees all, from the kind of each layer."""
    for every in range(1, len(kinds) + 1):
        if kinds == _layer_kinds(every, len(kinds)):
            return every
    raise Unsupported(f"{path} has layer_types that do not repeat: firth's modernbert has a global layer every N.")


MODERNBERT = ModernBertLayout(
    model_type="modernbert",
    encoder="modernbert",
    prefix="model.",
    fields={
        "vocab_size": "vocab_size",
        "width": "hidden_size",
        "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads",
        "ffn_width": "intermediate_size",
        "max_positions": "max_position_embeddings",
        "activation": "hidden_activation",
        "dropout": "mlp_dropout",
        "attention_dropout": "attention_dropout",
        "norm_eps": "norm_eps",
        "init_std": "initializer_range",
        "global_every": "global_attn_every_n_layers",
        "local_window": "local_attention",
        "global_theta": "global_rope_theta",
        "local_theta": "local_rope_theta",
        "attention_bias": "attention_bias",
        "ffn_bias": "mlp_bias",
        "norm_bias": "norm_bias",
        "head_bias": "classifier_bias",
    },
    names=(
        (r"^embeddings\.tokens\.", "embeddings.tok_embeddings."),
        (r"^norm\.", "final_norm."),
        (r"^blocks\.", "layers."),
        (r"\.attention\.out\.", ".attn.Wo."),
        (r"\.attention\.", ".attn."),
        (r"attention_norm\.", "attn_norm."),
        (r"ffn_norm\.", "mlp_norm."),
        (r"\.ffn\.down\.", ".mlp.Wo."),
        (r"\.ffn\.", ".mlp."),
    ),
    heads={"masked_lm": head_names(dense="head.dense", norm="head.norm", bias="decoder.bias")},
    optional=("head.dense.bias", "head.norm.bias"),
    architectures={("masked_lm",): "ModernBertForMaskedLM", (): "ModernBertModel"},
    tied=("decoder.weight",),
    extras=(),
    fixed={"decoder_bias": True, "tie_word_embeddings": True, "classifier_activation": "gelu"},
    settings={"masked_lm": {"activation": "gelu"}},
    joined={"attn.Wqkv": ("attn.query", "attn.key", "attn.value"), "mlp.Wi": ("mlp.gate", "mlp.up")},
)

FIRST_NAMES = (
    (r"(^|\.)encoder\.layers\.", r"\1layers."),
    (r"(^|\.)emb_ln\.", r"\1embeddings.LayerNorm."),
    (r"attn\.out_proj\.", "self_attn.o_proj."),
    (r"(?<!self_)attn\.Wqkv\.", "self_attn.Wqkv."),
    (r"mlp\.fc11\.", "mlp.up_proj."),
    (r"mlp\.fc12\.", "mlp.gate_proj."),
    (r"mlp\.fc2\.", "mlp.down_proj."),
    (r"\.norm1\.", ".post_attention_layernorm."),
    (r"\.norm2\.", ".post_mlp_layernorm."),
    (r"^bert\.", "nomic_bert."),
)
"""Patterns in the tensor names of NomicBERT's first folders -> replacements."""
FIRST_KEYS = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "resid_pdrop": "hidden_dropout_prob",
    "attn_pdrop": "attention_probs_dropout_prob",
    "rotary_emb_base": THETA,
}
"""Keys of their `config.json` -> today's."""
FIRST_FIXED = {
    "activation_function": ("swiglu",),
    "prenorm": (False,),
    "use_rms_norm": (False, None),
    "qkv_proj_bias": (False,),
    "mlp_fc1_bias": (False,),
    "mlp_fc2_bias": (False,),
    "rotary_emb_fraction": (1.0,),
    "rotary_emb_interleaved": (False,),
    "rotary_scaling_factor": (None,),
    "parallel_block": (False,),
}
"""Keys of their `config.json` -> the values that firth's encoder can have."""


@dataclass(frozen=True)
class NomicBertLayout(HuggingFaceLayout):
    def modern_values(self, path: Path, values: JsonObject) -> JsonObject:
        flat = dict(values)
        if "n_embd" in values:
            for key, allowed in FIRST_FIXED.items():
                if values.get(key, allowed[0]) not in allowed:
                    raise Unsupported(f"{path} has {key} = {values[key]!r}; firth's nomic_bert has {allowed[0]!r}.")
            for key, modern_key in FIRST_KEYS.items():
                if values.get(key) is not None:
                    flat[modern_key] = values[key]
            flat["hidden_act"] = "silu"
        theta = _theta(path, values.get("rope_parameters") or {})
        if theta is not None:
            flat[THETA] = theta
        heads = flat.get("num_attention_heads")
        width = flat.get("hidden_size")
        if isinstance(heads, int) and isinstance(width, int):
            if flat.get("head_dim") not in (None, width // max(heads, 1)):
                raise Unsupported(f"{path} has head_dim = {flat['head_dim']}; firth's heads share the width equally.")
        elif heads is not None and width is not None:
            raise Damaged(f"{path}: 'hidden_size' and 'num_attention_heads' must be numbers.")
        return flat

    def modern_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        renamed: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            for pattern, replacement in FIRST_NAMES:
                name = re.sub(pattern, replacement, name)
            if "self_attn.Wqkv." not in name:
                renamed[name] = tensor
                continue
            for part, piece in zip(("q_proj", "k_proj", "v_proj"), tensor.chunk(3), strict=True):
                renamed[name.replace("Wqkv", part)] = piece
        return renamed

    def config_json(self, encoder: Encoder, goals: Mapping[str, nn.Module], *, pad_id: int) -> dict[str, object]:
        config: NomicBert.Config = encoder.config
        values = super().config_json(encoder, goals, pad_id=pad_id)
        del values[THETA]
        values["rope_parameters"] = {"rope_type": "default", THETA: config.theta}
        return values


NOMIC_BERT = NomicBertLayout(
    model_type="nomic_bert",
    encoder="nomic_bert",
    prefix="nomic_bert.",
    fields=FIELDS | {"theta": THETA},
    names=(
        *EMBEDDINGS,
        (r"^blocks\.", "layers."),
        # attention.query. -> self_attn.q_proj.
        (r"\.attention\.(query|key|value)\.", lambda found: f".self_attn.{found[1][0]}_proj."),
        (r"\.attention\.out\.", ".self_attn.o_proj."),
        (r"\.ffn\.(gate|up|down)\.", r".mlp.\1_proj."),
        (r"attention_norm\.", "post_attention_layernorm."),
        (r"ffn_norm\.", "post_mlp_layernorm."),
    ),
    heads={
        "masked_lm": head_names(
            dense="cls.predictions.transform.dense",
            norm="cls.predictions.transform.layer_norm",
            bias="cls.predictions.bias",
        )
    },
    architectures={("masked_lm",): "NomicBertForMaskedLM", (): "NomicBertModel"},
    tied=("cls.predictions.decoder.weight",),
    extras=("embeddings.position_ids", "cls.predictions.decoder.bias"),
    fixed={},
)
