"""How many layers are kept: what methods that cut the depth of a model share.

In: a model and a config with `num_layers`, where 0 is half of the layers. Out: strengths for the search, the number of
layers, and words for the card.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from firth.checkpoint import Checkpoint
from firth.compression.layers import kept_layers
from firth.compression.method import CompressionJob
from firth.compression.structure import block_encoder, with_layers
from firth.compression.student import layers_of
from firth.console import counted
from firth.errors import BadConfig


def depth_strengths(original: Checkpoint, config: Any, *, most: int) -> Sequence[Any]:
    """The config with fewer and fewer layers, from `most` on; as it is if it says how many."""
    if config.num_layers:
        return [config]
    return [replace(config, num_layers=kept) for kept in range(most, 0, -1)]


def fewer_layers(original: Checkpoint) -> int:
    """The most layers of a model that is smaller than this one."""
    return max(1, block_encoder(original).num_layers - 1)


def with_depth(checkpoint: Checkpoint, num_layers: int) -> Checkpoint:
    """The model with so many evenly spread layers; 0: half of them."""
    before = checkpoint.encoder.num_layers
    kept = num_layers or max(1, before // 2)
    return with_layers(checkpoint, kept_layers(before, kept, which="spread"))


def check_depth(job: CompressionJob, num_layers: int) -> None:
    """Raises if a model has fewer layers than are to be kept."""
    before = block_encoder(job.original).num_layers
    if num_layers > before:
        raise BadConfig(f"{job.model} has {counted(before, 'layer')}; num_layers={num_layers} is more.")


def check_separate_layers(job: CompressionJob, num_layers: int) -> None:
    """Raises if layers share their weights, so that none can be left out, or if there are fewer than are to be kept."""
    layers_of(job.original.encoder, job.model)
    check_depth(job, num_layers)


def described_depth(num_layers: int) -> str:
    if not num_layers:
        return "half of the layers"
    return counted(num_layers, "layer")
