"""Units of masking, counted in English and in Chinese: runs of whole words, n-grams, names of a list."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firth import rng
from firth.checkpoint import make_objective
from firth.data.packing import Pack, lay_out
from firth.data.shards import Shards, write_shards
from firth.data.stream import CorpusView
from firth.encoders.bert import Bert
from firth.nn.likelihood import IGNORE
from firth.objectives.entities import Names
from firth.objectives.mask_units import NGRAM, SPAN, join_names, unit_starts
from firth.objectives.masked_lm import MaskedLM
from firth.tokenizers.wordpiece import WordPiece

LENGTH = 256
SENTENCES = {
    "en": "probability of the next sentence number, and probability of the source code of a module comes first",
    "zh": "使用语言模型来预测下一个词的概率，语言模型也在这里，使用大语言模型",
}


@pytest.fixture(scope="module", params=["en", "zh"])
def long_text(request: pytest.FixtureRequest, tokenizer: WordPiece, tmp_path_factory: pytest.TempPathFactory) -> Shards:
    """Documents of 1,000 tokens of one language, for statistics over 100,000 of them."""
    [(ids, starts)] = tokenizer.word_starts_batch([" ".join([SENTENCES[request.param]] * 50)])
    folder = tmp_path_factory.mktemp("units") / request.param
    with write_shards(folder, tokenizer) as writer:
        for shift in range(120):
            rows = (np.arange(1000) + 7 * shift) % len(ids)
            first = starts[rows]
            first[0] = True
            writer.append(ids[rows], first, lengths=np.array([1000]), ends=np.array([1]))
        writer.info = {"health": {"entropy_nats": 7.0}}
    return Shards.open(folder)


@pytest.fixture
def goal(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> Callable[..., MaskedLM]:
    def make(**changes: Any) -> MaskedLM:
        config = MaskedLM.Config(**changes)
        made = make_objective("masked_lm", config, small_bert(), tokenizer, max_length=LENGTH, seed=2)
        assert isinstance(made, MaskedLM)
        made.set_tokenizer(tokenizer)
        return made

    return make


def packs(goal: MaskedLM, shards: Shards) -> Iterator[Pack]:
    plan = goal.sequences(CorpusView(shards, np.arange(shards.num_documents)), 0)
    for rows in np.array_split(np.arange(len(plan)), max(1, len(plan) // 40)):
        sizes = {"num_tokens": int(plan.lengths_S[rows].sum()), "max_length": LENGTH}
        yield lay_out(shards, plan, rows, specials=goal.vocab, **sizes)


def units(unit: Any, pack: Pack, entities: Names | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of the text, and for each whether a unit begins there."""
    tokens = np.flatnonzero(pack.ordinary_N)
    key = rng.key("units", unit)
    return tokens, unit_starts(unit, pack, tokens, key=key, entities=entities or Names())


@pytest.mark.parametrize(("unit", "weights"), [("span", SPAN), ("ngram", NGRAM)])
def test_lengths_in_words_are_drawn_as_the_papers_say(
    goal: Callable[..., MaskedLM], long_text: Shards, unit: str, weights: np.ndarray
) -> None:
    counts = np.zeros(len(weights) + 1)
    for pack in packs(goal(unit=unit), long_text):
        tokens, starts = units(unit, pack)
        words = pack.word_starts_N[tokens] | (np.diff(tokens, prepend=-2) > 1)
        assert not (starts & ~words).any()  # a unit begins where a word does
        in_words = np.bincount(np.cumsum(starts) - 1, weights=words).astype(int)
        sequence = pack.sequence_N[tokens[starts]]
        cut = np.append(sequence[1:] != sequence[:-1], True)  # the last of a sequence may have been cut short
        counts += np.bincount(in_words[~cut], minlength=len(counts))
    assert counts.sum() > 10_000
    shares = counts[1:] / counts.sum()
    assert counts[0] == 0
    assert np.abs(shares - weights / weights.sum()).max() < 0.012
    wanted = (np.arange(1, len(weights) + 1) * weights).sum() / weights.sum()
    assert abs((np.arange(len(counts)) * counts).sum() / counts.sum() - wanted) < 0.08 * wanted


def test_units_do_not_depend_on_the_pack(goal: Callable[..., MaskedLM], long_text: Shards) -> None:
    made = goal(unit="span")
    plan = made.sequences(CorpusView(long_text, np.arange(long_text.num_documents)), 0)
    found = []
    for rows in ([5, 9, 40], [77, 9, 3]):
        size = int(plan.lengths_S[rows].sum())
        pack = lay_out(long_text, plan, np.array(rows), specials=made.vocab, num_tokens=size, max_length=LENGTH)
        made.corrupt(pack, 4)
        found.append(pack.ids_N[pack.sequence_N == 1].tolist())
    assert found[0] == found[1]


