"""Examples in, predictions out, in the same order: the one way a task's head is asked.

Windows of all items are read shortest first in packs within a token budget, each exactly once; then every item decides
from its own windows.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch

from firth.data.items import Item, pack_windows
from firth.tasks.task import Head
from firth.tensors import Encoder
from firth.types import Prediction

BATCH_TOKENS = 4096
"""Tokens computed at once: enough to fill the matrix units, little enough to stay in the cache."""
GPU_TOKENS = 65536
"""The same on a GPU, which is idle between small batches."""

USUAL_WIDTH = 1024
"""Up to this width the budgets are in tokens alone; wider vectors (one-hot ones) take the room of many."""


def predict(
    encoder: Encoder,
    head: Head,
    items: Sequence[Item],
    *,
    advance: Callable[[float, str], None] | None = None,
) -> list[Prediction]:
    """What the task says of each item, in single precision whatever the training's."""
    with torch.inference_mode():
        return head.decide_all(items, outputs_of(encoder, head, items, advance=advance))


@torch.inference_mode()
def outputs_of(
    encoder: Encoder,
    head: Head,
    items: Sequence[Item],
    *,
    advance: Callable[[float, str], None] | None = None,
) -> list[list[np.ndarray]]:
    """The head's numbers for each window of each item."""
    device = next(encoder.parameters()).device
    modes = encoder.training, head.training
    encoder.eval(), head.eval()
    windows = [window for item in items for window in item.windows]
    outputs: list[np.ndarray] = [np.empty(0)] * len(windows)
    done = 0
    budget = GPU_TOKENS if device.type == "cuda" else BATCH_TOKENS
    for rows in token_batches([len(window.ids) for window in windows], within(budget, encoder.width)):
        batch = pack_windows([windows[row] for row in rows]).to(device)
        for row, output in zip(rows, head.outputs(encoder(batch, layers=head.needs_layers), batch), strict=True):
            outputs[row] = output
        done += len(rows)
        if advance:
            advance(done, "")
    encoder.train(modes[0]), head.train(modes[1])
    ends = np.cumsum([0, *(len(item.windows) for item in items)]).tolist()
    return [outputs[start:end] for start, end in pairwise(ends)]


def within(budget: int, width: int) -> int:
    """The token budget where vectors are no wider than usual; fewer tokens where they are."""
    return max(1, min(budget, budget * USUAL_WIDTH // width))


def token_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Rows in order of length, so that a batch's sequences are alike; each batch within the token budget."""
    rows: list[int] = []
    tokens = 0
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if rows and tokens + lengths[row] > budget:
            yield rows
            rows, tokens = [], 0
        rows.append(row)
        tokens += lengths[row]
    if rows:
        yield rows
