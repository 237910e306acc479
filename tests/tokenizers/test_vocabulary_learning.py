"""The learner against the plainest possible one."""

import os
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from firth.errors import BadConfig
from firth.tokenizers.vocab import SPECIALS
from firth.tokenizers.vocabulary_learning import choose_characters, learn_pieces
from firth.tokenizers.wordpiece import WordPiece

Config = WordPiece.Config


def plainest(words: dict[str, int], size: int, min_count: int) -> list[str]:
    alphabet = sorted({character for word in words for character in word})
    pieces = alphabet + ["##" + c for c in alphabet if any(c in word[1:] for word in words)]
    chains = {word: [word[0], *("##" + c for c in word[1:])] for word in words}
    while len(pieces) < size:
        pairs: Counter[tuple[int, int]] = Counter()
        for word, chain in chains.items():
            for left, right in pairwise(chain):
                pairs[pieces.index(left), pieces.index(right)] += words[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair), default=None)
        if best is None or pairs[best] < min_count:
            break
        left, right = (pieces[i] for i in best)
        merged = left + right[2:]
        if merged not in pieces:
            pieces.append(merged)
        for chain in chains.values():
            i = 0
            while i < len(chain) - 1:
                if chain[i : i + 2] == [left, right]:
                    chain[i : i + 2] = [merged]
                i += 1
    return pieces


@pytest.mark.parametrize("seed", range(8))
def test_learns_what_counting_everything_again_at_each_step_learns(seed: int) -> None:
    """Few letters, so that ties, runs of one letter and pieces made in two ways are frequent."""
    random = Random(seed)
    drawn = ("".join(random.choices("abc", [4, 2, 1], k=random.randint(1, 12))) for _ in range(60))
    words = {word: random.randint(1, 5) for word in drawn}
    assert learn_pieces(words, set("abc"), size=120, min_count=3) == plainest(words, 120, 3)


def test_no_words_no_pieces() -> None:
    assert learn_pieces({}, set(), size=10, min_count=1) == []
    assert learn_pieces({"a": 3}, {"a"}, size=10, min_count=1) == ["a"]


def test_pieces_do_not_reach_over_characters_left_out() -> None:
    found = learn_pieces({"ab☃ab": 5}, {"a", "b"}, size=10, min_count=1)
    assert found == ["a", "b", "##a", "##b", "ab", "##ab"]


def test_rare_characters_stay_out_but_ascii_comes_in() -> None:
    words = {"中": 900, "文": 60, "罕": 30, "a": 10, "b": 1}
    assert choose_characters(words, coverage=0.95, min_count=2, room=100) == {"中", "文", "a"}
    assert choose_characters(words, coverage=1.0, min_count=2, room=100) == {"中", "文", "罕", "a"}
    assert choose_characters(words, coverage=1.0, min_count=1, room=2) == {"中", "文"}


def test_ids_are_special_then_by_count_then_by_code_point(lines: list[str], small: WordPiece) -> None:
    assert small.vocab.tokens[:5] == SPECIALS
    counts = Counter(i for row in small.ids_batch(lines) for i in row)
    order = [(-counts[i], token) for i, token in enumerate(small.vocab.tokens)][5:]
    assert order == sorted(order)
    assert len(small.vocab) == 1500


TRAIN_FIVE_TIMES = """
import sys
from firth.tokenizers.wordpiece import WordPiece
lines = open(sys.argv[1], encoding="utf-8").read().split("\\n")
for _ in range(5):
    print(WordPiece.train(iter(lines), WordPiece.Config(vocab_size=1500)).fingerprint)
"""


def test_ten_trainings_give_one_vocabulary(lines: list[str], small: WordPiece, tmp_path: Path) -> None:
    """In two processes whose hash tables are ordered differently."""
    (tmp_path / "text").write_text("\n".join(lines), "utf-8")
    root = Path(__file__).parents[2]
    found = {small.fingerprint}
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": "true", "PYTHONPATH": str(root)}
        command = [sys.executable, "-c", TRAIN_FIVE_TIMES, str(tmp_path / "text")]
        output = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        assert len(output.split()) == 5
        found |= set(output.split())
    assert len(found) == 1


def test_the_order_of_the_texts_does_not_matter(lines: list[str], small: WordPiece) -> None:
    assert WordPiece.train(reversed(lines), Config(vocab_size=1500)).fingerprint == small.fingerprint


def test_more_pieces_than_the_text_supports_is_an_error_that_says_how_many() -> None:
    texts = ["low lower lowest new newer newest"] * 3
    with pytest.raises(BadConfig, match=r"`vocab_size=(\d+)`") as caught:
        WordPiece.train(texts, Config(vocab_size=5000))
    size = int(str(caught.value).split("`vocab_size=")[1].rstrip("`."))
    assert len(WordPiece.train(texts, Config(vocab_size=size)).vocab) == size
    with pytest.raises(BadConfig, match="supports"):
        WordPiece.train(texts, Config(vocab_size=size + 1))


def test_min_count_keeps_rare_pairs_and_characters_out() -> None:
    texts = ["ab"] * 4 + ["ca"] * 3 + ["de"]
    trained = WordPiece.train(texts, Config(vocab_size=10, min_count=4))
    assert set(trained.vocab.tokens[5:]) == {"a", "##a", "b", "##b", "ab"}


def test_a_vocabulary_too_small_for_all_characters_takes_the_most_frequent() -> None:
    texts = ["今天天气真好天天好"] * 3
    trained = WordPiece.train(texts, Config(vocab_size=8))
    assert set(trained.vocab.tokens[5:]) == {"天", "好", "今"}


def test_a_text_that_supports_no_piece_is_not_sent_to_a_size_that_is_refused() -> None:
    with pytest.raises(BadConfig, match=r"only 5 pieces.* lower `min_count=`") as caught:
        WordPiece.train(["春夏秋冬"], Config(vocab_size=100))
    assert "--vocab-size" not in str(caught.value)
    assert len(WordPiece.train(["春夏秋冬"], Config(vocab_size=9, min_count=1)).vocab) == 9


@pytest.mark.parametrize("wrong", [{"vocab_size": 5}, {"min_count": 0}, {"coverage": 0.0}, {"coverage": 1.5}])
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadConfig, match="needs"):
        Config(**wrong)  # type: ignore[arg-type]


def test_cased_text_keeps_case_and_accents() -> None:
    texts = ["Élan été ÉTÉ"] * 3
    cased = WordPiece.train(texts, Config(vocab_size=20, lowercase=False))
    assert {"É", "é"} & set("".join(cased.vocab.tokens)) == {"É", "é"}
    kept = WordPiece.train(texts, Config(vocab_size=16, strip_accents=False))
    assert {"É", "é"} & set("".join(kept.vocab.tokens)) == {"é"}
    stripped = WordPiece.train(texts, Config(vocab_size=16))
    assert "".join(stripped.vocab.tokens[5:]).isascii()
