"""Compare two texts: how alike are they?

In: pairs with scores or labels, pairs that belong together, or triplets (a text, one like it, one less like it). Out:
a similarity. Three ways: a siamese encoder, whose vectors' cosine is the similarity (Reimers & Gurevych 2019); a
cross-encoder, which reads both texts at once; or the pooled vectors of a model as it is, on request whitened (Su et al.
2021), which needs no training. A text longer than the model is read in windows whose vectors are averaged by length.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth import metrics
from firth.config import check_counts, check_shares
from firth.data.items import Item, pack_items
from firth.errors import BadConfig
from firth.nn import similarity
from firth.nn.blocks import initialise
from firth.nn.pooling import layered_rows, pooled_rows
from firth.tasks import glue, likeness
from firth.tasks.likeness import Compared, with_vectors
from firth.tasks.task import Head, Labels, Reader, Scorer, Task, TaskConfig
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers import Tokenizer
from firth.types import Example, Prediction, Problem


@dataclass(frozen=True)
class CompareConfig(TaskConfig):
    way: Literal["siamese", "cross", "pooled"] = "siamese"
    """Each text by itself, both in one sequence, or the model's vectors as they are, without training."""
    loss: Literal["guess", "regression", "contrastive", "ranking"] = "guess"
    """What the siamese way minimises; ranking takes the other texts of a batch as negatives."""
    kind: Literal["guess", "one", "number", "positives", "triplets"] = "guess"
    """What the rows are: pairs with a label or a score, pairs that belong together, or triplets."""
    preset: str = ""
    """A GLUE set by name: stsb, mrpc or qqp."""
    text_column: str = ""
    """The column of the first text; a number counts the columns of a file without a header."""
    second_column: str = ""
    """The column of the second text."""
    third_column: str = ""
    """The column of a text that is less like the first, for triplets."""
    label_columns: tuple[str, ...] = ()
    """The column of the label or score."""
    label_names: tuple[str, ...] = ()
    """Names for labels that a file gives as numbers from 0."""
    positive: str = "1"
    """The label of texts that are alike."""
    lowest: float = 0.0
    """The score of texts that have nothing in common."""
    highest: float = 0.0
    """The score of texts that say the same; 0 takes the highest of the training rows."""
    pooling: Literal["mean", "cls", "last", "max", "first-last"] = "mean"
    """A text's vector: mean, first or last token, maximum, or the mean over the first and the last layer."""
    whiten: bool = False
    """Turn and stretch the vectors until their covariance is the unit matrix; for way=pooled."""
    whiten_width: int = 0
    """Directions kept by whitening, the strongest first; 0 keeps all."""
    margin: float = 0.5
    """The distance (1 - cosine) beyond which the contrastive loss leaves unlike texts alone."""
    scale: float = 20.0
    """What cosines are multiplied by in the softmax of the ranking loss."""
    threshold: float = 0.5
    """The similarity from which texts count as alike; found on dev."""
    dropout: float = 0.1
    """Share of the cross-encoder's pooled vector set to zero in training."""
    max_windows: int = 4
    """Windows of a long text used in training; prediction reads all."""
    both_orders: bool | None = None
    """Of way=cross, read a pair in both orders, in training and prediction, and average the scores; by default only
    with a preset. The other ways do not know an order."""
    centre: float = 0.0
    """Of a cross-encoder for scores, what is subtracted from a similarity before it is learned; found on the
    training rows."""
    spread: float = 0.0
    """What the rest is divided by; 0 takes mean and deviation of the training rows."""

    @property
    def label_separator(self) -> str:
        return ","

    def __post_init__(self) -> None:
        if self.way != "pooled" and (self.whiten or (self.way == "siamese" and self.pooling == "first-last")):
            raise BadConfig("whiten and pooling=first-last go with way=pooled.")
        if len(self.label_columns) > 1:
            raise BadConfig("compare reads one label column.")
        check_shares(dropout=self.dropout)
        check_counts(max_windows=self.max_windows)

    def with_preset(self) -> Self:
        if not self.preset:
            return self
        preset = glue.preset(self.preset)
        positive = preset.positive or self.positive
        orders = preset.symmetric if self.both_orders is None else self.both_orders
        return replace(self, kind=preset.kind, positive=positive, both_orders=orders)  # type: ignore[arg-type]


