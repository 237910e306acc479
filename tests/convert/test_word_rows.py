"""The means of words' parts, compiled and not."""

import numpy as np
import pytest

from firth import rng
from firth.convert import mapped
from firth.convert.mapped import word_rows
from firth.tokenizers.subwords import END, Subwords

WORDS = ["frog", "青蛙", "naïve", "x", END, *(f"word{i}" for i in range(40))]


@pytest.mark.parametrize("max_ngram", [0, 4])
def test_compiled_parts_are_pythons(max_ngram: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    config = Subwords.Config(min_count=1, lowercase=False, min_ngram=2, max_ngram=max_ngram, num_buckets=50)
    tokenizer = Subwords.of(WORDS, config, counts=np.ones(len(WORDS), np.int64))
    rows = rng.uniform(rng.key("parts"), np.arange(tokenizer.num_rows)[:, None], np.arange(6)).astype(np.float32)
    specials = sorted(tokenizer.vocab.specials)
    parts = [tokenizer.made_parts(word) for word in tokenizer.vocab.tokens]
    wanted = np.stack([rows[row or [0]].mean(0) for row in parts])
    wanted[specials] = 0
    monkeypatch.setattr(mapped, "_BLOCK", 16)  # several blocks, the first of them with special tokens
    for least in (0, 10**9):
        monkeypatch.setattr(mapped, "COMPILED", least)
        assert np.allclose(np.concatenate([*word_rows(tokenizer, rows)]), wanted, atol=1e-6)
