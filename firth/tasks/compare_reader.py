"""The settings of the comparison of texts, and the reader of its rows, which chooses the loss and the range of scores.

In: files of pairs or triplets. Out: examples, and the config with what the rows say of it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

import numpy as np

from firth.config import check_counts, check_shares
from firth.errors import BadConfig, BadInput
from firth.tasks import compare_files, glue
from firth.tasks.compare_files import Kind
from firth.tasks.task import (
    Examples,
    Labels,
    LayerKind,
    Reader,
    TaskConfig,
    layer_for,
    pooling_for,
)
from firth.tensors import Encoder
from firth.types import Example, Problem

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
        layer: LayerKind = "none"
        if self.way == "cross":
            layer = layer_for(self.layer, encoder, pooling="cls")
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
            both_orders=preset.reads_both_orders(self.both_orders),
        )


@dataclass(frozen=True)
class CompareReader(Reader):
    config: CompareConfig

    def locate(self, path: Path) -> CompareConfig:
        if compare_files.has_scores(path, self.config):
            return replace(self.config, kind="number")
        return self.config

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
        targets = np.array([similarity_of(example.gold, config) for example in examples])
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
                yield Problem(example.row, what, "add training rows with it or remove the row", is_unknown=True)

    def example(self, value: object) -> Example:
        return compare_files.example(value, self.config)


def similarity_of(score: float, config: CompareConfig) -> float:
    """A score on the rows' scale as a similarity from 0 to 1."""
    return float((score - config.lowest) / (config.highest - config.lowest))


def gold_similarity(example: Example, config: CompareConfig) -> float:
    """The gold similarity, from 0 to 1."""
    if config.kind == "number":
        return similarity_of(example.gold, config)
    if config.kind == "one":
        return float(example.gold == config.positive)
    return 1.0


def are_alike(examples: Examples, config: CompareConfig) -> list[bool]:
    """For each example whether its first two texts are alike."""
    return [gold_similarity(example, config) > 0.5 for example in examples]
