"""Choose one of several options (Devlin et al. 2018, section 4.4): one sequence an option, one score, one softmax.

In: a prompt with its options: SWAG's CSV, rows of JSON, DREAM's dialogues, CODAH's table. Each option is read as
`[CLS] context [SEP] stem option [SEP]`. Out: the option with the best score. A context longer than the model is read in
overlapping windows, the same for all options; the scores of an option's windows are averaged.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth import metrics
from firth.config import check_counts, check_shares
from firth.data.items import Item, cut_window, pack_items
from firth.nn.blocks import initialise
from firth.nn.dropout import Dropout
from firth.nn.pooling import pooled_rows
from firth.ragged import owners_of
from firth.tasks import options
from firth.tasks.options import MultipleChoice
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
    gold_labels,
    most_frequent,
    pooling_for,
    predicted_labels,
)
from firth.tensors import Batch, Encoder, Loss, States, as_tensors
from firth.tokenizers import Tokenizer
from firth.tokenizers.vocab import Vocab, windows
from firth.types import Encoding, Example, Prediction, Problem


@dataclass(frozen=True)
class ChooseConfig(TaskConfig):
    format: Literal["guess", "rows", "dream", "codah"] = "guess"
    """The file's form: rows with named columns (SWAG's too), DREAM's JSON or CODAH's table without header."""
    pooling: Literal["cls", "mean", "last"] = "cls"
    """A sequence's vector: its first token (through the model's pooler, if it has one; of causal models the last
    token) or the mean."""
    dropout: float = 0.1
    """Share of the pooled vector set to zero in training."""
    max_windows: int = 2
    """Windows of a long context used in training, for each option; prediction reads all."""

    def for_encoder(self, encoder: Encoder) -> Self:
        return replace(self, pooling=pooling_for(self.pooling, encoder))

    def __post_init__(self) -> None:
        check_shares(dropout=self.dropout)
        check_counts(max_windows=self.max_windows)


@dataclass(frozen=True)
class ChooseReader(Reader):
    config: ChooseConfig

    def read(self, path: Path, problems: list[Problem], *, labelled: bool = True) -> list[MultipleChoice]:
        return options.read(path, self.config.format, problems, labelled=labelled)

    def group(self, example: Example) -> str:
        """The context."""
        return example.texts[0]

    def balance(self, examples: Examples) -> Balance:
        counts = Counter(f"option {_right_index(example) + 1}" for example in examples)
        return {"right one": dict(sorted(counts.items()))}

    def example(self, value: object) -> Example:
        return options.example(value)


def _right_index(example: Example) -> int:
    """Which option is right, counted from 0."""
    return example.texts[1:].index(example.gold)


class ChooseHead(Head):
    name = "choose"
    config: ChooseConfig

    def __init__(self, config: ChooseConfig, encoder: Encoder, *, labels: Labels) -> None:
        super().__init__(config, encoder, labels=labels)
        self.dropout = Dropout(config.dropout)
        self.head = nn.Linear(encoder.width, 1)
        initialise(self.head, std=encoder.init_std)

    # Sequences

    def encode(self, examples: Examples, tokenizer: Tokenizer, *, max_length: int, training: bool) -> list[Item]:
        choices = [example for example in examples if isinstance(example, MultipleChoice)]
        # Questions may share a context, which is encoded once.
        texts: dict[str, None] = {}
        for choice in choices:
            texts[choice.texts[0]] = None
            texts.update(dict.fromkeys(choice.endings))
        encodings = tokenizer.encode_batch(list(texts))
        encoded = dict(zip(texts, encodings, strict=True))
        max_windows = self.config.max_windows if training else None
        items = []
        for choice in choices:
            context = encoded[choice.texts[0]]
            endings = [encoded[text] for text in choice.endings]
            item = _item(choice, context, endings, tokenizer.vocab, max_length=max_length, max_windows=max_windows)
            items.append(item)
        return items

    def batch(self, items: Items) -> Batch:
        """O counts the options of all examples, E the examples."""
        packed, _ = pack_items(items)
        num_options_E = [len(item.example.texts) - 1 for item in items]
        # All options of an example have the same number of windows.
        num_windows_E = []
        for item, num_options in zip(items, num_options_E, strict=True):
            num_windows_E.append(len(item.windows) // num_options)
        num_windows_O = np.repeat(num_windows_E, num_options_E)
        targets = {
            "options_B": owners_of(num_windows_O),
            "owners_O": owners_of(num_options_E),
            "places_O": np.concatenate([np.arange(count) for count in num_options_E]),
            "gold_E": np.array([_right_index(item.example) for item in items]),
        }
        return replace(packed, targets=as_tensors(targets))

    # Learning

    def loss(self, states: States, batch: Batch) -> Loss:
        options_B = batch.targets["options_B"]
        owners_O = batch.targets["owners_O"]
        places_O = batch.targets["places_O"]
        gold_E = batch.targets["gold_E"]
        # An option's score is the mean over its windows.
        scores_B = self.scores(states, batch).float()
        totals_O = scores_B.new_zeros(len(owners_O)).index_add(0, options_B, scores_B)
        means_O = totals_O / torch.bincount(options_B)
        # A row for each example; -inf where it has fewer options than another.
        max_options = int(places_O.max()) + 1
        scores_ET = means_O.new_full((len(gold_E), max_options), -torch.inf)
        scores_ET = scores_ET.index_put((owners_O, places_O), means_O)
        total = F.cross_entropy(scores_ET, gold_E, reduction="sum")
        is_right_E = scores_ET.argmax(1) == gold_E
        return Loss({self.name: total}, {f"{self.name}_correct": is_right_E.sum()})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {self.name: len(batch.targets["gold_E"])}

    def scores(self, states: States, batch: Batch) -> Tensor:
        """The score of every sequence."""
        pooled_BD = pooled_rows(states, batch.bounds_B1, self.config.pooling)
        scores_B1: Tensor = self.head(self.dropout(pooled_BD))
        return scores_B1[:, 0]

    # Predicting

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        return list(as_array(self.scores(states, batch)))

    def decide(self, item: Item, outputs: list[np.ndarray]) -> Prediction:
        names = item.example.texts[1:]
        # The windows of each option, then the mean over them.
        scores_TW = np.array(outputs, np.float64).reshape(len(names), -1)
        scores_T = scores_TW.mean(1)
        probabilities_T = np.exp(scores_T - scores_T.max())
        probabilities_T /= probabilities_T.sum()
        best = int(probabilities_T.argmax())
        probabilities = dict(zip(names, probabilities_T.tolist(), strict=True))
        return Prediction(names[best], float(probabilities_T[best]), probabilities)


def _item(
    choice: MultipleChoice,
    context: Encoding,
    endings: Sequence[Encoding],
    vocab: Vocab,
    *,
    max_length: int,
    max_windows: int | None,
) -> Item:
    """All windows of the first option, then all of the second ...; the windows of the context are the same for all."""
    room = max_length - vocab.frame.size(2)
    # An ending keeps two thirds of the room at most; the context gets what the longest one leaves.
    most_kept = max(1, room * 2 // 3)
    kept = [min(len(ending), most_kept) for ending in endings]
    size = room - max(kept)
    stride = max(1, size * 3 // 4)
    spans = windows(len(context), size, stride)[:max_windows]
    cuts = []
    for ending, num_kept in zip(endings, kept, strict=True):
        for start, end in spans:
            cuts.append(cut_window(vocab, (context, start, end), (ending, 0, num_kept)))
    total = len(context) + sum(map(len, endings))
    _, last_end = spans[-1]
    return Item(choice, tuple(cuts), total, total - last_end - sum(kept))


@dataclass(frozen=True)
class ChooseScorer(Scorer):
    config: ChooseConfig
    main_metric = "accuracy"

    def score(self, predictions: Predictions, examples: Examples) -> Figures:
        gold = gold_labels(examples)
        predicted = predicted_labels(predictions)
        return {"accuracy": metrics.accuracy(gold, predicted)}

    def baseline(self, train: Examples, examples: Examples) -> list[Prediction]:
        """The option that is right most often, by its index; the last one if an example has fewer."""
        index = most_frequent(_right_index(example) for example in train)
        predictions = []
        for example in examples:
            names = example.texts[1:]
            chosen = min(index, len(names) - 1)
            predictions.append(Prediction(names[chosen]))
        return predictions

    def error(self, prediction: Prediction, example: Example) -> float:
        if prediction.label == example.gold:
            return 0.0
        return prediction.probability


CHOOSE = Task(ChooseConfig, ChooseReader, ChooseHead, ChooseScorer)
