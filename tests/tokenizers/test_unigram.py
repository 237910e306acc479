"""Unigram tokenizers, read from ALBERT's, XLNet's and XLM-R's folders: ids as theirs, and offsets."""

import base64
import inspect
import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
from transformers import AlbertTokenizer, XLMRobertaTokenizer, XLNetTokenizer

from firth import samples, tokenizers
from firth.errors import BadInput, Damaged, FirthError, Unsupported
from firth.tokenizers.unigram import Unigram

TEXTS = [
    "",
    " ",
    "Hello, world! It's the café's 2,000th “résumé”.",
    "使用语言模型来预测下一个词的概率，春眠不觉晓。",
    "mixed 中文 and English\tin  one   line ",
    "``quoted'' ﬁne ½ Ångström Ⅳ e\u0301 \u0301",
    "👩‍🚀 flies \x00 \u200b \ufffd \u2028 한국 𫠠",
    "[CLS] a [SEP] <s> <mask> [MASK] </s>",
    "x" * 300,
    "the number 1,000,000 and 12, 13",
]


XLNET_SPECIALS = ("<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>")
"""The first pieces of XLNet's SentencePiece file."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentencePiece file with ALBERT's special tokens, over English and Chinese."""
    folder = tmp_path_factory.mktemp("spiece")
    lines = [line for name in ("en", "zh") for line in samples.prose(name).read_text().split("\n") if line]
    (folder / "text").write_text("\n".join([*lines, *inspect.getsource(inspect).split("\n")]))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"),
        model_prefix=str(folder / "spiece"),
        vocab_size=1400,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        pad_piece="<pad>",
        unk_piece="<unk>",
        normalization_rule_name="nmt_nfkc",
        minloglevel=2,
    )
    return folder / "spiece.model"


def pieces(model: Path) -> tuple[list[tuple[str, float]], str]:
    """The pieces and the table of characters, as SentencePiece itself tells them."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.read_bytes())
    return [(p.piece, p.score) for p in proto.pieces], base64.b64encode(
        proto.normalizer_spec.precompiled_charsmap
    ).decode()


@pytest.fixture(scope="module", params=["albert", "xlnet", "xlm-roberta"])
def both(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """transformers' tokenizer and the folder it saved, with the table of characters of the public ones."""
    rows, table = pieces(model)
    if request.param == "albert":
        theirs: Any = AlbertTokenizer(vocab=rows)
    elif request.param == "xlnet":
        theirs = XLNetTokenizer(vocab=[*((token, 0.0) for token in XLNET_SPECIALS), *rows[5:]])
    else:
        first = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
        theirs = XLMRobertaTokenizer(vocab=[*first, *rows[5:], ("<mask>", 0.0)])
    folder = tmp_path_factory.mktemp(request.param)
    theirs.save_pretrained(folder)
    values = json.loads((folder / "tokenizer.json").read_text())
    known = values["normalizer"] or {"type": "Sequence", "normalizers": []}
    known["normalizers"] += [
        {"type": "Precompiled", "precompiled_charsmap": table},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    ]
    (folder / "tokenizer.json").write_text(json.dumps({**values, "normalizer": known}))
    return type(theirs).from_pretrained(folder), folder


def test_ids_are_transformers_ids(both: tuple[Any, Path]) -> None:
    theirs, folder = both
    ours = tokenizers.load(folder)
    assert isinstance(ours, Unigram)
    for text in TEXTS:
        wanted = theirs(text)["input_ids"]
        assert ours.vocab.frame.join(ours.encode(text, specials=True).ids).tolist() == wanted, text
        assert ours.ids_batch([text])[0] == ours.encode(text).ids.tolist()
    pair = theirs("the cat", "a 使用")
    parts = [ours.encode(text).ids for text in ("the cat", "a 使用")]
    assert ours.vocab.frame.join(*parts).tolist() == pair["input_ids"]
    if "token_type_ids" in pair:
        assert ours.vocab.frame.segments(*parts).tolist() == pair["token_type_ids"]


def test_saved_and_loaded_is_the_same_for_both(both: tuple[Any, Path], tmp_path: Path) -> None:
    theirs, folder = both
    ours = tokenizers.load(folder)
    ours.save(tmp_path, max_length=64)
    again = tokenizers.load(tmp_path)
    assert (again.fingerprint, again.vocab) == (ours.fingerprint, ours.vocab)
    assert again.ids_batch(TEXTS) == ours.ids_batch(TEXTS)
    reopened = type(theirs).from_pretrained(tmp_path)
    assert [reopened(text)["input_ids"] for text in TEXTS] == [theirs(text)["input_ids"] for text in TEXTS]


def essence(text: str) -> str:
    """What is left when case, accents, invisible characters and kinds of quotation marks are gone."""
    text = text.replace("`", '"').replace("'", '"')
    kept = (c for c in unicodedata.normalize("NFKD", text.lower()) if unicodedata.category(c)[0] not in "CMZ")
    return "".join(kept)


def test_offsets_slice_back_and_words_begin_where_they_do(both: tuple[Any, Path]) -> None:
    ours = tokenizers.load(both[1])
    checked = 0
    for how in ({}, {"specials": True}, {"masks": True}):
        for text, encoding in zip(TEXTS, ours.encode_batch(TEXTS, **how), strict=True):
            starts, ends = encoding.offsets.T
            assert ((starts >= 0) & (starts < ends) & (ends <= len(text))).all()
            assert (np.diff(starts) >= 0).all()
            assert encoding.word_starts[:1].all()
            for i, token, start, end in zip(encoding.ids, encoding.tokens, starts, ends, strict=True):
                if i not in ours.vocab.specials:
                    assert essence(token.replace("\u2581", "")) in essence(text[start:end]), token
                    checked += 1
    assert checked > 500
    text = "the 语言模型 works, mostly"
    encoding = ours.encode(text)
    first = encoding.offsets[encoding.word_starts, 0].tolist()
    assert first[0] == 0
    assert {4, 6, 9, 14, 16} <= set(first)  # 语言 and 模型 are words, and so are the comma and what follows it
    assert not {5, 7} & set(first)


