"""Masks as the paper draws them, counted over more than 100,000 tokens."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from firth.checkpoint import make_objective
from firth.data.loader import BatchAddress, Packs
from firth.data.packing import Pack, lay_out
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.encoders.bert import Bert
from firth.nn.likelihood import IGNORE
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.next_sentence import NextSentence
from firth.objectives.replaced_token import ReplacedToken
from firth.objectives.token_choice import drop_surplus
from firth.tokenizers.wordpiece import WordPiece

LENGTH = 64


class Masked:
    """A pack before and after, and which of its tokens were chosen."""

    def __init__(self, before: Pack, after: Pack) -> None:
        self.before, self.after = before, after
        self.labels = after.targets["masked_lm_labels"]
        self.chosen = np.zeros(len(before.ids_N), bool)
        self.chosen[after.targets["masked_lm_positions"][self.labels != IGNORE]] = True


@pytest.fixture
def goal(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> Callable[..., MaskedLM]:
    def make(**changes: Any) -> MaskedLM:
        config = MaskedLM.Config(**changes)
        made = make_objective("masked_lm", config, small_bert(), tokenizer, max_length=LENGTH, seed=2)
        assert isinstance(made, MaskedLM)
        return made

    return make


def masked(goal: MaskedLM, shards: Shards, epoch: int) -> Iterator[Masked]:
    stream = CorpusView(shards, np.arange(shards.num_documents))
    goal.set_text(stream)
    plan = goal.sequences(stream, epoch)
    for rows in np.array_split(np.arange(len(plan)), max(1, len(plan) // 60)):
        sizes = {"num_tokens": int(plan.lengths_S[rows].sum()), "max_length": LENGTH}
        before, after = (lay_out(shards, plan, rows, specials=goal.vocab, **sizes) for _ in range(2))
        goal.corrupt(after, epoch)
        yield Masked(before, after)


def test_cut_covers_every_token_once(goal: Callable[..., MaskedLM], shards: Shards) -> None:
    plan = goal().sequences(CorpusView(shards, np.arange(shards.num_documents)), 0)
    pieces = plan.pieces_SP2[:, 0]
    assert np.concatenate([np.arange(a, b) for a, b in pieces]).tolist() == list(range(shards.num_tokens))
    assert plan.lengths_S.max() == LENGTH
    borders = set(shards.sentences[shards.documents].tolist())
    assert borders <= {0, *pieces[:, 1].tolist()}  # no sequence goes over the end of a document


@pytest.mark.parametrize("unit", ["token", "word", "span", "ngram", "entity"])
def test_shares_over_100_000_tokens(
    goal: Callable[..., MaskedLM], shards: Shards, tokenizer: WordPiece, unit: str
) -> None:
    specials = sorted(tokenizer.vocab.specials - {tokenizer.vocab.mask, tokenizer.vocab.unk})
    tokens = chosen = to_mask = same = other = 0
    for epoch in range(6):
        for one in masked(goal(unit=unit), shards, epoch):
            before, after = one.before, one.after
            assert not one.chosen[~before.ordinary_N].any()
            assert np.array_equal(before.ids_N[~one.chosen], after.ids_N[~one.chosen])
            assert np.array_equal(before.ids_N[one.chosen], one.labels[one.labels != IGNORE])
            drawn = after.ids_N[one.chosen]
            assert not np.isin(drawn, specials).any()
            tokens += int(before.ordinary_N.sum())
            chosen += len(drawn)
            to_mask += int((drawn == tokenizer.vocab.mask).sum())
            same += int((drawn == before.ids_N[one.chosen]).sum())
            replaced = (drawn != tokenizer.vocab.mask) & (drawn != before.ids_N[one.chosen])
            assert not np.isin(drawn[replaced], sorted(tokenizer.vocab.specials)).any()
            other += int(replaced.sum())
    assert tokens > 100_000
    # A span of up to ten words is one draw, so there are fewer draws and the shares vary more.
    slack = 2 if unit == "span" else 1
    assert abs(chosen / tokens - 0.15) < 0.003 * slack
    assert abs(to_mask / chosen - 0.8) < 0.01 * slack
    assert abs(other / chosen - 0.1) < 0.01 * slack
    assert abs(same / chosen - 0.1) < 0.01 * slack


def test_every_sequence_has_its_share(goal: Callable[..., MaskedLM], shards: Shards) -> None:
    for one in masked(goal(), shards, 0):
        sizes = np.bincount(one.before.sequence_N[one.before.ordinary_N])
        chosen = np.bincount(one.before.sequence_N[one.chosen], minlength=len(sizes))
        assert (np.abs(chosen - 0.15 * sizes) < 1).all()


def test_whole_words_are_never_split(goal: Callable[..., MaskedLM], shards: Shards, tokenizer: WordPiece) -> None:
    pieces = characters = 0
    for one in masked(goal(unit="word"), shards, 0):
        inside = one.before.ordinary_N & np.roll(one.before.ordinary_N, 1) & ~one.before.word_starts_N
        assert np.array_equal(one.chosen[inside], np.roll(one.chosen, 1)[inside])
        continued = one.before.ids_N[inside & one.chosen]
        pieces += int(tokenizer.continues[continued].sum())
        characters += int((~tokenizer.continues[continued]).sum())
    assert pieces > 50  # English words of several pieces
    assert characters > 50  # Chinese words of several characters


def test_a_mixed_sentence_is_masked_by_its_words(
    goal: Callable[..., MaskedLM], shards: Shards, tokenizer: WordPiece
) -> None:
    """使用语言模型来预测下一个词的probability: each word goes as a whole, in one epoch or another."""
    words = [["使", "用"], ["语", "言"], ["模", "型"], ["预", "测"]]
    probability = list(tokenizer.encode("probability").tokens)
    assert len(probability) > 1
    seen = set()
    text = tokenizer.vocab.tokens
    for epoch in range(12):
        for one in masked(goal(unit="word", rate=0.3), shards, epoch):
            tokens = [text[i] for i in one.before.ids_N]
            for word in [*words, probability]:
                for place in range(len(tokens) - len(word)):
                    within = slice(place, place + len(word))
                    if tokens[within] == word:
                        assert one.before.word_starts_N[within].tolist() == [True] + [False] * (len(word) - 1)
                        assert len(set(one.chosen[within].tolist())) == 1
                        seen.add((word[0], bool(one.chosen[place])))
    assert seen == {(word[0], chosen) for word in [*words, probability] for chosen in (True, False)}


def test_pieces_are_split_without_whole_words(goal: Callable[..., MaskedLM], shards: Shards) -> None:
    split = 0
    for one in masked(goal(), shards, 0):
        inside = one.before.ordinary_N & np.roll(one.before.ordinary_N, 1) & ~one.before.word_starts_N
        split += int((one.chosen[inside] != np.roll(one.chosen, 1)[inside]).sum())
    assert split > 100


@pytest.mark.parametrize("fresh", [True, False])
def test_static_masks_repeat_and_fresh_ones_do_not(goal: Callable[..., MaskedLM], shards: Shards, fresh: bool) -> None:
    epochs = [np.concatenate([one.after.ids_N for one in masked(goal(fresh=fresh), shards, epoch)]) for epoch in (0, 1)]
    assert np.array_equal(*epochs) != fresh


def test_no_answer_can_be_copied_where_repeats_are_hidden(
    goal: Callable[..., MaskedLM], shards: Shards, tokenizer: WordPiece
) -> None:
    """Other occurrences of a chosen token are masks, but not those of frequent tokens; the labels stay the same."""
    is_frequent_V = shards.counts > shards.num_tokens / 1000
    num_hidden = num_readable = 0
    pairs = zip(masked(goal(hide_repeats=1.0), shards, 0), masked(goal(), shards, 0), strict=True)
    for hiding, plain in pairs:
        assert np.array_equal(hiding.labels, plain.labels)
        changed = np.flatnonzero(hiding.after.ids_N != plain.after.ids_N)
        assert (hiding.after.ids_N[changed] == tokenizer.vocab.mask).all()
        ids, sequences = hiding.before.ids_N, hiding.before.sequence_N
        answers = set(zip(sequences[hiding.chosen].tolist(), ids[hiding.chosen].tolist(), strict=True))
        others = np.flatnonzero(hiding.before.ordinary_N & ~hiding.chosen)
        for place in others.tolist():
            is_answer = (int(sequences[place]), int(ids[place])) in answers
            is_hidden = hiding.after.ids_N[place] == tokenizer.vocab.mask
            assert is_hidden == (is_answer and not is_frequent_V[ids[place]])
            num_hidden += is_hidden
            num_readable += is_answer and not is_hidden
    assert num_hidden > 100
    assert num_readable > 100


def test_a_share_of_the_sequences_hides_repeats(
    goal: Callable[..., MaskedLM], shards: Shards, tokenizer: WordPiece
) -> None:
    with_hidden = []
    for rate in (1.0, 0.3):
        count = 0
        for epoch in range(10):
            for one in masked(goal(hide_repeats=rate), shards, epoch):
                is_hidden = ~one.chosen & (one.after.ids_N == tokenizer.vocab.mask)
                count += len(np.unique(one.before.sequence_N[is_hidden]))
        with_hidden.append(count)
    assert with_hidden[0] > 500
    assert abs(with_hidden[1] / with_hidden[0] - 0.3) < 0.06


def test_masks_that_are_not_predicted_stay_and_are_not_judged(
    small_bert: Callable[..., Bert], shards: Shards, tokenizer: WordPiece
) -> None:
    """In replaced token detection the generator does not fill hidden repeats, so the encoder reads them as masks."""
    masking = MaskedLM.Config(mask_share=1.0, random_share=0.0, hide_repeats=1.0)
    config = ReplacedToken.Config(masking=masking)
    made = make_objective("replaced_token", config, small_bert(), tokenizer, max_length=LENGTH, seed=2)
    stream = CorpusView(shards, np.arange(shards.num_documents))
    made.set_text(stream)
    plan = made.sequences(stream, 0)
    rows = np.arange(40)
    sizes = {"num_tokens": int(plan.lengths_S[rows].sum()), "max_length": LENGTH}
    pack = lay_out(shards, plan, rows, specials=tokenizer.vocab, **sizes)
    made.corrupt(pack, 0)
    is_hidden_N = pack.ids_N == tokenizer.vocab.mask
    is_hidden_N[pack.targets["masked_lm_positions"]] = False
    assert is_hidden_N.sum() >= 10
    is_frequent_V = shards.counts > shards.num_tokens / 1000
    before = lay_out(shards, plan, rows, specials=tokenizer.vocab, **sizes)
    assert not is_frequent_V[before.ids_N[is_hidden_N]].any()
    assert not pack.targets["replaced_token_real"][is_hidden_N].any()


@pytest.mark.parametrize("hide_repeats", [0.0, 1.0])
def test_masks_do_not_depend_on_the_pack(goal: Callable[..., MaskedLM], shards: Shards, hide_repeats: float) -> None:
    """A sequence's masks are its own: other neighbours in the pack change nothing."""
    made = goal(hide_repeats=hide_repeats)
    stream = CorpusView(shards, np.arange(shards.num_documents))
    made.set_text(stream)
    plan = made.sequences(stream, 0)
    found = []
    for rows in ([5, 9, 40], [77, 9, 3, 6]):
        size = int(plan.lengths_S[rows].sum())
        pack = lay_out(shards, plan, np.array(rows), specials=made.vocab, num_tokens=size, max_length=LENGTH)
        made.corrupt(pack, 4)
        found.append(pack.ids_N[pack.sequence_N == rows.index(9)].tolist())
    assert found[0] == found[1]


