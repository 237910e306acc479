"""How Hugging Face names the parts of BERT and the models based on it: one `HuggingFaceLayout` for each model type."""

from dataclasses import replace

from firth.convert.electra import Electra
from firth.convert.huggingface import HuggingFaceLayout

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
EMBEDDINGS = (
    (r"^embeddings\.tokens\.", "embeddings.word_embeddings."),
    (r"^embeddings\.positions\.", "embeddings.position_embeddings."),
    (r"^embeddings\.segments\.", "embeddings.token_type_embeddings."),
    (r"^embeddings\.norm\.", "embeddings.LayerNorm."),
)
BLOCKS = (
    (r"^blocks\.", "encoder.layer."),
    (r"attention\.(query|key|value)\.", r"attention.self.\1."),
    (r"attention\.out\.", "attention.output.dense."),
    (r"attention_norm\.", "attention.output.LayerNorm."),
    (r"\.ffn\.up\.", ".intermediate.dense."),
    (r"\.ffn\.down\.", ".output.dense."),
    (r"ffn_norm\.", "output.LayerNorm."),
)


def head_names(*, dense: str, norm: str, bias: str) -> dict[str, str]:
    """The tensor names of a masked-LM head, given Hugging Face's names of its dense layer, its norm and its bias."""
    return {
        "head.dense.weight": f"{dense}.weight",
        "head.dense.bias": f"{dense}.bias",
        "head.norm.weight": f"{norm}.weight",
        "head.norm.bias": f"{norm}.bias",
        "head.bias": bias,
    }


BERT = HuggingFaceLayout(
    model_type="bert",
    encoder="bert",
    prefix="bert.",
    # transformers' BERT has no narrow embedding. These are the names in TensorFlow's checkpoints.
    fields=FIELDS | {"embedding_width": "embedding_size"},
    names=(*EMBEDDINGS, (r"^embeddings\.project\.", "encoder.embedding_hidden_mapping_in."), *BLOCKS),
    heads={
        "masked_lm": head_names(
            dense="cls.predictions.transform.dense",
            norm="cls.predictions.transform.LayerNorm",
            bias="cls.predictions.bias",
        ),
        "next_sentence": {"head.weight": "cls.seq_relationship.weight", "head.bias": "cls.seq_relationship.bias"},
    },
    aliases={"unilm": "masked_lm", "translation_lm": "masked_lm"},
    architectures={
        ("masked_lm", "next_sentence"): "BertForPreTraining",
        ("masked_lm",): "BertForMaskedLM",
        ("next_sentence",): "BertForNextSentencePrediction",
        (): "BertModel",
    },
    tied=("cls.predictions.decoder.weight",),
    extras=("embeddings.position_ids", "cls.predictions.decoder.bias"),
)
ROBERTA = HuggingFaceLayout(
    model_type="roberta",
    encoder="bert",
    prefix="roberta.",
    fields=FIELDS,
    names=(*EMBEDDINGS, *BLOCKS),
    heads={"masked_lm": head_names(dense="lm_head.dense", norm="lm_head.layer_norm", bias="lm_head.bias")},
    architectures={("masked_lm",): "RobertaForMaskedLM", (): "RobertaModel"},
    tied=("lm_head.decoder.weight",),
    extras=("embeddings.position_ids", "lm_head.decoder.bias"),
    implied={"embedding_width": 0},
    settings={"masked_lm": {"activation": "gelu"}},
    # The first token has position 2: fairseq numbers positions from the padding id plus one.
    pad_id=1,
)
XLM_ROBERTA = replace(
    ROBERTA,
    model_type="xlm-roberta",
    architectures={("masked_lm",): "XLMRobertaForMaskedLM", (): "XLMRobertaModel"},
)
DISTILBERT = HuggingFaceLayout(
    model_type="distilbert",
    encoder="bert",
    prefix="distilbert.",
    fields={
        "vocab_size": "vocab_size",
        "width": "dim",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "ffn_width": "hidden_dim",
        "max_positions": "max_position_embeddings",
        "activation": "activation",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "init_std": "initializer_range",
    },
    names=(
        *EMBEDDINGS,
        (r"^blocks\.", "transformer.layer."),
        # attention.query. -> attention.q_lin.
        (r"attention\.(query|key|value)\.", lambda found: f"attention.{found[1][0]}_lin."),
        (r"attention\.out\.", "attention.out_lin."),
        (r"attention_norm\.", "sa_layer_norm."),
        (r"\.ffn\.up\.", ".ffn.lin1."),
        (r"\.ffn\.down\.", ".ffn.lin2."),
        (r"ffn_norm\.", "output_layer_norm."),
    ),
    heads={"masked_lm": head_names(dense="vocab_transform", norm="vocab_layer_norm", bias="vocab_projector.bias")},
    architectures={("masked_lm",): "DistilBertForMaskedLM", (): "DistilBertModel"},
    tied=("vocab_projector.weight",),
    implied={"num_segments": 0, "pooler": False, "norm_eps": 1e-12, "embedding_width": 0},
    fixed={},
)
ELECTRA = Electra(
    model_type="electra",
    encoder="bert",
    prefix="electra.",
    fields=FIELDS | {"embedding_width": "embedding_size"},
    names=(*EMBEDDINGS, (r"^embeddings\.project\.", "embeddings_project."), *BLOCKS),
    heads={
        "masked_lm": head_names(
            dense="generator_predictions.dense", norm="generator_predictions.LayerNorm", bias="generator_lm_head.bias"
        ),
        "replaced_token": {
            "dense.weight": "discriminator_predictions.dense.weight",
            "dense.bias": "discriminator_predictions.dense.bias",
            "judge.weight": "discriminator_predictions.dense_prediction.weight",
            "judge.bias": "discriminator_predictions.dense_prediction.bias",
        },
    },
    architectures={
        ("masked_lm",): "ElectraForMaskedLM",
        ("replaced_token",): "ElectraForPreTraining",
        (): "ElectraModel",
    },
    tied=("generator_lm_head.weight",),
    implied={"pooler": False},
    usual={"embedding_width": 128},
    settings={"masked_lm": {"activation": "gelu"}},
)
ALBERT = HuggingFaceLayout(
    model_type="albert",
    encoder="albert",
    prefix="albert.",
    fields=FIELDS | {"embedding_width": "embedding_size"},
    names=(
        *EMBEDDINGS,
        (r"^widen\.", "encoder.embedding_hidden_mapping_in."),
        # All layers share one block.
        (r"^blocks\.0\.", "encoder.albert_layer_groups.0.albert_layers.0."),
        (r"attention\.out\.", "attention.dense."),
        (r"attention_norm\.", "attention.LayerNorm."),
        (r"\.ffn\.up\.", ".ffn."),
        (r"\.ffn\.down\.", ".ffn_output."),
        (r"ffn_norm\.", "full_layer_layer_norm."),
        (r"^pooler\.dense\.", "pooler."),
    ),
    heads={
        "masked_lm": head_names(dense="predictions.dense", norm="predictions.LayerNorm", bias="predictions.bias"),
        "sentence_order": {
            "head.weight": "sop_classifier.classifier.weight",
            "head.bias": "sop_classifier.classifier.bias",
        },
    },
    architectures={
        ("masked_lm", "sentence_order"): "AlbertForPreTraining",
        ("masked_lm",): "AlbertForMaskedLM",
        (): "AlbertModel",
    },
    tied=("predictions.decoder.weight",),
    extras=("embeddings.position_ids", "predictions.decoder.bias"),
    fixed={"position_embedding_type": "absolute", "num_hidden_groups": 1, "inner_group_num": 1},
)
