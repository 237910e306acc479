"""Writing texts token by token: the likeliest token, a sample with temperature, top-k and top-p, or beam search.

In: a model that scores the next tokens of some sequences (`NextScores`), and uniform random numbers, so that a text is
a pure function of its seed. Out: tokens with their log-probability. No text depends on the others that are written with
it. A text that has ended is dropped, so it costs nothing. A text that no token may follow, because all are banned or
would repeat something, stops as it is; if the end token is banned, texts are as long as their limits.

Beam search keeps the `beams` likeliest unfinished texts, and as many finished ones by log-probability / length^penalty
(Wu et al. 2016, with the length alone as in transformers).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from firth.errors import BadConfig

MOST_BEAMS = 1024
"""The most texts that beam search keeps: each has scores for the whole vocabulary, so more could fill the memory."""


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen."""

    temperature: float = 1.0
    """Scores are divided by it: below 1 likely tokens get likelier; 0 takes the likeliest."""
    top_k: int = 0
    """Draw from this many of the likeliest tokens; 0 draws from all."""
    top_p: float = 1.0
    """Draw from the fewest likeliest tokens that together have this probability (Holtzman et al. 2019)."""
    no_repeat_ngram: int = 0
    """No run of this many tokens may occur twice; 0 allows all repetitions."""
    beams: int = 1
    """Beam search over this many texts at a time; 1 decides token by token."""
    length_penalty: float = 1.0
    """Beam search divides a text's log-probability by its length to this power: a higher one prefers longer texts."""
    full_search: bool = False
    """Whether beam search goes on until no longer text could win. Otherwise it ends when no unfinished text would win
    at its present length."""

    def __post_init__(self) -> None:
        is_drawn_from = 0 <= self.temperature < math.inf and self.top_k >= 0 and 0 < self.top_p <= 1
        if not is_drawn_from or self.no_repeat_ngram < 0:
            raise BadConfig(
                "Generating needs a temperature, top-k and no-repeat of at least 0, and a top-p above 0 and up to 1."
            )
        if not 1 <= self.beams <= MOST_BEAMS:
            raise BadConfig(f"Beam search takes 1 to {MOST_BEAMS:,} beams; {self.beams} were asked for.")
        if self.beams > 1 and self.temperature:
            raise BadConfig("Beam search draws nothing: use a temperature of 0 with several beams, or 1 beam.")


@dataclass(frozen=True)
class WritingRules:
    """What may be written."""

    vocab_size: int
    """Tokens there are; the output layer may have more rows."""
    end: int
    """The token that ends a text."""
    banned: tuple[int, ...] = ()
    """Tokens that are never written."""
    first: int | None = None
    """The token that every text is made to begin with, such as a language."""


class NextScores(Protocol):
    """A model that writes: it holds some sequences and scores their next tokens."""

    def first(self) -> Tensor:
        """Scores (B x V) of the first new token, a row for each text."""
        ...

    def next(self, parents: list[int], tokens: list[int]) -> Tensor:
        """The same for new sequences: each is the sequence in row `parent` of the last call with one more token.

        A row may have several children or none. The children of a text lie together, in the order of the texts.
        """
        ...


@dataclass(frozen=True)
class Written:
    """What was written after a context."""

    tokens: list[int] = field(default_factory=list)
    """The new tokens, including the one that ends a text."""
    log_probability: float = 0.0
    """The sum over the new tokens."""
    ended: bool = False
    """Whether the model ended the text itself."""

    def then(self, token: int, log_probability: float, *, end: int) -> "Written":
        """The text with one more token; `log_probability` is that of the whole."""
        return Written([*self.tokens, token], log_probability, token == end)


Draw = Callable[[list[int], int], Tensor]
"""Texts by number, and the step -> a uniform number in [0, 1) for each."""


def write(
    model: NextScores,
    choice: Choice,
    rules: WritingRules,
    *,
    contexts: Sequence[Sequence[int]],
    limits: Sequence[int],
    draw: Draw,
) -> list[Written]:
    """What the model writes after each context, at most `limits` tokens.

    The model has read the contexts; here they count only for repetitions.
    """
    if choice.beams > 1:
        return _search_beams(model, choice, rules, contexts, limits)
    return _choose_one_by_one(model, choice, rules, contexts, limits, draw)


# Token by token


