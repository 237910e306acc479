"""Laws of every recipe in the lineage, and the published sizes of BERT."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth import lineage
from firth.checkpoint import make_objective
from firth.config import from_dict, to_dict, to_toml
from firth.data.loader import BatchAddress, Packs
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.encoders import resolve
from firth.errors import BadConfig
from firth.lineage import Recipe
from firth.pretraining.solving import is_solved
from firth.tensors import parameter_count
from firth.tokenizers import load as load_tokenizer
from firth.tokenizers.wordpiece import WordPiece
from firth.train.journal import read_rows

SMALL: dict[str, tuple[str, ...]] = {
    "lsa": ("encoder.static.width=4",),
    "lda": ("encoder.topics.width=4",),
    "fasttext": ("tokenizer.subwords.num_buckets=2000",),
}
"""Changes that make a solved recipe small."""
PUBLISHED = {"tiny": 4.4, "mini": 11.2, "small": 28.8, "medium": 41.4, "base": 109.5, "large": 335.1}
"""Millions of parameters of the encoder with its pooler and a vocabulary of 30,522 (Turc et al. 2019, table 1)."""


@pytest.mark.parametrize("name", ["bert", "roberta", "electra", "small", "bart"])
def test_narrow_networks_begin_with_larger_weights(name: str) -> None:
    by_size = {}
    for size in ("tiny", "mini", "base", "large"):
        (shape,) = lineage.make(name, size).encoder.values()
        by_size[size] = shape.init_std
    assert by_size == {"tiny": 0.049, "mini": 0.035, "base": 0.02, "large": 0.02}


@pytest.mark.parametrize("name", ["bert", "xlnet", "transformer", "t5"])
def test_the_default_size_learns_faster_than_large_models(name: str) -> None:
    rate, wider, large = (lineage.make(name, size).train.optim.rate for size in ("8x384", "12x384", "large"))
    assert rate >= wider
    assert rate > large or name == "t5"


RECURRENT = ("elmo", "ulmfit")
"""They have no sizes named by layers and width."""


@pytest.mark.parametrize("name", RECURRENT)
def test_a_size_that_a_recipe_does_not_have(name: str) -> None:
    with pytest.raises(BadConfig, match=f"{name} has no size '12x256' "):
        lineage.make(name, "12x256")


@pytest.mark.parametrize("size", lineage.SIZES)
@pytest.mark.parametrize("name", lineage.TABLE)
def test_round_trip(name: str, size: str) -> None:
    if name in RECURRENT and "x" in size:
        pytest.skip("refused, see above")
    recipe = lineage.make(name, size)
    assert (recipe.recipe, recipe.size) == (name, size)
    assert from_dict(Recipe, json.loads(json.dumps(to_dict(recipe)))) == recipe
    assert from_dict(Recipe, tomllib.loads(to_toml(to_dict(recipe)))) == recipe


SOLVED = [name for name in lineage.TABLE if is_solved(lineage.make(name, "tiny"))]
CONTINUED = [name for name in lineage.TABLE if lineage.make(name, "tiny").continues]
"""They train a trained model further, which has its segments: see tests/pretraining/test_vector_runs.py."""
TRAINED = [name for name in lineage.TABLE if name not in SOLVED and name not in CONTINUED]


@pytest.mark.parametrize("name", TRAINED)
def test_two_steps_run(name: str, shrink: Callable[[Any], Any], data: Path, tmp_path: Path) -> None:
    recipe = lineage.make(name, "tiny")
    recipe = replace(
        recipe,
        encoder={key: shrink(config) for key, config in recipe.encoder.items()},
        batches=replace(recipe.batches, max_length=64, last_length=0, tokens=512),
        train=replace(recipe.train, log_every=1),
    )
    (tmp_path / "plan.toml").write_text(to_toml(to_dict(recipe)))
    figures = firth.pretrain(data, out=tmp_path / "run", config=tmp_path / "plan.toml", steps=2, device="cpu")
    assert all(value == value for value in figures.values())
    assert set(recipe.objectives) <= set(figures)
    rows = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert [(row["step"], row["split"]) for row in rows] == [(1, "train"), (2, "train"), (2, "held-out")]
    saved = from_dict(Recipe, tomllib.loads((tmp_path / "run" / "run.toml").read_text()))
    [(key, config)] = recipe.encoder.items()
    # A recipe may need sentinels, so the run's own tokenizer counts.
    tokens = load_tokenizer(tmp_path / "run").vocab.tokens
    prepared = load_tokenizer(data / "tokenizer").vocab.tokens
    assert tokens[: len(prepared)] == prepared
    rows = -(-len(tokens) // 64) * 64
    fitted = {key: replace(config, vocab_size=rows)}
    assert saved == replace(recipe, encoder=fitted, train=replace(recipe.train, steps=2))


@pytest.mark.parametrize("name", SOLVED)
def test_a_solved_recipe_is_a_model_and_one_thread_repeats_it(name: str, texts: list[Path], tmp_path: Path) -> None:
    vectors, asked = [], {} if name in ("tf-idf", "lsa") else {"epochs": 2}
    for run in ("one", "two"):
        figures = firth.pretrain(
            texts[0], out=tmp_path / run, recipe=name, threads=1, min_count=2, changes=SMALL.get(name, ()), **asked
        )
        assert all(value == value for value in figures.values())
        assert figures["words_per_second"] > 0
        vectors.append(firth.load(tmp_path / run).embed(["the cat sat on the mat", "who?"]))
    assert np.array_equal(*vectors)
    assert np.isfinite(vectors[0]).all()
    assert np.abs(vectors[0]).max() > 0
    (timing,) = read_rows(tmp_path / "one" / "timing.jsonl")
    assert timing["step"] == asked.get("epochs", 1)
    assert ("threads" in timing) == (name not in ("tf-idf", "lsa", "lda"))
    rate = Shards.open(tmp_path / "one" / "data").num_tokens * timing["step"] / timing["seconds"]
    assert timing["words_per_second"] == pytest.approx(rate, rel=1e-3)


@pytest.mark.parametrize(("size", "millions"), PUBLISHED.items())
def test_published_parameter_counts_of_bert(size: str, millions: float) -> None:
    [(name, config)] = lineage.make("bert", size).encoder.items()
    with torch.device("meta"):
        encoder = resolve(name)(config)
    assert round(parameter_count([encoder]) / 1e6, 1) == millions


@pytest.mark.parametrize("name", TRAINED)
def test_every_segment_is_trained(
    name: str, shrink: Callable[[Any], Any], long_shards: Shards, tokenizer: WordPiece
) -> None:
    """A model with two segment embeddings must see both, or pair tasks meet one that was never trained."""
    recipe = lineage.make(name, "tiny")
    ((encoder_name, shape),) = recipe.encoder.items()
    if getattr(shape, "num_segments", 0) < 2:
        pytest.skip("one segment or none")
    encoder = resolve(encoder_name)(replace(shrink(shape), vocab_size=len(tokenizer.vocab)))
    goals = [
        make_objective(goal, config, encoder, tokenizer, max_length=64, seed=1)
        for goal, config in recipe.objectives.items()
    ]
    stream = CorpusView(long_shards, np.arange(long_shards.num_documents))
    packs = Packs(stream, goals, replace(recipe.batches, max_length=64, tokens=2048), specials=tokenizer.vocab, seed=1)
    segments_N = packs[BatchAddress()].segments_N
    assert 0.2 < segments_N.float().mean() < 0.8