def test_more_masks_than_fit_are_left_out_by_whole_words(goal: Callable[..., MaskedLM], tokenizer: WordPiece) -> None:
    taken, unit = np.array([True, True, False, True]), np.array([0, 0, 1, 1, 2, 3])
    assert drop_surplus(taken, unit, 4).tolist() == [True, True, True, True, False, False]


def test_frequent_tokens_stay_readable_where_another_objective_cuts_the_text(
    goal: Callable[..., MaskedLM], small_bert: Callable[..., Bert], shards: Shards, tokenizer: WordPiece
) -> None:
    made = goal(hide_repeats=1.0)
    pairs = make_objective("next_sentence", NextSentence.Config(), small_bert(), tokenizer, max_length=LENGTH, seed=2)
    stream = CorpusView(shards, np.arange(shards.num_documents))
    config = BatchConfig(max_length=LENGTH, tokens=1024)
    most_frequent = int(shards.counts.argmax())
    num_readable = 0
    packs = Packs(stream, [pairs, made], config, specials=tokenizer.vocab, seed=2)
    for index in range(3):
        ids_N = packs[BatchAddress(index=index)].ids_N
        num_readable += int((ids_N == most_frequent).sum())
    num_tokens = 3 * config.tokens
    share = shards.counts[most_frequent] / shards.num_tokens
    assert num_readable > 0.5 * share * num_tokens


def test_batches_hold_the_same_as_packs(goal: Callable[..., MaskedLM], shards: Shards, tokenizer: WordPiece) -> None:
    made = goal()
    stream = CorpusView(shards, np.arange(shards.num_documents))
    config = BatchConfig(max_length=LENGTH, tokens=1024)
    batch = Packs(stream, [made], config, specials=tokenizer.vocab, seed=2)[BatchAddress()]
    labels = batch.targets["masked_lm_labels"]
    assert labels.shape == batch.targets["masked_lm_positions"].shape == (256,)
    assert made.counts(batch) == {"masked_lm": int((labels >= 0).sum())}
    assert 100 < made.counts(batch)["masked_lm"] < 170
