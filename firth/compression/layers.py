"""Whole layers are dropped: the top ones, or evenly spread ones (Sajjad et al. 2020; every second layer: DistilBERT).

In: a model with Transformer blocks. Out: the same model with fewer of them. No weight changes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from firth.checkpoint import Checkpoint
from firth.compression.method import CompressionJob, Method, MethodConfig
from firth.compression.structure import block_encoder, with_layers
from firth.config import check_counts
from firth.console import counted
from firth.errors import BadConfig


class DropLayers(Method):
    """Whole layers are dropped: the top ones, or evenly spread ones."""

    name = "layers"

    @dataclass(frozen=True)
    class Config(MethodConfig):
        num_layers: int = 0
        """Layers that are kept; 0 keeps half of them."""
        which: Literal["bottom", "spread"] = "bottom"
        """Which layers are kept: the lowest ones, or evenly spread ones (every second one for half)."""

        def __post_init__(self) -> None:
            if self.num_layers:
                check_counts(num_layers=self.num_layers)

    config: Config

    @classmethod
    def strengths(cls, original: Checkpoint, config: Config) -> Sequence[Config]:
        num_layers = block_encoder(original).num_layers
        counts = range(num_layers - 1, 0, -1)
        strengths = [replace(config, num_layers=count) for count in counts]
        return strengths or [config]

    @property
    def described(self) -> str:
        if not self.config.num_layers:
            return f"half of the layers, {self.config.which}"
        return f"{counted(self.config.num_layers, 'layer')}, {self.config.which}"

    def compress(self, job: CompressionJob) -> Checkpoint:
        encoder = block_encoder(job.original)
        before = encoder.num_layers
        count = self.config.num_layers or max(1, before // 2)
        if count > before:
            raise BadConfig(f"{job.model} has {counted(before, 'layer')}; num_layers={count} is more.")
        return with_layers(job.original, kept_layers(before, count, which=self.config.which))


def kept_layers(before: int, count: int, *, which: str) -> list[int]:
    """The layers that are kept, counted from 0; the last one is always among the spread ones."""
    if which == "bottom":
        return list(range(count))
    return [(number + 1) * before // count - 1 for number in range(count)]
