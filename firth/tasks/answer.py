"""Answer a question with a span of a passage (Devlin et al. 2018, sections 4.2 and 4.3).

In: questions with their passages, as SQuAD and CMRC write them. Each window `[CLS] question [SEP] passage [SEP]` gets
two scores a token, for beginning and ending the answer; a window without the answer points at [CLS]. Out: the best
legal span over all windows as characters of the passage, or nothing if [CLS] beats it by more than a threshold.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth import metrics
from firth.data.items import Item, Window, cut_window, pack_items
from firth.errors import BadConfig
from firth.nn.blocks import initialise
from firth.nn.heads import scoring_layer
from firth.tasks import squad
from firth.tasks.answer_spans import BEST, TokenSpan, WindowFacts, best_spans, em_and_f1, legal_rows, token_span
from firth.tasks.squad import Question
from firth.tasks.task import (
    Balance,
    Examples,
    Figures,
    Head,
    Items,
    Labels,
    Predictions,
    Reader,
    Scorer,
    Task,
    TaskConfig,
    as_array,
    different_texts,
    gold_labels,
    most_frequent,
)
from firth.tensors import Batch, Encoder, Loss, States, as_tensors
from firth.tokenizers import Tokenizer
from firth.tokenizers.segmentation import has_chinese
from firth.tokenizers.vocab import Vocab, windows
from firth.types import Encoding, Example, Prediction, Problem, Span

MAX_ANSWER = {"squad": 30, "cmrc": 64}
"""Tokens of the longest answer by default: of 100 Chinese answers 99 are shorter."""


@dataclass(frozen=True)
class Answered(Prediction):
    """An answer, and what else it could have been."""

    candidates: tuple[Span, ...] = ()
    """The best spans, the best first."""
    nothing: float = 0.0
    """The probability that there is no answer."""
    doubt: float = 0.0
    """The score of no answer minus that of the best span."""


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
    """Spans that are given with their probabilities, the best first."""

    def __post_init__(self) -> None:
        are_sizes_legal = self.overlap >= 0 and self.max_question >= 1 and self.max_answer >= 0
        if not are_sizes_legal or not 0 < self.num_candidates <= BEST:
            raise BadConfig(f"answer needs overlap >= 0, max_question >= 1 and 1 to {BEST} num_candidates.")


@dataclass(frozen=True)
class AnswerReader(Reader):
    config: AnswerConfig

    def read(self, path: Path, problems: list[Problem], *, labelled: bool = True) -> list[Question]:
        return squad.read(path, problems, labelled=labelled)

    def learn(self, examples: Examples) -> AnswerConfig:
        """The config with the language's rules, and whether a question may have no answer."""
        rules = self.config.rules
        if rules == "guess":
            num_chinese = sum(has_chinese(example.texts[0]) for example in examples)
            is_chinese = num_chinese > len(examples) / 2
            rules = "cmrc" if is_chinese else "squad"
        unanswerable = self.config.unanswerable
        if unanswerable == "guess":
            all_answered = all(example.gold for example in examples)
            unanswerable = "no" if all_answered else "yes"
        max_answer = self.config.max_answer or MAX_ANSWER[rules]
        return replace(self.config, rules=rules, unanswerable=unanswerable, max_answer=max_answer)

    def problems(self, examples: Examples, labels: Labels) -> Iterator[Problem]:
        for example in examples:
            if self.config.unanswerable == "no" and not example.gold:
                yield Problem(
                    example.row,
                    "a question without answer, which training never saw",
                    "add training rows without answer, use tasks.answer.unanswerable=yes, or remove the question",
                )
            if isinstance(example, Question) and example.gold and min(example.starts) < 0:
                num_wrong = sum(start < 0 for start in example.starts)
                what = f"{num_wrong} of {len(example.starts)} answers are not at their offsets"
                yield Problem(example.row, what, "correct answer_start", bad=False)

    def group(self, example: Example) -> str:
        """The passage."""
        return example.texts[1]

    def balance(self, examples: Examples) -> Balance:
        counts: Counter[str] = Counter()
        for example in examples:
            counts["answered" if example.gold else "without answer"] += 1
        return {"question": dict(sorted(counts.items()))}

    def example(self, value: object) -> Example:
        return squad.question(value)


