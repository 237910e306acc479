"""Folders of sentence-transformers with all their modules: the same vectors as its `encode`, both ways."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth import checkpoint as checkpoints
from firth.errors import BadConfig, Damaged, Unsupported
from firth.files import read_json, write_json
from firth.tokenizers.wordpiece import WordPiece

library = pytest.importorskip("sentence_transformers")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
TOLERANCE = 1e-5
TEXTS = ["A cat sleeps.", "语言模型", "The train was late, and nobody at the station knew why it was.", "", "x"]
WIDTH = 16
Modules = dict[str, tuple[Any, list[Any]]]


def dense(inputs: int, outputs: int, function: Any, *, bias: bool = True) -> Any:
    from sentence_transformers.models import Dense

    return Dense(inputs, outputs, bias=bias, activation_function=function)


def chain(name: str) -> tuple[Any, list[Any]]:
    """A pooling and the layers after it."""
    from sentence_transformers.models import LayerNorm, Normalize

    nn = torch.nn
    chains: Modules = {
        "plain": ("mean", []),
        "labse": ("cls", [dense(WIDTH, 12, nn.Tanh()), Normalize()]),
        "two": (("mean", "max"), [dense(2 * WIDTH, 20, nn.Identity(), bias=False), LayerNorm(20), Normalize()]),
        "order": (("cls", "max", "mean"), [dense(3 * WIDTH, 7, nn.ReLU())]),
        "between": ("weightedmean", [Normalize(), dense(WIDTH, 8, nn.GELU()), dense(8, 4, nn.Identity())]),
        "root": ("mean_sqrt_len_tokens", []),
        "last": ("lasttoken", [Normalize()]),
    }
    return chains[name]


def made(name: str, folder: Path, tokenizer: WordPiece, **options: Any) -> Any:
    """A model of sentence-transformers with random weights, saved."""
    from sentence_transformers.models import Pooling, Transformer

    torch.manual_seed(3)
    config = transformers.BertConfig(
        vocab_size=1200,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    transformers.BertModel(config).save_pretrained(folder / "bert")
    tokenizer.save(folder / "bert", max_length=64)
    mode, layers = chain(name)
    modules = [Transformer(str(folder / "bert"), max_seq_length=20), Pooling(WIDTH, pooling_mode=mode), *layers]
    for layer in layers:
        for parameter in layer.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    model = library.SentenceTransformer(modules=modules, device="cpu", **options)
    model.save(str(folder / "theirs"))
    # Its current version does not write the longest text into its folder.
    path = folder / "theirs" / "sentence_bert_config.json"
    write_json(path, read_json(path) | {"max_seq_length": 20})
    return model


@pytest.mark.parametrize("name", ["plain", "labse", "two", "order", "between", "root", "last"])
def test_vectors_equal_encode_both_ways(name: str, tokenizer: WordPiece, tmp_path: Path) -> None:
    peer = made(name, tmp_path, tokenizer)
    wanted = peer.encode(TEXTS)
    model = firth.load(tmp_path / "theirs")
    found = model.embed(TEXTS)
    assert found.shape == wanted.shape == (len(TEXTS), model.width)
    assert np.abs(found - wanted).max() < TOLERANCE
    assert wanted.std() > 0.01

    model.save(tmp_path / "ours")
    again = library.SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    assert np.abs(again.encode(TEXTS) - wanted).max() < TOLERANCE
    assert np.abs(firth.load(tmp_path / "ours").embed(TEXTS) - wanted).max() < TOLERANCE


def test_prompts(tokenizer: WordPiece, tmp_path: Path) -> None:
    prompts = {"query": "query: ", "passage": "passage: "}
    peer = made("labse", tmp_path, tokenizer, prompts=prompts, default_prompt_name="passage")
    for folder in ("theirs", "ours"):
        model = firth.load(tmp_path / folder)
        for prompt in (None, "query", "passage"):
            wanted = peer.encode(TEXTS, prompt_name=prompt)
            assert np.abs(model.embed(TEXTS, prompt=prompt) - wanted).max() < TOLERANCE
        plain = peer.encode(TEXTS, prompt="")
        assert np.abs(model.embed(TEXTS, prompt="") - plain).max() < TOLERANCE
        assert np.abs(plain - peer.encode(TEXTS)).max() > 0.01
        with pytest.raises(BadConfig, match="no prompt named 'question'"):
            model.embed(TEXTS, prompt="question")
        if folder == "theirs":
            model.save(tmp_path / "ours")
    again = library.SentenceTransformer(str(tmp_path / "ours"), device="cpu")
    assert again.prompts["query"] == "query: "
    assert again.default_prompt_name == "passage"


def test_another_pooling_leaves_the_layers_out(tokenizer: WordPiece, tmp_path: Path) -> None:
    made("labse", tmp_path, tokenizer)
    model = firth.load(tmp_path / "theirs")
    assert model.embed(TEXTS, pooling="mean").shape == (len(TEXTS), WIDTH)
    assert model.embed(TEXTS, pooling="mean+max").shape == (len(TEXTS), 2 * WIDTH)
    assert model.embed(TEXTS, pooling="cls").shape == (len(TEXTS), 12)


def test_a_folder_that_is_written_again_loses_old_layers(tokenizer: WordPiece, tmp_path: Path) -> None:
    made("labse", tmp_path, tokenizer)
    firth.load(tmp_path / "theirs").save(tmp_path / "ours")
    assert (tmp_path / "ours" / "2_Dense").exists()
    checkpoints.save(tmp_path / "ours", firth.load(tmp_path / "bert").checkpoint)
    assert not (tmp_path / "ours" / "2_Dense").exists()
    assert firth.load(tmp_path / "ours").embed(TEXTS).shape == (len(TEXTS), WIDTH)


def test_what_firth_does_not_have_is_refused(tokenizer: WordPiece, tmp_path: Path) -> None:
    made("labse", tmp_path, tokenizer)
    folder = tmp_path / "theirs"
    values = read_json(folder / "2_Dense" / "config.json")
    write_json(folder / "2_Dense" / "config.json", values | {"activation_function": "torch.nn.modules.activation.SELU"})
    with pytest.raises(Unsupported, match="SELU"):
        firth.load(folder)
    write_json(folder / "2_Dense" / "config.json", values)
    pooling = read_json(folder / "1_Pooling" / "config.json")
    write_json(folder / "1_Pooling" / "config.json", pooling | {"include_prompt": False})
    with pytest.raises(Unsupported, match="leaves prompts out"):
        firth.load(folder)
    write_json(folder / "1_Pooling" / "config.json", pooling)
    (folder / "2_Dense" / "model.safetensors").unlink()
    with pytest.raises(Damaged, match=r"no model\.safetensors"):
        firth.load(folder)
    modules = read_json(folder / "modules.json")
    modules[2]["type"] = "sentence_transformers.models.CNN"
    write_json(folder / "modules.json", modules)
    with pytest.raises(Unsupported, match="CNN"):
        firth.load(folder)
