"""RoBERTa, XLM-R, ALBERT, ELECTRA and DistilBERT against transformers: the same numbers and folders, both ways."""

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

import firth
from firth import checkpoint as checkpoints
from firth import rng
from firth.checkpoint import Checkpoint
from firth.data.packing import pack_tokens
from firth.errors import Unsupported
from firth.tokenizers.wordpiece import WordPiece

TOLERANCE = 1e-5
Reply = dict[str, Tensor]


def one_of(index: int, what: str, *choices: Any) -> Any:
    return choices[int(rng.below(rng.key("heirs", index, what), len(choices)))]


def bert_like(index: int) -> dict[str, Any]:
    heads = one_of(index, "heads", 1, 2, 3, 4)
    return {
        "vocab_size": one_of(index, "vocabulary", 1200, 1216, 1301),
        "hidden_size": one_of(index, "head", 4, 8, 12, 16) * heads,
        "num_hidden_layers": one_of(index, "layers", 1, 2, 3, 4),
        "num_attention_heads": heads,
        "intermediate_size": one_of(index, "feed-forward", 17, 32, 96),
        "max_position_embeddings": one_of(index, "positions", 34, 64, 80),
        "type_vocab_size": one_of(index, "segments", 1, 2),
        "hidden_act": one_of(index, "activation", "gelu", "gelu_new", "relu"),
        "layer_norm_eps": one_of(index, "eps", 1e-12, 1e-7, 1e-5),
        "initializer_range": one_of(index, "std", 0.05, 0.1, 0.2),
        "pad_token_id": 0,
    }


def narrow(index: int) -> dict[str, Any]:
    shape = bert_like(index)
    return shape | {"embedding_size": one_of(index, "embedding", 8, 20, shape["hidden_size"])}


def distil(index: int) -> dict[str, Any]:
    shape = bert_like(index)
    names = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}
    names |= {"hidden_dim": "intermediate_size", "activation": "hidden_act", "vocab_size": "vocab_size"}
    names |= {"max_position_embeddings": "max_position_embeddings", "initializer_range": "initializer_range"}
    return {theirs: shape[name] for theirs, name in names.items()} | {"pad_token_id": 0}


MODELS: dict[str, tuple[Callable[[int], dict[str, Any]], str, tuple[str, ...]]] = {
    "roberta": (bert_like, "RobertaForMaskedLM", ("masked_lm",)),
    "roberta, bare": (bert_like, "RobertaModel", ("pooler",)),
    "xlm-roberta": (bert_like, "XLMRobertaForMaskedLM", ("masked_lm",)),
    "albert": (narrow, "AlbertForPreTraining", ("pooler", "masked_lm", "sentence_order")),
    "electra, generator": (narrow, "ElectraForMaskedLM", ("masked_lm",)),
    "electra, discriminator": (narrow, "ElectraForPreTraining", ("replaced_token",)),
    "distilbert": (distil, "DistilBertForMaskedLM", ("masked_lm",)),
}


def drawn(name: str, index: int) -> Any:
    """The index-th random model of a kind, weights large enough for attention to matter, no norm or bias trivial."""
    shape, kind, _ = MODELS[name]
    cls = getattr(transformers, kind)
    torch.manual_seed(index)
    model = cls(cls.config_class(**shape(index))).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    return model


