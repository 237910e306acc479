"""Tokenizer folders of ModernBERT, MPNet and DeBERTa: the same ids and frames as transformers and SentencePiece."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from firth import samples, tokenizers

HARD = (
    "The cat sat on the mat.",
    "  two  spaces\tand a tab \n",
    "Cafe\u0301 na\u00efve \ufb01ne ＡＢＣ",
    "语言模型预测下一个词。",
    "don't e-mail me at a@b.c, 3.14!",
    "",
    "emoji 😀 and [MASK] spelled",
)


@pytest.fixture(scope="module")
def lines() -> list[str]:
    text = samples.prose("en").read_text() + samples.prose("zh").read_text()
    return [line for line in text.splitlines() if line.strip()]


def assert_equal_to(theirs: Any, folder: Path, *, segments: bool) -> None:
    """Single texts, and the frame of a pair with its segments."""
    ours = tokenizers.load(folder)
    for text in HARD:
        wanted = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, specials=True).ids.tolist() == wanted, text
    first, second = (ours.encode(text).ids for text in HARD[:2])
    pair = theirs(HARD[0], HARD[1])
    assert ours.vocab.frame.join(first, second).tolist() == pair["input_ids"]
    if segments:
        assert ours.vocab.frame.segments(first, second).tolist() == pair["token_type_ids"]
    assert ours.vocab.frame.join(first).tolist() == theirs(HARD[0])["input_ids"]


def test_modernbert(lines: list[str], tmp_path: Path) -> None:
    """Byte-level BPE with composed characters and BERT's frame; runs of spaces are tokens of their own."""
    built = Tokenizer(models.BPE())
    built.normalizer = normalizers.NFC()
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    built.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet))
    roles = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    built.add_tokens(["  "])
    built.add_special_tokens(roles)
    ids = {token: built.token_to_id(token) for token in roles}
    built.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    names = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    options = {f"{role}_token": token for role, token in names.items()}
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=built, **options)
    theirs.save_pretrained(tmp_path / "theirs")
    assert_equal_to(theirs, tmp_path / "theirs", segments=False)

    tokenizers.load(tmp_path / "theirs").save(tmp_path / "ours")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert_equal_to(again, tmp_path / "theirs", segments=False)
    assert_equal_to(theirs, tmp_path / "ours", segments=False)
    loaded = tokenizers.load(tmp_path / "ours")
    assert loaded.ids_batch(list(HARD)) == [loaded.encode(text).ids.tolist() for text in HARD]


def test_mpnet(lines: list[str], tmp_path: Path) -> None:
    """WordPiece in RoBERTa's frame."""
    words = sorted({word for line in lines for word in line.lower().split() if word.isalpha()})[:500]
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    pieces = ["<s>", "<pad>", "</s>", "<mask>", "[UNK]", ".", ",", *letters, *(f"##{letter}" for letter in letters)]
    tokens = list(dict.fromkeys([*pieces, *words]))
    theirs = transformers.MPNetTokenizer(vocab={token: i for i, token in enumerate(tokens)})
    theirs.save_pretrained(tmp_path / "theirs")
    assert_equal_to(theirs, tmp_path / "theirs", segments=False)

    ours = tokenizers.load(tmp_path / "theirs")
    ours.save(tmp_path / "ours")
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert type(again).__name__ == "MPNetTokenizer"
    assert_equal_to(again, tmp_path / "theirs", segments=False)
    (tmp_path / "ours" / "tokenizer.json").unlink()
    assert tokenizers.load(tmp_path / "ours").vocab.frame == ours.vocab.frame


def trained_model(lines: list[str], folder: Path) -> Any:
    """A SentencePiece file as DeBERTa's: special tokens in front, the mask left to the tokenizer."""
    (folder / "text").write_text("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"),
        model_prefix=str(folder / "spm"),
        vocab_size=1900,
        minloglevel=2,
        hard_vocab_limit=False,
        pad_id=0,
        pad_piece="[PAD]",
        bos_id=1,
        bos_piece="[CLS]",
        eos_id=2,
        eos_piece="[SEP]",
        unk_id=3,
        unk_piece="[UNK]",
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "spm.model"))


def test_debertas_sentencepiece_file(lines: list[str], tmp_path: Path) -> None:
    theirs = trained_model(lines, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false, "vocab_type": "spm"}')
    ours = tokenizers.load(tmp_path)
    assert ours.vocab.mask == len(ours.vocab) - 1 == theirs.get_piece_size()
    assert ours.vocab.roles == ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    for text in HARD[:-1]:
        assert ours.encode(text).ids.tolist() == theirs.encode(text), text
    first = np.array([5, 6])
    assert ours.vocab.frame.join(first, first).tolist() == [1, 5, 6, 2, 5, 6, 2]
    assert ours.vocab.frame.segments(first, first).tolist() == [0, 0, 0, 0, 1, 1, 1]

    ours.save(tmp_path / "ours")
    again = tokenizers.load(tmp_path / "ours")
    library = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    for text in HARD:
        assert again.encode(text).ids.tolist() == ours.encode(text).ids.tolist()
    assert_equal_to(library, tmp_path / "ours", segments=False)


def test_debertas_tokenizer_json(lines: list[str], tmp_path: Path) -> None:
    model = trained_model(lines, tmp_path)
    pieces = [(model.id_to_piece(i), model.get_score(i)) for i in range(model.get_piece_size())]
    theirs = transformers.DebertaV2Tokenizer(vocab=[*pieces, ("[MASK]", 0.0)], unk_id=3)
    theirs.save_pretrained(tmp_path / "theirs")
    assert_equal_to(theirs, tmp_path / "theirs", segments=True)
