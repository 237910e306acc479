"""Rewrite a text as another: translate, summarise, restore (Vaswani et al. 2017).

In: sources with their targets, as a table, JSON lines or two files whose lines belong together. An encoder-decoder
learns to predict every token of the target from the source and the tokens before it, with label smoothing. Out: a text
for each source, by beam search or token by token. Scores: BLEU, chrF and ROUGE over all rows.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from firth import metrics, rng
from firth.config import check_counts, check_shares
from firth.data.items import Item
from firth.errors import BadConfig
from firth.nn.decoding import Choice, WritingRules, Written, write
from firth.nn.likelihood import IGNORE
from firth.tasks import text_pairs
from firth.tasks.prefix_writer import LABELS, PrefixWriter
from firth.tasks.task import (
    Balance,
    Examples,
    Figures,
    GeneratingHead,
    Items,
    Labels,
    OnProgress,
    Predictions,
    Reader,
    Scorer,
    Task,
    TaskConfig,
    gold_labels,
    most_frequent,
    predicted_labels,
)
from firth.tasks.writers import Way, writer_for
from firth.tensors import Batch, Encoder, Goal, Loss, States
from firth.tokenizers import Tokenizer
from firth.tokenizers.segmentation import has_chinese
from firth.types import Example, Prediction, Problem, Rewritten

MORE_TOKENS = 50
"""A text has at most so many tokens more than its source (Vaswani et al. 2017, section 6.1)."""
CACHE_BYTES = {"cpu": 1 << 29, "cuda": 1 << 33}
"""Of keys and values of the texts that are written together."""
MAX_TEXTS = {"cpu": 512, "cuda": 4096}
"""Texts, or beams of texts, that are written together: more are hardly faster."""
MAIN_METRICS = {"bleu": "bleu", "chrf": "chrf", "rouge": "rougeL"}
"""The figure that epochs are picked by, for each `metric`."""


@dataclass(frozen=True)
class RewriteConfig(TaskConfig):
    text_column: str = ""
    """Column of the source; a number counts columns of a file without header."""
    label_columns: tuple[str, ...] = ()
    """Column of the target."""
    target_ending: str = ""
    """Ending of the file of targets, where sources and targets are two files with the same lines: `de` for `train.en`
    and `train.de`."""
    prefix: str = ""
    """Text put before every source, such as T5's `translate English to German: `."""
    metric: Literal["bleu", "chrf", "rouge"] = "bleu"
    """The figure that epochs are picked by; rouge is ROUGE-L."""
    bleu_tokens: Literal["guess", "13a", "zh"] = "guess"
    """How BLEU cuts texts: by words as WMT does, or Chinese by character; guess looks at the training targets."""
    label_smoothing: float = 0.1
    """Share of each label's probability that is spread over the whole vocabulary."""
    beams: int = 4
    """Texts that beam search keeps; 1 takes the likeliest token at each step."""
    length_penalty: float = 1.0
    """Beam search divides a text's log-probability by its length to this power: a higher one prefers longer texts."""
    no_repeat_ngram: int = 0
    """No run of this many tokens may occur twice; 0 allows all repetitions."""
    first_token: str = ""
    """A token of the vocabulary that every text is made to begin with, such as a language."""
    max_tokens: int = 0
    """Tokens of the longest text that is written; 0 is 50 more than its source has."""
    way: Way = ""
    """How the model writes: as an encoder-decoder (source), or as a BERT with source and target in one sequence
    (prefix); empty is prefix for a model that was pre-trained by `unilm`, else source."""

    def __post_init__(self) -> None:
        check_shares(label_smoothing=self.label_smoothing)
        check_counts(beams=self.beams)
        if self.no_repeat_ngram < 0 or self.max_tokens < 0:
            raise BadConfig("rewrite needs a no_repeat_ngram and max_tokens of at least 0.")
        if len(self.label_columns) > 1:
            raise BadConfig(f"A row has one target, but label_columns names {', '.join(self.label_columns)}.")
        if self.target_ending and (self.text_column or self.label_columns):
            raise BadConfig("A target is a column or the line of another file: leave out target_ending or the columns.")

    @property
    def choice(self) -> Choice:
        return Choice(
            temperature=0.0, no_repeat_ngram=self.no_repeat_ngram, beams=self.beams, length_penalty=self.length_penalty
        )


@dataclass(frozen=True)
class WritingOptions:
    """How texts are written."""

    choice: Choice
    max_tokens: int = 0
    """0 is 50 more than the source has."""
    seed: int = 1
    """The seed of the random numbers for every text and token."""