def _choose_one_by_one(
    model: NextScores,
    choice: Choice,
    rules: WritingRules,
    contexts: Sequence[Sequence[int]],
    limits: Sequence[int],
    draw: Draw,
) -> list[Written]:
    texts = [Written() for _ in contexts]
    unfinished = list(range(len(texts)))
    scores_BV = model.first()
    step = 0
    while True:
        logs_BV = _log_probabilities(scores_BV, rules)
        if choice.no_repeat_ngram:
            sequences = [[*contexts[row], *texts[row].tokens] for row in unfinished]
            _ban_repeats(logs_BV, sequences, choice.no_repeat_ngram)
        tokens_B = choose(logs_BV, draw(unfinished, step), choice)
        logs_B = logs_BV.gather(1, tokens_B[:, None])[:, 0]
        has_tokens_B = logs_BV.amax(1) > -torch.inf
        if step == 0 and rules.first is not None:
            # It is no choice of the model, so its probability is 1.
            tokens_B = torch.full_like(tokens_B, rules.first)
            logs_B = torch.zeros_like(logs_B)
            has_tokens_B = torch.ones_like(has_tokens_B)
        parents = []
        drawn = zip(unfinished, tokens_B.tolist(), logs_B.tolist(), has_tokens_B.tolist(), strict=True)
        for place, (row, token, log, has_token) in enumerate(drawn):
            if not has_token:
                continue
            before = texts[row]
            text = before.then(token, before.log_probability + log, end=rules.end)
            texts[row] = text
            if not text.ended and len(text.tokens) < limits[row]:
                parents.append(place)
        if not parents:
            return texts
        unfinished = [unfinished[place] for place in parents]
        last_tokens = [texts[row].tokens[-1] for row in unfinished]
        scores_BV = model.next(parents, last_tokens)
        step += 1


def choose(scores_BV: Tensor, draws_B: Tensor, choice: Choice) -> Tensor:
    """One token a row; `draws_B` are uniform numbers in [0, 1)."""
    if not choice.temperature:
        return scores_BV.argmax(1)
    # Double precision, because a sum over a large vocabulary decides which token a draw falls on.
    probabilities_BV = (scores_BV.double() / choice.temperature).softmax(1)
    probabilities_BV, order_BV = probabilities_BV.sort(stable=True, dim=1, descending=True)
    if choice.top_k:
        probabilities_BV[:, choice.top_k :] = 0
        probabilities_BV /= probabilities_BV.sum(1, keepdim=True)
    # Top-p keeps a token if those before it do not reach p together, so the first one always stays.
    before_BV = probabilities_BV.cumsum(1) - probabilities_BV
    probabilities_BV[before_BV >= choice.top_p] = 0
    # A draw, scaled to what is left, falls between the cumulative sums of two tokens.
    ends_BV = probabilities_BV.cumsum(1)
    left_B1 = ends_BV[:, -1:]
    draws_B1 = draws_B.to(ends_BV)[:, None] * left_B1
    place_B1 = (ends_BV <= draws_B1).sum(1, keepdim=True)
    last_place = order_BV.shape[1] - 1
    chosen_B1: Tensor = order_BV.gather(1, place_B1.clamp(max=last_place))
    return chosen_B1[:, 0]


# Beam search


@dataclass(frozen=True)
class _Finished:
    text: Written
    score: float
    """Log-probability / length^penalty."""


@dataclass
class _Beam:
    """One text's unfinished and finished versions."""

    choice: Choice
    context: Sequence[int]
    limit: int
    running: list[Written] = field(default_factory=lambda: [Written()])
    """The likeliest unfinished versions, the best first."""
    parents: list[int] = field(default_factory=list)
    """For each of them the place in `running` of the version that it continues."""
    finished: list[_Finished] = field(default_factory=list)
    """The best finished versions, the best first."""

    def grow(self, logs: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]], *, end: int) -> None:
        """Continues the unfinished versions with their best next tokens, of which `logs` are the log-probabilities."""
        num_beams = self.choice.beams
        candidates: list[tuple[float, int, int]] = []
        for parent, text in enumerate(self.running):
            count_before = len(candidates)
            for log, token in zip(logs[parent], tokens[parent], strict=True):
                if log > -torch.inf:
                    candidates.append((text.log_probability + log, parent, token))
            if len(candidates) == count_before and text.tokens:
                self._finish(text)  # no token may follow
        # Twice as many as there are beams, so that enough are left if half of them end.
        candidates.sort(key=lambda candidate: -candidate[0])
        running: list[Written] = []
        parents: list[int] = []
        for rank, (log_probability, parent, token) in enumerate(candidates[: 2 * num_beams]):
            text = self.running[parent].then(token, log_probability, end=end)
            if text.ended or len(text.tokens) == self.limit:
                # A text that ends must be among the best now, too.
                if rank < num_beams:
                    self._finish(text)
            elif len(running) < num_beams:
                running.append(text)
                parents.append(parent)
        self.running = running
        self.parents = parents
        if self._is_decided():
            self.running = []

    def _finish(self, text: Written) -> None:
        score = text.log_probability / len(text.tokens) ** self.choice.length_penalty
        self.finished.append(_Finished(text, score))
        self.finished.sort(key=lambda finished: -finished.score)
        del self.finished[self.choice.beams :]

    def _is_decided(self) -> bool:
        """Whether no unfinished version is going to be among the best."""
        if not self.running or len(self.finished) < self.choice.beams:
            return False
        best = self.running[0]
        length = len(best.tokens)
        if self.choice.full_search and self.choice.length_penalty > 0:
            # A log-probability only falls, so a text of full length that keeps its own is the best that can come.
            length = self.limit
        score: float = best.log_probability / length**self.choice.length_penalty
        return score <= self.finished[-1].score

    @property
    def best(self) -> Written:
        return self.finished[0].text if self.finished else Written()


