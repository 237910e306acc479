"""Hugging Face folders of type `t5`, versions 1.0 and 1.1.

The relative position tables belong to the first block of each half there. In transformers' configs
`tie_word_embeddings` says whether states are scaled before the output layer; whether this layer has its own matrix is
seen from the tensors.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from firth.convert.encoder_decoder import HEAD, EncoderDecoderLayout, known_fields
from firth.convert.huggingface import refuse_other
from firth.encoders.t5 import T5
from firth.files import JsonObject
from firth.nn.encoder_decoder import EncoderDecoder, EncoderDecoderConfig

REQUIRED = {
    "vocab_size": "vocab_size",
    "width": "d_model",
    "head_width": "d_kv",
    "ffn_width": "d_ff",
    "num_layers": "num_layers",
    "num_heads": "num_heads",
}
"""Fields of firth's config -> keys of `config.json`."""
OPTIONAL = {
    "decoder_layers": "num_decoder_layers",
    "num_buckets": "relative_attention_num_buckets",
    "max_distance": "relative_attention_max_distance",
    "dropout": "dropout_rate",
    "norm_eps": "layer_norm_epsilon",
    "max_positions": "n_positions",
    "init_std": "initializer_range",
}
GATED = "gated-"
GELU = "gelu_new"
"""What transformers means by `gated-gelu`."""


class T5Layout(EncoderDecoderLayout):
    def config_of(self, path: Path, values: JsonObject, tensors: dict[str, Tensor]) -> T5.Config:
        refuse_other(path, values, {"is_encoder_decoder": True, "is_decoder": False}, encoder="T5")
        known = known_fields(path, values, required=REQUIRED, optional=OPTIONAL)
        if known["head_width"] * known["num_heads"] == known["width"]:
            known["head_width"] = 0  # the usual one
        # T5 has one rate for all kinds of dropout; the second key is firth's.
        known["attention_dropout"] = values.get("attention_dropout", values.get("dropout_rate", 0.1))
        start = values.get("decoder_start_token_id")
        known["start_token"] = values.get("pad_token_id", 0) if start is None else start
        known["scale_output"] = values.get("scale_decoder_outputs", values.get("tie_word_embeddings") is not False)
        known["tied_output"] = HEAD not in tensors
        activation = str(values.get("feed_forward_proj", "relu"))
        known["gated"] = activation.startswith(GATED)
        known["activation"] = GELU if activation == "gated-gelu" else activation.removeprefix(GATED)
        return T5.Config(**known)

    def values_of(self, config: EncoderDecoderConfig) -> dict[str, object]:
        assert isinstance(config, T5.Config)
        values: dict[str, object] = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5"}
        for name, key in {**REQUIRED, **OPTIONAL}.items():
            values[key] = getattr(config, name)
        values["d_kv"] = config.head_width or config.width // config.num_heads
        values["num_decoder_layers"] = config.num_decoder_layers
        values["attention_dropout"] = config.attention_dropout
        activation = "gelu" if config.gated and config.activation == GELU else config.activation
        values["feed_forward_proj"] = f"{GATED}{activation}" if config.gated else activation
        # Older versions of transformers know the first key only, and take it for both.
        values["tie_word_embeddings"] = config.scale_output
        values["scale_decoder_outputs"] = config.scale_output
        return values

    def suits(self, encoder: EncoderDecoder, goals: Mapping[str, nn.Module]) -> bool:
        return not encoder.config.output_bias

    def tensor_names(self, config: EncoderDecoderConfig) -> dict[str, str]:
        names = super().tensor_names(config)
        assert isinstance(config, T5.Config)
        if not config.gated:
            return names
        # The two matrices of a gated layer are numbered, the gate first.
        return {name: their_name.replace(".wi.", ".wi_1.") for name, their_name in names.items()}


T5_FOLDER = T5Layout(
    encoder="t5",
    prefix="",
    names=(
        (r"^(\w+)\.relative\.table\.", r"\1.blocks.0.attention.relative_attention_bias."),
        (r"^(\w+)\.norm\.", r"\1.final_layer_norm."),
        (r"\.(query|key|value|out)\.", lambda found: f".{found[1][0]}."),
        (r"\.attention_norm\.", ".layer.0.layer_norm."),
        (r"\.attention\.", ".layer.0.SelfAttention."),
        (r"\.cross_norm\.", ".layer.1.layer_norm."),
        (r"\.cross\.", ".layer.1.EncDecAttention."),
        # The feed-forward layer is an encoder block's second sublayer and a decoder block's third.
        (r"^encoder(.*)\.ffn_norm\.", r"encoder\1.layer.1.layer_norm."),
        (r"^decoder(.*)\.ffn_norm\.", r"decoder\1.layer.2.layer_norm."),
        (r"^encoder(.*)\.ffn\.", r"encoder\1.layer.1.DenseReluDense."),
        (r"^decoder(.*)\.ffn\.", r"decoder\1.layer.2.DenseReluDense."),
        (r"\.gate\.", ".wi_0."),
        (r"\.up\.", ".wi."),
        (r"\.down\.", ".wo."),
        (r"\.blocks\.", ".block."),
    ),
    # transformers' first versions gave cross-attention a table that was never used.
    extras=(r"decoder\.block\.0\.layer\.1\.EncDecAttention\.relative_attention_bias\.weight",),
)
