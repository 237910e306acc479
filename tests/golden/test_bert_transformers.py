"""BERT against transformers: the same numbers, and the same folders, both ways."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertModel,
)

import firth
from firth import checkpoint as checkpoints
from firth import rng
from firth.checkpoint import Checkpoint, make_objective
from firth.convert import layouts
from firth.data.packing import pack_tokens
from firth.encoders.bert import Bert
from firth.errors import Damaged, Unsupported
from firth.tokenizers.wordpiece import WordPiece

NUM_CONFIGS = 20
TOLERANCE = 1e-5


def drawn(index: int) -> BertConfig:
    """The index-th random configuration, weights large enough for attention to matter."""

    def one_of(what: str, *choices: object) -> object:
        return choices[int(rng.below(rng.key("golden", index, what), len(choices)))]

    head, heads = one_of("head", 4, 8, 12, 16), one_of("heads", 1, 2, 3, 4)
    config = BertConfig(
        vocab_size=one_of("vocabulary", 1200, 1216, 1301),
        hidden_size=head * heads,
        num_hidden_layers=one_of("layers", 1, 2, 3, 4),
        num_attention_heads=heads,
        intermediate_size=one_of("feed-forward", 17, 32, 96),
        max_position_embeddings=one_of("positions", 32, 64, 80),
        type_vocab_size=one_of("segments", 2, 3),
        hidden_act=one_of("activation", "gelu", "gelu_new", "relu"),
        layer_norm_eps=one_of("eps", 1e-12, 1e-7, 1e-5),
        initializer_range=one_of("std", 0.05, 0.1, 0.2),
    )
    torch.manual_seed(index)
    return config


def sequences(index: int, vocab_size: int, *, num_segments: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Ragged sequences with segments."""
    key = rng.key("golden text", index)
    lengths = 1 + rng.below(key, 31, np.arange(7), 0)
    ids = [rng.below(key, vocab_size, np.arange(n), row, 1) for row, n in enumerate(lengths)]
    segments = [np.sort(rng.below(key, num_segments, np.arange(n), row, 2)) for row, n in enumerate(lengths)]
    return ids, segments


def theirs(model: BertForPreTraining, ids: list[np.ndarray], segments: list[np.ndarray]) -> dict[str, Tensor]:
    """Padded, as transformers wants it; padding taken off again."""
    size = max(map(len, ids))
    padded = [np.stack([np.pad(row, (0, size - len(row))) for row in rows]) for rows in (ids, segments)]
    mask = np.stack([np.arange(size) < len(row) for row in ids])
    with torch.inference_mode():
        inputs = [torch.from_numpy(array) for array in (padded[0], mask.astype(np.int64), padded[1])]
        states = model.bert(inputs[0], attention_mask=inputs[1], token_type_ids=inputs[2])
        words, pairs = model.cls(states.last_hidden_state, states.pooler_output)
    real = torch.from_numpy(mask)
    return {
        "states": states.last_hidden_state[real],
        "pooler": states.pooler_output,
        "masked_lm": words[real],
        "next_sentence": pairs,
    }


def ours(model: Checkpoint, ids: list[np.ndarray], segments: list[np.ndarray]) -> dict[str, Tensor]:
    batch = pack_tokens(ids, segments=segments)
    with torch.inference_mode():
        states = model.encoder(batch)
        return {
            "states": states.last_ND,
            "pooler": states.pooled_BD,
            "masked_lm": model.goals["masked_lm"].scores(states, torch.arange(batch.num_tokens)),
            "next_sentence": model.goals["next_sentence"].scores(states),
        }


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    for name, values in wanted.items():
        assert found[name].shape == values.shape
        assert float((found[name] - values).abs().max()) < TOLERANCE, name
        assert float(values.std()) > 0.01, name


@pytest.mark.parametrize("index", range(NUM_CONFIGS))
def test_numbers_equal_both_ways_through_folders(index: int, tokenizer: WordPiece, tmp_path: Path) -> None:
    model = BertForPreTraining(drawn(index)).eval()
    for parameter in model.parameters():  # biases and norms are 0 and 1 at first, which would hide a mix-up
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="50KB" if index % 2 else "1GB")
    assert (tmp_path / "theirs" / "model.safetensors.index.json").exists() == bool(index % 2)
    tokenizer.save(tmp_path / "theirs")
    text = sequences(index, model.config.vocab_size, num_segments=model.config.type_vocab_size)
    wanted = theirs(model, *text)

    opened = checkpoints.load(tmp_path / "theirs")
    assert_equal(ours(opened, *text), wanted)

    checkpoints.save(tmp_path / "ours", opened)
    again, report = AutoModelForPreTraining.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    assert_equal(theirs(again.eval(), *text), wanted)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


