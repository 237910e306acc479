"""Hugging Face folders of type `bart`, and of type `mbart` where norms come before the sublayers.

Positions count from 2 there: the first two rows of both tables are never read. The output layer is the input embedding
with a bias, `final_logits_bias`, which is zero in almost all folders.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from firth.convert.encoder_decoder import (
    HEAD,
    HEAD_BIAS,
    OUTPUT_BIAS,
    EncoderDecoderLayout,
    known_fields,
)
from firth.convert.huggingface import refuse_other
from firth.encoders.bart import Bart
from firth.errors import Unsupported
from firth.files import JsonObject
from firth.nn.encoder_decoder import EncoderDecoder, EncoderDecoderConfig

FIRST_POSITION = 2
"""The row of the position tables that the first token of a sequence uses."""
NORM_EPS = 1e-5
"""The small number under the root of all norms; `config.json` has no key for it."""
REQUIRED = {
    "vocab_size": "vocab_size",
    "width": "d_model",
    "num_layers": "encoder_layers",
    "num_heads": "encoder_attention_heads",
    "ffn_width": "encoder_ffn_dim",
    "max_positions": "max_position_embeddings",
}
"""Fields of firth's config -> keys of `config.json`."""
OPTIONAL = {
    "decoder_layers": "decoder_layers",
    "activation": "activation_function",
    "dropout": "dropout",
    "attention_dropout": "attention_dropout",
    "ffn_dropout": "activation_dropout",
    "init_std": "init_std",
    "scale_embedding": "scale_embedding",
    "start_token": "decoder_start_token_id",
}
SAME = {"encoder_attention_heads": "decoder_attention_heads", "encoder_ffn_dim": "decoder_ffn_dim"}
"""Keys whose values must be equal: firth's two halves have blocks of one shape."""
TYPES = {"post": "bart", "pre": "mbart"}
"""Where the norms are -> the model type."""
CLASSES = {"post": "BartForConditionalGeneration", "pre": "MBartForConditionalGeneration"}
POSITIONS = ("encoder.embed.positions.weight", "decoder.embed.positions.weight")


class BartLayout(EncoderDecoderLayout):
    def config_of(self, path: Path, values: JsonObject, tensors: dict[str, Tensor]) -> Bart.Config:
        model_type = values.get("model_type")
        norm: Literal["pre", "post"] = "pre" if model_type == TYPES["pre"] else "post"
        # The last three are keys of the first versions.
        fixed = {"is_encoder_decoder": True, "is_decoder": False, "tie_word_embeddings": True}
        fixed |= {"normalize_before": norm == "pre", "add_final_layer_norm": norm == "pre", "normalize_embedding": True}
        refuse_other(path, values, fixed, encoder=TYPES[norm])
        for key, other in SAME.items():
            if values.get(other, values.get(key)) != values.get(key):
                raise Unsupported(
                    f"{path} has {other} = {values[other]!r} and {key} = {values.get(key)!r}, not the same."
                )
        known = known_fields(path, values, required=REQUIRED, optional=OPTIONAL)
        if HEAD in tensors:
            raise Unsupported(f"{path.parent} has an output layer of its own; BART's is tied to the input embedding.")
        if HEAD_BIAS in tensors and not tensors[HEAD_BIAS].any():
            del tensors[HEAD_BIAS]
        return Bart.Config(**known, norm=norm, norm_eps=NORM_EPS, output_bias=HEAD_BIAS in tensors)

    def values_of(self, config: EncoderDecoderConfig) -> dict[str, object]:
        assert isinstance(config, Bart.Config)
        values: dict[str, object] = {
            "architectures": [CLASSES[config.norm]],
            "model_type": TYPES[config.norm],
        }
        for name, key in {**REQUIRED, **OPTIONAL}.items():
            values[key] = getattr(config, name)
        values["decoder_layers"] = config.num_decoder_layers
        for key, other in SAME.items():
            values[other] = values[key]
        values["tie_word_embeddings"] = True
        return values

    def suits(self, encoder: EncoderDecoder, goals: Mapping[str, nn.Module]) -> bool:
        config = encoder.config
        assert isinstance(config, Bart.Config)
        return (
            config.positions == "learned"
            and config.norm_embedding
            and config.norm_eps == NORM_EPS
            and config.tied_output
            and not config.embedding_width
        )

    def tensors_of(self, encoder: EncoderDecoder, goals: Mapping[str, nn.Module], *, pad_id: int) -> dict[str, Tensor]:
        tensors = super().tensors_of(encoder, goals, pad_id=pad_id)
        if self.suits(encoder, goals) and not encoder.config.output_bias:
            tensors[HEAD_BIAS] = torch.zeros(1, encoder.vocab_size)
        return tensors

    def to_ours(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        for name in POSITIONS:
            tensors[name] = tensors[name][FIRST_POSITION:]
        if OUTPUT_BIAS in tensors:
            tensors[OUTPUT_BIAS] = tensors[OUTPUT_BIAS][0]
        return tensors

    def to_theirs(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        for name in POSITIONS:
            width = tensors[name].shape[1]
            unused = tensors[name].new_zeros(FIRST_POSITION, width)
            tensors[name] = torch.cat([unused, tensors[name]])
        if OUTPUT_BIAS in tensors:
            tensors[OUTPUT_BIAS] = tensors[OUTPUT_BIAS][None]
        return tensors


BART_FOLDER = BartLayout(
    encoder="bart",
    prefix="model.",
    names=(
        (r"\.embed\.positions\.", ".embed_positions."),
        (r"\.embed\.norm\.", ".layernorm_embedding."),
        (r"^(\w+)\.norm\.", r"\1.layer_norm."),
        (r"\.(query|key|value)\.", lambda found: f".{found[1][0]}_proj."),
        (r"\.out\.", ".out_proj."),
        (r"\.attention_norm\.", ".self_attn_layer_norm."),
        (r"\.attention\.", ".self_attn."),
        (r"\.cross_norm\.", ".encoder_attn_layer_norm."),
        (r"\.cross\.", ".encoder_attn."),
        (r"\.ffn_norm\.", ".final_layer_norm."),
        (r"\.ffn\.up\.", ".fc1."),
        (r"\.ffn\.down\.", ".fc2."),
        (r"\.blocks\.", ".layers."),
    ),
)
