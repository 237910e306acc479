"""Generation: the key-value cache changes nothing, choices are as defined, chance is the seed's, long texts go on."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPT2LMHeadModel
from transformers.generation.logits_process import (
    NoRepeatNGramLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import firth
from firth.checkpoint import Checkpoint, make_objective
from firth.checkpoint import save as save_checkpoint
from firth.data.packing import pack_tokens
from firth.encoders.gpt import GPT
from firth.errors import BadConfig, Unsupported
from firth.inference.generation import GenerationOptions, generate
from firth.nn.decoding import Choice, choose, repeats
from firth.nn.kv_cache import KeyValueCache
from firth.objectives.causal_lm import CausalLM
from firth.tensors import Batch
from firth.tokenizers.bpe import BPE

PROMPTS = ["", "The cat sat on the", "使用语言模型", "one two three four five six seven"]
CHOICES = [
    Choice(temperature=0),
    Choice(),
    Choice(temperature=0.7, top_k=20),
    Choice(top_p=0.8),
    Choice(temperature=0, no_repeat_ngram=2),
    Choice(temperature=1.3, top_k=50, top_p=0.9, no_repeat_ngram=3),
]


@pytest.fixture(scope="module")
def tokenizer(texts: list[Path]) -> BPE:
    lines = [line for path in texts for line in path.read_text("utf-8").split("\n")]
    return BPE.train(lines, BPE.Config(vocab_size=500, specials="gpt"))


@pytest.fixture(scope="module", params=["pre", "post"])
def model(request: pytest.FixtureRequest, tokenizer: BPE) -> Checkpoint:
    """A random GPT whose next tokens depend on all before them."""
    torch.manual_seed(4)
    sizes: dict[str, Any] = {"width": 32, "num_layers": 2, "num_heads": 2, "ffn_width": 64, "max_positions": 48}
    encoder = GPT(GPT.Config(vocab_size=512, **sizes, norm=request.param, init_std=0.15)).eval()
    return Checkpoint(
        encoder, {"causal_lm": make_objective("causal_lm", CausalLM.Config(), encoder, tokenizer)}, tokenizer
    )


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_the_cache_changes_nothing(model: Checkpoint, choice: Choice) -> None:
    """Texts of different lengths, over the model's reach, some of which end."""
    options = GenerationOptions(70, choice, seed=3)
    found, wanted = (generate(model, PROMPTS, replace(options, use_cache=flag)) for flag in (True, False))
    assert found == wanted
    assert max(one.num_tokens for one in found) == 70
    assert [one.text.startswith(prompt) for one, prompt in zip(found, PROMPTS, strict=True)] == [True] * 4


def test_states_with_a_cache_equal_those_without(model: Checkpoint) -> None:
    sequences = [np.arange(5, 5 + n) * 7 % 500 for n in (9, 3, 20, 1)]
    with torch.inference_mode():
        wanted = model.encoder(pack_tokens(sequences)).last_ND.split([len(ids) for ids in sequences])
        cache = KeyValueCache(model.encoder.num_layers, 4, 24)
        first = model.encoder(pack_tokens([ids[:-1] if len(ids) > 1 else ids for ids in sequences]), cache=cache)
        cache.keep(torch.tensor([2, 0, 1]))
        ids = torch.tensor([sequences[row][-1] for row in (2, 0, 1)])
        bounds = torch.arange(4, dtype=torch.int32)
        last = model.encoder(Batch(ids, cache.lengths_B.clone(), ids * 0, bounds, 1), cache=cache).last_ND
    ends = [8, 10, 29, 30]
    assert torch.allclose(first.last_ND[ends[1] - 1], wanted[1][1], atol=1e-5)
    for place, row in enumerate((2, 0, 1)):
        assert torch.allclose(last[place], wanted[row][-1], atol=1e-5)


@pytest.mark.parametrize("no_repeat_ngram", [0, 2])
def test_greedy_is_transformers(model: Checkpoint, no_repeat_ngram: int, tmp_path: Path) -> None:
    if model.encoder.config.norm == "post":
        pytest.skip("transformers' GPT has no generation of its own with a cache")
    save_checkpoint(tmp_path, model)
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    theirs.generation_config.eos_token_id = model.tokenizer.vocab.sep
    ids = [*model.tokenizer.vocab.frame.opening, *model.tokenizer.ids_batch([PROMPTS[1]])[0]]
    bad = [[i] for i in range(len(model.tokenizer.vocab), 512)]
    told = {"max_new_tokens": 25, "do_sample": False, "bad_words_ids": bad, "pad_token_id": 0}
    told |= {"no_repeat_ngram_size": no_repeat_ngram}
    wanted = theirs.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids)), **told)[0].tolist()
    found = firth.load(tmp_path).generate(PROMPTS[1], max_tokens=25, temperature=0, no_repeat_ngram=no_repeat_ngram)
    assert found.text == model.tokenizer.decode(wanted).rstrip("\ufffd")


