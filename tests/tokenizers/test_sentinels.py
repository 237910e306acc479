"""Sentinels behind a vocabulary: old ids stay, no text is read as one, and the files keep them."""

from pathlib import Path

import numpy as np
import pytest

import firth
from firth import samples, tokenizers
from firth.errors import Unsupported
from firth.tokenizers import Tokenizer
from firth.tokenizers.sentinels import with_sentinels, without_sentinels

TEXT = "A <extra_id_0> is no sentinel. 使用语言模型"


@pytest.fixture(scope="module", params=["wordpiece", "bpe"])
def plain(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    out = tmp_path_factory.mktemp(request.param) / "data"
    firth.prepare([samples.prose("en"), samples.prose("zh")], out=out, tokenizer=request.param, vocab_size=1500)
    return tokenizers.load(out / "tokenizer")


def test_old_ids_stay_and_text_is_read_as_before(plain: Tokenizer) -> None:
    extended = with_sentinels(plain, 10)
    assert extended.vocab.tokens[: len(plain.vocab)] == plain.vocab.tokens
    assert extended.vocab.sentinels.tolist() == list(range(len(plain.vocab), len(plain.vocab) + 10))
    assert plain.vocab.sentinels.tolist() == []
    assert extended.ids_batch([TEXT]) == plain.ids_batch([TEXT])
    assert set(extended.vocab.sentinels.tolist()) <= extended.vocab.specials
    found = extended.encode(TEXT, specials=True).ids
    assert np.isin(extended.vocab.sentinels, found).tolist() == [True] + [False] * 9
    assert "<extra_id_3>" in extended.decode([extended.vocab.sentinels[3]])


def test_as_many_as_are_needed(plain: Tokenizer) -> None:
    few = with_sentinels(plain, 3)
    assert with_sentinels(few, 3) is few
    assert with_sentinels(few, 2) is few
    more = with_sentinels(few, 5)
    assert more.vocab.tokens == with_sentinels(plain, 5).vocab.tokens
    assert more.fingerprint == with_sentinels(plain, 5).fingerprint


def test_they_can_be_taken_away_again(plain: Tokenizer) -> None:
    extended = with_sentinels(plain, 7)
    assert extended.fingerprint != plain.fingerprint
    assert without_sentinels(extended).fingerprint == plain.fingerprint
    assert without_sentinels(plain) is plain


def test_files_keep_them(plain: Tokenizer, tmp_path: Path) -> None:
    extended = with_sentinels(plain, 7)
    extended.save(tmp_path)
    loaded = tokenizers.load(tmp_path)
    assert loaded.vocab == extended.vocab
    assert loaded.fingerprint == extended.fingerprint
    assert without_sentinels(loaded).fingerprint == plain.fingerprint
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.convert_tokens_to_ids("<extra_id_6>") == extended.vocab.sentinels[6]
    assert len(theirs) == len(extended.vocab)


def test_a_list_of_words_cannot_have_them(tmp_path: Path) -> None:
    firth.prepare([samples.prose("en")], out=tmp_path / "data", tokenizer="words", vocab_size=500)
    words = tokenizers.load(tmp_path / "data" / "tokenizer")
    with pytest.raises(Unsupported, match="cannot have sentinel tokens"):
        with_sentinels(words, 5)