def _search_beams(
    model: NextScores,
    choice: Choice,
    rules: WritingRules,
    contexts: Sequence[Sequence[int]],
    limits: Sequence[int],
) -> list[Written]:
    beams = [_Beam(choice, context, limit) for context, limit in zip(contexts, limits, strict=True)]
    unfinished = beams
    scores_BV = model.first()
    is_first = True
    while True:
        if is_first and rules.first is not None:
            # It is no choice of the model, so its probability is 1.
            logs = [[0.0]] * len(beams)
            tokens = [[rules.first]] * len(beams)
        else:
            logs, tokens = _best_next(scores_BV, unfinished, choice, rules)
        is_first = False
        parents: list[int] = []
        row = 0
        for beam in unfinished:
            next_row = row + len(beam.running)
            beam.grow(logs[row:next_row], tokens[row:next_row], end=rules.end)
            if beam.running:
                parents += [row + parent for parent in beam.parents]
            row = next_row
        unfinished = [beam for beam in unfinished if beam.running]
        if not unfinished:
            return [beam.best for beam in beams]
        running = chain.from_iterable(beam.running for beam in unfinished)
        last_tokens = [text.tokens[-1] for text in running]
        scores_BV = model.next(parents, last_tokens)


def _best_next(
    scores_BV: Tensor,
    beams: Sequence[_Beam],
    choice: Choice,
    rules: WritingRules,
) -> tuple[list[list[float]], list[list[int]]]:
    """For each unfinished version its best next tokens: their log-probabilities, and the tokens."""
    logs_BV = _log_probabilities(scores_BV, rules)
    if choice.no_repeat_ngram:
        sequences = []
        for beam in beams:
            sequences += [[*beam.context, *text.tokens] for text in beam.running]
        _ban_repeats(logs_BV, sequences, choice.no_repeat_ngram)
    # All versions of a text together give at most 2 * beams candidates, so no more of each are needed.
    count = min(2 * choice.beams, logs_BV.shape[1])
    logs_BK, tokens_BK = logs_BV.topk(count, 1)
    return logs_BK.tolist(), tokens_BK.tolist()


# What both need


def _log_probabilities(scores_BV: Tensor, rules: WritingRules) -> Tensor:
    """Of all tokens that there are; minus infinity for banned ones.

    The probabilities are the model's own: banning some tokens does not raise the others.
    """
    logs_BV = scores_BV.float().log_softmax(1)[:, : rules.vocab_size]
    banned = [token for token in rules.banned if token < logs_BV.shape[1]]
    logs_BV[:, banned] = -torch.inf
    return logs_BV


def _ban_repeats(logs_BV: Tensor, sequences: Sequence[Sequence[int]], size: int) -> None:
    """Minus infinity for the tokens that would repeat a run of `size` tokens."""
    for row, tokens in enumerate(sequences):
        logs_BV[row, repeats(tokens, size)] = -torch.inf


def repeats(tokens: Sequence[int], size: int) -> list[int]:
    """The next tokens that would make the last `size` tokens a run that occurred before."""
    if size < 1 or len(tokens) < size:
        return []
    last_start = len(tokens) - size
    end = tuple(tokens[last_start + 1 :])
    repeated = []
    for start in range(last_start + 1):
        run = tuple(tokens[start : start + size])
        if run[:-1] == end:
            repeated.append(run[-1])
    return repeated
