"""ModernBERT, NomicBERT, MPNet and DeBERTa-v2 against transformers: the same numbers and folders, both ways."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from firth import checkpoint as checkpoints
from firth import rng
from firth.checkpoint import Checkpoint
from firth.data.packing import pack_tokens
from firth.errors import Unsupported
from firth.tokenizers.wordpiece import WordPiece

TOLERANCE = 1e-5
NUM_SHAPES = 12
Reply = dict[str, Tensor]


def one_of(index: int, what: str, *choices: Any) -> Any:
    return choices[int(rng.below(rng.key("checkpoints", index, what), len(choices)))]


def sizes(index: int) -> dict[str, Any]:
    heads = one_of(index, "heads", 1, 2, 3, 4)
    return {
        "vocab_size": one_of(index, "vocabulary", 1200, 1216, 1301),
        "hidden_size": one_of(index, "head", 4, 8, 12, 16) * heads,
        "num_hidden_layers": one_of(index, "layers", 1, 2, 3, 5),
        "num_attention_heads": heads,
        "intermediate_size": one_of(index, "feed-forward", 17, 32, 96),
        "max_position_embeddings": one_of(index, "positions", 150, 200),
        "initializer_range": one_of(index, "std", 0.05, 0.1, 0.2),
        "pad_token_id": 0,
    }


def modernbert(index: int) -> dict[str, Any]:
    rotations = {
        "full_attention": {"rope_type": "default", "rope_theta": one_of(index, "global theta", 160000.0, 1000.0)},
        "sliding_attention": {"rope_type": "default", "rope_theta": one_of(index, "local theta", 10000.0, 100.0)},
    }
    return sizes(index) | {
        "global_attn_every_n_layers": one_of(index, "global", 1, 2, 3),
        "local_attention": one_of(index, "window", 2, 9, 16, 128),
        "rope_parameters": rotations,
        "hidden_activation": one_of(index, "activation", "gelu", "silu", "relu"),
        "norm_eps": one_of(index, "eps", 1e-6, 1e-5),
        "attention_bias": one_of(index, "attention bias", False, True),
        "mlp_bias": one_of(index, "mlp bias", False, True),
        "norm_bias": one_of(index, "norm bias", False, True),
        "classifier_bias": one_of(index, "head bias", False, True),
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    }


def nomic_bert(index: int) -> dict[str, Any]:
    return sizes(index) | {
        "type_vocab_size": one_of(index, "segments", 1, 2),
        "hidden_act": one_of(index, "activation", "silu", "gelu"),
        "layer_norm_eps": one_of(index, "eps", 1e-12, 1e-5),
        "rope_parameters": {"rope_type": "default", "rope_theta": one_of(index, "theta", 1000.0, 10000.0)},
    }


def mpnet(index: int) -> dict[str, Any]:
    return sizes(index) | {
        "hidden_act": one_of(index, "activation", "gelu", "relu"),
        "layer_norm_eps": one_of(index, "eps", 1e-12, 1e-5),
    }


def deberta(index: int) -> dict[str, Any]:
    buckets = one_of(index, "buckets", -1, 8, 16)
    terms = one_of(index, "terms", ["p2c", "c2p"], ["c2p"], ["p2c"], ["p2c", "c2p"])
    return sizes(index) | {
        "relative_attention": True,
        "pos_att_type": terms,
        "position_buckets": buckets,
        "max_relative_positions": one_of(index, "farthest", -1, 64, 40),
        "norm_rel_ebd": one_of(index, "norm", "layer_norm", "none"),
        "share_att_key": one_of(index, "shared", True, False),
        "position_biased_input": one_of(index, "absolute", False, True),
        "type_vocab_size": one_of(index, "segments", 0, 2),
        "conv_kernel_size": one_of(index, "convolution", 0, 3, 5),
        "conv_act": one_of(index, "conv activation", "gelu", "tanh"),
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-7,
        "legacy": one_of(index, "legacy", False, True),
    }


MODELS: dict[str, tuple[Callable[[int], dict[str, Any]], str]] = {
    "modernbert": (modernbert, "ModernBertForMaskedLM"),
    "modernbert, bare": (modernbert, "ModernBertModel"),
    "nomic_bert": (nomic_bert, "NomicBertForMaskedLM"),
    "nomic_bert, bare": (nomic_bert, "NomicBertModel"),
    "mpnet": (mpnet, "MPNetForMaskedLM"),
    "mpnet, bare": (mpnet, "MPNetModel"),
    "deberta-v2": (deberta, "DebertaV2ForMaskedLM"),
    "deberta-v2, bare": (deberta, "DebertaV2Model"),
}


def drawn(name: str, index: int) -> Any:
    """The index-th random model of a kind, weights large enough for attention to matter, no norm or bias trivial."""
    shape, kind = MODELS[name]
    cls = getattr(transformers, kind, None)
    if cls is None:
        pytest.skip(f"this transformers has no {kind}")
    torch.manual_seed(index)
    model = cls(cls.config_class(**shape(index))).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    if "mpnet" in name:
        # Fixed small values would hide a wrong bucket.
        torch.nn.init.normal_(model.base_model.encoder.relative_attention_bias.weight)
    return model


def sequences(index: int, model: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Ragged sequences with segments, some longer than the windows; no token is 0 or 1, which may be padding."""
    key = rng.key("text", index)
    lengths = 1 + rng.below(key, 31, np.arange(6), 0)
    lengths[-1] = 140
    ids = [2 + rng.below(key, model.config.vocab_size - 2, np.arange(n), row, 1) for row, n in enumerate(lengths)]
    kinds = max(getattr(model.config, "type_vocab_size", 1), 1)
    segments = [np.sort(rng.below(key, kinds, np.arange(n), row, 2)) for row, n in enumerate(lengths)]
    return ids, segments