def test_a_chosen_span_shares_one_fate(goal: Callable[..., MaskedLM], long_text: Shards) -> None:
    made = goal(unit="span")
    fates = {"mask": 0, "other": 0, "same": 0}
    for before, pack in zip(packs(made, long_text), packs(made, long_text), strict=True):
        made.corrupt(pack, 0)
        labels = pack.targets["masked_lm_labels"]
        chosen = pack.targets["masked_lm_positions"][labels != IGNORE]
        tokens = np.flatnonzero(before.ordinary_N)
        key = rng.key(2, "mask", 0)
        unit = np.cumsum(unit_starts("span", before, tokens, key=key, entities=Names()))
        masked = pack.ids_N[chosen] == made.vocab.mask
        same = pack.ids_N[chosen] == before.ids_N[chosen]
        for one in np.unique(of := unit[np.searchsorted(tokens, chosen)]):
            within = of == one
            assert masked[within].all() or not masked[within].any()
            assert same[within].all() or not same[within].all()
            fates["mask" if masked[within].any() else "same" if same[within].all() else "other"] += 1
    total = sum(fates.values())
    assert total > 2000
    assert abs(fates["mask"] / total - 0.8) < 0.03


@pytest.mark.parametrize("form", ["list", "predictions"])
def test_names_of_a_list_are_masked_as_a_whole(
    goal: Callable[..., MaskedLM], long_text: Shards, tokenizer: WordPiece, tmp_path: Path, form: str
) -> None:
    names = ["next sentence number", "source code of", "语言模型", "下一个词"]
    if form == "list":
        (tmp_path / "names").write_text("\n".join(names) + "\n")
    else:
        rows = ('{"label": [], "spans": [{"label": "X", "text": "' + name + '"}]}' for name in names)
        (tmp_path / "names").write_text("\n".join(rows) + "\n")
    made = goal(unit="entity", entities=str(tmp_path / "names"), rate=0.3)
    wanted = {tuple(tokenizer.ids_batch([name])[0]) for name in names}
    seen = set()
    for pack in packs(made, long_text):
        tokens, starts = units("entity", pack, made._entities)
        rows = [pack.ids_N[tokens[part]].tolist() for part in np.split(np.arange(len(tokens)), np.flatnonzero(starts))]
        seen |= {tuple(row) for row in rows} & wanted
        before = pack.ids_N.copy()
        made.corrupt(pack, 0)
        chosen = np.zeros(len(before), bool)
        chosen[pack.targets["masked_lm_positions"][pack.targets["masked_lm_labels"] != IGNORE]] = True
        unit = np.cumsum(starts) - 1
        taken = np.bincount(unit, weights=chosen[tokens])
        assert set((taken / np.bincount(unit)).tolist()) <= {0.0, 1.0}
    texts = {tokenizer.decode(row) for row in seen}
    english = "source code of" in texts
    assert texts == ({"next sentence number", "source code of"} if english else {"语言模型", "下一个词"})


def test_an_entity_is_whole_words_in_one_text_and_the_longer_one_wins() -> None:
    found = Names([("", (1, 2)), ("", (1, 2, 3)), ("", (5, 6)), ("", (7,))])
    ids = np.array([1, 2, 3, 1, 2, 9, 5, 6, 5, 6, 7])
    words = np.array([1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1], bool)
    after_special = np.zeros(len(ids), bool)
    starts = join_names(found, ids, words, after_special)
    #       1 2 3 is one, 1 2 is one; 5 6 ends in mid-word and then begins in one
    assert starts.tolist() == [True, False, False, True, False, True, True, True, False, True, True]
    after_special[1] = True
    assert join_names(found, ids, words, after_special)[:3].tolist() == [True, True, True]
    assert join_names(Names(), ids, words, after_special).tolist() == words.tolist()


def test_a_shorter_rate_of_words_is_the_same_in_every_unit(goal: Callable[..., MaskedLM], long_text: Shards) -> None:
    """The share of tokens is the rate whatever is chosen together."""
    for unit in ("word", "span", "ngram"):
        tokens = chosen = 0
        made = goal(unit=unit)
        for pack in packs(made, long_text):
            made.corrupt(pack, 0)
            tokens += int(pack.ordinary_N.sum())
            chosen += int((pack.targets["masked_lm_labels"] != IGNORE).sum())
        assert tokens > 100_000
        assert abs(chosen / tokens - 0.15) < 0.003
