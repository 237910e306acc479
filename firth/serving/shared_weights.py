"""One copy of a model's weights for all processes that serve it.

In: a loaded model and a file. The first process writes its weights to the file; every process then maps the file and
uses the mapped weights in place of its own, so that the machine holds them once. What a process computes from them
(packed or quantised weights of a faster precision) stays its own.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from firth.files import atomic_file
from firth.inference.model import Model

ALIGNMENT = 64
"""Every tensor starts at a multiple of this many bytes."""
SMALLEST = 4096
"""Tensors of fewer bytes are not worth sharing."""


def share_weights(model: Model, file: Path) -> int:
    """Replaces the model's weights by those of the file, which is written if it is not there; returns the bytes shared.

    A tensor that differs from the file's keeps its own memory.
    """
    tensors = list(_large_tensors(model))
    if not tensors:
        return 0
    if not file.exists():
        _write(tensors, file)
    # Private pages: they are those of the file until a process writes to them, and none does.
    mapped = torch.from_file(str(file), shared=False, size=file.stat().st_size, dtype=torch.uint8)
    num_shared = 0
    start = 0
    for tensor in tensors:
        end = start + tensor.nbytes
        candidate = mapped[start:end]
        if len(candidate) == tensor.nbytes:
            shared = candidate.view(tensor.dtype).view(tensor.shape)
            if torch.equal(shared, tensor):
                tensor.data = shared
                num_shared += tensor.nbytes
        start = _aligned(end)
    return num_shared


def _large_tensors(model: Model) -> Iterator[Tensor]:
    """The parameters and buffers of all parts of a model, each once."""
    checkpoint = model.checkpoint
    parts = [checkpoint.encoder, *checkpoint.goals.values(), *checkpoint.tasks.values(), checkpoint.feature_encoder]
    seen: set[int] = set()
    for part in parts:
        if not isinstance(part, nn.Module):
            continue
        for tensor in [*part.parameters(), *part.buffers()]:
            is_plain = tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_quantized
            if id(tensor) not in seen and is_plain and tensor.nbytes >= SMALLEST:
                seen.add(id(tensor))
                yield tensor


def _write(tensors: list[Tensor], file: Path) -> None:
    with atomic_file(file) as opened:
        for tensor in tensors:
            as_bytes = tensor.detach().view(-1).view(torch.uint8)
            padding = _aligned(tensor.nbytes) - tensor.nbytes
            opened.write(as_bytes.numpy().tobytes())
            opened.write(bytes(padding))


def _aligned(size: int) -> int:
    """The size rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT
