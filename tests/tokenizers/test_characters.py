"""Words read letter by letter: known or not, each keeps its characters."""

import numpy as np

from firth.data.items import cut_window, window
from firth.tokenizers.characters import MAX_CHARACTERS, Characters, spell

WORDS = Characters.of(("the", "银行"), Characters.Config())
BEGIN, END = 259, 260


def test_bytes_begin_at_one_between_the_marks_of_a_word() -> None:
    assert spell("ab") == [BEGIN, ord("a") + 1, ord("b") + 1, END]
    assert spell("银") == [BEGIN, *(byte + 1 for byte in "银".encode()), END]
    assert spell("\ud800x") == [BEGIN, ord("x") + 1, END]
    assert len(spell("y" * 99)) == MAX_CHARACTERS
    assert spell("y" * 99)[-1] == END


def test_an_unknown_word_keeps_its_characters() -> None:
    read = WORDS.encode("the zebra 银行")
    assert read.tokens == ("the", "[UNK]", "银行")
    parts, sizes = read.parts_between(1, 2)
    assert parts.tolist() == spell("zebra")
    assert sizes.tolist() == [7]


def test_sentences_have_marks_and_pairs_have_two_between() -> None:
    first, second = WORDS.encode("the zebra"), WORDS.encode("银行")
    made = cut_window(WORDS.vocab, (first, 0, 2), (second, 0, 1))
    opens, closes = [BEGIN, 257, END], [BEGIN, 258, END]
    expected = [opens, spell("the"), spell("zebra"), closes, opens, spell("银行"), closes]
    assert made.parts is not None
    assert made.parts.tolist() == [part for row in expected for part in row]
    assert made.part_sizes is not None
    assert made.part_sizes.tolist() == [len(row) for row in expected]
    assert made.segments.tolist() == [0, 0, 0, 0, 0, 1, 1]
    by_id = window(WORDS.vocab, first.ids)
    assert by_id.parts is not None
    assert by_id.parts.tolist() == [p for row in (opens, spell("the"), spell("[UNK]"), closes) for p in row]


def test_chosen_tokens_keep_their_characters() -> None:
    read = WORDS.encode("a zebra the")
    taken = read.take(np.array([2, -1, 1]), unknown=WORDS.vocab.unk)
    assert taken.ids.tolist() == [WORDS.vocab.ids["the"], WORDS.vocab.unk, WORDS.vocab.unk]
    assert taken.parts is not None
    assert taken.parts.tolist() == spell("the") + spell("zebra")
    assert taken.part_sizes is not None
    assert taken.part_sizes.tolist() == [5, 0, 7]
    nothing = WORDS.encode("").take(np.array([-1]), unknown=WORDS.vocab.unk)
    assert nothing.ids.tolist() == [WORDS.vocab.unk]
