"""The gate: two models and rows in; size, speed and score of both out.

Both models answer the same rows on the same machine. Speed is texts per second: the median over rounds in which the
models take turns, for single texts and for batches. The difference of the scores has an interval by a paired bootstrap
(Efron & Tibshirani 1993, chapter 16): rows are drawn with replacement, the same ones for both models.

Without a task the score is the mean cosine to the original's vectors.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth import rng
from firth.checkpoint import only_task
from firth.compression.strength_search import Trial
from firth.errors import Unsupported
from firth.files import MANIFEST, read_json
from firth.inference.model import Model
from firth.metrics.cosines import unit_vectors
from firth.tasks import scorer_of
from firth.tasks.task import Scorer
from firth.tensors import parameter_count
from firth.types import Example, Prediction

ROUNDS = 7
"""How often each model is timed."""
SEARCH_ROUNDS = 3
"""The same while strengths are searched."""
BATCH_TEXTS = 256
"""The most texts that are timed in batches in a round; the first ones also warm the models up."""
SINGLE_TEXTS = 24
"""The most texts that are timed one by one in a round."""
WARM_UP_TEXTS = 16
ROUND_SECONDS = 1.0
"""A large model is timed on fewer texts, which take it about so long."""
RESAMPLES = 400
FEWEST_RESAMPLES = 100
RESAMPLED_ROWS = 1_000_000
"""Many rows are drawn less often than `RESAMPLES`, so that no more than this are scored."""
INTERVAL = 95
"""Percent of the resampled differences that lie within the interval."""
COSINE = "cosine"
SAME_SPEED = 0.1
"""Speeds that differ by a smaller share are called the same."""


@dataclass(frozen=True)
class Subject:
    """A model that is measured, and the folder that it is in."""

    model: Model
    folder: Path
    task: str = ""
    """Empty for a model that was not fine-tuned."""

    @property
    def parameters(self) -> int:
        checkpoint = self.model.checkpoint
        return parameter_count([checkpoint.encoder, *checkpoint.goals.values(), *checkpoint.tasks.values()])

    @property
    def disk_bytes(self) -> int:
        """The bytes of the files that the manifest lists: not the logs and states of its training."""
        manifest = self.folder / MANIFEST
        if manifest.exists():
            return sum(int(row["bytes"]) for row in read_json(manifest)["files"].values())
        return sum(path.stat().st_size for path in self.folder.iterdir() if path.is_file())

    @property
    def scorer(self) -> Scorer:
        _, head = only_task(self.model.checkpoint, self.folder, self.task)
        return scorer_of(head)

    def predict(self, examples: Sequence[Example]) -> list[Prediction]:
        items = self.model.encode_examples(examples, task=self.task)
        return self.model.predict_items(items, task=self.task)

    def embed(self, examples: Sequence[Example]) -> np.ndarray:
        """The pooled states of the encoder, which is what is compressed: a vector head would not read it."""
        texts = [example.texts[0] for example in examples]
        return self.model.embed(texts, pooling=self.model.checkpoint.embedding.pooling)

    def answer(self, examples: Sequence[Example]) -> None:
        """What is timed."""
        if self.task:
            self.predict(examples)
        else:
            self.embed(examples)


@dataclass(frozen=True)
class Speed:
    """Texts per second."""

    single: float
    """One text at a time."""
    batches: float


@dataclass(frozen=True)
class Measured:
    """A row of the table."""

    name: str
    parameters: int
    disk_bytes: int
    speed: Speed
    score: float


@dataclass(frozen=True)
class Comparison:
    """The table: the original and the compressed model."""

    metric: str
    rows: int
    original: Measured
    compressed: Measured
    speedup: Speed
    """The compressed model's speed as a multiple of the original's: the medians of the rounds' ratios."""
    low: float
    """The lower end of the interval of the difference of the scores, compressed minus original."""
    high: float

    @property
    def difference(self) -> float:
        return self.compressed.score - self.original.score

    @property
    def trial(self) -> Trial:
        return Trial(kept_share(self.compressed.score, self.original.score), self.speedup.batches)

    @property
    def verdict(self) -> str:
        """What became of size and speed, in a few words."""
        is_smaller = self.compressed.disk_bytes < self.original.disk_bytes
        size = "smaller" if is_smaller else "not smaller"
        if abs(self.trial.speedup - 1) < SAME_SPEED:
            return f"{size} and as fast"
        is_faster = self.trial.speedup > 1
        joint = "and" if is_smaller == is_faster else "but"
        speed = "faster" if is_faster else "slower"
        return f"{size} {joint} {speed}"


def kept_share(score: float, original: float) -> float:
    """A score as a share of the original's; if that is not above 0, whether it is reached at all."""
    if original > 0:
        return score / original
    return float(score >= original)