def test_plain_text_holds_no_special_ids_but_the_unknown(both: tuple[Any, Path]) -> None:
    ours = tokenizers.load(both[1])
    spelled = " ".join(ours.vocab.tokens[i] for i in ours.vocab.specials)
    for row in ours.ids_batch([spelled, *TEXTS]):
        assert not (ours.vocab.specials - {ours.vocab.unk}) & set(row)
    mask = ours.vocab.tokens[ours.vocab.mask]
    assert ours.encode(f"a {mask} b", masks=True).ids.tolist().count(ours.vocab.mask) == 1


def test_decoding_keeps_the_words(both: tuple[Any, Path]) -> None:
    ours, text = tokenizers.load(both[1]), "return the source code of a module or class, 使用语言。"
    assert ours.decode(ours.ids_batch([text])[0]) == text


def test_a_sentencepiece_file_alone_says_the_same(model: Path, tmp_path: Path) -> None:
    (tmp_path / "spiece.model").write_bytes(model.read_bytes())
    ours = tokenizers.load(tmp_path)
    assert ours.vocab.roles == ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for text in ["return the source code of a module", "使用语言模型来预测", "a  b   c"]:
        assert ours.ids_batch([text])[0] == theirs.encode(text)
    cased = tmp_path / "cased"
    cased.mkdir()
    (cased / "spiece.model").write_bytes(model.read_bytes())
    settings = {"tokenizer_class": "AlbertTokenizer", "do_lower_case": False, "keep_accents": True}
    (cased / "tokenizer_config.json").write_text(json.dumps(settings))
    assert tokenizers.load(cased).ids_batch(["Return The"])[0] == theirs.encode("Return The")
    assert ours.ids_batch(["Return The"])[0] == theirs.encode("return the")


def test_the_ids_of_xlm_rs_file_are_shifted_by_one(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(samples.prose("en").read_text())
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"), model_prefix=str(tmp_path / "m"), vocab_size=400, minloglevel=2
    )
    (tmp_path / "sentencepiece.bpe.model").write_bytes((tmp_path / "m.model").read_bytes())
    ours = tokenizers.load(tmp_path)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "m.model"))
    assert ours.ids_batch(["return the source"])[0] == [i + 1 for i in theirs.encode("return the source")]
    assert ours.vocab.tokens[:4] == ("<s>", "<pad>", "</s>", "<unk>")
    assert ours.vocab.mask == len(ours.vocab) - 1


def test_xlnets_frame_ends_with_its_cls(model: Path, tmp_path: Path) -> None:
    """Of a SentencePiece file alone, too, which has XLNet's special tokens and keeps upper case."""
    lines = (model.parent / "text").read_text()
    (tmp_path / "text").write_text(lines)
    sentencepiece.SentencePieceTrainer.train(
        input=str(tmp_path / "text"),
        model_prefix=str(tmp_path / "spiece"),
        vocab_size=1400,
        control_symbols=list(XLNET_SPECIALS[3:]),
        minloglevel=2,
    )
    (tmp_path / "text").unlink()
    ours = tokenizers.load(tmp_path)
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "spiece.model"))
    assert ours.vocab.roles == ("<pad>", "<unk>", "<cls>", "<sep>", "<mask>")
    assert ours.ids_batch(["Return The source"])[0] == theirs.encode("Return The source")
    first, second = np.array([20, 21]), np.array([22])
    sep, cls = ours.vocab.sep, ours.vocab.cls
    assert ours.vocab.frame.join(first, second).tolist() == [20, 21, sep, 22, sep, cls]
    assert ours.vocab.frame.segments(first, second).tolist() == [0, 0, 0, 1, 1, 2]
    assert ours.vocab.frame.segments(first).tolist() == [0, 0, 0, 2]
    ours.save(tmp_path / "saved")
    assert tokenizers.load(tmp_path / "saved").vocab == ours.vocab


def change(folder: Path, **parts: Any) -> None:
    values = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**values, **parts}))


@pytest.mark.parametrize(
    "parts",
    [
        {"model": {"type": "BPE"}},
        {"model": {"type": "Unigram", "unk_id": 1, "vocab": [["a", float("inf")]]}},
        {"model": {"type": "Unigram", "unk_id": 99999, "vocab": [["<pad>", 0.0], ["<unk>", 0.0]]}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "!!"}},
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}},
        {"normalizer": {"type": "ByteLevel"}},
        {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}}},
        {"post_processor": {"type": "TemplateProcessing", "pair": [{"SpecialToken": {"id": "[NO]"}}]}},
    ],
)
def test_what_is_not_known_is_refused(both: tuple[Any, Path], tmp_path: Path, parts: dict[str, Any]) -> None:
    tokenizers.load(both[1]).save(tmp_path)
    change(tmp_path, **parts)
    with pytest.raises(FirthError, match="tokenizer"):
        tokenizers.load(tmp_path)


def test_a_damaged_sentencepiece_file_is_named(model: Path, tmp_path: Path) -> None:
    path, data = tmp_path / "spiece.model", model.read_bytes()
    for broken in (data[: len(data) // 2], b"\xff" * 50, b""):
        path.write_bytes(broken)
        with pytest.raises((Damaged, BadInput), match=r"spiece\.model"):
            tokenizers.load(tmp_path)


def test_unigram_vocabularies_are_not_learned_here() -> None:
    with pytest.raises(Unsupported, match="learns none"):
        Unigram.train([], None)