@pytest.mark.parametrize("kind", [AutoModelForPreTraining, AutoModelForMaskedLM, AutoModel])
def test_a_run_opens_in_transformers(kind: type, run: Path) -> None:
    model, report = kind.from_pretrained(run, output_loading_info=True)
    assert not report["missing_keys"], report
    assert not report["mismatched_keys"], report
    extra = {key for key in report["unexpected_keys"] if not key.startswith(("cls.", "bert.pooler."))}
    assert not extra, report  # a smaller head leaves the others' tensors alone
    tokenizer, text = AutoTokenizer.from_pretrained(run), "Der 2nd [MASK] of 北京, café!"
    loaded = firth.load(run)
    encoded = tokenizer(text, return_tensors="pt")
    ids = loaded.tokenizer.encode(text, masks=True).ids
    assert encoded["input_ids"][0, 1:-1].tolist() == ids.tolist()
    with torch.inference_mode():
        states = model.eval().base_model(**encoded).last_hidden_state[0]
    mean = loaded.embed([text], specials=True)[0]
    assert np.abs(states.mean(0).numpy() - mean).max() < TOLERANCE


@pytest.mark.parametrize("heads", [("masked_lm",), ("masked_lm", "next_sentence"), ("next_sentence",), ()])
def test_every_set_of_heads_keeps_every_key(heads: tuple[str, ...], tokenizer: WordPiece, tmp_path: Path) -> None:
    shape = Bert.Config(vocab_size=1200, width=16, num_layers=1, num_heads=2, ffn_width=24, max_positions=32)
    encoder = Bert(shape).eval()
    goals = {name: make_objective(name, checkpoints.resolve(name).Config(), encoder, tokenizer) for name in heads}
    checkpoints.save(tmp_path, Checkpoint(encoder, goals, tokenizer))
    opened = checkpoints.load(tmp_path)
    assert set(opened.goals) == set(heads)
    assert opened.encoder.config == shape
    for ours, theirs in zip(
        (encoder, *goals.values()), (opened.encoder, *(opened.goals[n] for n in heads)), strict=True
    ):
        for name, tensor in ours.state_dict().items():
            assert torch.equal(tensor, theirs.state_dict()[name]), name


def test_models_without_pooler_and_of_one_head_open(tokenizer: WordPiece, tmp_path: Path) -> None:
    BertForMaskedLM(drawn(0)).save_pretrained(tmp_path / "masked")
    BertModel(drawn(1)).save_pretrained(tmp_path / "bare")
    for name in ("masked", "bare"):
        tokenizer.save(tmp_path / name)
    masked, bare = checkpoints.load(tmp_path / "masked"), checkpoints.load(tmp_path / "bare")
    assert list(masked.goals) == ["masked_lm"]
    assert masked.encoder.pooler is None
    assert not bare.goals
    assert bare.encoder.pooler is not None
    with pytest.raises(Unsupported, match="no masked-LM head"):
        firth.load(tmp_path / "bare").fill("[MASK]")


def test_nothing_is_guessed(tokenizer: WordPiece, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    BertForPreTraining(drawn(2)).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({**tensors, "classifier.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(Unsupported, match=r"classifier\.weight"):
        layouts.BERT.read(tmp_path)
    name = "bert.encoder.layer.0.output.dense.bias"
    save_file({key: value for key, value in tensors.items() if key != name}, tmp_path / "model.safetensors")
    with pytest.raises(Damaged, match=name):
        layouts.BERT.read(tmp_path)
    own = tensors["bert.embeddings.word_embeddings.weight"] + 1
    save_file({**tensors, "cls.predictions.decoder.weight": own}, tmp_path / "model.safetensors")
    with pytest.raises(Unsupported, match="output embedding of its own"):
        layouts.BERT.read(tmp_path)
    (tmp_path / "model.safetensors").write_bytes((tmp_path / "model.safetensors").read_bytes()[:1000])
    with pytest.raises(Damaged, match=r"model\.safetensors"):
        layouts.BERT.read(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(firth.FirthError, match=r"model\.safetensors"):
        layouts.BERT.read(tmp_path)
