"""LayerDrop (Fan et al. 2019): a model learns to do without some of its layers, and any number is then left out.

In training each layer is skipped with a probability. The trained model is cut to evenly spread layers without further
training; all strengths of a search cut the same trained model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from firth.checkpoint import Checkpoint
from firth.compression.block_forward import Forward, replace_forward, restore_forward
from firth.compression.depth import check_separate_layers, depth_strengths, described_depth, with_depth
from firth.compression.method import CompressionJob
from firth.compression.structure import block_encoder
from firth.compression.student import layers_of
from firth.compression.trained_method import RUN, TrainedMethod, TrainingConfig, TrainingExtension
from firth.errors import BadConfig
from firth.nn.blocks import Block
from firth.tensors import Encoder


@dataclass(frozen=True)
class LayerDropConfig(TrainingConfig):
    drop: float = 0.2
    """The probability with which a layer is skipped in a step."""
    num_layers: int = 0
    """Layers that are kept afterwards; 0: half of them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.drop < 1 or self.num_layers < 0:
            raise BadConfig("drop must be at least 0 and below 1, and num_layers at least 0.")


@dataclass(frozen=True)
class Skipping:
    """Skips a block in training."""

    block: Block
    probability: float

    def __call__(self, forward: Forward, x_ND: Tensor, /, *arguments: object, **options: object) -> Tensor:
        # Without a draw where nothing is dropped, so that such a run is plain fine-tuning.
        is_dropped = self.block.training and self.probability > 0 and float(torch.rand(())) < self.probability
        return x_ND if is_dropped else forward(x_ND, *arguments, **options)


class LayerDropExtension(TrainingExtension):
    def record(self) -> Mapping[str, object]:
        # How many layers are kept changes nothing of the run.
        facts = dict(super().record())
        del facts["num_layers"]
        return facts

    def prepare_encoder(self, encoder: Encoder) -> None:
        if not self.method.config.drop:
            return
        for block in layers_of(encoder, self.job.model):
            replace_forward(block, Skipping(block, self.method.config.drop))

    def finish_encoder(self, encoder: Encoder) -> None:
        restore_forward(layers_of(encoder, self.job.model))


class LayerDrop(TrainedMethod):
    """Layers are skipped at random in training; then some are left out for good."""

    Config = LayerDropConfig
    name = "layerdrop"

    @classmethod
    def strengths(cls, original: Checkpoint, config: LayerDropConfig) -> Sequence[LayerDropConfig]:
        return depth_strengths(original, config, most=block_encoder(original).num_layers)

    @property
    def described(self) -> str:
        return f"layerdrop of {self.config.drop:g}, {described_depth(self.config.num_layers)}"

    def check(self, job: CompressionJob) -> None:
        check_separate_layers(job, self.config.num_layers)

    def run_path(self, job: CompressionJob) -> Path:
        return job.folder.parent / RUN

    def extension(self, job: CompressionJob) -> TrainingExtension:
        return LayerDropExtension(self, job, self.name)

    def finished(self, trained: Checkpoint, job: CompressionJob) -> Checkpoint:
        return super().finished(with_depth(trained, self.config.num_layers), job)
