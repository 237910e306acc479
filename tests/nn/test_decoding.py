"""Beam search: the best of all texts where it may keep them all, no better than those otherwise, text by text."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from firth.errors import BadConfig
from firth.nn.decoding import Choice, WritingRules, Written, repeats, write

END = 0
VOCAB = 4


class TableModel:
    """Next scores by text and by the last two tokens, from a table: a model whose every text can be written down."""

    def __init__(self, seed: int, texts: list[int]) -> None:
        self.table = torch.from_numpy(np.random.default_rng(seed).normal(0, 2, (9, VOCAB + 1, VOCAB + 1, VOCAB)))
        self.sequences = [(text, [VOCAB, VOCAB]) for text in texts]
        self.rows_read = 0

    def first(self) -> Tensor:
        return self._scores()

    def next(self, parents: list[int], tokens: list[int]) -> Tensor:
        old = self.sequences
        self.sequences = [
            (old[parent][0], [*old[parent][1], token]) for parent, token in zip(parents, tokens, strict=True)
        ]
        return self._scores()

    def _scores(self) -> Tensor:
        self.rows_read += len(self.sequences)
        texts = [text for text, _ in self.sequences]
        assert texts == sorted(texts)  # the children of a text lie together
        return torch.stack([self.table[text, tokens[-2], tokens[-1]] for text, tokens in self.sequences]).float()

    def log_probability(self, text: int, tokens: list[int]) -> float:
        total = 0.0
        context = [VOCAB, VOCAB]
        for token in tokens:
            total += float(self.table[text, context[-2], context[-1]].log_softmax(0)[token])
            context.append(token)
        return total


def written(
    seed: int, texts: list[int], choice: Choice, limits: list[int], *, context: int = 9, **rules: object
) -> list[Written]:
    return write(
        TableModel(seed, texts),
        choice,
        WritingRules(VOCAB, END, **rules),  # type: ignore[arg-type]
        contexts=[[context] for _ in texts],
        limits=limits,
        draw=lambda rows, step: torch.tensor([(row * 0.37 + step * 0.11) % 1 for row in rows]),
    )


def all_texts(limit: int, *, banned: tuple[int, ...] = (), first: int | None = None) -> list[list[int]]:
    """Every text of at most `limit` tokens: it ends with END, or has full length."""
    found = []
    for length in range(1, limit + 1):
        for tokens in itertools.product(range(VOCAB), repeat=length):
            ends = END in tokens
            is_whole = tokens.index(END) == length - 1 if ends else length == limit
            is_legal = not set(tokens) & set(banned) and (first is None or tokens[0] == first)
            if is_whole and is_legal:
                found.append(list(tokens))
    return found


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0, -0.5])
@pytest.mark.parametrize("seed", range(6))
def test_with_enough_beams_it_is_an_exhaustive_search(seed: int, penalty: float) -> None:
    limit = 4
    choice = Choice(temperature=0, beams=VOCAB**limit, length_penalty=penalty, full_search=True)
    model = TableModel(seed, [])
    for rules in ({}, {"banned": (2,)}, {"first": 3}):
        found = written(seed, [0, 1, 2], choice, [limit] * 3, **rules)
        for text, result in enumerate(found):
            scores = {}
            for tokens in all_texts(limit, **rules):  # type: ignore[arg-type]
                given = 1 if "first" in rules else 0  # a token that is no choice has no probability
                total = model.log_probability(text, tokens)
                total -= model.log_probability(text, tokens[:given])
                scores[tuple(tokens)] = total / len(tokens) ** penalty
            best = max(scores, key=scores.__getitem__)
            assert tuple(result.tokens) == best
            assert result.log_probability / len(best) ** penalty == pytest.approx(scores[best], abs=1e-5)
            assert result.ended == (best[-1] == END)


def test_runs_of_tokens_do_not_repeat() -> None:
    choice = Choice(temperature=0, beams=3, no_repeat_ngram=2)
    for seed in range(10):
        for text in written(seed, [0, 1], choice, [12, 12]):
            pairs = list(itertools.pairwise([9, *text.tokens]))
            assert len(pairs) == len(set(pairs))
    assert repeats([1, 2, 3, 1, 2], 3) == [3]


@pytest.mark.parametrize(
    "choice",
    [Choice(temperature=0), Choice(temperature=0, beams=3), Choice(temperature=0, beams=2, length_penalty=0.5)],
    ids=str,
)
def test_a_text_does_not_depend_on_its_neighbours(choice: Choice) -> None:
    texts = [4, 7, 1, 1, 8, 0]
    limits = [9, 3, 5, 12, 1, 7]
    order = sorted(range(len(texts)), key=texts.__getitem__)
    together = written(3, [texts[i] for i in order], choice, [limits[i] for i in order])
    for i, found in zip(order, together, strict=True):
        assert written(3, [texts[i]], choice, [limits[i]]) == [found]
        assert len(found.tokens) <= limits[i]
        assert found.ended == (found.tokens[-1] == END)


def test_what_has_ended_is_not_read_again() -> None:
    model = TableModel(3, [0, 1, 2, 3])
    found = write(
        model,
        Choice(temperature=0),
        WritingRules(VOCAB, END),
        contexts=[[]] * 4,
        limits=[20] * 4,
        draw=lambda rows, step: torch.zeros(len(rows)),
    )
    assert model.rows_read == sum(len(text.tokens) for text in found)
    assert len({len(text.tokens) for text in found}) > 1


def test_greedy_tells_its_log_probability() -> None:
    model = TableModel(5, [])
    for text, found in enumerate(written(5, [0, 1, 2], Choice(temperature=0), [6] * 3)):
        assert found.log_probability == pytest.approx(model.log_probability(text, found.tokens), abs=1e-5)


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(BadConfig, match="draws nothing"):
        Choice(beams=2)
    for temperature in (-1, float("nan"), float("inf")):
        with pytest.raises(BadConfig, match="needs a temperature"):
            Choice(temperature=temperature)
    with pytest.raises(BadConfig, match="1 to 1,024 beams; 0 were"):
        Choice(beams=0)
    with pytest.raises(BadConfig, match="1 to 1,024 beams; 100000 were"):
        Choice(temperature=0, beams=100_000)


CHOICES = [Choice(temperature=0), Choice(temperature=1.0), Choice(temperature=0, beams=3)]


@pytest.mark.parametrize("choice", CHOICES)
def test_without_an_end_token_texts_are_as_long_as_their_limits(choice: Choice) -> None:
    texts = written(1, [0, 1, 2], choice, [1, 3, 5], banned=(END,))
    assert [len(text.tokens) for text in texts] == [1, 3, 5]
    for text in texts:
        assert END not in text.tokens
        assert not text.ended
        assert np.isfinite(text.log_probability)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_text_that_no_token_may_follow_stops(choice: Choice) -> None:
    # Nothing at all may be written.
    everything = tuple(range(VOCAB))
    assert written(1, [0, 1], choice, [4, 4], banned=everything) == [Written(), Written()]
    # After a forced first token there is nothing.
    forced = written(1, [0, 1], choice, [4, 4], banned=everything, first=2)
    assert forced == [Written([2]), Written([2])]
    # Each of the three tokens may be written once, so the fourth has none to follow.
    once = written(1, [0, 1], replace(choice, no_repeat_ngram=1), [9, 9], context=END, banned=(END,))
    for text in once:
        assert sorted(text.tokens) == [1, 2, 3]
        assert not text.ended
        assert np.isfinite(text.log_probability)
