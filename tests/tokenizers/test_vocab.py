from itertools import pairwise

import pytest

from firth.errors import BadConfig, BadInput
from firth.tokenizers.vocab import SPECIALS, Vocab, windows


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 10, 11, 12, 13, 50])
@pytest.mark.parametrize(("size", "stride"), [(8, 8), (8, 4), (8, 3), (8, 1), (1, 1)])
def test_windows_cover_every_token_and_none_lies_inside_another(length: int, size: int, stride: int) -> None:
    found = windows(length, size, stride)
    assert {i for start, end in found for i in range(start, end)} == set(range(length))
    assert all(end - start <= size for start, end in found)
    assert all(b[0] - a[0] == stride and b[1] > a[1] for a, b in pairwise(found))
    assert found[-1][1] == length


@pytest.mark.parametrize("stride", [0, -1, 9])
def test_windows_refuse_a_stride_that_skips_or_stands_still(stride: int) -> None:
    with pytest.raises(BadConfig, match="stride"):
        windows(50, 8, stride)


def test_roles_ids_and_continuing_pieces() -> None:
    vocab = Vocab(("[UNK]", "[PAD]", "##a", "[SEP]", "[CLS]", "[MASK]", "#", "##", "###"))
    assert (vocab.pad, vocab.unk, vocab.cls, vocab.sep, vocab.mask) == (1, 0, 4, 3, 5)
    assert vocab.specials == {0, 1, 3, 4, 5}
    assert [vocab.tokens[i] for i in vocab.continues.nonzero()[0]] == ["##a", "###"]
    assert (len(vocab), vocab.ids["#"]) == (9, 6)


@pytest.mark.parametrize(("tokens", "what"), [((*SPECIALS, "a", "b", "a"), "'a'"), (SPECIALS[:-1], "MASK")])
def test_a_vocabulary_with_a_token_twice_or_without_a_role_is_refused(tokens: tuple[str, ...], what: str) -> None:
    with pytest.raises(BadInput, match=what):
        Vocab(tokens)
