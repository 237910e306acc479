"""Byte-level BPE: learning, offsets and words in English, Chinese and emoji, folders in every form, bad folders."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth import tokenizers
from firth.data.shards import Shards
from firth.errors import BadConfig, BadInput
from firth.tokenizers.bpe import BPE
from firth.tokenizers.byte_words import byte_letters

HARD = [
    "👩‍🚀 flies to 北京大学, café!",
    "  two  spaces\n\nand\ttabs \u3000x",
    "don't 3,141 naïve…",
    "\x1c\x00\ud800",
    "",
]


@pytest.fixture(scope="module")
def small(lines: list[str]) -> BPE:
    return BPE.train(lines, BPE.Config(vocab_size=1500))


def test_learning_is_a_pure_function_and_ranks_are_ids(small: BPE, lines: list[str]) -> None:
    again = BPE.train(iter(lines), BPE.Config(vocab_size=1500))
    assert again.fingerprint == small.fingerprint
    assert len(small.vocab) == 1500
    assert small.vocab.tokens[:5] == ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
    assert {*small.vocab.tokens[5:261]} == {*byte_letters()}
    merged = [left + right for left, right in small.merges]
    assert list(dict.fromkeys(merged)) == list(small.vocab.tokens[261:])


def test_every_byte_can_be_written_and_read_back(small: BPE) -> None:
    for text in HARD:
        ids = small.ids_batch([text])[0]
        assert small.decode(ids) == text.replace("\ud800", "\ufffd")
        assert small.vocab.unk not in ids


def test_offsets_leave_out_the_space_and_hold_the_bytes(small: BPE) -> None:
    for text in HARD:
        encoding = small.encode(text)
        for i, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            piece = small._token_bytes[i]
            assert piece.strip(b" ") in text[start:end].encode(errors="replace") or "\ud800" in text
            if piece.strip():
                assert text[start] != " "


def words(tokenizer: BPE, text: str) -> list[str]:
    """The stretches of text between one word start and the next."""
    encoding = tokenizer.encode(text)
    begins = encoding.offsets[encoding.word_starts, 0].tolist()
    return [text[a:b].strip() for a, b in zip(begins, [*begins[1:], len(text)], strict=True)]


def test_words_begin_at_spaces_punctuation_and_chinese_borders(small: BPE) -> None:
    assert words(small, "A zyxw-vut, don't!") == ["A", "zyxw", "-", "vut", ",", "don", "'t", "!"]
    assert words(small, "我们使用语言模型 today。") == ["我们", "使用", "语言", "模型", "today", "。"]


def test_a_character_cut_into_bytes_begins_one_word(small: BPE) -> None:
    encoding = small.encode("鑫 👩")
    assert len(encoding.ids) > 4
    assert encoding.word_starts.sum() == 2


def test_a_memory_that_overflows_changes_nothing(small: BPE, lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines[:500]
    wanted = small.ids_batch(lines)
    monkeypatch.setattr("firth.tokenizers.cache._MOST_CHARACTERS", 50)
    forgetful = BPE(small.vocab, small.merges, small.rules)
    assert [forgetful.ids_batch([line])[0] for line in lines] == wanted


@pytest.mark.parametrize("specials", ["roberta", "gpt"])
def test_the_frame(specials: Any, lines: list[str], tmp_path: Path) -> None:
    trained = BPE.train(lines[:200], BPE.Config(vocab_size=300, specials=specials))
    trained.save(tmp_path)
    for tokenizer in (trained, tokenizers.load(tmp_path)):
        a, b = np.array([290]), np.array([291, 292])
        shown = [tokenizer.vocab.tokens[i] for i in tokenizer.vocab.frame.join(a, b)]
        marks = [token if token in tokenizer.vocab.roles else "." for token in shown]
        end = "<|endoftext|>"
        wanted = {"roberta": ["<s>", ".", "</s>", "</s>", ".", ".", "</s>"], "gpt": [end, ".", end, ".", ".", end]}
        assert marks == wanted[specials]
        assert not tokenizer.vocab.frame.segments(a, b).any()


def test_masks_and_specials_only_when_asked(small: BPE) -> None:
    text = "a <mask> b</s>"
    mask, sep = small.vocab.mask, small.vocab.sep
    assert not {mask, sep} & {*small.encode(text).ids}
    masked = small.encode(text, masks=True)
    assert (masked.ids == mask).sum() == 1
    assert sep not in masked.ids
    assert {mask, sep} <= {*small.encode(text, specials=True).ids}
    start, end = masked.offsets[list(masked.ids).index(mask)]
    assert text[start:end].strip() == "<mask>"


@pytest.mark.parametrize("kept", [("tokenizer.json",), ("vocab.json", "merges.txt")])
def test_either_form_of_a_folder_will_do(kept: tuple[str, ...], small: BPE, tmp_path: Path) -> None:
    for name in small.save(tmp_path):
        if name not in kept:
            (tmp_path / name).unlink()
    opened = BPE.load(tmp_path)
    assert opened.vocab == small.vocab
    assert opened.ids_batch(HARD) == small.ids_batch(HARD)
    if "merges.txt" in kept:
        assert isinstance(tokenizers.load(tmp_path), BPE)


def spoil(folder: Path, change: Callable[[Any], None]) -> None:
    parts = json.loads((folder / "tokenizer.json").read_text())
    change(parts)
    (folder / "tokenizer.json").write_text(json.dumps(parts))


EVIL = {"type": "Split", "pattern": {"Regex": "(" * 50}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda parts: parts.update(pre_tokenizer=EVIL), "pre_tokenizer 'Split'"),
        (lambda parts: parts["pre_tokenizer"].update(use_regex=False), "use_regex"),
        (lambda parts: parts.update(normalizer={"type": "NFKC"}), "normalizer 'NFKC'"),
        (lambda parts: parts["model"].update(type="Unigram"), "model 'Unigram'"),
        (lambda parts: parts["model"].update(dropout=0.1), "dropout=0.1"),
        (lambda parts: parts["model"]["merges"].append(["nowhere", "x"]), "'nowhere'"),
        (lambda parts: parts["model"]["merges"].append("onlyone"), "not two pieces"),
        (lambda parts: parts["model"]["vocab"].update(x=7), "every id"),
        (lambda parts: parts.update(model=[]), "BPE"),
    ],
)
def test_folders_that_are_refused(change: Callable[[Any], None], says: str, small: BPE, tmp_path: Path) -> None:
    small.save(tmp_path)
    spoil(tmp_path, change)
    with pytest.raises(BadInput, match=says) as refused:
        tokenizers.load(tmp_path)
    assert "tokenizer.json" in str(refused.value)


def test_sizes_that_make_no_sense(lines: list[str]) -> None:
    with pytest.raises(BadConfig, match="at least 261"):
        BPE.Config(vocab_size=260)
    with pytest.raises(BadConfig, match=r"only \d+ pieces, not 9000"):
        BPE.train(lines[:20], BPE.Config(vocab_size=9000))


def test_prepared_words_are_the_texts_words(texts: list[Path], tmp_path: Path) -> None:
    health = firth.prepare(texts, out=tmp_path / "data", tokenizer="bpe", vocab_size=600, processes=0)
    assert health["unknown_rate"] == 0
    shards = Shards.open(tmp_path / "data")
    tokenizer = tokenizers.load(shards.tokenizer_folder)
    assert isinstance(tokenizer, BPE)
    document = np.arange(*shards.sentences[shards.documents[[0, 1]]])
    lines = texts[0].read_text("utf-8").split("\n\n")[0].split("\n")
    assert tokenizer.decode(shards.ids[document]) == "\n".join(" ".join(line.split()) for line in lines)
    for sentence in range(0, shards.num_sentences, 37):
        place = np.arange(*shards.sentences[sentence : sentence + 2])
        text = tokenizer.decode(shards.ids[place])
        encoding = tokenizer.encode(text)
        assert encoding.ids.tolist() == shards.ids[place].tolist()
        assert encoding.word_starts.tolist() == shards.word_starts(place).tolist()
