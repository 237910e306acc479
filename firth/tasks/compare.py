"""Compare two texts: how alike are they?

In: pairs with scores or labels, pairs that belong together, or triplets (a text, one like it, one less like it). Out:
a similarity. Three ways: a siamese encoder, whose vectors' cosine is the similarity (Reimers & Gurevych 2019); a
cross-encoder, which reads both texts at once; or the pooled vectors of a model as it is, optionally whitened (Su et al.
2021), which needs no training. A text longer than the model is read in windows whose vectors are averaged by length.
"""

from collections.abc import Iterator, Mapping
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
from firth.errors import BadConfig, BadInput
from firth.nn import similarity
from firth.nn.blocks import initialise
from firth.nn.heads import scoring_layer
from firth.nn.pooling import layered_rows, pooled_rows
from firth.tasks import compare_files, compare_scores, glue
from firth.tasks.compare_files import Kind
from firth.tasks.compare_scores import Similarity, Whitening, unit_vectors, with_vectors
from firth.tasks.negatives import ignored_negatives
from firth.tasks.pair_windows import joined_items, separate_items
from firth.tasks.task import (
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
    gold_labels,
    layer_for,
    pooling_for,
    predicted_labels,
)
from firth.tensors import Batch, Encoder, Loss, States
from firth.tokenizers import Tokenizer
from firth.types import Example, Prediction, Problem

LossName = Literal["regression", "contrastive", "ranking", "cosent"]
LOSSES: dict[Kind, tuple[LossName, ...]] = {
    "number": ("regression", "cosent"),
    "one": ("contrastive", "regression", "ranking", "cosent"),
    "positives": ("ranking",),
    "triplets": ("ranking",),
}
"""The losses that fit each kind of rows, the default first."""


@dataclass(frozen=True)
class CompareConfig(TaskConfig):
    way: Literal["siamese", "cross", "pooled"] = "siamese"
    """Each text by itself, both in one sequence, or the model's vectors as they are, without training."""
    loss: Literal["guess", "regression", "contrastive", "ranking", "cosent"] = "guess"
    """What the siamese way minimises. ranking takes the other texts of a batch as negatives; cosent compares the order
    of all pairs of a batch, so it suits scores."""
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
    """Whiten the vectors: turn and scale them until their covariance is the unit matrix; for way=pooled."""
    whiten_width: int = 0
    """Directions kept by whitening, the strongest first; 0 keeps all."""
    margin: float = 0.5
    """The distance (1 - cosine) beyond which the contrastive loss leaves unlike texts alone."""
    scale: float = 20.0
    """What cosines are multiplied by in the ranking and cosent losses."""
    matryoshka: tuple[int, ...] = ()
    """Widths to which the siamese way's vectors can be cut later: the loss is averaged over vectors cut to each of them
    and whole ones (Kusupati et al. 2022)."""
    threshold: float = 0.5
    """The similarity from which texts count as alike; found on dev."""
    layer: Literal["auto", "none", "tanh", "gelu", "relu", "gelu-norm"] = "auto"
    """With way=cross, a layer between the pair's vector and the score; auto is the one that the kind of model usually
    has."""
    dropout: float = 0.1
    """Share of the cross-encoder's pooled vector set to zero in training."""
    max_windows: int = 4
    """Windows of a long text used in training; prediction reads all."""
    both_orders: bool | None = None
    """With way=cross, read a pair in both orders, in training and prediction, and average the scores; by default only
    with a preset. The order makes no difference to the other ways."""
    centre: float = 0.0
    """With way=cross and scores, what is subtracted from a similarity before it is learned; found on the training
    rows."""
    spread: float = 0.0
    """What the rest is divided by; 0 takes mean and deviation of the training rows."""

    @property
    def label_separator(self) -> str:
        return ","

    def for_encoder(self, encoder: Encoder) -> Self:
        layer = layer_for(self.layer, encoder, pooling="cls") if self.way == "cross" else "none"
        return replace(self, pooling=pooling_for(self.pooling, encoder), layer=layer)

    def __post_init__(self) -> None:
        has_pooled_settings = self.whiten or (self.way == "siamese" and self.pooling == "first-last")
        if self.way != "pooled" and has_pooled_settings:
            raise BadConfig("whiten and pooling=first-last go with way=pooled.")
        if len(self.label_columns) > 1:
            raise BadConfig("compare reads one label column.")
        if self.highest and self.highest == self.lowest:
            raise BadConfig(f"tasks.compare.lowest and highest must differ; both are {self.highest:g}.")
        if self.matryoshka and (self.way != "siamese" or min(self.matryoshka) < 1):
            raise BadConfig("matryoshka is a list of widths from 1 on and goes with way=siamese.")
        check_shares(dropout=self.dropout)
        check_counts(max_windows=self.max_windows)

    def with_preset(self) -> Self:
        if not self.preset:
            return self
        preset = glue.preset(self.preset)
        return replace(
            self,
            kind=preset.kind,
            positive=preset.positive or self.positive,
            both_orders=preset.symmetric if self.both_orders is None else self.both_orders,
        )


