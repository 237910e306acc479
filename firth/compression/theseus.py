"""BERT-of-Theseus (Xu et al. 2020): groups of a model's layers are replaced by one new layer each, at random.

In every step each new layer runs with probability p, else the frozen layers that it replaces. p rises in a straight
line to 1; then the new model learns alone. Embeddings are frozen until then; the head learns from the start, so that
there is something to learn in a step without a new layer. The only loss is the task's, so any task will do. In
evaluation only new layers run.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from firth.checkpoint import Checkpoint
from firth.compression.block_forward import Forward, replace_forward, restore_forward
from firth.compression.depth import check_separate_layers, depth_strengths, described_depth, fewer_layers, with_depth
from firth.compression.layers import kept_layers
from firth.compression.method import CompressionJob
from firth.compression.student import layers_of
from firth.compression.teacher import Teacher
from firth.compression.trained_method import TrainedMethod, TrainingConfig, TrainingExtension
from firth.errors import BadConfig
from firth.nn.blocks import Block
from firth.tensors import Encoder


@dataclass(frozen=True)
class TheseusConfig(TrainingConfig):
    num_layers: int = 0
    """Layers of the new model; 0: half of the model's."""
    first_probability: float = 0.3
    """The probability of a new layer in the first step."""
    replacing_share: float = 0.6
    """Share of the steps after which only the new layers run."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_layers < 0 or not 0 <= self.first_probability <= 1 or not 0 <= self.replacing_share <= 1:
            raise BadConfig("num_layers must be at least 0, and first_probability and replacing_share between 0 and 1.")


@dataclass
class TheseusModule:
    """A new layer and the layers that it replaces."""

    new: Block
    old: Sequence[Block]
    probability: float

    def __call__(self, forward: Forward, x_ND: Tensor, /, *arguments: object, **options: object) -> Tensor:
        # Without a draw where there is nothing to draw, so that the student alone has its own random numbers.
        is_new = not self.new.training or self.probability >= 1
        if is_new or float(torch.rand(())) < self.probability:
            return forward(x_ND, *arguments, **options)
        for block in self.old:
            block.to(x_ND.dtype)  # half precision, if the new layers are trained in it
            x_ND = block(x_ND, *arguments, **options)
        return x_ND


class TheseusExtension(TrainingExtension):
    def __init__(self, method: TrainedMethod, job: CompressionJob, name: str) -> None:
        super().__init__(method, job, name)
        self.teacher = Teacher.of(job.model, job.original)
        self.modules: list[TheseusModule] = []

    def prepare_encoder(self, encoder: Encoder) -> None:
        teacher = self.teacher.encoder.to(self.job.device)
        # Copies, because the teacher keeps its precision.
        old_blocks = copy.deepcopy(layers_of(teacher, self.job.model))
        self.modules = []
        first = 0
        kept = kept_layers(len(old_blocks), encoder.num_layers, which="spread")
        for new, last in zip(layers_of(encoder, self.job.model), kept, strict=True):
            module = TheseusModule(new, old_blocks[first : last + 1], self.method.config.first_probability)
            replace_forward(new, module)
            self.modules.append(module)
            first = last + 1

    def before_step(self, encoder: Encoder, *, step: int, steps: int) -> None:
        config = self.method.config
        probability = 1.0
        if step < config.replacing_share * steps:
            done = step / (config.replacing_share * steps)
            probability = config.first_probability + (1 - config.first_probability) * done
        for module in self.modules:
            module.probability = probability
        is_alone = probability >= 1
        for name, parameter in encoder.named_parameters():
            parameter.requires_grad_(is_alone or not name.startswith("embeddings."))

    def finish_encoder(self, encoder: Encoder) -> None:
        restore_forward(layers_of(encoder, self.job.model))


class Theseus(TrainedMethod):
    """New layers replace groups of old ones at random, with rising probability."""

    Config = TheseusConfig
    name = "theseus"

    @classmethod
    def strengths(cls, original: Checkpoint, config: TheseusConfig) -> Sequence[TheseusConfig]:
        return depth_strengths(original, config, most=fewer_layers(original))

    @property
    def described(self) -> str:
        return f"theseus, {described_depth(self.config.num_layers)}"

    def check(self, job: CompressionJob) -> None:
        check_separate_layers(job, self.config.num_layers)

    def student(self, job: CompressionJob) -> Checkpoint:
        return with_depth(job.original, self.config.num_layers)

    def extension(self, job: CompressionJob) -> TrainingExtension:
        return TheseusExtension(self, job, self.name)
