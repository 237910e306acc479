"""Choose one of several options (Devlin et al. 2018, section 4.4): one sequence an option, one score, one softmax.

In: a prompt with its options: SWAG's CSV, rows of JSON, DREAM's dialogues, CODAH's table. Each option is read as
`[CLS] context [SEP] stem option [SEP]`. Out: the option with the best score. A context longer than the model is read in
overlapping windows, the same for all options; the scores of an option's windows are averaged.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth import metrics
from firth.config import check_counts, check_shares
from firth.data.items import Item, cut_window, pack_items
from firth.nn.blocks import initialise
from firth.nn.pooling import pooled_rows
from firth.tasks import options
from firth.tasks.options import MultipleChoice
from firth.tasks.task import Balance, Head, Labels, Reader, Scorer, Task, TaskConfig
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers import Tokenizer
from firth.tokenizers.vocab import windows
from firth.types import Encoding, Example, Prediction, Problem


@dataclass(frozen=True)
class ChooseConfig(TaskConfig):
    format: Literal["guess", "rows", "dream", "codah"] = "guess"
    """The file's form: rows with named columns (SWAG's too), DREAM's JSON or CODAH's table without header."""
    pooling: Literal["cls", "mean", "last"] = "cls"
    """What stands for a sequence: its first token (through the model's pooler, if it has one; of causal models the
    last) or the mean."""
    dropout: float = 0.1
    """Share of the pooled vector set to zero in training."""
    max_windows: int = 2
    """Windows of a long context used in training, for each option; prediction reads all."""

    def __post_init__(self) -> None:
        check_shares(dropout=self.dropout)
        check_counts(max_windows=self.max_windows)


@dataclass(frozen=True)
class ChooseReader(Reader):
    config: ChooseConfig

    def read(self, path: Path, problems: list[Problem], *, labelled: bool = True) -> list[MultipleChoice]:
        return options.read(path, self.config.format, problems, labelled=labelled)

    def group(self, example: Example) -> str:
        return example.texts[0]

    def balance(self, examples: Sequence[Example]) -> Balance:
        counts = Counter(f"option {_place(example) + 1}" for example in examples)
        return {"right one": dict(sorted(counts.items()))}

    def example(self, value: object) -> Example:
        return options.example(value)


class ChooseHead(Head):
    name = "choose"
    config: ChooseConfig

    def __init__(self, config: ChooseConfig, encoder: Encoder, *, labels: Labels) -> None:
        super().__init__(config, encoder, labels=labels)
        self.dropout = nn.Dropout(config.dropout)
        self.head = nn.Linear(encoder.width, 1)
        initialise(self.head, std=encoder.init_std)

    def encode(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, training: bool
    ) -> list[Item]:
        choices = [example for example in examples if isinstance(example, MultipleChoice)]
        texts = list(dict.fromkeys(text for choice in choices for text in (choice.texts[0], *choice.endings)))
        read = dict(zip(texts, tokenizer.encode_batch(texts), strict=True))
        limit = self.config.max_windows if training else None
        return [
            _item(
                choice,
                read[choice.texts[0]],
                [read[text] for text in choice.endings],
                tokenizer.vocab,
                max_length,
                limit,
            )
            for choice in choices
        ]

    def batch(self, items: Sequence[Item]) -> Batch:
        packed, _ = pack_items(items)
        counts = [len(item.example.texts) - 1 for item in items]
        repeats = [len(item.windows) // count for item, count in zip(items, counts, strict=True)]
        targets = {
            "options_B": np.repeat(np.arange(sum(counts)), np.repeat(repeats, counts)),
            "owners_O": np.repeat(np.arange(len(items)), counts),
            "places_O": np.concatenate([np.arange(count) for count in counts]),
            "gold_E": np.array([_place(item.example) for item in items]),
        }
        return replace(packed, targets={name: torch.from_numpy(values) for name, values in targets.items()})

    def loss(self, states: States, batch: Batch) -> Loss:
        targets, gold_E = batch.targets, batch.targets["gold_E"]
        scores_B, options_B = self.scores(states, batch).float(), targets["options_B"]
        totals_O = scores_B.new_zeros(len(targets["owners_O"])).index_add(0, options_B, scores_B)
        means_O = totals_O / torch.bincount(options_B)
        scores_ET = means_O.new_full((len(gold_E), int(targets["places_O"].max()) + 1), -torch.inf)
        scores_ET = scores_ET.index_put((targets["owners_O"], targets["places_O"]), means_O)
        total = F.cross_entropy(scores_ET, gold_E, reduction="sum")
        return Loss({self.name: total}, {f"{self.name}_correct": (scores_ET.argmax(1) == gold_E).sum()})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {self.name: len(batch.targets["gold_E"])}

    def scores(self, states: States, batch: Batch) -> Tensor:
        """The head's score of every sequence."""
        pooled_BD = pooled_rows(states, batch.bounds_B1, self.config.pooling)
        scores_B1: Tensor = self.head(self.dropout(pooled_BD))
        return scores_B1[:, 0]

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        return list(self.scores(states, batch).float().cpu().numpy())

    def decide(self, item: Item, outputs: list[np.ndarray]) -> Prediction:
        names = item.example.texts[1:]
        scores_T = np.array(outputs, np.float64).reshape(len(names), -1).mean(1)
        shares_T = np.exp(scores_T - scores_T.max())
        shares_T /= shares_T.sum()
        best = int(shares_T.argmax())
        return Prediction(names[best], float(shares_T[best]), dict(zip(names, shares_T.tolist(), strict=True)))


@dataclass(frozen=True)
class ChooseScorer(Scorer):
    config: ChooseConfig
    main_metric = "accuracy"

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, float]:
        return {"accuracy": metrics.accuracy([e.gold for e in examples], [p.label for p in predictions])}

    def baseline(self, train: Sequence[Example], examples: Sequence[Example]) -> list[Prediction]:
        counts = Counter(_place(example) for example in train)
        usual = min(counts, key=lambda place: (-counts[place], place))
        return [Prediction(example.texts[1:][min(usual, len(example.texts) - 2)]) for example in examples]

    def error(self, prediction: Prediction, example: Example) -> float:
        return 0.0 if prediction.label == example.gold else prediction.probability


CHOOSE = Task(ChooseConfig, ChooseReader, ChooseHead, ChooseScorer)


def _item(
    choice: MultipleChoice,
    context: Encoding,
    endings: Sequence[Encoding],
    specials: Any,
    max_length: int,
    limit: int | None,
) -> Item:
    """All windows of the first option, then all of the second ...; every option sees the same windows."""
    total, room = len(context) + sum(map(len, endings)), max_length - specials.frame.size(2)
    kept = [min(len(ending), max(1, room * 2 // 3)) for ending in endings]
    size = room - max(kept)
    spans = windows(len(context), size, max(1, size * 3 // 4))[:limit]
    cuts = tuple(
        cut_window(specials, (context, a, b), (ending, 0, size))
        for ending, size in zip(endings, kept, strict=True)
        for a, b in spans
    )
    return Item(choice, cuts, total, total - spans[-1][1] - sum(kept))


def _place(example: Example) -> int:
    """Which option is right, counted from 0."""
    return example.texts[1:].index(example.gold)
