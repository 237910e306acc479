"""GPT and GPT-2 equal transformers' on random configurations, through saved folders both ways; nothing is guessed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    OpenAIGPTConfig,
    OpenAIGPTLMHeadModel,
)

from firth import checkpoint as checkpoints
from firth import lineage, rng
from firth.checkpoint import Checkpoint
from firth.convert import gpt as layout
from firth.data.packing import pack_tokens
from firth.encoders.gpt import GPT
from firth.errors import Damaged, Unsupported
from firth.tensors import parameter_count
from firth.tokenizers.wordpiece import WordPiece

NUM_CONFIGS = 10
TOLERANCE = 1e-5


def drawn(kind: str, index: int) -> Any:
    """The index-th random model of a kind, weights large enough for attention to matter."""

    def one_of(what: str, *choices: Any) -> Any:
        return choices[int(rng.below(rng.key("golden", kind, index, what), len(choices)))]

    heads = one_of("heads", 1, 2, 3, 4)
    sizes = {
        "vocab_size": one_of("vocabulary", 1200, 1216, 1301),
        "n_embd": one_of("head", 4, 8, 12, 16) * heads,
        "n_layer": one_of("layers", 1, 2, 3, 4),
        "n_head": heads,
        "n_positions": one_of("positions", 32, 64, 80),
        "layer_norm_epsilon": one_of("eps", 1e-7, 1e-5),
        "initializer_range": one_of("std", 0.05, 0.1, 0.2),
    }
    torch.manual_seed(index)
    if kind == "gpt":
        return OpenAIGPTLMHeadModel(OpenAIGPTConfig(**sizes, afn=one_of("activation", "gelu", "relu"))).eval()
    more = {"n_inner": one_of("inner", None, 17, 96), "activation_function": one_of("a", "gelu_new", "gelu", "relu")}
    return GPT2LMHeadModel(GPT2Config(**sizes, **more)).eval()


def sequences(vocab_size: int) -> list[np.ndarray]:
    key = rng.key("golden text")
    return [rng.below(key, vocab_size, np.arange(n), row) for row, n in enumerate((7, 31, 1, 12, 12, 2, 20))]


def theirs(model: Any, ids: list[np.ndarray]) -> dict[str, Tensor]:
    with torch.inference_mode():
        each = [model(torch.from_numpy(row)[None], output_hidden_states=True) for row in ids]
    return {
        "states": torch.cat([one.hidden_states[-1][0] for one in each]),
        "first layer": torch.cat([one.hidden_states[0][0] for one in each]),
        "causal_lm": torch.cat([one.logits[0] for one in each]),
    }


def ours(model: Checkpoint, ids: list[np.ndarray]) -> dict[str, Tensor]:
    with torch.inference_mode():
        states = model.encoder(pack_tokens(ids), layers=True)
        return {
            "states": states.last_ND,
            "first layer": states.layers[0],
            "causal_lm": model.goals["causal_lm"].scores(states.last_ND, states.table_VD),
        }


def assert_equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    for name, values in wanted.items():
        assert found[name].shape == values.shape
        # Scores add up as many products as a state has columns, each as large as the weights were drawn.
        assert float((found[name] - values).abs().max()) < TOLERANCE * max(1.0, float(values.abs().max())), name
        assert float(values.std()) > 0.01, name


@pytest.mark.parametrize("index", range(NUM_CONFIGS))
@pytest.mark.parametrize("kind", ["gpt", "gpt-2"])
def test_numbers_equal_both_ways_through_folders(kind: str, index: int, tokenizer: WordPiece, tmp_path: Path) -> None:
    model = drawn(kind, index)
    for parameter in model.parameters():  # biases and norms are 0 and 1 at first, which would hide a mix-up
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="50KB" if index % 2 else "1GB")
    tokenizer.save(tmp_path / "theirs")
    text = sequences(model.config.vocab_size)
    wanted = theirs(model, text)

    opened = checkpoints.load(tmp_path / "theirs")
    assert opened.encoder.config.norm == ("post" if kind == "gpt" else "pre")
    assert_equal(ours(opened, text), wanted)

    checkpoints.save(tmp_path / "ours", opened)
    again, report = AutoModelForCausalLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    assert_equal(theirs(again.eval(), text), wanted)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


@pytest.mark.parametrize(("name", "vocab_size", "count"), [("gpt", 40478, 116_534_784), ("gpt-2", 50257, 124_439_808)])
def test_published_parameter_counts(name: str, vocab_size: int, count: int) -> None:
    shape = replace(lineage.make(name, "base").encoder["gpt"], vocab_size=vocab_size)
    with torch.device("meta"):
        assert parameter_count([GPT(shape)]) == count


def test_a_bare_model_has_no_head(tokenizer: WordPiece, tmp_path: Path) -> None:
    GPT2Model(drawn("gpt-2", 0).config).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    assert not checkpoints.load(tmp_path).goals


def test_nothing_is_guessed(tokenizer: WordPiece, tmp_path: Path) -> None:
    model = drawn("gpt-2", 3)
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    masks = {f"transformer.h.0.attn.{name}": torch.zeros(1) for name in ("bias", "masked_bias")}
    save_file({**tensors, **masks}, tmp_path / "model.safetensors")  # the oldest folders have these
    layout.read(tmp_path)
    save_file({**tensors, "score.weight": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(Unsupported, match=r"score\.weight"):
        layout.read(tmp_path)
    save_file({**tensors, "lm_head.weight": tensors["transformer.wte.weight"] + 1}, tmp_path / "model.safetensors")
    with pytest.raises(Unsupported, match="output embedding of its own"):
        layout.read(tmp_path)
    name = "transformer.h.0.mlp.c_fc.bias"
    save_file({key: value for key, value in tensors.items() if key != name}, tmp_path / "model.safetensors")
    with pytest.raises(Damaged, match=r"mlp\.c_fc\.bias"):
        layout.read(tmp_path)
    model.config.scale_attn_by_inverse_layer_idx = True
    model.config.save_pretrained(tmp_path)
    with pytest.raises(Unsupported, match="scale_attn_by_inverse_layer_idx"):
        layout.read(tmp_path)
