"""Quantisation-aware fine-tuning (Jacob et al. 2018; Q8BERT, Zafrir et al. 2019): weights learn to be rounded.

In every forward pass the weights of the blocks' linear layers are those that `row_quantised.py` would store in so many
bits; the gradient passes the rounding unchanged. The folder is saved in these bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor, nn

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.compression.changed_weights import change_weights, keep_changes
from firth.compression.method import CompressionJob
from firth.compression.structure import block_encoder
from firth.compression.trained_method import TrainedMethod, TrainingConfig, TrainingExtension
from firth.console import counted
from firth.convert.row_quantised import LEAST_BITS, MOST_BITS, quantise_rows
from firth.errors import BadConfig
from firth.tensors import Encoder


@dataclass(frozen=True)
class QuantiseAwareConfig(TrainingConfig):
    bits: int = 4
    """Bits of a weight."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not LEAST_BITS <= self.bits <= MOST_BITS:
            raise BadConfig(f"Weights take {LEAST_BITS} to {MOST_BITS} bits; bits={self.bits}.")


class RoundedWeight(nn.Module):
    """The weight as it is after storing; the gradient is that of the weight."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.bits = bits

    def forward(self, weight_RC: Tensor) -> Tensor:
        stored_RC = rounded(weight_RC, self.bits).to(weight_RC.dtype)
        return weight_RC + (stored_RC - weight_RC).detach()


def rounded(weight_RC: Tensor, bits: int) -> Tensor:
    """A matrix as it is read back from a file of so many bits."""
    codes_RC, scales_R = quantise_rows(weight_RC, bits)
    return codes_RC.float() * scales_R.float()[:, None]


class RoundingExtension(TrainingExtension):
    def prepare_encoder(self, encoder: Encoder) -> None:
        bits: int = self.method.config.bits
        change_weights(encoder, lambda weight_RC: RoundedWeight(bits))

    def finish_encoder(self, encoder: Encoder) -> None:
        keep_changes(encoder)


class QuantiseAware(TrainedMethod):
    """The model is fine-tuned with weights rounded to few bits."""

    Config = QuantiseAwareConfig
    name = "quantise-aware"

    @classmethod
    def strengths(cls, original: Checkpoint, config: QuantiseAwareConfig) -> Sequence[QuantiseAwareConfig]:
        return [replace(config, bits=bits) for bits in range(MOST_BITS, LEAST_BITS - 1, -1)]

    @property
    def described(self) -> str:
        return f"quantise-aware, {counted(self.config.bits, 'bit')}"

    def check(self, job: CompressionJob) -> None:
        block_encoder(job.original)

    def extension(self, job: CompressionJob) -> TrainingExtension:
        return RoundingExtension(self, job, self.name)

    def write(self, folder: Path, checkpoint: Checkpoint) -> None:
        checkpoints.save(folder, checkpoint, bits=self.config.bits)
