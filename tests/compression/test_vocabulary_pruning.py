"""Removed embedding rows: nothing changes for texts of kept tokens, and what is left is a whole tokenizer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth import samples
from firth.compression.method import CompressionJob
from firth.compression.vocabulary import PruneVocabulary, smaller_tokenizer
from firth.errors import BadConfig, Unsupported
from firth.tokenizers.wordpiece import WordPiece

KEPT = ["The door of the old house is open.", "A good day, and another one.", "一句话。"]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("\n".join(KEPT) + "\n", "utf-8")
    return path


def test_texts_of_kept_tokens_do_not_change(
    tuned: Path, text: Path, compress: Callable[..., Any], tmp_path: Path
) -> None:
    figures = compress("vocabulary", vocabulary_from=text)
    before = firth.load(tuned)
    after = firth.load(tmp_path / "small")
    assert len(after.tokenizer.vocab) < len(before.tokenizer.vocab) / 2
    assert after.encoder.vocab_size == len(after.tokenizer.vocab)
    assert figures["compressed"]["disk_bytes"] < figures["original"]["disk_bytes"]
    for line in KEPT:
        assert after.tokens(line) == before.tokens(line)
    assert np.array_equal(after.embed(KEPT), before.embed(KEPT))
    assert after.predict(KEPT) == before.predict(KEPT)


@pytest.mark.parametrize("kind", ["bilstm", "bag"])
def test_a_student_without_attention_loses_tokens_too(
    tuned: Path, rows: Path, text: Path, quick: None, tmp_path: Path, kind: str
) -> None:
    changes = [f"kind={kind}", "cell_width=8", "epochs=1"]
    firth.compress(tuned, by="bilstm", data=rows, train=rows, changes=changes, out=tmp_path / "student")
    firth.compress(
        tuned,
        by="bilstm",
        data=rows,
        train=rows,
        changes=changes,
        then=["vocabulary"],
        vocabulary_from=text,
        out=tmp_path / "small",
    )
    before = firth.load(tmp_path / "student")
    after = firth.load(tmp_path / "small")
    assert len(after.tokenizer.vocab) < len(before.tokenizer.vocab) / 2
    assert after.predict(KEPT) == before.predict(KEPT)


def test_a_pre_trained_model_fills_masks_with_kept_tokens(run: Path, text: Path, quick: None, tmp_path: Path) -> None:
    firth.compress(run, by="vocabulary", data=text, vocabulary_from=text, out=tmp_path / "small")
    before = firth.load(run)
    after = firth.load(tmp_path / "small")
    masked = "The door of the old [MASK] is open."
    kept = set(after.tokenizer.vocab.tokens)
    expected = [fill for fill in before.fill(masked, top=len(before.tokenizer.vocab) - 5) if fill.token in kept]
    found = after.fill(masked, top=10)
    assert [fill.token for fill in found] == [fill.token for fill in expected[:10]]
    # Probabilities are shared by fewer tokens.
    ratios = [new.probability / old.probability for new, old in zip(found, expected, strict=False)]
    assert max(ratios) / min(ratios) == pytest.approx(1, abs=1e-3)
    assert min(ratios) > 1


def test_new_words_of_known_characters_are_not_unknown(job: CompressionJob, text: Path) -> None:
    tokenizer = job.original.tokenizer
    assert isinstance(tokenizer, WordPiece)
    new_word = "hops"  # all its characters occur, the word does not
    sizes = {}
    for keep in (True, False):
        method = PruneVocabulary(PruneVocabulary.Config(keep_characters=keep))
        small = smaller_tokenizer(tokenizer, method._kept_ids(tokenizer, [text]))
        sizes[keep] = len(small.vocab)
        unknown = small.vocab.unk in small.encode(new_word).ids
        assert unknown is not keep
        for special in tokenizer.vocab.roles:
            assert special in small.vocab.tokens
    assert sizes[False] < sizes[True]


def test_rare_tokens_go(job: CompressionJob, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("door door door house\n")
    tokenizer = job.original.tokenizer
    assert isinstance(tokenizer, WordPiece)
    method = PruneVocabulary(PruneVocabulary.Config(min_count=2, keep_characters=False))
    kept = set(method._kept_ids(tokenizer, [path])) - tokenizer.vocab.specials
    assert kept == set(tokenizer.ids_batch(["door"])[0])


def test_mistakes(compress: Callable[..., Any], rows: Path, tmp_path: Path, quick: None) -> None:
    with pytest.raises(BadConfig, match="name it with `vocabulary_from=`"):
        compress("vocabulary")
    with pytest.raises(BadConfig, match="`vocabulary_from=` is for `by='vocabulary'`"):
        compress("layers", vocabulary_from=rows)
    firth.prepare(samples.prose("en"), out=tmp_path / "data", tokenizer="words", min_count=1, processes=0)
    firth.pretrain(tmp_path / "data", out=tmp_path / "tf", recipe="tf-idf")
    with pytest.raises(Unsupported, match="is not a BERT, a BiLSTM or a bag of words with WordPiece tokens"):
        firth.compress(tmp_path / "tf", by="vocabulary", data=rows, vocabulary_from=rows, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "small").exists()
