"""Hugging Face folders of MPNet (`mpnet`): how they name the parts of firth's encoder."""

from dataclasses import dataclass

from firth.convert.huggingface import HuggingFaceLayout
from firth.convert.layouts import BLOCKS, EMBEDDINGS, FIELDS, head_names

NUM_BUCKETS = 32
"""transformers counts on this number, whatever `config.json` says."""


@dataclass(frozen=True)
class MPNetLayout(HuggingFaceLayout):
    def _first_position(self, pad_id: int | None) -> int:
        """transformers counts from 2, whatever token pads."""
        return 2


MPNET = MPNetLayout(
    model_type="mpnet",
    encoder="mpnet",
    prefix="mpnet.",
    fields={name: key for name, key in FIELDS.items() if name != "num_segments"},
    names=(
        *EMBEDDINGS,
        (r"^distances\.table\.", "encoder.relative_attention_bias."),
        # attention.query. -> attention.attn.q.
        (r"attention\.(query|key|value)\.", lambda found: f"attention.attn.{found[1][0]}."),
        (r"attention\.out\.", "attention.attn.o."),
        (r"attention_norm\.", "attention.LayerNorm."),
        *BLOCKS,
    ),
    heads={"masked_lm": head_names(dense="lm_head.dense", norm="lm_head.layer_norm", bias="lm_head.bias")},
    architectures={("masked_lm",): "MPNetForMaskedLM", (): "MPNetModel"},
    tied=("lm_head.decoder.weight",),
    extras=("embeddings.position_ids", "lm_head.decoder.bias"),
    implied={"num_buckets": NUM_BUCKETS},
    fixed={"relative_attention_num_buckets": NUM_BUCKETS},
    settings={"masked_lm": {"activation": "gelu"}},
)
