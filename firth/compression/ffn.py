"""Rows of the feed-forward layers are removed, the least important first.

In: a fine-tuned model and rows. Out: the model without these rows: of the first matrix with its bias, and the same
columns of the second matrix. If every block loses the same number, transformers' layout can hold the model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from firth.checkpoint import Checkpoint
from firth.compression.importance import feed_forward_importance
from firth.compression.input_moments import kept_columns, moments_before
from firth.compression.method import CompressionJob, Method, MethodConfig
from firth.compression.structure import block_encoder, block_sizes, input_columns, output_rows, with_sizes
from firth.config import check_counts, check_shares

STEPS = 16
"""The search removes multiples of 1/16 of the rows."""


class PruneFeedForward(Method):
    """Rows of the feed-forward layers are removed, those that matter least for the task first."""

    name = "ffn"
    needs_rows = True

    @dataclass(frozen=True)
    class Config(MethodConfig):
        remove: float = 0.25
        """Share of the rows that are removed."""
        spread: Literal["block", "model"] = "block"
        """Whether every block loses the same number of rows, which transformers can open, or the least important rows
        of the whole model are removed."""
        multiple: int = 8
        """What a block keeps is a multiple of this, as the CPU's vectors like it."""
        max_rows: int = 1000
        """Labelled rows that importance is measured on."""
        refit: bool = True
        """Whether the weights after the kept rows are refitted by least squares to stand in for the removed ones."""

        def __post_init__(self) -> None:
            check_shares(remove=self.remove)
            check_counts(multiple=self.multiple, max_rows=self.max_rows)

    config: Config

    @classmethod
    def strengths(cls, original: Checkpoint, config: Config) -> Sequence[Config]:
        block_encoder(original)
        return [replace(config, remove=step / STEPS) for step in range(1, STEPS)]

    @property
    def described(self) -> str:
        return f"{self.config.remove:.0%} of the feed-forward rows removed"

    def compress(self, job: CompressionJob) -> Checkpoint:
        encoder = block_encoder(job.original)
        importance = feed_forward_importance(job, encoder, max_rows=self.config.max_rows)
        kept = self.kept_rows(importance)
        moments: dict[str, Tensor] = {}
        if self.config.refit:
            moments = moments_before(job, encoder, "ffn.down", max_rows=self.config.max_rows)
        return without_rows(job.original, kept, moments)

    def kept_rows(self, importance: Sequence[Tensor]) -> list[Tensor]:
        """The rows of each block that stay, in their order."""
        keep = 1 - self.config.remove
        if self.config.spread == "block":
            counts = [round(keep * len(values_F)) for values_F in importance]
        else:
            all_values = torch.cat(list(importance))
            num_kept = max(1, round(keep * len(all_values)))
            threshold = all_values.topk(num_kept).values[-1]
            counts = [int((values_F >= threshold).sum()) for values_F in importance]
        kept = []
        for values_F, count in zip(importance, counts, strict=True):
            num_kept = self._fitting(count, len(values_F))
            rows = values_F.topk(num_kept).indices
            kept.append(rows.sort().values)
        return kept

    def _fitting(self, count: int, before: int) -> int:
        """The nearest multiple, at least one and at most what there was."""
        multiple = self.config.multiple
        times = max(1, round(count / multiple))
        return min(before, times * multiple)


def without_rows(
    checkpoint: Checkpoint,
    kept: Sequence[Tensor],
    moments: Mapping[str, Tensor] | None = None,
) -> Checkpoint:
    """The model with only these rows in each feed-forward layer; with second moments, what follows is refitted."""
    encoder = block_encoder(checkpoint)
    state = dict(encoder.state_dict())
    moments = moments or {}
    sizes = []
    for number, (rows, size) in enumerate(zip(kept, block_sizes(encoder), strict=True)):
        prefix = f"blocks.{number}.ffn."
        for name in output_rows(state, f"{prefix}up"):
            state[name] = state[name][rows]
        name = input_columns(state, f"{prefix}down")
        layer_moments = moments.get(name.removesuffix(".weight"))
        state[name] = kept_columns(state[name], rows, layer_moments)
        sizes.append(replace(size, ffn_width=len(rows)))
    return with_sizes(checkpoint, sizes, state)