@dataclass(frozen=True)
class CompareReader(Reader):
    config: CompareConfig

    def locate(self, path: Path) -> CompareConfig:
        return replace(self.config, kind="number") if compare_files.has_scores(path, self.config) else self.config

    def read(self, path: Path, problems: list[Problem], *, labelled: bool = True) -> list[Example]:
        return compare_files.read(path, self.config, problems, labelled=labelled)

    def learn(self, examples: Examples) -> CompareConfig:
        """The config with the kind of the rows, the loss for it, and the range of the scores."""
        kind = self.config.kind
        if kind == "guess":
            kind = compare_files.kind_of(examples[0])
        loss = self._loss_for(kind)
        if kind == "one":
            self._check_positive(examples)
        config = replace(self.config, kind=kind, loss=loss)
        if kind != "number":
            return config
        config = replace(config, highest=self._highest(examples))
        if config.way != "cross" or config.spread:
            return config
        targets = np.array([_similarity(example.gold, config) for example in examples])
        return replace(config, centre=float(targets.mean()), spread=float(targets.std()) or 1.0)

    def _loss_for(self, kind: Kind) -> LossName:
        """The loss for rows of this kind; raises if the config does not fit them."""
        suitable = LOSSES[kind]
        loss = self.config.loss
        if loss == "guess":
            loss = suitable[0]
        if self.config.way == "siamese" and loss not in suitable:
            raise BadConfig(f"Rows of kind {kind} do not go with loss={loss} but with {', '.join(suitable)}.")
        if self.config.way == "cross" and kind == "positives":
            raise BadConfig("Pairs without labels cannot teach a cross-encoder; use way=siamese or add pairs unlike.")
        return loss

    def _check_positive(self, examples: Examples) -> None:
        """Raises if no row has the label of texts that are alike."""
        names = {example.gold for example in examples if isinstance(example.gold, str)}
        if self.config.positive not in names:
            raise BadInput(
                f"No row has the label '{self.config.positive}' for texts that are alike; name it with "
                f"tasks.compare.positive=NAME (the labels are {', '.join(sorted(names)[:10])})."
            )

    def _highest(self, examples: Examples) -> float:
        """The score of texts that say the same."""
        if self.config.highest:
            return self.config.highest
        highest = max(float(example.gold) for example in examples)
        if highest <= self.config.lowest:
            raise BadInput(f"No score is above {self.config.lowest}; set tasks.compare.lowest and highest.")
        return highest

    def labels_of(self, examples: Examples) -> Labels:
        if self.config.kind != "one":
            return {}
        return {"label": tuple(sorted({example.gold for example in examples}))}

    def problems(self, examples: Examples, labels: Labels) -> Iterator[Problem]:
        for example in examples:
            kind = compare_files.kind_of(example)
            if kind != self.config.kind:
                what = f"a row of kind {kind} where {self.config.kind} is wanted"
                yield Problem(example.row, what, f"correct the row or say `kind='{kind}'`")
            elif labels and example.gold not in labels["label"]:
                what = f"the label '{example.gold}' never occurs in training"
                yield Problem(example.row, what, "add training rows with it or remove the row")

    def example(self, value: object) -> Example:
        return compare_files.example(value, self.config)


