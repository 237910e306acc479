"""Hugging Face folders of DeBERTa in versions 2 and 3 (`deberta-v2`), read and written.

A masked-LM head is written under the names that transformers loads with `"legacy": false`, which are those of the
published files; the older names are read too. The judge of version 3's pre-training is left out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from firth.convert.huggingface import HuggingFaceLayout
from firth.convert.layouts import BLOCKS, EMBEDDINGS, FIELDS, head_names
from firth.encoders.deberta import Deberta
from firth.errors import Unsupported
from firth.files import JsonObject
from firth.tensors import Encoder

NORM = "layer_norm"
HEAD = "lm_predictions.lm_head."
BIAS = HEAD + "bias"
LEGACY_HEAD = "cls.predictions.transform."
LEGACY_BIAS = "cls.predictions.bias"
JUDGE = (
    "mask_predictions.dense.weight",
    "mask_predictions.dense.bias",
    "mask_predictions.LayerNorm.weight",
    "mask_predictions.LayerNorm.bias",
    "mask_predictions.classifier.weight",
    "mask_predictions.classifier.bias",
)
"""Tells replaced tokens apart in pre-training; nothing else uses it."""


@dataclass(frozen=True)
class DebertaLayout(HuggingFaceLayout):
    def modern_values(self, path: Path, values: JsonObject) -> JsonObject:
        if not values.get("relative_attention", False):
            raise Unsupported(f"{path} has relative_attention = False; firth's deberta always has distances.")
        width = values.get("hidden_size")
        for key in ("embedding_size", "pooler_hidden_size"):
            if values.get(key, width) != width:
                raise Unsupported(f"{path} has {key} = {values[key]!r}; firth's deberta has that of the states.")
        flat = dict(values)
        terms = values.get("pos_att_type") or []
        if isinstance(terms, str):
            terms = [term.strip() for term in terms.lower().split("|")]
        unknown = set(terms) - {"c2p", "p2c"}
        if unknown:
            raise Unsupported(f"{path} has pos_att_type = {sorted(unknown)[0]!r}; firth's deberta has c2p and p2c.")
        flat["c2p"] = "c2p" in terms
        flat["p2c"] = "p2c" in terms
        flat["norm_distances"] = NORM in str(values.get("norm_rel_ebd", "none")).lower()
        flat["position_buckets"] = max(values.get("position_buckets", -1), 0)
        if values.get("max_relative_positions", -1) < 1:
            flat["max_relative_positions"] = values.get("max_position_embeddings", 512)
        flat.setdefault("share_att_key", False)
        flat.setdefault("position_biased_input", True)
        flat.setdefault("conv_act", "tanh")
        return flat

    def modern_tensors(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        renamed: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            name = name.replace(LEGACY_HEAD, HEAD)
            name = name.replace(LEGACY_BIAS, BIAS)
            renamed[name] = tensor
        return renamed

    def config_json(self, encoder: Encoder, goals: Mapping[str, nn.Module], *, pad_id: int) -> dict[str, object]:
        config: Deberta.Config = encoder.config
        values = super().config_json(encoder, goals, pad_id=pad_id)
        terms = [term for term in ("p2c", "c2p") if values.pop(term)]
        values["pos_att_type"] = terms
        values["relative_attention"] = True
        values["norm_rel_ebd"] = NORM if values.pop("norm_distances") else "none"
        values["position_buckets"] = config.num_buckets or -1
        values["legacy"] = False
        return values


DEBERTA = DebertaLayout(
    model_type="deberta-v2",
    encoder="deberta",
    prefix="deberta.",
    fields=FIELDS
    | {
        "absolute_positions": "position_biased_input",
        "num_buckets": "position_buckets",
        "max_distance": "max_relative_positions",
        "norm_distances": "norm_distances",
        "to_position": "c2p",
        "from_position": "p2c",
        "shares_projections": "share_att_key",
        "conv_size": "conv_kernel_size",
        "conv_activation": "conv_act",
    },
    names=(
        *EMBEDDINGS,
        (r"^distances\.table\.", "encoder.rel_embeddings."),
        (r"^distances\.norm\.", "encoder.LayerNorm."),
        (r"^convolution\.conv\.", "encoder.conv.conv."),
        (r"^convolution\.norm\.", "encoder.conv.LayerNorm."),
        (r"attention\.(query|key|value)\.", r"attention.self.\1_proj."),
        (r"attention\.position_(query|key)\.", r"attention.self.pos_\1_proj."),
        *BLOCKS,
    ),
    heads={
        "masked_lm": head_names(
            dense=HEAD + "dense",
            norm=HEAD + "LayerNorm",
            bias=BIAS,
        )
    },
    architectures={("masked_lm",): "DebertaV2ForMaskedLM", (): "DebertaV2Model"},
    tied=("cls.predictions.decoder.weight",),
    extras=("embeddings.position_ids", "cls.predictions.decoder.bias", *JUDGE),
    # The released models of version 3 have no segments.
    usual={"num_segments": 0},
    fixed={"conv_groups": 1},
)