class Gate:
    """Measures models against one original on the same rows; the original answers them once."""

    def __init__(self, original: Subject, examples: Sequence[Example]) -> None:
        self.original = original
        self.examples = examples
        self.predictions: list[Prediction] = []
        self.vectors_ED = np.empty((0, 0))
        if original.task:
            self.predictions = original.predict(examples)
            self.metric = original.scorer.main_metric
            self.score = original.scorer.score(self.predictions, examples)[self.metric]
        else:
            self.vectors_ED = unit_vectors(original.embed(examples))
            self.metric = COSINE
            self.score = 1.0

    def try_out(self, subject: Subject) -> Trial:
        """Score and speed only, for the search."""
        if self.original.task:
            score = subject.scorer.score(subject.predict(self.examples), self.examples)[self.metric]
        else:
            score = float(self._cosines(subject).mean())
        timed = time_both(self.original, subject, self.examples, rounds=SEARCH_ROUNDS)
        return Trial(kept_share(score, self.score), timed.ratio.batches)

    def compare(self, subject: Subject, name: str) -> Comparison:
        """Everything, for the table."""
        if self.original.task:
            score, low, high = self._compare_predictions(subject)
        else:
            cosines_E = self._cosines(subject)
            score = float(cosines_E.mean())

            def change(rows: np.ndarray) -> float:
                return float(cosines_E[rows].mean()) - 1.0

            low, high = bootstrap(len(cosines_E), change)
        timed = time_both(self.original, subject, self.examples, rounds=ROUNDS)
        return Comparison(
            metric=self.metric,
            rows=len(self.examples),
            original=_measured("original", self.original, timed.original, self.score),
            compressed=_measured(name, subject, timed.other, score),
            speedup=timed.ratio,
            low=low,
            high=high,
        )

    def _compare_predictions(self, subject: Subject) -> tuple[float, float, float]:
        """The score, and the interval of its difference to the original's."""
        predictions = subject.predict(self.examples)
        scorer = subject.scorer

        def difference(rows: np.ndarray) -> float:
            examples = [self.examples[row] for row in rows]
            before = scorer.score([self.predictions[row] for row in rows], examples)
            after = scorer.score([predictions[row] for row in rows], examples)
            return after[self.metric] - before[self.metric]

        score = scorer.score(predictions, self.examples)[self.metric]
        low, high = bootstrap(len(self.examples), difference)
        return score, low, high

    def _cosines(self, subject: Subject) -> np.ndarray:
        """The cosine of each vector to the original's."""
        vectors_ED = unit_vectors(subject.embed(self.examples))
        if vectors_ED.shape != self.vectors_ED.shape:
            raise Unsupported(
                f"The vectors have {vectors_ED.shape[1]} numbers and the original's {self.vectors_ED.shape[1]}, so "
                "they cannot be compared; compress a model that is fine-tuned for a task."
            )
        return np.asarray((vectors_ED * self.vectors_ED).sum(1))


def _measured(name: str, subject: Subject, speed: Speed, score: float) -> Measured:
    return Measured(name, subject.parameters, subject.disk_bytes, speed, score)


def bootstrap(count: int, difference: Callable[[np.ndarray], float]) -> tuple[float, float]:
    """The interval of a figure of `count` rows, by drawing rows with replacement; the draws are always the same."""
    key = rng.key("paired bootstrap")
    values = []
    num_draws = max(FEWEST_RESAMPLES, min(RESAMPLES, RESAMPLED_ROWS // count))
    for number in range(num_draws):
        rows = rng.below(key, count, np.arange(count), number)
        value = difference(rows)
        if np.isfinite(value):  # a draw in which all rows have one label has no correlation
            values.append(value)
    if not values:
        return float("nan"), float("nan")
    outside = (100 - INTERVAL) / 2
    low, high = np.percentile(values, [outside, 100 - outside])
    return float(low), float(high)


@dataclass(frozen=True)
class Timed:
    """The speeds of two models that were timed together."""

    original: Speed
    other: Speed
    ratio: Speed
    """The other's speed as a multiple of the original's."""


def time_both(original: Subject, other: Subject, examples: Sequence[Example], *, rounds: int) -> Timed:
    """Texts per second of two models. They take turns, so that a disturbance slows both; ratios are of one round."""
    subjects = (original, other)
    warm_up = _spread(examples, WARM_UP_TEXTS)
    for subject in subjects:
        subject.answer(warm_up)  # what is made on first use is made now
    rate = len(warm_up) / _seconds(original, [warm_up])
    texts_in_round = round(rate * ROUND_SECONDS)
    num_texts = min(BATCH_TEXTS, max(WARM_UP_TEXTS, texts_in_round))
    many = _spread(examples, num_texts)
    single = [[example] for example in many[:SINGLE_TEXTS]]
    batch_rates = []
    single_rates = []
    for _ in range(rounds):
        batch_rates.append([len(many) / _seconds(subject, [many]) for subject in subjects])
        single_rates.append([len(single) / _seconds(subject, single) for subject in subjects])
    batches = np.array(batch_rates)
    singles = np.array(single_rates)
    return Timed(
        original=_median_speed(singles[:, 0], batches[:, 0]),
        other=_median_speed(singles[:, 1], batches[:, 1]),
        ratio=_median_speed(singles[:, 1] / singles[:, 0], batches[:, 1] / batches[:, 0]),
    )


def _spread(examples: Sequence[Example], count: int) -> list[Example]:
    """Some rows, evenly over all of them, because they may be sorted."""
    count = min(count, len(examples))
    places = np.linspace(0, len(examples) - 1, count)
    return [examples[place] for place in places.astype(int)]


def _median_speed(single: np.ndarray, batches: np.ndarray) -> Speed:
    return Speed(single=float(np.median(single)), batches=float(np.median(batches)))


def _seconds(subject: Subject, calls: Sequence[Sequence[Example]]) -> float:
    start = time.perf_counter()
    for examples in calls:
        subject.answer(examples)
    return time.perf_counter() - start