@dataclass(frozen=True)
class CompareReader(Reader):
    config: CompareConfig

    def read(self, path: Path, problems: list[Problem], *, labelled: bool = True) -> list[Example]:
        return likeness.read(path, self.config, problems, labelled=labelled)

    def learn(self, examples: Sequence[Example]) -> CompareConfig:
        config = replace(self.config, **likeness.learned(self.config, examples))
        if config.way != "cross" or config.kind != "number" or config.spread:
            return config
        targets = np.array([_similarity(example.gold, config) for example in examples])
        return replace(config, centre=float(targets.mean()), spread=float(targets.std()) or 1.0)

    def labels_of(self, examples: Sequence[Example]) -> Labels:
        if self.config.kind != "one":
            return {}
        return {"label": tuple(sorted({example.gold for example in examples}))}

    def problems(self, examples: Sequence[Example], labels: Labels) -> Iterator[Problem]:
        for example in examples:
            if (kind := likeness.kind_of(example)) != self.config.kind:
                what = f"a row of kind {kind} where {self.config.kind} is wanted"
                yield Problem(example.row, what, f"mend the row or say `kind='{kind}'`")
            elif labels and example.gold not in labels["label"]:
                what = f"the label '{example.gold}' never occurs in training"
                yield Problem(example.row, what, "add training rows with it or remove the row")

    def example(self, value: object) -> Example:
        return likeness.example(value, self.config)


