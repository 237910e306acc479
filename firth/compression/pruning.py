"""Single weights pruned during fine-tuning: by magnitude (Zhu & Gupta 2017), or by movement (Sanh et al. 2020).

The share of pruned weights rises as 1 - (1 - t)^3 between two points of the run. Magnitude prunes the smallest weights;
movement prunes those whose learned scores are lowest: weights that training moves towards zero. The matrices keep their
size, so a model is no faster by this; its zeros help programs that know sparse matrices, and compress well.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from firth.checkpoint import Checkpoint
from firth.compression.changed_weights import MaskedWeight, ScoredWeight, change_weights, keep_changes, masks_of
from firth.compression.method import CompressionJob
from firth.compression.structure import block_encoder
from firth.compression.trained_method import TrainedMethod, TrainingConfig, TrainingExtension
from firth.errors import BadConfig
from firth.tensors import Encoder

log = logging.getLogger(__name__)

FEWEST_MOVES = 1000
"""Steps below which movement pruning warns: with 94 on SST-2, half of the weights gone left chance (0.51)."""
SPARSITIES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


@dataclass(frozen=True)
class PruningConfig(TrainingConfig):
    sparsity: float = 0.5
    """Share of the weights of each matrix that are zero at the end."""
    begin: float = 0.1
    """Share of the steps after which pruning begins."""
    end: float = 0.7
    """Share of the steps after which the sparsity is reached."""
    every: int = 10
    """Steps after which the masks are found anew."""

    def __post_init__(self) -> None:
        super().__post_init__()
        has_place = 0 <= self.begin <= self.end <= 1
        if not 0 <= self.sparsity < 1 or not has_place or self.every < 1:
            raise BadConfig("Pruning needs 0 <= sparsity < 1, 0 <= begin <= end <= 1 and every of at least 1.")


@dataclass(frozen=True)
class MovementConfig(PruningConfig):
    score_rate: float = 100.0
    """The learning rate of the scores, as a multiple of that of the weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.score_rate <= 0:
            raise BadConfig("score_rate must be above 0.")


def scheduled_sparsity(done: float, config: PruningConfig) -> float:
    """The share of pruned weights after a share of the steps."""
    if done >= config.end:
        return config.sparsity
    if done <= config.begin:
        return 0.0
    t = (done - config.begin) / (config.end - config.begin)
    return config.sparsity * (1 - (1 - t) ** 3)


class PruningExtension(TrainingExtension):
    def __init__(
        self,
        method: TrainedMethod,
        job: CompressionJob,
        name: str,
        *,
        weight_class: type[MaskedWeight],
    ) -> None:
        super().__init__(method, job, name)
        self.weight_class = weight_class

    def prepare_encoder(self, encoder: Encoder) -> None:
        change_weights(encoder, self.weight_class)

    def before_step(self, encoder: Encoder, *, step: int, steps: int) -> None:
        config = self.method.config
        # However few steps there are, masks of the full sparsity are found once.
        last = min(steps - 1, math.ceil(config.end * steps))
        if step % config.every and step != last:
            return
        share = config.sparsity if step >= last else scheduled_sparsity(step / steps, config)
        for mask, weight_RC in masks_of(encoder):
            mask.prune(weight_RC, share)

    def finish_encoder(self, encoder: Encoder) -> None:
        keep_changes(encoder)


class MovementExtension(PruningExtension):
    def rate_share(self, name: str) -> float:
        if name.endswith("scores_RC"):
            return float(self.method.config.score_rate)
        return 1.0

    def before_step(self, encoder: Encoder, *, step: int, steps: int) -> None:
        if step == 0 and steps < FEWEST_MOVES:
            log.warning(
                f"Movement pruning in {steps:,} steps: so few tell little about where weights move, and the model may "
                "be ruined. Give more epochs, or use `by='magnitude'`."
            )
        super().before_step(encoder, step=step, steps=steps)


class MagnitudePruning(TrainedMethod):
    """The smallest weights become zero while the model is fine-tuned."""

    Config = PruningConfig
    name = "magnitude"
    keeps_last = True
    weight_class: ClassVar[type[MaskedWeight]] = MaskedWeight
    extension_class: ClassVar[type[PruningExtension]] = PruningExtension

    @classmethod
    def strengths(cls, original: Checkpoint, config: PruningConfig) -> Sequence[PruningConfig]:
        return [replace(config, sparsity=sparsity) for sparsity in SPARSITIES]

    @property
    def described(self) -> str:
        return f"{self.name}, {self.config.sparsity:.0%} of the weights are zero"

    def check(self, job: CompressionJob) -> None:
        block_encoder(job.original)

    def extension(self, job: CompressionJob) -> TrainingExtension:
        return self.extension_class(self, job, self.name, weight_class=self.weight_class)


class MovementPruning(MagnitudePruning):
    """Weights that fine-tuning moves towards zero become zero."""

    Config = MovementConfig
    name = "movement"
    weight_class = ScoredWeight
    extension_class = MovementExtension