@dataclass(frozen=True)
class RewriteReader(Reader):
    config: RewriteConfig

    def read(self, path: Path, problems: list[Problem], *, labelled: bool = True) -> list[Example]:
        if self.config.target_ending and labelled:
            return text_pairs.read_parallel(path, self.config.target_ending, problems)
        return text_pairs.read_table(
            path,
            text_column=self.config.text_column,
            target_column="".join(self.config.label_columns),
            problems=problems,
            labelled=labelled,
        )

    def files(self, path: Path) -> tuple[Path, ...]:
        if self.config.target_ending:
            return path, text_pairs.target_path(path, self.config.target_ending)
        return (path,)

    def learn(self, examples: Examples) -> RewriteConfig:
        """The config with how BLEU cuts texts of the targets' language."""
        if self.config.bleu_tokens != "guess":
            return self.config
        num_chinese = sum(has_chinese(example.gold) for example in examples)
        is_chinese = num_chinese > len(examples) / 2
        return replace(self.config, bleu_tokens="zh" if is_chinese else "13a")

    def balance(self, examples: Examples) -> Balance:
        """Nothing: targets are no names to choose from."""
        return {}

    def example(self, value: object) -> Example:
        return text_pairs.example(value, self.config.text_column)


class PairFacts(NamedTuple):
    """What the head knows of an item."""

    target: np.ndarray
    """Empty where there is none."""
    tokenizer: Tokenizer


class RewriteHead(GeneratingHead):
    """It has weights of its own only for a BERT: the output layer of an encoder-decoder belongs to the model."""

    name = "rewrite"
    config: RewriteConfig

    def __init__(self, config: RewriteConfig, encoder: Encoder, *, labels: Labels) -> None:
        super().__init__(config, encoder, labels=labels)
        self.writer = writer_for(encoder, config.way)

    def start_from(self, goals: Mapping[str, Goal]) -> None:
        if isinstance(self.writer, PrefixWriter):
            self.writer.start_from(goals)

    # Sequences

    def encode(self, examples: Examples, tokenizer: Tokenizer, *, max_length: int, training: bool) -> list[Item]:
        vocab = tokenizer.vocab
        sources = tokenizer.ids_batch([self.config.prefix + example.texts[0] for example in examples])
        targets = tokenizer.ids_batch([example.gold or "" for example in examples])
        items = []
        for example, source, target in zip(examples, sources, targets, strict=True):
            window = self.writer.source_window(np.array(source, np.int64), vocab, max_length=max_length)
            num_tokens = len(source) + len(target)
            num_cut = len(source) + vocab.frame.size() - len(window)
            facts = PairFacts(np.array(target, np.int64), tokenizer)
            items.append(Item(example, (window,), num_tokens, num_cut, facts))
        return items

    def token_problems(self, examples: Examples, tokenizer: Tokenizer, *, max_length: int) -> Iterator[Problem]:
        room = self.writer.room(max_length, tokenizer.vocab)
        targets = tokenizer.ids_batch([example.gold for example in examples])
        for example, target in zip(examples, targets, strict=True):
            if len(target) > room:
                what = f"a target of {len(target):,} tokens, but the model writes at most {room:,}"
                yield Problem(example.row, what, "shorten it")

    def batch(self, items: Items) -> Batch:
        targets = [item.facts.target for item in items]
        return self.writer.batch(items, targets, items[0].facts.tokenizer.vocab)

    # Learning

    def rewrite(self, batch: Batch) -> tuple[Batch, Loss]:
        return self.writer.training_input(batch), Loss({})

    def loss(self, states: States, batch: Batch) -> Loss:
        total, tallies = self.writer.loss(states, batch, smoothing=self.config.label_smoothing)
        named_tallies = {f"{self.name}_{what}": tally for what, tally in tallies.items()}
        return Loss({self.name: total}, named_tallies)

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {self.name: int((batch.targets[LABELS] != IGNORE).sum())}

    # Predicting

    def generate(self, encoder: Encoder, items: Items, *, advance: OnProgress | None = None) -> list[Prediction]:
        options = WritingOptions(self.config.choice, self.config.max_tokens)
        all_written = self.write_items(encoder, items, options, advance=advance)
        predictions = []
        for item, written in zip(items, all_written, strict=True):
            text = as_text(written, item.facts.tokenizer)
            predictions.append(Prediction(text.text, text.probability, text=text.text))
        return predictions

    def write_items(
        self,
        encoder: Encoder,
        items: Items,
        options: WritingOptions,
        *,
        advance: OnProgress | None = None,
    ) -> list[Written]:
        """What is written for each item, in order. Texts of similar length are written together."""
        texts = [Written()] * len(items)
        longest = self.writer.longest(encoder.max_positions)
        limits = [_limit(item, options.max_tokens, longest) for item in items]
        num_done = 0
        for rows in _batches(items, limits, encoder, beams=options.choice.beams):
            some_items = [items[row] for row in rows]
            some_limits = [limits[row] for row in rows]
            written = self._write(some_items, some_limits, encoder, options)
            for row, text in zip(rows, written, strict=True):
                texts[row] = text
            num_done += len(rows)
            if advance:
                advance(num_done, "")
        return texts

    def _write(self, items: Items, limits: Sequence[int], encoder: Encoder, options: WritingOptions) -> list[Written]:
        vocab = items[0].facts.tokenizer.vocab
        key = rng.key(options.seed, "rewrite")
        # A draw depends on the seed, the source and the step, not on the texts that are written with it.
        numbers = np.array([rng.key(*item.example.texts) for item in items])

        def draw(rows: list[int], step: int) -> Tensor:
            return torch.from_numpy(rng.uniform(key, numbers[rows], step))

        # Of the special tokens only the one that ends a text is written.
        unwritten = vocab.specials - {vocab.sep}
        first_token = self._first_token(vocab.ids)
        rules = WritingRules(len(vocab), vocab.sep, tuple(sorted(unwritten)), first_token)
        return write(
            self.writer.next_scores(encoder, items, vocab, longest=max(limits)),
            options.choice,
            rules,
            contexts=[()] * len(items),
            limits=limits,
            draw=draw,
        )

    def _first_token(self, ids: Mapping[str, int]) -> int | None:
        name = self.config.first_token
        if not name:
            return None
        if name not in ids:
            raise BadConfig(f"first_token='{name}' is not a token of the vocabulary.")
        return ids[name]


