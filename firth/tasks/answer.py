"""Answer a question by a stretch of a passage (Devlin et al. 2018, sections 4.2 and 4.3).

In: questions with their passages, as SQuAD and CMRC write them. Each window `[CLS] question [SEP] passage [SEP]` gets
two scores a token, for beginning and ending the answer; a window without the answer points at [CLS]. Out: the best
legal span over all windows as characters of the passage, or nothing where [CLS] beats it by more than a threshold.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth import metrics
from firth.data.items import Item, Window, cut_window, pack_items
from firth.errors import BadConfig
from firth.nn.blocks import initialise
from firth.tasks import squad
from firth.tasks.squad import Question
from firth.tasks.task import Balance, Head, Labels, Reader, Scorer, Task, TaskConfig
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers import Tokenizer
from firth.tokenizers.vocab import windows
from firth.tokenizers.words import has_chinese
from firth.types import Encoding, Example, Prediction, Problem, Span

BEST = 20
"""Spans that share the probability."""
LONGEST = {"squad": 30, "cmrc": 64}
"""Tokens of an answer at most, where nothing else is said: of 100 Chinese answers 99 are shorter."""


@dataclass(frozen=True)
class Answered(Prediction):
    """An answer, and what else it could have been."""

    candidates: tuple[Span, ...] = ()
    """The best spans, the best first."""
    nothing: float = 0.0
    """The probability that there is no answer."""
    doubt: float = 0.0
    """How far the score of no answer lies above that of the best span."""


@dataclass(frozen=True)
class AnswerConfig(TaskConfig):
    rules: Literal["guess", "squad", "cmrc"] = "guess"
    """How answers are compared: English words as in SQuAD, or Chinese characters as in CMRC 2018."""
    unanswerable: Literal["guess", "yes", "no"] = "guess"
    """Whether a question may have no answer; guess looks at the training rows."""
    threshold: float = 0.0
    """How far `no answer` must beat the best answer to be given; found on dev."""
    overlap: int = 128
    """Tokens that neighbouring windows of a long passage share."""
    max_question: int = 64
    """Tokens of a question that are read."""
    max_answer: int = 0
    """Tokens of the longest answer that is given; 0 is 30, and 64 by the rules of CMRC."""
    num_candidates: int = 5
    """Spans that are told with their probabilities, the best first."""

    def __post_init__(self) -> None:
        if self.overlap < 0 or self.max_question < 1 or self.max_answer < 0 or not 0 < self.num_candidates <= BEST:
            raise BadConfig(f"answer needs overlap >= 0, max_question >= 1 and 1 to {BEST} num_candidates.")


@dataclass(frozen=True)
class AnswerReader(Reader):
    config: AnswerConfig

    def read(self, path: Path, problems: list[Problem], *, labelled: bool = True) -> list[Question]:
        return squad.read(path, problems, labelled=labelled)

    def learn(self, examples: Sequence[Example]) -> AnswerConfig:
        chinese = sum(has_chinese(example.texts[0]) for example in examples) > len(examples) / 2
        rules = ("cmrc" if chinese else "squad") if self.config.rules == "guess" else self.config.rules
        empty = "yes" if any(not example.gold for example in examples) else "no"
        unanswerable = empty if self.config.unanswerable == "guess" else self.config.unanswerable
        longest = self.config.max_answer or LONGEST[rules]
        return replace(self.config, rules=rules, unanswerable=unanswerable, max_answer=longest)  # type: ignore[arg-type]

    def problems(self, examples: Sequence[Example], labels: Labels) -> Iterator[Problem]:
        for example in examples:
            if self.config.unanswerable == "no" and not example.gold:
                yield Problem(
                    example.row,
                    "a question without answer, which training never saw",
                    "add training rows without answer, use tasks.answer.unanswerable=yes, or remove the question",
                )
            if isinstance(example, Question) and example.gold and min(example.starts) < 0:
                number = sum(start < 0 for start in example.starts)
                what = f"{number} of {len(example.starts)} answers do not stand where their offsets say"
                yield Problem(example.row, what, "mend answer_start", bad=False)

    def group(self, example: Example) -> str:
        return example.texts[1]

    def balance(self, examples: Sequence[Example]) -> Balance:
        counts = Counter("answered" if example.gold else "without answer" for example in examples)
        return {"question": dict(sorted(counts.items()))}

    def example(self, value: object) -> Example:
        return squad.question(value)


class AnswerHead(Head):
    name = "answer"
    config: AnswerConfig

    def __init__(self, config: AnswerConfig, encoder: Encoder, *, labels: Labels) -> None:
        super().__init__(config, encoder, labels=labels)
        self.head = nn.Linear(encoder.width, 2)
        initialise(self.head, std=encoder.init_std)

    def encode(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, training: bool
    ) -> list[Item]:
        texts = list(dict.fromkeys(text for example in examples for text in example.texts))
        encoded = dict(zip(texts, tokenizer.encode_batch(texts), strict=True))
        return [
            self._item(example, *(encoded[text] for text in example.texts), specials=tokenizer.vocab, size=max_length)
            for example in examples
        ]

    def _item(self, example: Example, question: Encoding, passage: Encoding, *, specials: Any, size: int) -> Item:
        frame, space = specials.frame, size - specials.frame.size(2)
        asked = min(len(question), self.config.max_question, space // 2)
        room, first = space - asked, len(frame.opening) + asked + len(frame.between)
        span = _token_span(example, passage.offsets)
        cuts: list[Window] = []
        for start, end in windows(len(passage), room, max(room - self.config.overlap, (room + 1) // 2)):
            inside = span is not None and start <= span[0] and span[1] < end
            rows = (span[0] - start + first, span[1] - start + first) if span and inside else (0, 0)
            pair, facts = ((question, 0, asked), (passage, start, end)), (first, first + end - start, *rows)
            cuts.append(cut_window(specials, *pair, start=start, facts=facts))
        total = len(question) + len(passage)
        return Item(example, tuple(cuts), total, len(question) - asked, passage.offsets)

    def batch(self, items: Sequence[Item]) -> Batch:
        packed, _ = pack_items(items)
        cuts = [w for item in items for w in item.windows]
        legal_N = np.concatenate([_legal(len(w.ids), *w.facts[:2]) for w in cuts])
        spans_B2 = np.array([w.facts[2:] for w in cuts], np.int64)
        return replace(packed, targets={"legal_N": torch.from_numpy(legal_N), "spans_B2": torch.from_numpy(spans_B2)})

    def loss(self, states: States, batch: Batch) -> Loss:
        legal_N, spans_B2 = batch.targets["legal_N"], batch.targets["spans_B2"]
        scores_N2 = self.head(states.last_ND).float().masked_fill(~legal_N[:, None], -torch.inf)
        scores_BL2 = _padded(scores_N2, batch)
        total = F.cross_entropy(scores_BL2, spans_B2, reduction="sum") / 2
        right = (scores_BL2.argmax(1) == spans_B2).all(1).sum()
        return Loss({self.name: total}, {f"{self.name}_correct": right})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {self.name: len(batch.targets["spans_B2"])}

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        scores_N2: Tensor = self.head(states.last_ND).float()
        return np.split(scores_N2.cpu().numpy(), batch.bounds_B1[1:-1].tolist())

    def decide(self, item: Item, outputs: list[np.ndarray]) -> Prediction:
        found: dict[tuple[int, int], float] = {}
        longest = self.config.max_answer or LONGEST["squad"]
        for cut, scores_L2 in zip(item.windows, outputs, strict=True):
            for start, end, score in best_spans(scores_L2[slice(*cut.facts[:2])], longest):
                place = cut.start + start, cut.start + end
                found[place] = max(score, found.get(place, score))
        places = sorted(found, key=lambda place: (-found[place], place))[:BEST]
        # The window that sees least reason to say nothing speaks for the passage.
        nothing = min(float(scores_L2[0].sum()) for scores_L2 in outputs)
        scores = np.array([*(found[place] for place in places), nothing])
        if self.config.unanswerable != "yes" and places:
            scores[-1] = -np.inf
        shares = np.exp(scores - scores.max())
        shares /= shares.sum()
        passage, offsets = item.example.texts[1], item.facts
        spans = []
        for (first, last), share in zip(places, shares, strict=False):
            start, end = int(offsets[first][0]), int(offsets[last][1])
            spans.append(Span("answer", start, end, passage[start:end], float(share)))
        doubt = nothing - scores[0] if places else 1e9
        kept = tuple(spans[: self.config.num_candidates])
        return self._settled(Answered("", candidates=kept, nothing=float(shares[-1]), doubt=float(doubt)))

    def _settled(self, found: Answered) -> Answered:
        """The best candidate, or nothing where the doubt is too great."""
        too_great = self.config.unanswerable == "yes" and found.doubt > self.config.threshold
        if too_great or not found.candidates:
            return replace(found, label="", probability=found.nothing, spans=())
        best = found.candidates[0]
        return replace(found, label=best.text, probability=best.probability, spans=(best,))

    def tune(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> list[Prediction]:
        """Finds the threshold with the best F1."""
        found = [prediction for prediction in predictions if isinstance(prediction, Answered)]
        if self.config.unanswerable != "yes" or not found:
            return list(predictions)
        texts = [p.candidates[0].text if p.candidates else "" for p in found]
        figures = each([example.gold for example in examples], texts, rules=self.config.rules)
        _, threshold = metrics.null_threshold(
            [p.doubt for p in found],
            figures[:, 1],
            answerable=[bool(example.gold) for example in examples],
            answered=[bool(text) for text in texts],
        )
        self.config = replace(self.config, threshold=threshold)
        return [self._settled(prediction) for prediction in found]


@dataclass(frozen=True)
class AnswerScorer(Scorer):
    config: AnswerConfig
    main_metric = "f1"

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, float]:
        figures = each([e.gold for e in examples], [str(p.label) for p in predictions], rules=self.config.rules)
        has = np.array([bool(example.gold) for example in examples])
        groups = {"": has | True} | ({"has_": has, "no_": ~has} if has.any() and not has.all() else {})
        return {
            f"{group}{name}": float(figures[chosen, column].mean())
            for group, chosen in groups.items()
            for column, name in enumerate(("em", "f1"))
        }

    def baseline(self, train: Sequence[Example], examples: Sequence[Example]) -> list[Prediction]:
        counts = Counter(example.gold[0] if example.gold else "" for example in train)
        return [Prediction(min(counts, key=lambda text: (-counts[text], text)))] * len(examples)

    def perfect(self, example: Example) -> Prediction:
        return Prediction(example.gold[0] if example.gold else "")

    def error(self, prediction: Prediction, example: Example) -> float:
        wrong = 1 - float(each([example.gold], [str(prediction.label)], rules=self.config.rules)[0, 1])
        return wrong * prediction.probability


ANSWER = Task(AnswerConfig, AnswerReader, AnswerHead, AnswerScorer)


def each(golds: Sequence[Sequence[str]], texts: Sequence[str], *, rules: str) -> np.ndarray:
    """EM and F1 of every question, against the answer that fits best."""
    if rules != "cmrc":
        return np.stack(metrics.squad_each(golds, texts), 1)
    rows = [
        tuple(metrics.cmrc([gold], [text]).values()) if gold else (float(not text),) * 2
        for gold, text in zip(golds, texts, strict=True)
    ]
    return np.array(rows, np.float64).reshape(-1, 2)


def best_spans(scores_L2: np.ndarray, longest: int) -> Iterator[tuple[int, int, float]]:
    """The best (start, end, score) of a window's passage: end >= start, at most `longest` tokens."""
    size = len(scores_L2)
    if not size:
        return
    width = min(longest, size)
    ends = np.concatenate([scores_L2[:, 1], np.full(width, -np.inf, scores_L2.dtype)])
    sums = scores_L2[:, :1] + np.lib.stride_tricks.sliding_window_view(ends, width)[:size]
    flat = sums.ravel()
    for place in np.argpartition(-flat, min(BEST, flat.size - 1))[:BEST].tolist():
        if np.isfinite(flat[place]):
            start, more = divmod(place, width)
            yield start, start + more, float(flat[place])


def _token_span(example: Example, offsets: np.ndarray) -> tuple[int, int] | None:
    """First and last token of the first answer whose place is known."""
    if not isinstance(example, Question) or not example.gold:
        return None
    start, text = next((start, text) for start, text in zip(example.starts, example.gold, strict=True) if start >= 0)
    first = int(np.searchsorted(offsets[:, 1], start, side="right"))
    last = int(np.searchsorted(offsets[:, 0], start + len(text), side="left")) - 1
    return (first, last) if first <= last else None


def _legal(length: int, first: int, end: int) -> np.ndarray:
    """Where an answer may begin or end: the passage, and the first token for none."""
    legal = np.zeros(length, bool)
    legal[0] = legal[first:end] = True
    return legal


def _padded(scores_N2: Tensor, batch: Batch) -> Tensor:
    lengths_B = batch.bounds_B1.long().diff()
    owners_N = torch.repeat_interleave(torch.arange(len(lengths_B), device=scores_N2.device), lengths_B)
    empty_BL2 = scores_N2.new_full((len(lengths_B), batch.max_length, 2), -torch.inf)
    return empty_BL2.index_put((owners_N, batch.positions_N), scores_N2)
