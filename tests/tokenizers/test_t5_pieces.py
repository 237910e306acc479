"""T5's tokenizer, from tokenizer.json and from SentencePiece's file; BART's class name; mBART's frame."""

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from transformers import AutoTokenizer, BartTokenizer, MBartTokenizer, T5Tokenizer

from firth import samples, tokenizers
from firth.errors import BadInput
from firth.tokenizers.bpe import BPE

NUM_SENTINELS = 100
TEXTS = [
    "",
    " ",
    "Hello, world! It's the café's 2,000th “résumé”.",
    "使用语言模型来预测下一个词的概率，春眠不觉晓。",
    "mixed 中文 and English\tin  one   line ",
    "ﬁne ½ Ångström Ⅳ e\u0301 \u0301 👩‍🚀 flies \u200b \ufffd",
    "Thank you <extra_id_0> me to your party <extra_id_1> week.</s>",
    "<pad> <unk> <extra_id_99> <extra_id_100>",
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with SentencePiece's file alone, with T5's special tokens, over English and Chinese."""
    scratch = tmp_path_factory.mktemp("text")
    folder = tmp_path_factory.mktemp("t5")
    lines = [line for name in ("en", "zh") for line in samples.prose(name).read_text().split("\n") if line]
    (scratch / "text").write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(scratch / "text"),
        model_prefix=str(scratch / "spiece"),
        vocab_size=1400,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        pad_piece="<pad>",
        normalization_rule_name="nmt_nfkc",
        minloglevel=2,
    )
    (scratch / "spiece.model").rename(folder / "spiece.model")
    return folder


@pytest.fixture(scope="module")
def theirs(model: Path) -> Any:
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString((model / "spiece.model").read_bytes())
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    sentinels = [(f"<extra_id_{i}>", 0.0) for i in reversed(range(NUM_SENTINELS))]
    charsmap = proto.normalizer_spec.precompiled_charsmap
    return T5Tokenizer(vocab=pieces + sentinels, _spm_precompiled_charsmap=charsmap)


def test_ids_are_transformers_ids_from_either_file(theirs: Any, model: Path, tmp_path: Path) -> None:
    theirs.save_pretrained(tmp_path)
    from_json = tokenizers.load(tmp_path)
    from_model = tokenizers.load(model)
    assert from_json.vocab == from_model.vocab
    for text in TEXTS:
        wanted = theirs(text)["input_ids"]
        for ours in (from_json, from_model):
            assert ours.vocab.frame.join(ours.encode(text, specials=True).ids).tolist() == wanted, text
    ours = from_json
    parts = [ours.encode(text).ids for text in ("the cat", "a 使用")]
    assert ours.vocab.frame.join(*parts).tolist() == theirs("the cat", "a 使用")["input_ids"]


def test_targets_begin_with_padding_and_end_as_texts_do(theirs: Any, model: Path) -> None:
    vocab = tokenizers.load(model).vocab
    assert (vocab.cls, vocab.pad, vocab.sep) == (0, 0, 1)
    assert vocab.mask == len(vocab) - 1  # the first sentinel has the last id
    assert vocab.tokens[vocab.mask] == "<extra_id_0>"
    assert len(vocab.specials) == 3 + NUM_SENTINELS


def test_saved_and_loaded_is_the_same_for_both(theirs: Any, model: Path, tmp_path: Path) -> None:
    ours = tokenizers.load(model)
    ours.save(tmp_path)
    again = tokenizers.load(tmp_path)
    assert (again.fingerprint, again.vocab) == (ours.fingerprint, ours.vocab)
    reopened = AutoTokenizer.from_pretrained(tmp_path)
    assert isinstance(reopened, T5Tokenizer)
    assert [reopened(text)["input_ids"] for text in TEXTS] == [theirs(text)["input_ids"] for text in TEXTS]


def test_a_wrong_number_of_sentinels_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes((model / "spiece.model").read_bytes())
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 3}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert len(tokenizers.load(tmp_path).vocab) == 1403
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "extra_ids": "many"}))
    with pytest.raises(BadInput, match="extra_ids='many'"):
        tokenizers.load(tmp_path)


def test_barts_class_is_robertas_bpe(tmp_path: Path) -> None:
    trained = BPE.train(TEXTS * 20, BPE.Config(vocab_size=400), fewer=True)
    trained.save(tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "tokenizer_class": "BartTokenizer"}))
    ours = tokenizers.load(tmp_path)
    assert isinstance(ours, BPE)
    theirs = BartTokenizer.from_pretrained(tmp_path)
    for text in TEXTS[:6]:
        assert ours.ids_batch([text])[0] == theirs(text, add_special_tokens=False)["input_ids"]


def test_mbart_frames_texts_by_their_language(model: Path, tmp_path: Path) -> None:
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString((model / "spiece.model").read_bytes())
    pieces = [(piece.piece, piece.score) for piece in proto.pieces][3:]
    first = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    theirs = MBartTokenizer(vocab=[*first, *pieces, ("<mask>", 0.0)], src_lang="en_XX", tgt_lang="ro_RO")
    theirs.save_pretrained(tmp_path / "theirs")
    ours = tokenizers.load(tmp_path / "theirs")
    assert ours.vocab.tokens[ours.vocab.frame.closing[1]] == "en_XX"
    (tmp_path / "ours").mkdir()
    ours.save(tmp_path / "ours")
    again = tokenizers.load(tmp_path / "ours")
    assert again.vocab == ours.vocab
    reopened = AutoTokenizer.from_pretrained(tmp_path / "ours")
    for text in ("the cat sat.", "a 使用"):
        wanted = theirs(text)["input_ids"]
        assert ours.vocab.frame.join(ours.encode(text).ids).tolist() == wanted
        assert reopened(text)["input_ids"] == wanted