def _limit(item: Item, max_tokens: int, longest: int) -> int:
    """The most tokens of an item's text."""
    return min(max_tokens or len(item.windows[0]) + MORE_TOKENS, longest)


def _batches(items: Items, limits: Sequence[int], encoder: Encoder, *, beams: int) -> Iterator[list[int]]:
    """Items in order of length, so that little memory is left unused; each batch within the limits of the device."""
    is_cuda = next(encoder.parameters()).device.type == "cuda"
    kind = "cuda" if is_cuda else "cpu"
    bytes_of_token = 8 * encoder.width * max(encoder.num_decoder_layers, 1)  # a key and a value of 4 bytes each
    rows: list[int] = []
    longest = 0
    for row in sorted(range(len(items)), key=lambda row: len(items[row].windows[0])):
        longest = max(longest, limits[row])
        num_texts = (len(rows) + 1) * beams
        needed = num_texts * longest * bytes_of_token
        if rows and (num_texts > MAX_TEXTS[kind] or needed > CACHE_BYTES[kind]):
            yield rows
            rows = []
            longest = limits[row]
        rows.append(row)
    if rows:
        yield rows


def as_text(written: Written, tokenizer: Tokenizer) -> Rewritten:
    """What was written, decoded."""
    tokens = written.tokens
    # The last character may lack some of its bytes, which decode to the replacement character.
    text = tokenizer.decode(tokens).rstrip("\ufffd").strip()
    probability = math.exp(written.log_probability / len(tokens)) if tokens else 0.0
    return Rewritten(text, probability, len(tokens), written.ended)


@dataclass(frozen=True)
class RewriteScorer(Scorer):
    config: RewriteConfig

    @property
    def main_metric(self) -> str:
        return MAIN_METRICS[self.config.metric]

    def score(self, predictions: Predictions, examples: Examples) -> Figures:
        gold = gold_labels(examples)
        predicted = predicted_labels(predictions)
        tokens: metrics.BleuTokens = "zh" if self.config.bleu_tokens == "zh" else "13a"
        figures = {"bleu": metrics.bleu(gold, predicted, tokens=tokens), "chrf": metrics.chrf(gold, predicted)}
        return {**figures, **metrics.rouge(gold, predicted)}

    def baseline(self, train: Examples, examples: Examples) -> list[Prediction]:
        """The most frequent target of the training rows."""
        answer = most_frequent(gold_labels(train))
        return [Prediction(answer) for _ in examples]

    def error(self, prediction: Prediction, example: Example) -> float:
        """What is missing to a chrF of 1."""
        return 1.0 - metrics.chrf([example.gold], [prediction.label])


REWRITE = Task(RewriteConfig, RewriteReader, RewriteHead, RewriteScorer, untrained={}, new_backbone="transformer")
