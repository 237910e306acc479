"""Texts that random T5s and BARTs write equal those of transformers' `generate`, token for token, for 50 sources."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

import firth
from firth import samples
from firth.inference.rewriting import Rewriter
from firth.nn.decoding import Choice
from firth.tasks.rewrite import WritingOptions
from firth.tokenizers.wordpiece import WordPiece

NUM_TEXTS = 50
MAX_TOKENS = 24
SETTINGS: list[dict[str, Any]] = [
    {"beams": 1},
    {"beams": 1, "no_repeat_ngram": 2},
    {"beams": 4},
    {"beams": 3, "length_penalty": 0.6, "no_repeat_ngram": 3},
    {"beams": 2, "length_penalty": 1.2},
    {"beams": 5, "length_penalty": 0.0, "full_search": True},
    {"beams": 3, "full_search": True},
]


@pytest.fixture(scope="module")
def sources() -> list[str]:
    lines = samples.prose("en").read_text("utf-8").splitlines()
    # Texts of very different lengths.
    return [line[: 5 + 7 * i] for i, line in enumerate([line for line in lines if len(line) > 60][:NUM_TEXTS])]


@pytest.fixture(scope="module")
def small_vocabulary(sources: list[str]) -> WordPiece:
    """So few tokens that the one that ends a text is often among the best."""
    return WordPiece.train(sources, WordPiece.Config(vocab_size=90), fewer=True)


def t5(size: int, **options: Any) -> Any:
    # Their cache has as many layers as the encoder half, so both halves have the same number here.
    config = T5Config(vocab_size=size, d_model=24, d_kv=8, d_ff=48, num_layers=2, num_heads=2, **options)
    return T5ForConditionalGeneration(config)


def bart(size: int) -> Any:
    sizes = {"encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = BartConfig(vocab_size=size, d_model=24, encoder_ffn_dim=48, decoder_ffn_dim=48, init_std=0.3, **sizes)
    return BartForConditionalGeneration(config)


MODELS: dict[str, Callable[[int], Any]] = {
    "t5": t5,
    "t5-1.1": lambda size: t5(size, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
    "bart": bart,
}


@pytest.fixture(scope="module", params=MODELS)
def pair(
    request: pytest.FixtureRequest, small_vocabulary: WordPiece, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Rewriter, Any]:
    """The same random weights here and there."""
    torch.manual_seed(11)
    vocab = small_vocabulary.vocab
    model = MODELS[request.param](len(vocab)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "EncDecAttention" in name or "encoder_attn" in name:
                parameter.mul_(4)  # what is written depends on the source
        model.get_output_embeddings().weight[vocab.sep] *= 2.5  # some texts end early
    model.config.eos_token_id = vocab.sep
    model.config.pad_token_id = vocab.pad
    model.config.decoder_start_token_id = vocab.cls
    folder = tmp_path_factory.mktemp("writer")
    model.save_pretrained(folder)
    small_vocabulary.save(folder)
    return firth.load(folder).rewriter(), model


def theirs(
    model: Any, rewriter: Rewriter, sources: list[str], settings: dict[str, Any], **more: Any
) -> list[list[int]]:
    vocab = rewriter.tokenizer.vocab
    rows = [item.windows[0].ids for item in rewriter.tokenize(sources)]
    longest = max(map(len, rows))
    ids = np.full((len(rows), longest), vocab.pad)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = tokens
    lengths = torch.tensor([len(tokens) for tokens in rows])
    for name in ("forced_eos_token_id", "forced_bos_token_id", "bos_token_id", "no_repeat_ngram_size"):
        setattr(model.generation_config, name, None)
    found = model.generate(
        torch.from_numpy(ids),
        attention_mask=(torch.arange(longest) < lengths[:, None]).long(),
        max_new_tokens=MAX_TOKENS,
        do_sample=False,
        num_beams=settings["beams"],
        length_penalty=settings.get("length_penalty", 1.0),
        no_repeat_ngram_size=settings.get("no_repeat_ngram", 0),
        early_stopping="never" if settings.get("full_search") else False,
        suppress_tokens=sorted(vocab.specials - {vocab.sep}),
        eos_token_id=vocab.sep,
        pad_token_id=vocab.pad,
        decoder_start_token_id=vocab.cls,
        **more,
    )
    written = []
    for tokens in found[:, 1:].tolist():
        end = tokens.index(vocab.sep) + 1 if vocab.sep in tokens else MAX_TOKENS
        written.append(tokens[:end])
    return written


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_equal_to_generate(pair: tuple[Rewriter, Any], sources: list[str], settings: dict[str, Any]) -> None:
    rewriter, model = pair
    options = WritingOptions(Choice(temperature=0, **settings), MAX_TOKENS)
    with torch.inference_mode():
        found = rewriter.head.write_items(rewriter.encoder, rewriter.tokenize(sources), options)
    wanted = theirs(model, rewriter, sources, settings)
    assert len(found) == NUM_TEXTS
    assert [text.tokens for text in found] == wanted
    assert len({tuple(tokens) for tokens in wanted}) > NUM_TEXTS / 4  # the sources matter
    assert any(text.ended for text in found)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_forced_first_token_equals_generate(pair: tuple[Rewriter, Any], sources: list[str], beams: int) -> None:
    rewriter, model = pair
    vocab = rewriter.tokenizer.vocab
    first = next(token for token in vocab.tokens[20:] if token.isalpha())
    head = rewriter.head
    before = head.config
    head.config = replace(before, first_token=first)
    try:
        options = WritingOptions(Choice(temperature=0, beams=beams), MAX_TOKENS)
        with torch.inference_mode():
            found = head.write_items(rewriter.encoder, rewriter.tokenize(sources), options)
    finally:
        head.config = before
    wanted = theirs(model, rewriter, sources, {"beams": beams}, forced_bos_token_id=vocab.ids[first])
    assert [text.tokens for text in found] == wanted
    assert all(text.tokens[0] == vocab.ids[first] for text in found)
