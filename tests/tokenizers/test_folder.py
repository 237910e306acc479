import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from firth.errors import BadInput, Damaged
from firth.tokenizers import load
from firth.tokenizers.vocab import SPECIALS, Vocab
from firth.tokenizers.wordpiece import WordPiece
from firth.tokenizers.wordpiece_folder import WordPieceRules

Change = Callable[[dict[str, Any]], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    WordPiece(Vocab((*SPECIALS, "hello", "##s", "世")), WordPieceRules(True, True, True)).save(tmp_path)
    return tmp_path


def edit(path: Path, change: Change) -> None:
    values = json.loads(path.read_text("utf-8"))
    change(values)
    path.write_text(json.dumps(values), "utf-8")


HOSTILE = {"type": "Split", "pattern": {"Regex": "(?<=a{1,999})(((("}, "behavior": "Isolated", "invert": False}
STRANGE: list[tuple[str, Change]] = [
    ("pre_tokenizer", lambda v: v.update(pre_tokenizer=HOSTILE)),
    ("pre_tokenizer", lambda v: v.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [HOSTILE]})),
    ("normalizer", lambda v: v.update(normalizer={"type": "Replace", "pattern": {"Regex": "("}, "content": ""})),
    ("normalizer", lambda v: v.update(normalizer=None)),
    ("laid out", lambda v: v.update(normalizer=[1])),
    ("model", lambda v: v["model"].update(type="BPE")),
    ("post_processor", lambda v: v.update(post_processor={"type": "ByteLevel"})),
    ("decoder", lambda v: v.update(decoder={"type": "Metaspace"})),
    ("instead of", lambda v: v["model"].update(continuing_subword_prefix="@@")),
    ("unknown words", lambda v: v["model"].update(unk_token="<unk>")),
    ("lowercase", lambda v: v["normalizer"].update(lowercase="yes")),
    ("disagree about do_lower_case", lambda v: v["normalizer"].update(lowercase=False)),
    ("disagree about tokenize_chinese_chars", lambda v: v["normalizer"].update(handle_chinese_chars=False)),
    ("laid out", lambda v: v["model"].update(vocab=["a"])),
    ("number", lambda v: v["model"]["vocab"].update(hello=-1)),
    ("number", lambda v: v["model"]["vocab"].update(hello=True)),
    ("every id", lambda v: v["model"]["vocab"].update(hello=6)),
    ("every id", lambda v: v["model"]["vocab"].update(hello=10**12)),
    ("every id", lambda v: v["added_tokens"][0].update(id=3)),
    ("no line of text", lambda v: v["model"]["vocab"].update({"\ud800": 8})),
    ("not text", lambda v: v["added_tokens"][0].update(content=None)),
    ("cannot be built", lambda v: v["model"].update(max_input_chars_per_word=10**30)),
]


@pytest.mark.parametrize(("what", "change"), STRANGE)
def test_a_strange_tokenizer_json_is_refused_in_one_sentence(folder: Path, what: str, change: Change) -> None:
    edit(folder / "tokenizer.json", change)
    with pytest.raises(BadInput, match=what) as caught:
        load(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[" * 10**5, "\udcff"])
def test_a_broken_tokenizer_json_is_said_to_be_damaged(folder: Path, text: str) -> None:
    (folder / "tokenizer.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(Damaged, match=r"tokenizer\.json"):
        load(folder)


def test_a_json_file_that_is_no_object_is_refused(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("[1, 2]")
    with pytest.raises(BadInput, match="laid out"):
        load(folder)


def test_truncation_and_padding_settings_are_left_behind(folder: Path) -> None:
    padding = {"strategy": {"Fixed": 8}, "direction": "Right", "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}
    truncation = {"max_length": 2, "strategy": "LongestFirst", "stride": 0}
    edit(folder / "tokenizer.json", lambda v: v.update(padding=padding, truncation=truncation))
    assert load(folder).ids_batch(["hello", "hello hellos"]) == [[5], [5, 5, 6]]
    assert len(load(folder).encode("hello hello hello")) == 3


def test_tokens_added_behind_the_vocabulary(folder: Path, tmp_path: Path) -> None:
    row = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    more = [{"id": 8, "content": "[E]", "special": True, **row}, {"id": 9, "content": "wow", "special": False, **row}]
    edit(folder / "tokenizer.json", lambda v: v["added_tokens"].extend(more))
    tokenizer = load(folder)
    assert tokenizer.vocab.tokens[8:] == ("[E]", "wow")
    assert tokenizer.vocab.specials == {0, 1, 2, 3, 4, 8}
    assert tokenizer.encode("[E] hello wow", specials=True).ids.tolist() == [8, 5, 9]
    tokenizer.save(tmp_path / "again")
    assert load(tmp_path / "again").fingerprint == tokenizer.fingerprint


def test_a_model_without_a_type_as_files_of_2020_have_it(folder: Path) -> None:
    edit(folder / "tokenizer.json", lambda v: v["model"].pop("type"))
    assert load(folder).ids_batch(["hellos"]) == [[5, 6]]


def test_a_vocabulary_alone_does_not_say_its_casing(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(BadInput, match=r"lower-cased.*tokenizer_config\.json"):
        load(folder)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    assert load(folder).ids_batch(["hello Hello"]) == [[5, 1]]


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_roles_and_lines_of_a_vocabulary_file(tmp_path: Path, ending: str) -> None:
    tokens = ["<pad>", "\u2028", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello"]
    (tmp_path / "vocab.txt").write_bytes(ending.join(tokens).encode())
    (tmp_path / "special_tokens_map.json").write_text('{"pad_token": {"content": "<pad>"}}')
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 1e30}')
    tokenizer = load(tmp_path)
    assert tokenizer.vocab.tokens == tuple(tokens)
    assert (tokenizer.vocab.pad, tokenizer.max_length) == (0, None)
    assert tokenizer.encode("<pad>hello", specials=True).ids.tolist() == [0, 6]


@pytest.mark.parametrize(
    ("content", "what"), [(b"[PAD]\n", "MASK"), (b"", "PAD"), (b"\xff", "UTF-8"), (b"[PAD]\n[PAD]\n", "twice")]
)
def test_a_vocabulary_file_that_cannot_be_used(folder: Path, content: bytes, what: str) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.txt").write_bytes(content)
    with pytest.raises(BadInput, match=rf"vocab\.txt.*{what}"):
        load(folder)


def test_tokens_added_to_a_vocabulary_file_need_a_tokenizer_json(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "added_tokens.json").write_text('{"[E]": 8}')
    with pytest.raises(BadInput, match=r"added_tokens\.json"):
        load(folder)


def test_no_tokenizer_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no tokenizer"):
        load(tmp_path)
    with pytest.raises(BadInput, match="is not a folder"):
        load(tmp_path / "absent")