def _similarity(score: float, config: CompareConfig) -> float:
    """A score on the rows' scale as a similarity from 0 to 1."""
    return float((score - config.lowest) / (config.highest - config.lowest))


def _target(example: Example, config: CompareConfig) -> float:
    """The gold similarity, from 0 to 1."""
    if config.kind == "number":
        return _similarity(example.gold, config)
    if config.kind == "one":
        return float(example.gold == config.positive)
    return 1.0


def _are_alike(examples: Examples, config: CompareConfig) -> list[bool]:
    """For each example whether its first two texts are alike."""
    return [_target(example, config) > 0.5 for example in examples]


class CompareHead(Head):
    name = "compare"
    config: CompareConfig

    def __init__(self, config: CompareConfig, encoder: Encoder, *, labels: Labels) -> None:
        super().__init__(config, encoder, labels=labels)
        self.whitening: Whitening | None = None
        self.needs_layers = self.config.pooling == "first-last"
        if config.way == "siamese":
            self.embeds = self.config.pooling
        if config.way == "cross":
            self.pair_pooling = pooling_for("cls", encoder)
            self.dropout = nn.Dropout(config.dropout)
            self.layer = scoring_layer(encoder, self.config.layer)
            self.head = nn.Linear(encoder.width, 1)
            initialise(self.head, std=encoder.init_std)

    @property
    def compares_within_batch(self) -> bool:
        """Whether the other texts of a batch are negatives, so that the loss depends on the whole batch."""
        return self.config.way == "siamese" and self.config.loss == "ranking"

    @property
    def _num_orders(self) -> int:
        return 2 if self.config.both_orders else 1

    # Sequences

    def encode(self, examples: Examples, tokenizer: Tokenizer, *, max_length: int, training: bool) -> list[Item]:
        if self.config.way == "cross":
            both_orders = bool(self.config.both_orders)
            return joined_items(examples, tokenizer, max_length=max_length, both_orders=both_orders)
        max_windows = self.config.max_windows if training else None
        return separate_items(examples, tokenizer, max_length=max_length, max_windows=max_windows)

    def batch(self, items: Items) -> Batch:
        """T counts the texts of all examples, E the examples, C the texts that are compared with a first text."""
        packed, _ = pack_items(items)
        # The windows of each text, or of each pair for a cross-encoder.
        num_windows: list[int] = []
        for item in items:
            num_windows += item.facts
        gold_E = torch.tensor([self._learned_target(item.example) for item in items], dtype=torch.float32)
        targets = {
            "texts_B": torch.from_numpy(np.repeat(np.arange(len(num_windows)), num_windows)),
            "gold_E": gold_E,
        }
        if self.compares_within_batch:
            examples = [item.example for item in items]
            ignored_EC = ignored_negatives(examples, gold_E.numpy() > 0.5)
            targets["ignored_EC"] = torch.from_numpy(ignored_EC)
        return replace(packed, targets=targets)

    def _learned_target(self, example: Example) -> float:
        """The gold similarity as the loss uses it: a cross-encoder learns standardised scores."""
        spread = self.config.spread or 1.0
        return float((_target(example, self.config) - self.config.centre) / spread)

    # Learning

    def before_training(self, examples: Examples) -> None:
        if self.config.way == "pooled":
            raise BadConfig("way=pooled needs no training; measure it with `evaluate` and `task='compare'`.")

    def loss(self, states: States, batch: Batch) -> Loss:
        gold_E = batch.targets["gold_E"]
        if self.config.way == "cross":
            scores_B = self._pair_scores(states, batch).float()
            # K pairs of an example, each in O orders whose scores are averaged.
            scores_EK = scores_B.view(len(gold_E), -1, self._num_orders).mean(2)
            return Loss({self.name: similarity.cross(scores_EK, gold_E, kind=self.config.kind)})
        texts_TD = text_vectors(self._pooled(states, batch), batch)
        whole = self._siamese_loss(texts_TD, batch)
        widths = [width for width in self.config.matryoshka if width < texts_TD.shape[1]]
        if not widths:
            return whole
        total = whole.sums[self.name]
        for width in widths:
            total = total + self._siamese_loss(texts_TD[:, :width], batch).sums[self.name]
        return replace(whole, sums={self.name: total / (1 + len(widths))})

    def _siamese_loss(self, texts_TD: Tensor, batch: Batch) -> Loss:
        """The loss of the texts' vectors, whole or cut."""
        gold_E = batch.targets["gold_E"]
        # K texts of an example: two, or three of a triplet.
        unit_TD = F.normalize(texts_TD, dim=1)
        unit_EKD = unit_TD.view(len(gold_E), -1, texts_TD.shape[1])
        if self.compares_within_batch:
            ignored_EC = batch.targets["ignored_EC"]
            total, right = similarity.ranking(unit_EKD, gold_E > 0.5, ignored_EC=ignored_EC, scale=self.config.scale)
            return Loss({self.name: total}, {f"{self.name}_correct": right})
        cosine_E = (unit_EKD[:, 0] * unit_EKD[:, 1]).sum(1)
        if self.config.loss == "regression":
            return Loss({self.name: F.mse_loss(cosine_E, gold_E, reduction="sum")})
        if self.config.loss == "cosent":
            return Loss({self.name: similarity.cosent(cosine_E, gold_E, scale=self.config.scale)})
        return Loss({self.name: similarity.contrastive(cosine_E, gold_E, margin=self.config.margin)})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        gold_E = batch.targets["gold_E"]
        if self.compares_within_batch:
            return {self.name: int((gold_E > 0.5).sum())}
        return {self.name: len(gold_E)}

    def _pair_scores(self, states: States, batch: Batch) -> Tensor:
        """A cross-encoder's score of every sequence."""
        pooled_BD = pooled_rows(states, batch.bounds_B1, self.pair_pooling)
        scores_B1: Tensor = self.head(self.dropout(self.layer(pooled_BD)))
        return scores_B1[:, 0]

    def _pooled(self, states: States, batch: Batch) -> Tensor:
        """A vector for every sequence."""
        return layered_rows(states, batch.bounds_B1, self.config.pooling)

    # Predicting

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        if self.config.way == "cross":
            return list(self._pair_scores(states, batch).float().cpu().numpy())
        return list(self._pooled(states, batch).float().cpu().numpy())

    def decide(self, item: Item, outputs: list[np.ndarray]) -> Prediction:
        if self.config.way == "cross":
            return self._decide_by_scores(outputs)
        # A text's vector is the mean of its windows', weighted by their lengths.
        lengths = np.array([len(window.ids) for window in item.windows], np.float32)
        bounds = np.cumsum([0, *item.facts]).tolist()
        vectors = []
        for start, end in pairwise(bounds):
            vector = np.average(outputs[start:end], axis=0, weights=lengths[start:end])
            vectors.append(vector)
        return self._by_vectors(tuple(vectors))

    def _decide_by_scores(self, outputs: list[np.ndarray]) -> Prediction:
        scores = np.reshape(outputs, (-1, self._num_orders)).mean(1).tolist()
        if len(scores) > 1:
            # Of a triplet, how much more like the first the second text is than the third.
            return Prediction(scores[0] - scores[1])
        if self.config.kind == "number":
            return Prediction(scores[0] * (self.config.spread or 1.0) + self.config.centre)
        return Prediction(float(1 / (1 + np.exp(-scores[0]))))

    def _by_vectors(self, vectors: tuple[np.ndarray, ...]) -> Similarity:
        """The cosine of two texts; of a triplet, the difference of two."""
        first, *others = unit_vectors(np.stack(vectors), self.whitening)
        cosines = [float(first @ other) for other in others]
        similarity_of_texts = cosines[0]
        if len(cosines) > 1:
            similarity_of_texts -= cosines[1]
        return with_vectors(similarity_of_texts, vectors)

    def tune(self, predictions: Predictions, examples: Examples) -> list[Prediction]:
        """Finds the whitening (which needs no labels) and the threshold with the best accuracy."""
        found = list(predictions)
        if self.config.whiten:
            vectors_ND = np.stack(list(compare_scores.vectors_by_text(found, examples).values()))
            self.whitening = compare_scores.fit_whitening(vectors_ND, self.config.whiten_width)
            found = [self._by_vectors(made.vectors) for made in found if isinstance(made, Similarity)]
        if self.config.kind == "one":
            similarities = predicted_labels(found)
            _, threshold = metrics.best_accuracy(_are_alike(examples, self.config), similarities)
            self.config = replace(self.config, threshold=threshold)
        return found