def theirs(model: Any, ids: list[np.ndarray], segments: list[np.ndarray]) -> Reply:
    """Padded, as transformers wants it; padding taken off again."""
    size = max(map(len, ids))
    pad = 1 if model.config.model_type == "mpnet" else 0
    padded_ids = np.stack([np.pad(row, (0, size - len(row)), constant_values=pad) for row in ids])
    padded_segments = np.stack([np.pad(row, (0, size - len(row))) for row in segments])
    real = torch.from_numpy(np.stack([np.arange(size) < len(row) for row in ids]))
    options = {"attention_mask": real.long()}
    if getattr(model.config, "type_vocab_size", 0):
        options["token_type_ids"] = torch.from_numpy(padded_segments)
    with torch.inference_mode():
        states = model.base_model(torch.from_numpy(padded_ids), **options)
        found = model(torch.from_numpy(padded_ids), **options)
    reply = {"states": states.last_hidden_state[real]}
    if getattr(states, "pooler_output", None) is not None:
        reply["pooler"] = states.pooler_output
    if hasattr(found, "logits"):
        reply["masked_lm"] = found.logits[real]
    return reply


def ours(model: Checkpoint, ids: list[np.ndarray], segments: list[np.ndarray]) -> Reply:
    batch = pack_tokens(ids, segments=segments)
    with torch.inference_mode():
        states = model.encoder(batch)
        reply = {"states": states.last_ND}
        if states.pooled_BD is not None:
            reply["pooler"] = states.pooled_BD
        for name, goal in model.goals.items():
            reply[name] = goal.scores(states, torch.arange(batch.num_tokens))  # type: ignore[operator]
    return reply


def assert_equal(found: Reply, wanted: Reply) -> None:
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert found[name].shape == values.shape
        assert float((found[name] - values).abs().max()) < TOLERANCE, name
        assert float(values.std()) > 10 * TOLERANCE, name


@pytest.mark.parametrize("index", range(NUM_SHAPES))
@pytest.mark.parametrize("name", MODELS)
def test_numbers_equal_both_ways_through_folders(name: str, index: int, tokenizer: WordPiece, tmp_path: Path) -> None:
    model = drawn(name, index)
    model.save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs")
    text = sequences(index, model)
    wanted = theirs(model, *text)

    opened = checkpoints.load(tmp_path / "theirs")
    assert_equal(ours(opened, *text), wanted)

    checkpoints.save(tmp_path / "ours", opened)
    cls = type(model)
    again, report = cls.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == [cls.__name__]
    assert_equal(theirs(again.eval(), *text), wanted)
    assert_equal(ours(checkpoints.load(tmp_path / "ours"), *text), wanted)


def _loaded(name: str, tokenizer: WordPiece, folder: Path, *, index: int = 0) -> Checkpoint:
    drawn(name, index).save_pretrained(folder)
    tokenizer.save(folder)
    return checkpoints.load(folder)


