"""T5 1.0 and 1.1, BART and mBART equal transformers' on random configurations, through saved folders both ways."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForSeq2SeqLM,
    BartConfig,
    BartForConditionalGeneration,
    BartModel,
    MBartConfig,
    MBartForConditionalGeneration,
    T5Config,
    T5ForConditionalGeneration,
    T5Model,
)

from firth import checkpoint as checkpoints
from firth import convert, rng
from firth.checkpoint import Checkpoint
from firth.data.packing import pack_tokens
from firth.encoders.bart import Bart
from firth.encoders.t5 import T5
from firth.errors import BadInput, Damaged, Unsupported
from firth.nn.encoder_decoder import output_loss, output_scores
from firth.nn.kv_cache import KeyValueCache
from firth.tensors import Batch, parameter_count
from firth.tokenizers.wordpiece import WordPiece

NUM_CONFIGS = 8
TOLERANCE = 1e-5
KINDS = ("t5", "t5-1.1", "bart", "mbart")
SOURCES = (9, 40, 1, 23, 23, 2, 14)
TARGETS = (7, 31, 12, 1, 12, 2, 20)


def drawn(kind: str, index: int) -> Any:
    """The index-th random model of a kind, with weights large enough for attention to matter."""

    def one_of(what: str, *choices: Any) -> Any:
        return choices[int(rng.below(rng.key("golden", kind, index, what), len(choices)))]

    heads = one_of("heads", 1, 2, 3, 4)
    head_width = one_of("head", 4, 8, 12, 16)
    layers = one_of("layers", 1, 2, 3)
    decoder_layers = one_of("decoder layers", layers, 1, 2)
    vocab_size = one_of("vocabulary", 1200, 1216, 1301)
    torch.manual_seed(index)
    if kind.startswith("t5"):
        config = T5Config(
            vocab_size=vocab_size,
            d_model=one_of("width", 16, 24, 32),
            d_kv=head_width,
            d_ff=one_of("inner", 17, 48, 64),
            num_layers=layers,
            num_decoder_layers=decoder_layers,
            num_heads=heads,
            relative_attention_num_buckets=one_of("buckets", 8, 16, 32),
            relative_attention_max_distance=one_of("distance", 34, 64, 128),
            layer_norm_epsilon=one_of("eps", 1e-6, 1e-5),
            feed_forward_proj="relu" if kind == "t5" else one_of("activation", "gated-gelu", "gated-relu"),
            tie_word_embeddings=kind == "t5",
        )
        model = T5ForConditionalGeneration(config)
        if kind == "t5-1.1":
            model.lm_head.weight = torch.nn.Parameter(torch.randn(vocab_size, config.d_model))
        return with_varied_vectors(model)
    config_class, model_class = {
        "bart": (BartConfig, BartForConditionalGeneration),
        "mbart": (MBartConfig, MBartForConditionalGeneration),
    }[kind]
    inner = one_of("inner", 17, 48, 64)
    config = config_class(
        vocab_size=vocab_size,
        d_model=heads * head_width,
        encoder_layers=layers,
        decoder_layers=decoder_layers,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=inner,
        decoder_ffn_dim=inner,
        max_position_embeddings=one_of("positions", 40, 64, 80),
        activation_function=one_of("activation", "gelu", "relu", "gelu_new"),
        scale_embedding=one_of("scale", True, False),
        init_std=one_of("std", 0.05, 0.1, 0.2),
        decoder_start_token_id=one_of("start", 2, 0, 7),
    )
    model = with_varied_vectors(model_class(config))
    if one_of("bias", True, False):
        torch.nn.init.normal_(model.final_logits_bias)
    return model


def with_varied_vectors(model: Any) -> Any:
    """Biases and norms are 0 and 1 at first, which would hide a mix-up."""
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    return model.eval()


def sequences(lengths: tuple[int, ...], vocab_size: int, what: str) -> list[np.ndarray]:
    key = rng.key("golden text", what)
    return [rng.below(key, vocab_size, np.arange(length), row) for row, length in enumerate(lengths)]


def packed(vocab_size: int) -> tuple[Batch, Tensor]:
    """Targets with their sources, and a label for each token."""
    sources = sequences(SOURCES, vocab_size, "source")
    targets = sequences(TARGETS, vocab_size, "target")
    labels = torch.from_numpy(np.concatenate(sequences(TARGETS, vocab_size, "label")))
    return replace(pack_tokens(targets), source=pack_tokens(sources)), labels


def theirs(model: Any) -> dict[str, Tensor]:
    size = model.config.vocab_size
    rows = zip(
        sequences(SOURCES, size, "source"),
        sequences(TARGETS, size, "target"),
        sequences(TARGETS, size, "label"),
        strict=True,
    )
    model.set_attn_implementation("eager")  # gives the weights
    each = []
    with torch.inference_mode():
        for source, target, label in rows:
            arguments = {"input_ids": source, "decoder_input_ids": target, "labels": label}
            tensors = {name: torch.from_numpy(ids)[None] for name, ids in arguments.items()}
            each.append(model(**tensors, output_hidden_states=True, output_attentions=True))
    loss = sum(one.loss * length for one, length in zip(each, TARGETS, strict=True))
    return {
        "source": torch.cat([one.encoder_last_hidden_state[0] for one in each]),
        "states": torch.cat([one.decoder_hidden_states[-1][0] for one in each]),
        "scores": torch.cat([one.logits[0] for one in each]),
        "loss": loss / sum(TARGETS),
        "attention": torch.cat([one.decoder_attentions[0].flatten() for one in each]),
        "cross-attention": torch.cat([one.cross_attentions[-1].flatten() for one in each]),
    }


def ours(model: Checkpoint) -> dict[str, Tensor]:
    batch, labels_N = packed(model.encoder.vocab_size)
    with torch.inference_mode():
        states = model.encoder(batch, attention=True)
        assert states.source is not None
        total, _ = output_loss(states, labels_N)
        return {
            "source": states.source.states_SD,
            "states": states.last_ND,
            "scores": output_scores(states),
            "loss": total / len(labels_N),
            "attention": torch.cat([weights.flatten() for weights in states.attention[0]]),
            "cross-attention": torch.cat([weights.flatten() for weights in states.cross_attention[-1]]),
        }


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    for name, values in wanted.items():
        assert found[name].shape == values.shape
        # Scores add up as many products as a state has columns, each as large as the weights were drawn.
        assert float((found[name] - values).abs().max()) < TOLERANCE * max(1.0, float(values.abs().max())), name
        assert name == "loss" or float(values.std()) > 0.01, name


@pytest.mark.parametrize("index", range(NUM_CONFIGS))
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_equal_both_ways_through_folders(kind: str, index: int, tokenizer: WordPiece, tmp_path: Path) -> None:
    model = drawn(kind, index)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="50KB" if index % 2 else "1GB")
    tokenizer.save(tmp_path / "theirs")
    wanted = theirs(model)

    opened = checkpoints.load(tmp_path / "theirs")
    config = opened.encoder.config
    assert config.tied_output == (kind != "t5-1.1")
    if kind.startswith("t5"):
        assert config.scale_output == (kind == "t5")
    else:
        assert config.norm == ("post" if kind == "bart" else "pre")
    assert_equal(ours(opened), wanted)

    checkpoints.save(tmp_path / "ours", opened)
    again, report = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    assert again.config.eos_token_id == tokenizer.vocab.sep
    assert_equal(theirs(again.eval()), wanted)
    reread = checkpoints.load(tmp_path / "ours")
    assert reread.encoder.config == config
    for name, tensor in model.state_dict().items():
        unread = slice(2) if "embed_positions" in name else slice(0)  # BART's positions count from 2
        mine = again.state_dict()[name].clone()
        mine[unread] = tensor[unread]
        assert torch.equal(tensor, mine), name


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_equal_the_padded_ones(kind: str, tokenizer: WordPiece, tmp_path: Path) -> None:
    model = drawn(kind, 1)
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    opened = checkpoints.load(tmp_path)
    batch, labels_N = packed(model.config.vocab_size)
    total, _ = output_loss(opened.encoder(batch), labels_N)
    (total / len(labels_N)).backward()

    size = model.config.vocab_size
    padded = {}
    for name, lengths, what, filler in (
        ("input_ids", SOURCES, "source", 0),
        ("decoder_input_ids", TARGETS, "target", 0),
        ("labels", TARGETS, "label", -100),
    ):
        rows = [torch.from_numpy(ids) for ids in sequences(lengths, size, what)]
        padded[name] = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=filler)
    mask = (torch.arange(max(SOURCES)) < torch.tensor(SOURCES)[:, None]).long()
    model(**padded, attention_mask=mask).loss.backward()
    found = opened.encoder.tokens.weight.grad
    wanted = model.get_input_embeddings().weight.grad
    assert float((found - wanted).abs().max()) < TOLERANCE * max(1.0, float(wanted.abs().max()))
    if kind.startswith("t5"):
        for half in ("encoder", "decoder"):
            attention = getattr(model, half).block[0].layer[0].SelfAttention
            wanted = attention.relative_attention_bias.weight.grad
            found = getattr(opened.encoder, half).relative.table.weight.grad
            assert float((found - wanted).abs().max()) < TOLERANCE * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_at_a_time_with_a_cache_equals_the_whole(kind: str, tokenizer: WordPiece, tmp_path: Path) -> None:
    model = drawn(kind, 2)
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    wanted = theirs(model)["states"].split(TARGETS)
    opened = checkpoints.load(tmp_path)
    encoder = opened.encoder
    size = model.config.vocab_size
    sources = sequences(SOURCES, size, "source")
    targets = sequences(TARGETS, size, "target")
    alive = list(range(len(targets)))
    cache = KeyValueCache(encoder.num_decoder_layers, len(targets), max(TARGETS))
    with torch.inference_mode():
        source = encoder.encode_source(pack_tokens(sources))
        for step in range(max(TARGETS)):
            kept = [row for row in alive if len(targets[row]) > step]
            cache.keep(torch.tensor([alive.index(row) for row in kept]))
            alive = kept
            batch = pack_tokens([targets[row][step : step + 1] for row in alive])
            batch = replace(batch, positions_N=batch.positions_N + step)
            states = encoder(batch, cache=cache, source=source if step == 0 else None)
            for row, state_D in zip(alive, states.last_ND, strict=True):
                assert float((state_D - wanted[row][step]).abs().max()) < 2e-5


def test_folders_without_an_output_layer_are_read(tokenizer: WordPiece, tmp_path: Path) -> None:
    bare = BartModel(drawn("bart", 0).config).eval()
    bare.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    encoder = checkpoints.load(tmp_path).encoder
    ids = sequences((9,), 1200, "source")
    with torch.inference_mode():
        wanted = bare.encoder(torch.from_numpy(ids[0])[None]).last_hidden_state[0]
        assert torch.allclose(encoder(pack_tokens(ids)).last_ND, wanted, atol=1e-5)
    T5Model(drawn("t5", 0).config).save_pretrained(tmp_path)
    assert checkpoints.load(tmp_path).encoder.config.tied_output


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (T5.Config(), 60_506_624),  # t5-small
        (
            T5.Config(num_layers=8, num_heads=6, head_width=64, ffn_width=1024, gated=True, tied_output=False),
            76_961_152,  # t5-v1_1-small
        ),
        (Bart.Config(), 139_420_416),  # bart-base
    ],
)
def test_published_parameter_counts(config: Any, count: int) -> None:
    encoder = T5 if isinstance(config, T5.Config) else Bart
    with torch.device("meta"):
        model = encoder(config)
    unread = 0
    if isinstance(config, Bart.Config):
        unread = 2 * 2 * config.width  # rows of the position tables that only the folder has
    assert parameter_count([model]) + unread == count


def test_nothing_is_guessed(tokenizer: WordPiece, tmp_path: Path) -> None:
    model = drawn("t5", 3)
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    layout = convert.layout("t5")
    tensors = load_file(tmp_path / "model.safetensors")
    copies = {f"{half}.embed_tokens.weight": tensors["shared.weight"].clone() for half in ("encoder", "decoder")}
    unused = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.zeros(8, 2)}
    save_file({**tensors, **copies, **unused}, tmp_path / "model.safetensors")  # older folders have these
    layout.read(tmp_path)
    del copies["encoder.embed_tokens.weight"]
    without_shared = {name: tensor for name, tensor in tensors.items() if name != "shared.weight"}
    save_file({**without_shared, **copies}, tmp_path / "model.safetensors")
    layout.read(tmp_path)
    copies["decoder.embed_tokens.weight"] += 1
    save_file({**tensors, **copies}, tmp_path / "model.safetensors")
    with pytest.raises(Unsupported, match="embedding for each half"):
        layout.read(tmp_path)
    save_file({**tensors, "score.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(Unsupported, match=r"score\.weight"):
        layout.read(tmp_path)
    name = "decoder.block.0.layer.1.EncDecAttention.k.weight"
    save_file({key: value for key, value in tensors.items() if key != name}, tmp_path / "model.safetensors")
    with pytest.raises(Damaged, match=r"EncDecAttention\.k"):
        layout.read(tmp_path)


def test_what_a_bart_of_ours_cannot_be_is_refused(tokenizer: WordPiece, tmp_path: Path) -> None:
    model = drawn("bart", 0)
    layout = convert.layout("bart")

    def read_with(**changes: Any) -> None:
        model.save_pretrained(tmp_path)
        config = tmp_path / "config.json"
        config.write_text(BartConfig.from_dict({**model.config.to_dict(), **changes}).to_json_string())
        layout.read(tmp_path)

    read_with()
    with pytest.raises(Unsupported, match="decoder_ffn_dim"):
        read_with(decoder_ffn_dim=5)
    with pytest.raises(Unsupported, match="is_decoder"):
        read_with(is_decoder=True)
    with pytest.raises(BadInput, match="encoder_layers"):
        read_with(encoder_layers=None)


def test_a_bart_that_transformers_cannot_hold_is_saved_under_own_names(
    tokenizer: WordPiece, shrink: Any, tmp_path: Path
) -> None:
    encoder = Bart(replace(shrink(Bart.Config()), norm_eps=1e-12, start_token=2)).eval()
    checkpoints.save(tmp_path, Checkpoint(encoder, {}, tokenizer))
    again = checkpoints.load(tmp_path)
    assert again.encoder.config == encoder.config
    checkpoints.save(tmp_path, again)
    assert '"firth-bart"' in (tmp_path / "config.json").read_text()
