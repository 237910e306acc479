"""Weights in few bits, for disk: each row of a matrix has its own scale (`firth/convert/row_quantised.py`).

In: a model. Out: a folder of an eighth to a quarter of the size, which firth opens like any other. In memory the
weights are single precision again, so the speed does not change.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.compression.method import CompressionJob, Method, MethodConfig
from firth.console import counted
from firth.convert.row_quantised import LEAST_BITS, MOST_BITS
from firth.errors import BadConfig
from firth.surgery.exporting import noting_bits, without_generator


class FewBits(Method):
    """Weights take 2 to 8 bits on disk, with a scale for each row."""

    name = "weights"

    @dataclass(frozen=True)
    class Config(MethodConfig):
        bits: int = 8
        """Bits of each weight of a matrix, 2 to 8."""

        def __post_init__(self) -> None:
            if not LEAST_BITS <= self.bits <= MOST_BITS:
                raise BadConfig(f"bits must be {LEAST_BITS} to {MOST_BITS}; it is {self.bits}.")

    config: Config

    @classmethod
    def strengths(cls, original: Checkpoint, config: Config) -> Sequence[Config]:
        return [replace(config, bits=bits) for bits in range(MOST_BITS, LEAST_BITS - 1, -1)]

    @property
    def described(self) -> str:
        return f"weights of {counted(self.config.bits, 'bit')}"

    def compress(self, job: CompressionJob) -> Checkpoint:
        return noting_bits(without_generator(job.original), self.config.bits)

    def write(self, folder: Path, checkpoint: Checkpoint) -> None:
        checkpoints.save(folder, checkpoint, bits=self.config.bits)