def text_vectors(vectors_BD: Tensor, batch: Batch) -> Tensor:
    """A vector for each text: the sum of its windows', weighted by their lengths. Only its direction matters."""
    texts_B = batch.targets["texts_B"]
    weights_B1 = batch.bounds_B1.diff()[:, None].float()
    num_texts = int(texts_B[-1]) + 1
    zeros_TD = vectors_BD.new_zeros(num_texts, vectors_BD.shape[1])
    return zeros_TD.index_add(0, texts_B, vectors_BD * weights_B1)


@dataclass(frozen=True)
class CompareScorer(Scorer):
    config: CompareConfig
    whitening: Whitening | None = None
    """The whitening of the vectors before their cosines, if there is one."""

    @classmethod
    def of(cls, head: Head) -> Self:
        assert isinstance(head, CompareHead)
        return cls(head.config, head.labels, head.whitening)

    @property
    def main_metric(self) -> str:
        return {"number": "spearman", "one": "auc", "positives": "mrr", "triplets": "accuracy"}[self.config.kind]

    def score(self, predictions: Predictions, examples: Examples) -> Figures:
        similarities = np.array(predicted_labels(predictions), np.float64)
        if self.config.kind == "number":
            gold = gold_labels(examples)
            return {"spearman": metrics.spearman(similarities, gold), "pearson": metrics.pearson(similarities, gold)}
        figures: dict[str, float] = {}
        if self.config.kind == "one":
            is_alike = np.array(_are_alike(examples, self.config))
            figures = compare_scores.pair_figures(is_alike, similarities, self.config.threshold)
        if self.config.kind == "triplets":
            # A tie is half right.
            points = (similarities > 0) + 0.5 * (similarities == 0)
            figures = {"accuracy": float(points.mean())}
        return figures | self._rankings(predictions, examples)

    def _rankings(self, predictions: Predictions, examples: Examples) -> Figures:
        """How early each text finds the texts like it among all the others of the file."""
        vectors = compare_scores.vectors_by_text(predictions, examples)
        if vectors:
            unit_ND = unit_vectors(np.stack(list(vectors.values())), self.whitening)
            vectors = dict(zip(vectors, unit_ND, strict=True))
        return compare_scores.ranking_figures(vectors, examples, _are_alike(examples, self.config))

    def baseline(self, train: Examples, examples: Examples) -> list[Prediction]:
        if self.config.kind == "positives":
            # A direction of its own for each text finds partners by chance.
            return [_in_random_directions(example) for example in examples]
        mean = float(np.mean([_target(example, self.config) for example in train]))
        label = 0.0
        if self.config.kind == "number":
            label = mean
        elif self.config.kind == "one":
            label = float(mean >= 0.5)
        return [Prediction(label) for _ in examples]

    def perfect(self, example: Example) -> Prediction:
        vectors: tuple[np.ndarray, ...] = ()
        if self.config.kind == "positives":
            # Both texts of a pair have the same vector, and no other text is near it.
            vector = compare_scores.random_direction(example.texts[0])
            vectors = (vector, vector)
        return with_vectors(_target(example, self.config), vectors)

    def error(self, prediction: Prediction, example: Example) -> float:
        predicted = float(prediction.label)
        if self.config.kind == "triplets":
            return max(0.0, -predicted)
        gold = _target(example, self.config)
        is_right = (predicted >= self.config.threshold) == (gold > 0.5)
        if self.config.kind == "one" and is_right:
            return 0.0
        return abs(predicted - gold)


def _in_random_directions(example: Example) -> Similarity:
    vectors = [compare_scores.random_direction(text) for text in example.texts]
    return with_vectors(0.0, tuple(vectors))


COMPARE = Task(CompareConfig, CompareReader, CompareHead, CompareScorer, untrained={"way": "pooled"})
