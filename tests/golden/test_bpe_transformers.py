"""Byte-level BPE equals transformers' tokenizers, opened from our folders and they from theirs."""

import inspect
import json
import os
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, GPT2Tokenizer, RobertaTokenizer

from firth import samples, tokenizers
from firth.tokenizers.bpe import BPE

DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
GOLDEN = DATA.parent / "golden" / "sentences.json"
HARD = [
    *[
        "",
        " ",
        "a",
        "  two  spaces\n\nand\ttabs \u3000x",
        "don't we'll I'VE 3,141.59 ½ naïve… e\u0301",
        "\x00\x1c\x85\u2028",
    ],
    *[
        "👩‍🚀 flies to 北京大学！",
        "한국어 العربية हिन्दी",
        "<mask> a <mask>b </s><s>",
        "x" * 300,
        "a\u00a0b\r\n c \ufffd",
    ],
]
TEXTS = [*HARD, *(json.loads(GOLDEN.read_text("utf-8")) if GOLDEN.exists() else [])]


@pytest.fixture(scope="module", params=["roberta", "gpt"])
def ours(request: pytest.FixtureRequest) -> BPE:
    lines = [*inspect.getsource(inspect).split("\n"), *samples.prose("zh").read_text("utf-8").split("\n")]
    return BPE.train(lines, BPE.Config(vocab_size=1000, specials=request.param, opening=False))


def assert_equal(ours: BPE, theirs: Any) -> None:
    for text in TEXTS:
        plain = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, specials=True).ids.tolist() == plain, text
        if "<" not in text:
            assert ours.ids_batch([text])[0] == plain, text
            assert ours.decode(plain) == theirs.decode(plain, clean_up_tokenization_spaces=False)
    roles = ("pad", "unk", "cls", "sep", "mask") if "<s>" in ours.vocab.ids else ("unk", "bos", "eos")
    for role in roles:
        name = {"bos": "cls", "eos": "sep"}.get(role, role)
        assert getattr(theirs, f"{role}_token_id") == getattr(ours.vocab, name), role


def test_transformers_opens_our_folder(ours: BPE, tmp_path: Path) -> None:
    ours.save(tmp_path, max_length=64)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(theirs, RobertaTokenizer if "<s>" in ours.vocab.ids else GPT2Tokenizer)
    assert_equal(ours, theirs)
    assert theirs.model_max_length == 64


def test_the_frame_is_theirs(ours: BPE, tmp_path: Path) -> None:
    ours.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    a, b = (ours.encode(text).ids for text in ("one text", "another"))
    if "<s>" in ours.vocab.ids:
        assert theirs("one text", "another")["input_ids"] == ours.vocab.frame.join(a, b).tolist()
        assert theirs("one text")["input_ids"] == ours.vocab.frame.join(a).tolist()
    else:
        assert theirs("one text")["input_ids"] == a.tolist()


@pytest.mark.parametrize("prefix_space", [False, True])
def test_we_open_their_folder(ours: BPE, prefix_space: bool, tmp_path: Path) -> None:
    kind = RobertaTokenizer if "<s>" in ours.vocab.ids else GPT2Tokenizer
    theirs = kind(vocab=dict(ours.vocab.ids), merges=list(ours.merges), add_prefix_space=prefix_space)
    theirs.save_pretrained(tmp_path)
    opened = tokenizers.load(tmp_path)
    assert isinstance(opened, BPE)
    assert opened.vocab.tokens == ours.vocab.tokens
    assert_equal(opened, theirs)
    opened.save(tmp_path / "again")
    assert_equal(opened, AutoTokenizer.from_pretrained(tmp_path / "again"))


def test_added_tokens_are_found_as_theirs_are(ours: BPE, tmp_path: Path) -> None:
    ours.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    theirs.add_tokens(["quokka", "袋鼠"])
    theirs.save_pretrained(tmp_path / "more")
    opened = tokenizers.load(tmp_path / "more")
    text = "a quokka, two quokkas; 袋鼠在这里"
    assert (
        opened.ids_batch([text])[0]
        == opened.encode(text).ids.tolist()
        == theirs(text, add_special_tokens=False)["input_ids"]
    )
    assert len(ours.vocab) + 1 in opened.ids_batch([text])[0]