def test_the_first_folders_of_nomic_bert_have_other_keys(tokenizer: WordPiece, tmp_path: Path) -> None:
    """Their tensors have other names, too: transformers still writes those."""
    model = drawn("nomic_bert, bare", 1)
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    assert any("attn.Wqkv" in name for name in load_file(tmp_path / "model.safetensors"))
    config = model.config
    first_config = {
        "model_type": "nomic_bert",
        "n_embd": config.hidden_size,
        "n_layer": config.num_hidden_layers,
        "n_head": config.num_attention_heads,
        "n_inner": config.intermediate_size,
        "n_positions": config.max_position_embeddings,
        "layer_norm_epsilon": config.layer_norm_eps,
        "rotary_emb_base": config.rope_parameters["rope_theta"],
        "activation_function": "swiglu",
        "vocab_size": config.vocab_size,
        "type_vocab_size": config.type_vocab_size,
        "prenorm": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(first_config))
    model.config.hidden_act = "silu"
    for layer in model.layers:
        layer.mlp.act_fn = torch.nn.SiLU()
    text = sequences(1, model)
    assert_equal(ours(checkpoints.load(tmp_path), *text), theirs(model, *text))
    (tmp_path / "config.json").write_text(json.dumps(first_config | {"prenorm": True}))
    with pytest.raises(Unsupported, match="prenorm = True"):
        checkpoints.load(tmp_path)


def test_the_judge_of_debertas_third_version_is_left_out(tokenizer: WordPiece, tmp_path: Path) -> None:
    model = drawn("deberta-v2", 0)
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    width = model.config.hidden_size
    judge = {
        "mask_predictions.dense.weight": torch.ones(width, width),
        "mask_predictions.dense.bias": torch.ones(width),
        "mask_predictions.LayerNorm.weight": torch.ones(width),
        "mask_predictions.LayerNorm.bias": torch.ones(width),
        "mask_predictions.classifier.weight": torch.ones(1, width),
        "mask_predictions.classifier.bias": torch.ones(1),
    }
    save_file({**load_file(tmp_path / "model.safetensors"), **judge}, tmp_path / "model.safetensors")
    text = sequences(0, model)
    assert_equal(ours(checkpoints.load(tmp_path), *text), theirs(model, *text))


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("modernbert", "decoder_bias", False),
        ("modernbert", "tie_word_embeddings", False),
        ("mpnet", "relative_attention_num_buckets", 16),
        ("deberta-v2", "relative_attention", False),
        ("deberta-v2", "embedding_size", 8),
        ("deberta-v2", "conv_groups", 2),
    ],
)
def test_what_an_encoder_cannot_do_is_refused(
    name: str, key: str, value: object, tokenizer: WordPiece, tmp_path: Path
) -> None:
    _loaded(name, tokenizer, tmp_path, index=0)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(values | {key: value}))
    with pytest.raises(Unsupported, match=f"{key} = {value!r}"):
        checkpoints.load(tmp_path)


def test_other_kinds_of_rotary_positions_and_layers_are_refused(tokenizer: WordPiece, tmp_path: Path) -> None:
    _loaded("modernbert", tokenizer, tmp_path, index=2)
    values = json.loads((tmp_path / "config.json").read_text())
    other_rotation = {"full_attention": {"rope_type": "yarn", "rope_theta": 10.0, "factor": 2.0}}
    (tmp_path / "config.json").write_text(json.dumps(values | {"rope_parameters": other_rotation}))
    with pytest.raises(Unsupported, match="'yarn'"):
        checkpoints.load(tmp_path)
    other_layers = ["sliding_attention"] * values["num_hidden_layers"]
    (tmp_path / "config.json").write_text(json.dumps(values | {"layer_types": other_layers}))
    with pytest.raises(Unsupported, match="layer_types"):
        checkpoints.load(tmp_path)


@pytest.mark.parametrize("name", [name for name in MODELS if "bare" in name])
def test_attention_maps_equal_those_of_transformers(name: str, tokenizer: WordPiece, tmp_path: Path) -> None:
    model = drawn(name, 3)
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    model.set_attn_implementation("eager")
    ids, segments = sequences(3, model)
    batch = pack_tokens(ids, segments=segments)
    with torch.inference_mode():
        shown = checkpoints.load(tmp_path).encoder(batch, attention=True).attention
    options = (
        {"token_type_ids": torch.from_numpy(segments[-1])[None]} if hasattr(model.config, "type_vocab_size") else {}
    )
    with torch.inference_mode():
        found = model(torch.from_numpy(ids[-1])[None], output_attentions=True, **options).attentions
    assert len(shown) == len(found) == model.config.num_hidden_layers
    for ours_HLL, theirs_1HLL in zip(shown, found, strict=True):
        assert float((ours_HLL[-1] - theirs_1HLL[0]).abs().max()) < TOLERANCE
