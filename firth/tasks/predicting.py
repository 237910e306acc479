"""Examples in, predictions out, in the same order: the one way a task's head is asked.

Windows of all items are read longest first in packs within a token budget, each exactly once; then every item decides
from its own windows.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch

from firth.data.items import Item, pack_windows
from firth.tensors import Encoder, Task
from firth.types import Prediction

BATCH_TOKENS = 4096
"""Tokens computed at once: enough to fill the matrix units, little enough to stay in the cache."""


@torch.inference_mode()
def predict(
    encoder: Encoder,
    task: Task,
    items: Sequence[Item],
    *,
    advance: Callable[[float, str], None] | None = None,
) -> list[Prediction]:
    """What the task says of each item, in single precision whatever the training's."""
    device = next(encoder.parameters()).device
    modes = encoder.training, task.training
    encoder.eval(), task.eval()
    windows = [window for item in items for window in item.windows]
    outputs: list[np.ndarray] = [np.empty(0)] * len(windows)
    done = 0
    for rows in token_batches([len(window.ids) for window in windows]):
        batch = pack_windows([windows[row] for row in rows]).to(device)
        for row, output in zip(rows, task.outputs(encoder(batch, layers=task.needs_layers), batch), strict=True):
            outputs[row] = output
        done += len(rows)
        if advance:
            advance(done, "")
    encoder.train(modes[0]), task.train(modes[1])
    ends = np.cumsum([0, *(len(item.windows) for item in items)]).tolist()
    return task.decide_all(items, [outputs[start:end] for start, end in pairwise(ends)])


def token_batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows in order of length, so that a batch's sequences are alike; each batch within the token budget."""
    rows: list[int] = []
    tokens = 0
    for row in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        if rows and tokens + lengths[row] > BATCH_TOKENS:
            yield rows
            rows, tokens = [], 0
        rows.append(row)
        tokens += lengths[row]
    if rows:
        yield rows
