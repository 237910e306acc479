"""How much a part of a model matters: the gradient of a mask over it (Michel et al. 2019, section 4.1).

In: a fine-tuned model and labelled rows. Out: a number for each head, or each row of a feed-forward layer. The parts'
outputs are multiplied by masks that are 1. The importance of a part is the mean over all sequences of the absolute
value of d loss / d mask: to first order, how much the loss changes if the part is removed.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from firth.compression.method import CompressionJob
from firth.compression.structure import blocks_of, feed_forward_of
from firth.tensors import Batch, Encoder

BATCH_ROWS = 16


class _Mask:
    """A mask of B x M ones over the M parts of a layer's input, one row for each sequence."""

    def __init__(self, layer: nn.Module, num_parts: int) -> None:
        self.layer = layer
        self.num_parts = num_parts
        self.mask_BM = torch.empty(0)
        self.sequence_N = torch.empty(0)
        self.total_M = torch.zeros(num_parts, dtype=torch.float64)

    def begin(self, batch: Batch) -> None:
        lengths_B = batch.bounds_B1.diff().long()
        self.mask_BM = torch.ones(len(lengths_B), self.num_parts, requires_grad=True)
        self.sequence_N = torch.arange(len(lengths_B)).repeat_interleave(lengths_B)

    def apply(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        x_ND = inputs[0]
        mask_NM1 = self.mask_BM[self.sequence_N][:, :, None]
        parts_NMK = x_ND.view(len(x_ND), self.num_parts, -1)
        return ((parts_NMK * mask_NM1).flatten(1),)

    def add(self, gradient_BM: Tensor) -> None:
        self.total_M += gradient_BM.abs().sum(0).double()


def head_importance(job: CompressionJob, encoder: Encoder, *, max_rows: int) -> list[Tensor]:
    """For each block, a number for each head."""
    masks = [_Mask(block.attention.out, block.attention.num_heads) for block in blocks_of(encoder)]
    return _importance(job, encoder, masks, max_rows)


def feed_forward_importance(job: CompressionJob, encoder: Encoder, *, max_rows: int) -> list[Tensor]:
    """For each block, a number for each row of its feed-forward layer."""
    masks = []
    for block in blocks_of(encoder):
        ffn = feed_forward_of(block)
        masks.append(_Mask(ffn.down, ffn.down.in_features))
    return _importance(job, encoder, masks, max_rows)


def _importance(job: CompressionJob, encoder: Encoder, masks: Sequence[_Mask], max_rows: int) -> list[Tensor]:
    head = job.head  # raises for a model without a task
    rows = job.examples["train"][:max_rows]
    items = head.encode(rows, job.original.tokenizer, max_length=job.max_length, training=True)
    num_sequences = 0
    with _hooked(masks), torch.enable_grad():
        for start in range(0, len(items), BATCH_ROWS):
            batch = head.batch(items[start : start + BATCH_ROWS])
            for mask in masks:
                mask.begin(batch)
            loss = head.loss(encoder(batch, layers=head.needs_layers), batch)
            sums = list(loss.sums.values())
            total = torch.stack(sums).sum()
            gradients = torch.autograd.grad(total, [mask.mask_BM for mask in masks])
            for mask, gradient_BM in zip(masks, gradients, strict=True):
                mask.add(gradient_BM)
            num_sequences += len(batch.bounds_B1) - 1
    return [(mask.total_M / num_sequences).float() for mask in masks]


@contextmanager
def _hooked(masks: Sequence[_Mask]) -> Iterator[None]:
    """While it is entered, the masks are applied."""
    handles = [mask.layer.register_forward_pre_hook(mask.apply) for mask in masks]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