def sequences(index: int, model: Any) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Ragged sequences with segments; no token is padding, which RoBERTa does not count in its positions."""
    key = rng.key("heirs' text", index)
    lengths = 1 + rng.below(key, 31, np.arange(7), 0)
    ids = [1 + rng.below(key, model.config.vocab_size - 1, np.arange(n), row, 1) for row, n in enumerate(lengths)]
    kinds = getattr(model.config, "type_vocab_size", 1)
    segments = [np.sort(rng.below(key, kinds, np.arange(n), row, 2)) for row, n in enumerate(lengths)]
    return ids, segments


def theirs(model: Any, ids: list[np.ndarray], segments: list[np.ndarray]) -> Reply:
    """Padded, as transformers wants it; padding taken off again."""
    size = max(map(len, ids))
    padded = [
        torch.from_numpy(np.stack([np.pad(row, (0, size - len(row))) for row in rows])) for rows in (ids, segments)
    ]
    real = torch.from_numpy(np.stack([np.arange(size) < len(row) for row in ids]))
    options = {"attention_mask": real.long()}
    if "DistilBert" not in type(model).__name__:
        options["token_type_ids"] = padded[1]
    with torch.inference_mode():
        states = model.base_model(padded[0], **options)
        found = model(padded[0], **options)
    reply = {"states": states.last_hidden_state[real]}
    if getattr(states, "pooler_output", None) is not None:
        reply["pooler"] = states.pooler_output
    if hasattr(found, "sop_logits"):
        return reply | {"masked_lm": found.prediction_logits[real], "sentence_order": found.sop_logits}
    if hasattr(found, "logits"):
        reply["masked_lm" if found.logits.ndim == 3 else "replaced_token"] = found.logits[real]
    return reply


def ours(model: Checkpoint, ids: list[np.ndarray], segments: list[np.ndarray]) -> Reply:
    batch = pack_tokens(ids, segments=segments)
    with torch.inference_mode():
        states = model.encoder(batch)
        reply = {"states": states.last_ND} | ({"pooler": states.pooled_BD} if states.pooled_BD is not None else {})
        for name, goal in model.goals.items():
            extra = (torch.arange(batch.num_tokens),) if name == "masked_lm" else ()
            reply[name] = goal.scores(states, *extra)  # type: ignore[operator]
    return reply


def assert_equal(found: Reply, wanted: Reply) -> None:
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        assert found[name].shape == values.shape
        assert float((found[name] - values).abs().max()) < TOLERANCE, name
        assert float(values.std()) > 10 * TOLERANCE, name


@pytest.mark.parametrize("index", range(10))
@pytest.mark.parametrize("name", MODELS)
def test_numbers_equal_both_ways_through_folders(name: str, index: int, tokenizer: WordPiece, tmp_path: Path) -> None:
    model = drawn(name, index)
    model.save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs")
    text = sequences(index, model)
    wanted = theirs(model, *text)
    assert set(wanted) == {"states", *MODELS[name][2]}

    opened = checkpoints.load(tmp_path / "theirs")
    assert_equal(ours(opened, *text), wanted)

    checkpoints.save(tmp_path / "ours", opened)
    cls = type(model)
    again, report = cls.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["architectures"] == [cls.__name__]
    assert_equal(theirs(again.eval(), *text), wanted)
    unused = opened.tokenizer.vocab.pad + 1 if "roberta" in name else 0
    for key, tensor in model.state_dict().items():
        rows = slice(unused, None) if "position_embeddings" in key else slice(None)
        assert torch.equal(tensor[rows], again.state_dict()[key][rows]), key


@pytest.mark.parametrize("name", ["roberta", "xlm-roberta"])
def test_positions_count_from_behind_the_padding_token(name: str, tokenizer: WordPiece, tmp_path: Path) -> None:
    """The public models pad with 1, so their first two rows of positions are never read."""
    model = drawn(name, 3)
    model.config.pad_token_id = model.base_model.embeddings.padding_idx = 1
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    ids, segments = sequences(3, model)
    text = [row + (row == 1) for row in ids], segments
    opened = checkpoints.load(tmp_path)
    assert opened.encoder.max_positions == model.config.max_position_embeddings - 2
    assert_equal(ours(opened, *text), theirs(model, *text))


def test_a_head_that_transformers_has_no_place_for_is_kept(tokenizer: WordPiece, tmp_path: Path) -> None:
    opened = _loaded("albert", tokenizer, tmp_path / "theirs")
    goal = checkpoints.make_objective(
        "next_sentence", checkpoints.resolve("next_sentence").Config(), opened.encoder, tokenizer
    )
    checkpoints.save(tmp_path / "ours", Checkpoint(opened.encoder, {"next_sentence": goal}, tokenizer, layout="albert"))
    again = checkpoints.load(tmp_path / "ours").goals
    assert list(again) == ["next_sentence"]
    assert torch.equal(again["next_sentence"].head.weight, goal.head.weight)  # type: ignore[union-attr]


def test_what_the_layouts_cannot_say_is_refused(tokenizer: WordPiece, tmp_path: Path) -> None:
    _loaded("albert", tokenizer, tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    for name, value in {
        "num_hidden_groups": 2,
        "inner_group_num": 2,
        "position_embedding_type": "relative_key",
    }.items():
        (tmp_path / "config.json").write_text(json.dumps(values | {name: value}))
        with pytest.raises(Unsupported, match=f"{name} = {value!r}"):
            checkpoints.load(tmp_path)


def test_a_discriminator_alone_judges_but_cannot_fill_or_train(tokenizer: WordPiece, tmp_path: Path) -> None:
    opened = _loaded("electra, discriminator", tokenizer, tmp_path)
    with pytest.raises(Unsupported, match="no masked-LM head"):
        firth.load(tmp_path).fill("[MASK]")
    with pytest.raises(Unsupported, match="without its generator"):
        opened.goals["replaced_token"].sequences(None, 0)


def test_a_generator_with_other_embeddings_is_refused(tokenizer: WordPiece, tmp_path: Path) -> None:
    for name, folder in (("electra, discriminator", tmp_path), ("electra, generator", tmp_path / "generator")):
        _loaded(name, tokenizer, folder)
    with pytest.raises(Unsupported, match="does not share the embeddings"):
        checkpoints.load(tmp_path)
    tensors = load_file(tmp_path / "generator" / "model.safetensors")
    shared = {key: value for key, value in load_file(tmp_path / "model.safetensors").items() if "embeddings." in key}
    save_file({**tensors, **shared}, tmp_path / "generator" / "model.safetensors")
    model = firth.load(tmp_path)
    assert len(model.fill("a [MASK]", top=3)) == 3


def _loaded(name: str, tokenizer: WordPiece, folder: Path) -> Checkpoint:
    drawn(name, 0).save_pretrained(folder)
    tokenizer.save(folder)
    return checkpoints.load(folder)