@pytest.mark.parametrize(("beams", "penalty", "no_repeat_ngram"), [(2, 1.0, 0), (4, 0.6, 2), (3, 0.0, 3)])
def test_beams_are_transformers(
    model: Checkpoint, beams: int, penalty: float, no_repeat_ngram: int, tmp_path: Path
) -> None:
    if model.encoder.config.norm == "post":
        pytest.skip("transformers' GPT has no generation of its own with a cache")
    save_checkpoint(tmp_path, model)
    theirs = GPT2LMHeadModel.from_pretrained(tmp_path).eval()
    vocab = model.tokenizer.vocab
    theirs.generation_config.eos_token_id = vocab.sep
    banned = sorted({*range(len(vocab), 512), *vocab.specials} - {vocab.sep})
    choice = Choice(temperature=0, beams=beams, length_penalty=penalty, no_repeat_ngram=no_repeat_ngram)
    found = generate(model, PROMPTS[1:], GenerationOptions(20, choice))
    for prompt, one in zip(PROMPTS[1:], found, strict=True):
        ids = [*vocab.frame.opening, *model.tokenizer.ids_batch([prompt])[0]]
        wanted = theirs.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids)),
            max_new_tokens=20,
            do_sample=False,
            num_beams=beams,
            length_penalty=penalty,
            no_repeat_ngram_size=no_repeat_ngram,
            suppress_tokens=banned,
            pad_token_id=0,
        )[0].tolist()
        assert one.text == prompt + model.tokenizer.decode(wanted[len(ids) :]).rstrip("\ufffd")


@pytest.mark.parametrize("choice", CHOICES[1:], ids=str)
def test_what_is_drawn_from_is_transformers(choice: Choice) -> None:
    torch.manual_seed(1)
    scores_BV = torch.randn(1, 40) * 2
    context = [1, 2, 3, 1, 2]
    banned = repeats(context, choice.no_repeat_ngram)
    ours_BV = scores_BV.clone()
    ours_BV[:, banned] = -torch.inf
    theirs_BV = scores_BV.clone()
    if choice.no_repeat_ngram:
        theirs_BV = NoRepeatNGramLogitsProcessor(choice.no_repeat_ngram)(torch.tensor([context]), theirs_BV)
    assert torch.equal(ours_BV, theirs_BV)
    if not choice.temperature:
        return
    theirs_BV = TemperatureLogitsWarper(choice.temperature)(None, theirs_BV)
    theirs_BV = TopKLogitsWarper(choice.top_k)(None, theirs_BV) if choice.top_k else theirs_BV
    theirs_BV = TopPLogitsWarper(choice.top_p)(None, theirs_BV) if choice.top_p < 1 else theirs_BV
    count = 20_000
    draws_B = (torch.arange(count) + 0.5) / count
    drawn = choose(ours_BV.expand(count, -1), draws_B, choice)
    shares = torch.bincount(drawn, minlength=40) / count
    assert (shares - theirs_BV.softmax(1)[0]).abs().max() < 2 / count


def test_runs_that_would_repeat() -> None:
    assert repeats([1, 2, 3, 1, 2], 3) == [3]
    assert repeats([1, 2, 1], 2) == [2]
    assert repeats([5, 6], 1) == [5, 6]
    assert repeats([1, 2, 3], 0) == repeats([1], 3) == []


def test_chance_is_the_seeds(model: Checkpoint) -> None:
    one, same, other = (generate(model, ["a"], GenerationOptions(30, seed=seed))[0].text for seed in (1, 1, 2))
    assert one == same
    assert one != other


def test_only_the_end_of_special_tokens_is_ever_written(texts: list[Path]) -> None:
    lines = [line for path in texts for line in path.read_text("utf-8").split("\n")]
    roberta = BPE.train(lines, BPE.Config(vocab_size=400))
    torch.manual_seed(1)
    shape = GPT.Config(vocab_size=448, width=16, num_layers=1, num_heads=2, ffn_width=16, max_positions=32)
    encoder = GPT(shape).eval()
    checkpoint = Checkpoint(
        encoder, {"causal_lm": make_objective("causal_lm", CausalLM.Config(), encoder, roberta)}, roberta
    )
    found = generate(checkpoint, ["x"] * 40, GenerationOptions(60, Choice(temperature=5.0)))
    assert any(one.ended for one in found)
    assert not any(token in one.text for one in found for token in roberta.vocab.roles)
    assert all(one.ended == (one.num_tokens < 60) for one in found if one.num_tokens < 60)


def test_models_that_cannot(run: Path, model: Checkpoint) -> None:
    with pytest.raises(Unsupported, match="cannot generate"):
        firth.load(run).generate("The")
    with pytest.raises(BadConfig, match="top-p"):
        Choice(top_p=0)
    with pytest.raises(BadConfig, match="max_tokens"):
        GenerationOptions(max_tokens=0)


def test_the_command(model: Checkpoint, tmp_path: Path, command: Callable[..., Any]) -> None:
    save_checkpoint(tmp_path, model)
    told = (
        "--max-tokens",
        5,
        "--temperature",
        0.8,
        "--top-k",
        40,
        "--top-p",
        0.95,
        "--no-repeat-ngram",
        3,
        "--seed",
        1,
    )
    shown = json.loads(command("generate", tmp_path, "The cat", *told, "--json").out)["generated"]
    assert shown["text"].startswith("The cat")
    assert shown["num_tokens"] <= 5
    plain = command("generate", tmp_path, "The cat", *told).out
    assert plain.rstrip("\n") == shown["text"].rstrip("\n")
