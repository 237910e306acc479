"""What every tokenizer of the table promises."""

import inspect
import json
import os
import unicodedata
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from firth import config
from firth.tokenizers import TABLE

DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
GOLDEN = DATA.parent / "golden" / "sentences.json"
ODD = [
    *" .,'\t\x00\x1c\u00a0\u3000\u200b\ufffd\u2028\u0301\ud800İßςΣ≠ﬁ豈𫠠",
    "[SEP]",
    "of",
    "使用",
    "👨‍👩‍👧",
    "한국",
    "e\u0301",
]


def random_text(seed: int) -> str:
    random = Random(seed)
    draw = (lambda: random.choice(ODD), lambda: chr(random.randrange(0x110000)), lambda: chr(random.randrange(0x3000)))
    return "".join(random.choice(draw)() for _ in range(40))


FIXED = ["", " \t\n ", "a", "\x00", "\ud800", "\ufffd", "\u0301", "e\u0301" * 3, "👩‍🚀 flies", "Ångström, ça va? “so”"]
TEXTS = [*FIXED, *(json.loads(GOLDEN.read_text("utf-8")) if GOLDEN.exists() else []), *map(random_text, range(200))]


@pytest.fixture(scope="module", params=TABLE)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    kind = config.resolve(TABLE, request.param, "tokenizer")
    prose = [*inspect.getsource(inspect).split("\n"), *["使用语言模型来预测下一个词的概率，春眠不觉晓。"] * 30]
    return kind.train(iter(prose), kind.Config(vocab_size=800))


def essence(text: str) -> str:
    """What is left when case, accents and invisible characters are gone."""
    lowered = "".join(map(str.lower, unicodedata.normalize("NFD", text)))
    return "".join(c for c in lowered if unicodedata.category(c)[0] != "C" and unicodedata.category(c) != "Mn")


def test_every_config_field_has_its_sentence(tokenizer: Any) -> None:
    fields = config.to_dict(type(tokenizer).Config())
    assert {name for name, text in config.describe(type(tokenizer).Config).items() if text.endswith(".")} == set(fields)


@pytest.mark.parametrize("how", [{}, {"specials": True}, {"masks": True}])
def test_offsets_slice_back(tokenizer: Any, how: dict[str, bool]) -> None:
    checked = 0
    for text, encoding in zip(TEXTS, tokenizer.encode_batch(TEXTS, **how), strict=True):
        starts, ends = encoding.offsets.T
        assert ((starts >= 0) & (starts < ends) & (ends <= len(text))).all()
        assert (np.diff(starts) >= 0).all()
        for i, token, start, end in zip(encoding.ids, encoding.tokens, starts, ends, strict=True):
            if i not in tokenizer.vocab.specials:
                piece = token.removeprefix("##") if tokenizer.continues[i] else token
                piece = tokenizer.spelled(i).strip(" ") if tokenizer.pieces_hold_spaces else piece
                assert essence(piece) in essence(text[start:end])
                checked += 1
    assert checked > 500


def test_all_ways_to_encode_agree(tokenizer: Any) -> None:
    rows, both = tokenizer.ids_batch(TEXTS), tokenizer.word_starts_batch(TEXTS)
    for text, row, (ids, starts) in zip(TEXTS, rows, both, strict=True):
        encoding = tokenizer.encode(text)
        assert encoding.ids.tolist() == row == ids.tolist()
        assert encoding.word_starts.tolist() == starts.tolist()
        assert encoding.tokens == tuple(tokenizer.vocab.tokens[i] for i in row)


def test_pieces_inside_a_word_never_start_one_and_the_first_token_always_does(tokenizer: Any) -> None:
    for ids, starts in tokenizer.word_starts_batch(TEXTS):
        assert not (starts & tokenizer.continues[ids]).any()
        assert starts[:1].all()


def test_plain_text_holds_no_special_ids_but_the_unknown(tokenizer: Any) -> None:
    spelled = " ".join(tokenizer.vocab.tokens[i] for i in tokenizer.vocab.specials)
    for row in tokenizer.ids_batch([spelled, *TEXTS]):
        assert not (tokenizer.vocab.specials - {tokenizer.vocab.unk}) & set(row)


def test_saved_and_loaded_is_the_same(tokenizer: Any, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    again = type(tokenizer).load(tmp_path)
    assert again.fingerprint == tokenizer.fingerprint
    assert again.vocab == tokenizer.vocab
    assert again.ids_batch(TEXTS) == tokenizer.ids_batch(TEXTS)


def test_decoding_keeps_the_words(tokenizer: Any) -> None:
    text = "return the source code of a module or class, 使用语言模型。"
    assert tokenizer.decode(tokenizer.ids_batch([text])[0]) == text
