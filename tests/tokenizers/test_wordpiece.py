import json
import os
from pathlib import Path
from random import Random

import numpy as np
import pytest

from firth.tokenizers import cache, load
from firth.tokenizers.vocab import SPECIALS, Vocab
from firth.tokenizers.wordpiece import WordPiece
from firth.tokenizers.wordpiece_folder import Added, WordPieceRules

DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
SPELLED = "[CLS] special [SEP] tokens [MASK] inside"


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    path = DATA.parent / "golden" / "sentences.json"
    if not path.exists():
        pytest.skip("needs the golden sentences")
    found: list[str] = json.loads(path.read_text("utf-8"))
    return found


def random_texts(count: int) -> list[str]:
    """All of Unicode, with what tokenizers stumble over made frequent."""
    random = Random(5)
    odd = [
        *"\x00\x0b\x1c\x85\u00a0\u3000\u200b\ufeff\ufffd\u2028\u0301\ud800İßς≠豈𫠠 .,'",
        "[SEP]",
        "of",
        "使用",
        "👨‍👩‍👧",
        "한국",
    ]
    draw = (lambda: random.choice(odd), lambda: chr(random.randrange(0x110000)), lambda: chr(random.randrange(0x3000)))
    return ["".join(random.choice(draw)() for _ in range(random.randrange(30))) for _ in range(count)]


def test_a_public_folder_gives_the_ids_of_transformers(
    minilm_folder: Path, minilm: WordPiece, sentences: list[str]
) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(minilm_folder)
    ours = [encoding.ids.tolist() for encoding in minilm.encode_batch(sentences, specials=True)]
    assert ours == [theirs(text, add_special_tokens=False)["input_ids"] for text in sentences]
    plain = [i for i, text in enumerate(sentences) if "[CLS]" not in text]
    assert [minilm.ids_batch(sentences)[i] for i in plain] == [ours[i] for i in plain]
    assert len(plain) == 19


@pytest.mark.parametrize("lowercase", [True, False])
def test_transformers_opens_a_trained_folder(lines: list[str], lowercase: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    ours = WordPiece.train(lines, WordPiece.Config(vocab_size=1200, lowercase=lowercase))
    ours.save(tmp_path / "ours", max_length=128)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    texts = ["The Élan of parsers, 使用语言模型 [MASK]!", "", *lines[:50]]
    rows = [encoding.ids.tolist() for encoding in ours.encode_batch(texts, specials=True)]
    vocab = ours.vocab
    assert [theirs(text)["input_ids"] for text in texts] == [[vocab.cls, *row, vocab.sep] for row in rows]
    pair = theirs(texts[0], "of parsers")
    assert pair["input_ids"] == [vocab.cls, *rows[0], vocab.sep, *ours.ids_batch(["of parsers"])[0], vocab.sep]
    assert sum(pair["token_type_ids"]) == len(ours.ids_batch(["of parsers"])[0]) + 1
    assert (theirs.model_max_length, load(tmp_path / "ours").max_length) == (128, 128)
    theirs.save_pretrained(tmp_path / "theirs")
    assert load(tmp_path / "theirs").fingerprint == ours.fingerprint


def test_the_fingerprint_is_the_same_however_the_folder_was_saved(minilm: WordPiece, tmp_path: Path) -> None:
    minilm.save(tmp_path)
    assert load(tmp_path).fingerprint == minilm.fingerprint
    (tmp_path / "tokenizer.json").unlink()
    from_text = load(tmp_path)
    assert from_text.fingerprint == minilm.fingerprint
    assert from_text.max_length == minilm.max_length == 512
    other = WordPiece(minilm.vocab, WordPieceRules(False, False, True))
    assert other.fingerprint != minilm.fingerprint


def test_special_tokens_are_special_only_on_request(minilm: WordPiece) -> None:
    def found(**how: bool) -> list[str]:
        return [minilm.vocab.tokens[i] for i in minilm.encode(SPELLED, **how).ids if i in minilm.vocab.specials]

    assert found() == []
    assert found(masks=True) == ["[MASK]"]
    assert found(specials=True) == ["[CLS]", "[SEP]", "[MASK]"]
    assert not minilm.vocab.specials & set(minilm.ids_batch([SPELLED])[0])


def test_encoding_never_truncates(minilm: WordPiece) -> None:
    assert len(minilm.encode("word " * 3000)) == len(minilm.ids_batch(["word " * 3000])[0]) == 3000


@pytest.mark.parametrize(
    "rules", [WordPieceRules(True, True, True), WordPieceRules(False, False, True), WordPieceRules(True, True, False)]
)
def test_remembered_ids_are_those_of_the_whole_text(
    minilm: WordPiece, rules: WordPieceRules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_MOST_CHARACTERS", 500)  # so that it forgets now and then
    texts = random_texts(400)
    tokenizer = WordPiece(minilm.vocab, rules)
    whole = [encoding.ids.tolist() for encoding in tokenizer.encode_batch(texts)]
    parts = [texts[i : i + 7] for i in range(0, len(texts), 7)]
    assert [ids for part in parts for ids in tokenizer.ids_batch(part)] == whole
    for text, (ids, starts) in zip(texts, tokenizer.word_starts_batch(texts), strict=True):
        encoding = tokenizer.encode(text)
        np.testing.assert_array_equal(ids, encoding.ids)
        np.testing.assert_array_equal(starts, encoding.word_starts)


def test_added_words_are_found_in_plain_text() -> None:
    added = (*map(Added, SPECIALS), Added("new york", special=False, normalized=True))
    vocab = Vocab((*SPECIALS, "in", "new", "york", "new york"))
    tokenizer = WordPiece(vocab, WordPieceRules(True, True, True, added=added, num_pieces=8))
    assert tokenizer.ids_batch(["in New York"]) == [[5, 8]]
    assert tokenizer.encode("in New York").offsets.tolist() == [[0, 2], [3, 11]]


@pytest.mark.parametrize("text", ["a" * 10**6, "使" * 10**5, "\u0301" * 10**5, "\ud800" * 10**5, "a\x00" * 10**5])
def test_a_very_long_line(minilm: WordPiece, text: str) -> None:
    encoding = minilm.encode(text)
    assert minilm.ids_batch([text]) == [encoding.ids.tolist()]
    assert encoding.offsets.shape == (len(encoding), 2)


def test_no_texts_at_all(minilm: WordPiece) -> None:
    assert minilm.ids_batch([]) == minilm.encode_batch([]) == minilm.word_starts_batch([]) == []


def test_decode_is_readable(small: WordPiece) -> None:
    vocab = small.vocab
    ids = [vocab.cls, *small.ids_batch(["The parser, 使用语言模型。"])[0], vocab.mask, vocab.sep, vocab.pad]
    assert small.decode(ids) == "the parser, 使用语言模型。 [MASK]"
    assert small.decode(np.array(ids)) == small.decode(ids)
    assert small.decode([]) == ""