class AnswerHead(Head):
    name = "answer"
    config: AnswerConfig

    def __init__(self, config: AnswerConfig, encoder: Encoder, *, labels: Labels) -> None:
        super().__init__(config, encoder, labels=labels)
        self.layer = scoring_layer(encoder, encoder.token_layer)
        self.head = nn.Linear(encoder.width, 2)
        initialise(self.head, std=encoder.init_std)

    # Sequences

    def encode(self, examples: Examples, tokenizer: Tokenizer, *, max_length: int, training: bool) -> list[Item]:
        # A passage has many questions but is encoded once.
        texts = different_texts(examples)
        encoded = dict(zip(texts, tokenizer.encode_batch(texts), strict=True))
        items = []
        for example in examples:
            question, passage = (encoded[text] for text in example.texts)
            item = self._item(example, question, passage, vocab=tokenizer.vocab, max_length=max_length)
            items.append(item)
        return items

    def _item(self, example: Example, question: Encoding, passage: Encoding, *, vocab: Vocab, max_length: int) -> Item:
        """Windows of the question and a stretch of the passage each; the item's facts are the passage's offsets."""
        frame = vocab.frame
        space = max_length - frame.size(2)
        num_question = min(len(question), self.config.max_question, space // 2)
        size = space - num_question
        stride = max(size - self.config.overlap, (size + 1) // 2)
        # The row of the passage's first token in every window.
        first_row = len(frame.opening) + num_question + len(frame.between)
        # XLNet's <cls> is the last token of a sequence.
        cls_is_last = frame.closing[-1:] == (vocab.cls,)
        answer = token_span(example, passage.offsets)
        cuts: list[Window] = []
        for start, end in windows(len(passage), size, stride):
            passage_end = first_row + end - start
            cls_row = 0
            if cls_is_last:
                cls_row = passage_end + len(frame.closing) - 1
            answer_first = cls_row
            answer_last = cls_row
            if answer and start <= answer[0] and answer[1] < end:
                shift = first_row - start
                answer_first = answer[0] + shift
                answer_last = answer[1] + shift
            facts = WindowFacts(first_row, passage_end, cls_row, answer_first=answer_first, answer_last=answer_last)
            # The start counts tokens of the passage, so that spans of different windows can be compared.
            stretches = ((question, 0, num_question), (passage, start, end))
            cuts.append(cut_window(vocab, *stretches, start=start, facts=facts))
        total = len(question) + len(passage)
        return Item(example, tuple(cuts), total, len(question) - num_question, passage.offsets)

    def batch(self, items: Items) -> Batch:
        packed, _ = pack_items(items)
        legal = []
        spans = []
        for item in items:
            for window in item.windows:
                facts: WindowFacts = window.facts
                legal.append(legal_rows(len(window.ids), facts))
                spans.append((facts.answer_first, facts.answer_last))
        targets = {
            "legal_N": np.concatenate(legal),
            "spans_B2": np.array(spans, np.int64),
        }
        return replace(packed, targets=as_tensors(targets))

    # Learning

    def loss(self, states: States, batch: Batch) -> Loss:
        legal_N = batch.targets["legal_N"]
        spans_B2 = batch.targets["spans_B2"]
        scores_N2 = self._scores(states)
        legal_scores_N2 = scores_N2.masked_fill(~legal_N[:, None], -torch.inf)
        scores_BL2 = _padded(legal_scores_N2, batch)
        # The mean of the losses of beginning and end.
        total = F.cross_entropy(scores_BL2, spans_B2, reduction="sum") / 2
        is_right_B = (scores_BL2.argmax(1) == spans_B2).all(1)
        return Loss({self.name: total}, {f"{self.name}_correct": is_right_B.sum()})

    def _scores(self, states: States) -> Tensor:
        """How well an answer begins and ends at each token."""
        scores_N2: Tensor = self.head(self.layer(states.last_ND))
        return scores_N2.float()

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {self.name: len(batch.targets["spans_B2"])}

    # Predicting

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        borders = batch.bounds_B1[1:-1].tolist()
        return np.split(as_array(self._scores(states)), borders)

    def decide(self, item: Item, outputs: list[np.ndarray]) -> Prediction:
        found = self._span_scores(item, outputs)
        # The best spans; of equal scores the earlier place is first.
        places = sorted(found, key=lambda place: (-found[place], place))[:BEST]
        # The score of no answer is that of [CLS]; the lowest of all windows counts.
        no_answer = min(_no_answer_scores(item, outputs))
        span_scores = [found[place] for place in places]
        scores = np.array([*span_scores, no_answer])
        if self.config.unanswerable != "yes" and places:
            scores[-1] = -np.inf
        # A softmax over the spans and no answer.
        probabilities = np.exp(scores - scores.max())
        probabilities /= probabilities.sum()

        spans = _spans(item, places, probabilities)
        # Without any span there is no doubt that there is no answer.
        doubt = 1e9
        if places:
            doubt = no_answer - scores[0]
        candidates = tuple(spans[: self.config.num_candidates])
        found_answer = Answered("", candidates=candidates, nothing=float(probabilities[-1]), doubt=float(doubt))
        return self._with_label(found_answer)

    def _span_scores(self, item: Item, outputs: list[np.ndarray]) -> dict[TokenSpan, float]:
        """The best spans of all windows, by their first and last token in the passage."""
        max_answer = self.config.max_answer or MAX_ANSWER["squad"]
        found: dict[TokenSpan, float] = {}
        for window, scores_L2 in zip(item.windows, outputs, strict=True):
            facts: WindowFacts = window.facts
            passage_scores_L2 = scores_L2[facts.passage_start : facts.passage_end]
            for first, last, score in best_spans(passage_scores_L2, max_answer):
                place = (window.start + first, window.start + last)
                # Windows overlap: of the scores of one span the highest counts.
                found[place] = max(score, found.get(place, score))
        return found

    def _with_label(self, found: Answered) -> Answered:
        """The best candidate as the label, or no answer if the doubt is above the threshold."""
        is_doubtful = self.config.unanswerable == "yes" and found.doubt > self.config.threshold
        if is_doubtful or not found.candidates:
            return replace(found, label="", probability=found.nothing, spans=())
        best = found.candidates[0]
        return replace(found, label=best.text, probability=best.probability, spans=(best,))

    def tune(self, predictions: Predictions, examples: Examples) -> list[Prediction]:
        """Finds the threshold of doubt with the best F1."""
        found = [prediction for prediction in predictions if isinstance(prediction, Answered)]
        if self.config.unanswerable != "yes" or not found:
            return list(predictions)
        golds = gold_labels(examples)
        texts = [_best_text(prediction) for prediction in found]
        figures = em_and_f1(golds, texts, rules=self.config.rules)
        _, threshold = metrics.null_threshold(
            [prediction.doubt for prediction in found],
            figures[:, 1],
            answerable=[bool(gold) for gold in golds],
            answered=[bool(text) for text in texts],
        )
        self.config = replace(self.config, threshold=threshold)
        return [self._with_label(prediction) for prediction in found]


def _no_answer_scores(item: Item, outputs: list[np.ndarray]) -> list[float]:
    """The score of no answer in each window: that of [CLS]."""
    scores = []
    for window, scores_L2 in zip(item.windows, outputs, strict=True):
        facts: WindowFacts = window.facts
        scores.append(float(scores_L2[facts.cls_row].sum()))
    return scores


def _best_text(found: Answered) -> str:
    """The best answer, whatever the doubt."""
    if not found.candidates:
        return ""
    return found.candidates[0].text


def _spans(item: Item, places: list[TokenSpan], probabilities: np.ndarray) -> list[Span]:
    """The stretches of the passage at these tokens; the last probability is that of no answer."""
    passage = item.example.texts[1]
    offsets: np.ndarray = item.facts
    spans = []
    for (first, last), probability in zip(places, probabilities, strict=False):
        start = int(offsets[first][0])
        end = int(offsets[last][1])
        spans.append(Span("answer", start, end, passage[start:end], float(probability)))
    return spans


def _padded(scores_N2: Tensor, batch: Batch) -> Tensor:
    """The scores of each sequence as a row of a padded tensor; -inf at padding."""
    lengths_B = batch.bounds_B1.long().diff()
    owners_N = torch.repeat_interleave(torch.arange(len(lengths_B), device=scores_N2.device), lengths_B)
    empty_BL2 = scores_N2.new_full((len(lengths_B), batch.max_length, 2), -torch.inf)
    return empty_BL2.index_put((owners_N, batch.positions_N), scores_N2)


@dataclass(frozen=True)
class AnswerScorer(Scorer):
    config: AnswerConfig
    main_metric = "f1"

    def score(self, predictions: Predictions, examples: Examples) -> Figures:
        """EM and F1 of all questions; if some have no answer, also of those with and those without."""
        golds = gold_labels(examples)
        texts = [str(prediction.label) for prediction in predictions]
        each = em_and_f1(golds, texts, rules=self.config.rules)
        has_answer = np.array([bool(gold) for gold in golds])
        groups = {"": np.ones(len(golds), bool)}
        if has_answer.any() and not has_answer.all():
            groups["has_"] = has_answer
            groups["no_"] = ~has_answer
        figures: dict[str, float] = {}
        for group, chosen in groups.items():
            figures[f"{group}em"] = float(each[chosen, 0].mean())
            figures[f"{group}f1"] = float(each[chosen, 1].mean())
        return figures

    def perfect(self, example: Example) -> Prediction:
        return Prediction(_first_answer(example))

    def baseline(self, train: Examples, examples: Examples) -> list[Prediction]:
        answer = most_frequent(_first_answer(example) for example in train)
        return [Prediction(answer) for _ in examples]

    def error(self, prediction: Prediction, example: Example) -> float:
        each = em_and_f1([example.gold], [str(prediction.label)], rules=self.config.rules)
        wrong = 1 - float(each[0, 1])
        return wrong * prediction.probability


def _first_answer(example: Example) -> str:
    return str(example.gold[0]) if example.gold else ""


ANSWER = Task(AnswerConfig, AnswerReader, AnswerHead, AnswerScorer)
