"""Attention heads are removed, the least important first (Michel et al. 2019).

In: a fine-tuned model and rows. Out: the model without these heads: their rows of the projection to queries, keys and
values, and their columns of the projection after attention, are gone, so that the model is really faster. Every block
keeps at least one head.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from firth.checkpoint import Checkpoint
from firth.compression.importance import head_importance
from firth.compression.input_moments import kept_columns, moments_before
from firth.compression.method import CompressionJob, Method, MethodConfig
from firth.compression.structure import block_encoder, block_sizes, input_columns, output_rows, with_sizes
from firth.config import check_counts, check_shares

MOST_STRENGTHS = 24


class PruneHeads(Method):
    """Attention heads are removed, those that matter least for the task first."""

    name = "heads"
    needs_rows = True

    @dataclass(frozen=True)
    class Config(MethodConfig):
        remove: float = 0.25
        """Share of all heads that are removed."""
        max_rows: int = 1000
        """Rows that importance is measured on."""
        refit: bool = True
        """Whether the weights after the kept heads are refitted by least squares to stand in for the removed ones."""

        def __post_init__(self) -> None:
            check_shares(remove=self.remove)
            check_counts(max_rows=self.max_rows)

    config: Config

    @classmethod
    def strengths(cls, original: Checkpoint, config: Config) -> Sequence[Config]:
        sizes = block_sizes(block_encoder(original))
        total = sum(size.num_heads for size in sizes)
        most = total - len(sizes)  # every block keeps one
        step = max(1, -(-most // MOST_STRENGTHS))
        counts = range(1, most + 1, step)
        strengths = [replace(config, remove=count / total) for count in counts]
        return strengths or [config]

    @property
    def described(self) -> str:
        return f"{self.config.remove:.0%} of the heads removed"

    def compress(self, job: CompressionJob) -> Checkpoint:
        encoder = block_encoder(job.original)
        importance = head_importance(job, encoder, max_rows=self.config.max_rows)
        kept = kept_heads(importance, remove=self.config.remove)
        moments: dict[str, Tensor] = {}
        if self.config.refit:
            moments = moments_before(job, encoder, "attention.out", max_rows=self.config.max_rows)
        return without_heads(job.original, kept, moments)


def kept_heads(importance: Sequence[Tensor], *, remove: float) -> list[list[int]]:
    """The heads of each block that stay when the least important of all blocks are removed."""
    # Each block's numbers are divided by their length, as in the paper: blocks near the input have larger gradients.
    normalised = [values_H / values_H.norm().clamp(min=1e-12) for values_H in importance]
    num_removed = round(remove * sum(len(values_H) for values_H in importance))
    kept = [set(range(len(values_H))) for values_H in importance]
    ranked: list[tuple[float, int, int]] = []
    for block, values_H in enumerate(normalised):
        for head, value in enumerate(values_H.tolist()):
            ranked.append((value, block, head))
    for _, block, head in sorted(ranked):
        if num_removed and len(kept[block]) > 1:
            kept[block].remove(head)
            num_removed -= 1
    return [sorted(heads) for heads in kept]


def without_heads(
    checkpoint: Checkpoint,
    kept: Sequence[Sequence[int]],
    moments: Mapping[str, Tensor] | None = None,
) -> Checkpoint:
    """The model with only these heads in each block; with second moments, what follows them is refitted."""
    encoder = block_encoder(checkpoint)
    state = dict(encoder.state_dict())
    moments = moments or {}
    sizes = []
    width = encoder.config.width // encoder.config.num_heads
    for number, (heads, size) in enumerate(zip(kept, block_sizes(encoder), strict=True)):
        inner = size.num_heads * width
        positions_HK = torch.arange(inner).view(size.num_heads, width)
        positions = positions_HK[list(heads)].flatten()
        # The rows are all queries, then all keys, then all values.
        qkv_rows = torch.cat([positions, positions + inner, positions + 2 * inner])
        prefix = f"blocks.{number}.attention."
        for name in output_rows(state, f"{prefix}qkv"):
            state[name] = state[name][qkv_rows]
        name = input_columns(state, f"{prefix}out")
        layer_moments = moments.get(name.removesuffix(".weight"))
        state[name] = kept_columns(state[name], positions, layer_moments)
        sizes.append(replace(size, num_heads=len(heads)))
    return with_sizes(checkpoint, sizes, state)
