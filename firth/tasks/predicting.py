"""Items in, predictions out, in the same order: the only code that runs a task's head in prediction.

The windows of all items are read shortest first in packs within a token budget, each exactly once; then every item is
decided from its own windows.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from firth.data.items import all_windows, pack_windows
from firth.tasks.task import GeneratingHead, Head, Items, OnProgress
from firth.tensors import Encoder
from firth.types import Prediction

BATCH_TOKENS = 4096
"""Tokens computed at once: enough to fill the matrix units, few enough to stay in the cache."""
GPU_TOKENS = 65536
"""The same on a GPU, which is idle between small batches."""

USUAL_WIDTH = 1024
"""Up to this width a budget is a number of tokens; wider vectors (one-hot ones) need the memory of several."""


def predict(encoder: Encoder, head: Head, items: Items, *, advance: OnProgress | None = None) -> list[Prediction]:
    """A prediction for each item, in single precision whatever training used."""
    with torch.inference_mode():
        if isinstance(head, GeneratingHead):
            with evaluating(encoder, head):
                return head.generate(encoder, items, advance=advance)
        return head.decide_all(items, outputs_of(encoder, head, items, advance=advance))


@torch.inference_mode()
def outputs_of(
    encoder: Encoder,
    head: Head,
    items: Items,
    *,
    advance: OnProgress | None = None,
) -> list[list[np.ndarray]]:
    """The head's outputs for each window of each item."""
    with evaluating(encoder, head):
        outputs = _window_outputs(encoder, head, items, advance)
    # The outputs lie in the order of the windows, so they are dealt back to the items one by one.
    by_window = iter(outputs)
    by_item = []
    for item in items:
        by_item.append([next(by_window) for _ in item.windows])
    return by_item


@contextmanager
def evaluating(encoder: Encoder, head: Head) -> Iterator[None]:
    """Evaluation mode. Prediction is called in the middle of training, so the modes are restored at the end."""
    encoder_was_training = encoder.training
    head_was_training = head.training
    encoder.eval()
    head.eval()
    try:
        yield
    finally:
        encoder.train(encoder_was_training)
        head.train(head_was_training)


def _window_outputs(encoder: Encoder, head: Head, items: Items, advance: OnProgress | None) -> list[np.ndarray]:
    """The head's outputs for the windows of all items, in their order."""
    windows = all_windows(items)
    lengths = [len(window.ids) for window in windows]
    device = next(encoder.parameters()).device
    budget = GPU_TOKENS if device.type == "cuda" else BATCH_TOKENS
    outputs: list[np.ndarray] = [np.empty(0)] * len(windows)
    num_done = 0
    for rows in token_batches(lengths, within(budget, encoder.width)):
        batch = pack_windows([windows[row] for row in rows]).to(device)
        states = encoder(batch, layers=head.needs_layers)
        for row, output in zip(rows, head.outputs(states, batch), strict=True):
            outputs[row] = output
        num_done += len(rows)
        if advance:
            advance(num_done, "")
    return outputs


def within(budget: int, width: int) -> int:
    """The token budget for vectors of this width."""
    return max(1, min(budget, budget * USUAL_WIDTH // width))


def token_batches(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Rows in order of length, so that a batch's sequences have similar lengths; each batch within the token budget."""
    rows: list[int] = []
    num_tokens = 0
    for row in sorted(range(len(lengths)), key=lengths.__getitem__):
        if rows and num_tokens + lengths[row] > budget:
            yield rows
            rows = []
            num_tokens = 0
        rows.append(row)
        num_tokens += lengths[row]
    if rows:
        yield rows