class CompareHead(Head):
    name = "compare"
    config: CompareConfig

    def __init__(self, config: CompareConfig, encoder: Encoder, *, labels: Labels) -> None:
        super().__init__(config, encoder, labels=labels)
        self.whitening: likeness.Whitening | None = None
        self.reads = "last" if encoder.causal else "cls"
        if config.way == "cross":
            self.dropout = nn.Dropout(config.dropout)
            self.head = nn.Linear(encoder.width, 1)
            initialise(self.head, std=encoder.init_std)

    @property
    def needs_layers(self) -> bool:  # type: ignore[override]
        return bool(self.config.pooling == "first-last")

    @property
    def embeds(self) -> str:  # type: ignore[override]
        return str(self.config.pooling) if self.config.way == "siamese" else ""

    @property
    def compares_within_batch(self) -> bool:
        return bool(self.config.way == "siamese" and self.config.loss == "ranking")

    def encode(
        self, examples: Sequence[Example], tokenizer: Tokenizer, *, max_length: int, training: bool
    ) -> list[Item]:
        if self.config.way == "cross":
            orders = bool(self.config.both_orders)
            return likeness.together(examples, tokenizer, max_length=max_length, both_orders=orders)
        limit = self.config.max_windows if training else None
        return likeness.apart(examples, tokenizer, max_length=max_length, max_windows=limit)

    def batch(self, items: Sequence[Item]) -> Batch:
        packed, _ = pack_items(items)
        counts = [count for item in items for count in item.facts]
        targets = {
            "texts_B": torch.from_numpy(np.repeat(np.arange(len(counts)), counts)),
            "gold_E": torch.tensor([self._learned(item.example) for item in items], dtype=torch.float32),
        }
        if self.compares_within_batch:
            rows = [item.example for item in items]
            targets["ignored_EC"] = torch.from_numpy(likeness.ignored(rows, targets["gold_E"].numpy() > 0.5))
        return replace(packed, targets=targets)

    def _learned(self, example: Example) -> float:
        """The same as the loss sees it: standardised where it is a cross-encoder's number."""
        return float((_target(example, self.config) - self.config.centre) / (self.config.spread or 1.0))

    def before_training(self, examples: Sequence[Example]) -> None:
        if self.config.way == "pooled":
            raise BadConfig("way=pooled needs no training; measure it with `evaluate` and `task='compare'`.")

    def loss(self, states: States, batch: Batch) -> Loss:
        gold_E = batch.targets["gold_E"]
        if self.config.way == "cross":
            scores_EKO = self._scores(states, batch).float().view(len(gold_E), -1, self._num_orders)
            scores_EK = scores_EKO.mean(2)
            return Loss({self.name: similarity.cross(scores_EK, gold_E, kind=self.config.kind)})
        texts_TD = self._texts(self._pooled(states, batch), batch)
        unit_EKD = F.normalize(texts_TD, dim=1).view(len(gold_E), -1, texts_TD.shape[1])
        if self.compares_within_batch:
            asks_E, ignored_EC = gold_E > 0.5, batch.targets["ignored_EC"]
            total, right = similarity.ranking(unit_EKD, asks_E, ignored_EC=ignored_EC, scale=self.config.scale)
            return Loss({self.name: total}, {f"{self.name}_correct": right})
        cosine_E = (unit_EKD[:, 0] * unit_EKD[:, 1]).sum(1)
        if self.config.loss == "regression":
            return Loss({self.name: F.mse_loss(cosine_E, gold_E, reduction="sum")})
        return Loss({self.name: similarity.contrastive(cosine_E, gold_E, margin=self.config.margin)})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        gold_E = batch.targets["gold_E"]
        return {self.name: int((gold_E > 0.5).sum()) if self.compares_within_batch else len(gold_E)}

    @property
    def _num_orders(self) -> int:
        return 2 if self.config.both_orders else 1

    def _scores(self, states: States, batch: Batch) -> Tensor:
        pooled_BD = pooled_rows(states, batch.bounds_B1, self.reads)
        scores_B1: Tensor = self.head(self.dropout(pooled_BD))
        return scores_B1[:, 0]

    def _pooled(self, states: States, batch: Batch) -> Tensor:
        return layered_rows(states, batch.bounds_B1, self.config.pooling)

    @staticmethod
    def _texts(vectors_BD: Tensor, batch: Batch) -> Tensor:
        """A vector for each text: its windows' mean, weighted by their lengths."""
        texts_B, weights_B1 = batch.targets["texts_B"], batch.bounds_B1.diff()[:, None].float()
        empty_TD = vectors_BD.new_zeros(int(texts_B[-1]) + 1, vectors_BD.shape[1])
        return empty_TD.index_add(0, texts_B, vectors_BD * weights_B1)  # only its direction matters

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        made = self._scores(states, batch) if self.config.way == "cross" else self._pooled(states, batch)
        return list(made.float().cpu().numpy())

    def decide(self, item: Item, outputs: list[np.ndarray]) -> Prediction:
        if self.config.way == "cross":
            scores = np.reshape(outputs, (-1, self._num_orders)).mean(1).tolist()
            if len(scores) > 1:
                return Prediction(scores[0] - scores[1])
            if self.config.kind == "number":
                return Prediction(scores[0] * (self.config.spread or 1.0) + self.config.centre)
            return Prediction(float(1 / (1 + np.exp(-scores[0]))))
        lengths = np.array([len(w.ids) for w in item.windows], np.float32)
        bounds = np.cumsum([0, *item.facts]).tolist()
        return self._compared(
            tuple(np.average(outputs[a:b], axis=0, weights=lengths[a:b]) for a, b in pairwise(bounds))
        )

    def _compared(self, vectors: tuple[np.ndarray, ...]) -> Compared:
        """Of a triplet, how much more like the second text is than the third."""
        first, *others = _directions(np.stack(vectors), self.whitening)
        cosines = [float(first @ other) for other in others]
        return with_vectors(cosines[0] if len(cosines) == 1 else cosines[0] - cosines[1], vectors)

    def tune(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> list[Prediction]:
        """Finds the whitening (which needs no labels) and the threshold with the best accuracy."""
        found = list(predictions)
        if self.config.whiten:
            texts = np.stack(list(likeness.by_text(found, examples).values()))
            self.whitening = likeness.whitening(texts, self.config.whiten_width)
            found = [self._compared(p.vectors) for p in found if isinstance(p, Compared)]
        if self.config.kind == "one":
            alike = [_target(example, self.config) > 0.5 for example in examples]
            threshold = metrics.best_accuracy(alike, [p.label for p in found])[1]
            self.config = replace(self.config, threshold=threshold)
        return found


@dataclass(frozen=True)
class CompareScorer(Scorer):
    config: CompareConfig
    whitening: likeness.Whitening | None = None
    """The map that vectors go through before their cosines, if there is one."""

    @classmethod
    def of(cls, head: Head) -> Self:
        assert isinstance(head, CompareHead)
        return cls(head.config, head.labels, head.whitening)

    @property
    def main_metric(self) -> str:
        return {"number": "spearman", "one": "auc", "positives": "mrr", "triplets": "accuracy"}[self.config.kind]

    def score(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, float]:
        values = np.array([p.label for p in predictions], np.float64)
        kind = self.config.kind
        if kind == "number":
            gold = [example.gold for example in examples]
            return {"spearman": metrics.spearman(values, gold), "pearson": metrics.pearson(values, gold)}
        figures: dict[str, float] = {}
        if kind == "one":
            alike = np.array([_target(example, self.config) > 0.5 for example in examples])
            figures = likeness.figures(alike, values, self.config.threshold)
        if kind == "triplets":
            figures = {"accuracy": float(((values > 0) + 0.5 * (values == 0)).mean())}
        return figures | self._rankings(predictions, examples)

    def _rankings(self, predictions: Sequence[Prediction], examples: Sequence[Example]) -> dict[str, float]:
        """Where each text finds its likes among all the others of the file."""
        vectors = likeness.by_text(predictions, examples)
        unit: dict[str, np.ndarray] = {}
        if vectors:
            directions = _directions(np.stack(list(vectors.values())), self.whitening)
            unit = dict(zip(vectors, directions, strict=True))
        return likeness.rankings(unit, examples, [_target(example, self.config) > 0.5 for example in examples])

    def baseline(self, train: Sequence[Example], examples: Sequence[Example]) -> list[Prediction]:
        usual = float(np.mean([_target(example, self.config) for example in train]))
        constant = {"number": usual, "one": float(usual >= 0.5)}.get(self.config.kind, 0.0)
        return [Prediction(constant) for _ in examples]

    def perfect(self, example: Example) -> Prediction:
        own = likeness.own_direction(example.texts[0])
        return with_vectors(_target(example, self.config), (own, own) if self.config.kind == "positives" else ())

    def error(self, prediction: Prediction, example: Example) -> float:
        if self.config.kind == "triplets":
            return max(0.0, -float(prediction.label))
        wanted, got = _target(example, self.config), float(prediction.label)
        right = self.config.kind == "one" and (got >= self.config.threshold) == (wanted > 0.5)
        return 0.0 if right else abs(got - wanted)


COMPARE = Task(CompareConfig, CompareReader, CompareHead, CompareScorer, untrained={"way": "pooled"})


def _similarity(score: float, config: CompareConfig) -> float:
    """A score of the rows' own scale, from 0 to 1."""
    return float((score - config.lowest) / (config.highest - config.lowest))


def _target(example: Example, config: CompareConfig) -> float:
    """The similarity that people meant, from 0 to 1."""
    if config.kind == "number":
        return _similarity(example.gold, config)
    return float(example.gold == config.positive) if config.kind == "one" else 1.0


def _directions(vectors: np.ndarray, whitening: likeness.Whitening | None) -> np.ndarray:
    """Unit vectors, after whitening where it was asked for."""
    if whitening is not None:
        vectors = (vectors - whitening[0]) @ whitening[1]
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12))
