"""Encoder-decoders as runs: they learn, read their source, resume exactly, and keep what they need in their folder."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import firth
from firth import checkpoint as checkpoints
from firth import lineage, rng
from firth.config import to_dict, to_toml
from firth.data.shards import write_shards
from firth.errors import BadConfig
from firth.objectives.mass import Mass
from firth.tokenizers.wordpiece import WordPiece
from firth.train.journal import read_rows

ENCODERS = {"transformer": "transformer", "mass": "transformer", "t5": "t5", "t5-v1.1": "t5", "bart": "bart"}
LOSSES = {
    "transformer": "denoising",
    "mass": "mass",
    "t5": "span_corruption",
    "t5-v1.1": "span_corruption",
    "bart": "denoising",
}
KINDS = 40
"""Different tokens in the made-up texts."""
BATCHES = ("batches.max_length=32", "batches.tokens=1024", "batches.held_out_rate=0.05")
FLOOR = float(np.log(KINDS))


def changes(name: str, *more: str) -> tuple[str, ...]:
    shape = ("width=64", "num_layers=1", "num_heads=2", "ffn_width=128", "max_positions=64", "dropout=0")
    sizes = tuple(f"encoder.{ENCODERS[name]}.{setting}" for setting in shape)
    return (*sizes, *BATCHES, "train.log_every=10", "train.optim.rate=3e-3", *more)


def write(folder: Path, tokenizer: WordPiece, ids_DL: np.ndarray) -> Path:
    """Documents of one sentence each."""
    num_documents, length = ids_DL.shape
    starts = np.ones(ids_DL.size, bool)
    with write_shards(folder, tokenizer) as writer:
        lengths = np.full(num_documents, length)
        writer.append(ids_DL.ravel(), starts, lengths=lengths, ends=np.arange(1, num_documents + 1))
        writer.info = {"health": {"entropy_nats": FLOOR}}
    return folder


@pytest.fixture(scope="module")
def counting(tokenizer: WordPiece, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every text counts on from a random number."""
    first_D = rng.below(rng.key("counting"), KINDS, np.arange(2000))
    ids_DL = 100 + (first_D[:, None] + np.arange(24)) % KINDS
    return write(tmp_path_factory.mktemp("counting") / "data", tokenizer, ids_DL)


@pytest.fixture(scope="module")
def random_tokens(tokenizer: WordPiece, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No token says anything about another."""
    ids_DL = 100 + rng.below(rng.key("random"), KINDS, np.arange(4000)[:, None], np.arange(12))
    return write(tmp_path_factory.mktemp("random") / "data", tokenizer, ids_DL)


@pytest.fixture(scope="module")
def trained(counting: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run of each recipe, made once."""
    made: dict[str, Path] = {}

    def run(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / "run"
            settings = changes(name, "train.checkpoint_every=60")
            firth.pretrain(counting, out=made[name], recipe=name, steps=120, changes=settings, device="cpu")
        return made[name]

    return run


@pytest.mark.parametrize("name", ENCODERS)
def test_it_learns_what_can_be_known(name: str, trained: Callable[[str], Path]) -> None:
    rows = read_rows(trained(name) / "metrics.jsonl")
    loss = LOSSES[name]
    first, last = (next(row[loss] for row in order if row["split"] == "train") for order in (rows, rows[::-1]))
    held_out = rows[-1]
    assert held_out["split"] == "held-out"
    assert first > FLOOR
    assert last < FLOOR
    # Sentinels are a third of a T5's target and easy; the first token of a span needs the source.
    assert held_out[loss] < (0.75 if name == "t5" else 0.5) * FLOOR


def test_the_decoder_reads_its_source(random_tokens: Path, tmp_path: Path) -> None:
    """Texts of random tokens can only be written by copying."""
    settings = changes(
        "bart", "encoder.bart.init_std=0.1", "objectives.denoising.permute=0", "objectives.denoising.infill=0"
    )
    figures = firth.pretrain(
        random_tokens, out=tmp_path / "run", recipe="bart", steps=250, changes=settings, device="cpu"
    )
    assert figures["denoising"] < 0.1 * FLOOR
    assert figures["denoising_accuracy"] > 0.98


@pytest.mark.parametrize("name", ENCODERS)
def test_a_resumed_run_ends_with_the_same_bytes(
    name: str, trained: Callable[[str], Path], counting: Path, resumes_exactly: Callable[..., None]
) -> None:
    resumes_exactly(trained(name), counting, last_step=120)


@pytest.mark.parametrize("name", ENCODERS)
def test_its_folder_is_evaluated_and_trained_further(
    name: str, trained: Callable[[str], Path], counting: Path, tmp_path: Path
) -> None:
    model = trained(name)
    loss = LOSSES[name]
    checkpoint = checkpoints.load(model)
    assert list(checkpoint.goals) == [loss]
    measured = firth.evaluate(model, data=counting)
    trained_to = read_rows(model / "metrics.jsonl")[-1][loss]
    assert measured[loss] == pytest.approx(trained_to, abs=0.2)
    assert firth.load(model).info().heads == [loss]
    figures = firth.pretrain(
        counting, out=tmp_path / "on", start_from=model, recipe=name, steps=2, changes=BATCHES, device="cpu"
    )
    assert figures[loss] < FLOOR
    assert checkpoints.load(tmp_path / "on").tokenizer.fingerprint == checkpoint.tokenizer.fingerprint


def test_only_span_corruption_adds_sentinels(trained: Callable[[str], Path], tokenizer: WordPiece) -> None:
    assert len(checkpoints.load(trained("bart")).tokenizer.vocab.sentinels) == 0
    vocab = checkpoints.load(trained("t5")).tokenizer.vocab
    assert len(vocab.sentinels) == 100
    assert vocab.tokens[: len(tokenizer.vocab)] == tokenizer.vocab.tokens


def test_a_model_without_rows_for_sentinels_is_refused(
    trained: Callable[[str], Path], counting: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadConfig, match=r"fewer objectives\.span_corruption\.sentinels"):
        firth.pretrain(
            counting,
            out=tmp_path / "on",
            start_from=trained("bart"),
            recipe="t5",
            steps=2,
            changes=BATCHES,
            device="cpu",
        )
    few = (*BATCHES, "objectives.span_corruption.sentinels=12")
    figures = firth.pretrain(
        counting, out=tmp_path / "on", start_from=trained("bart"), recipe="t5", steps=2, changes=few, device="cpu"
    )
    assert np.isfinite(figures["span_corruption"])


def test_an_encoder_without_a_decoder_is_refused(data: Path, tmp_path: Path) -> None:
    recipe = replace(lineage.make("bert", "tiny"), objectives={"mass": Mass.Config()})
    (tmp_path / "plan.toml").write_text(to_toml(to_dict(recipe)))
    with pytest.raises(BadConfig, match="needs an encoder-decoder"):
        firth.pretrain(data, out=tmp_path / "run", config=tmp_path / "plan.toml", steps=2, device="cpu")
