"""Every method that trains on labelled rows also does so in bf16, which is what a GPU trains in."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.compression.method import CompressionJob

METHODS: Mapping[str, Mapping[str, object]] = {
    "distil": {},
    "pkd": {},
    "minilm": {},
    "tinybert": {},
    "bilstm": {"cell_width": 8},
    "theseus": {"first_probability": 0.0},
    "layerdrop": {"drop": 0.5},
    "magnitude": {},
    "movement": {},
    "quantise-aware": {},
}


def check_trained(trained: Checkpoint, job: CompressionJob) -> None:
    """The student has finite weights of single precision, and its teacher is as it was."""
    for name, parameter in trained.encoder.named_parameters():
        assert parameter.dtype == torch.float32, name
        assert bool(parameter.isfinite().all()), name
    saved = checkpoints.load(job.model).encoder.state_dict()
    for name, tensor in job.original.encoder.state_dict().items():
        assert torch.equal(tensor, saved[name]), name


@pytest.mark.parametrize("name", METHODS)
def test_methods_train_in_bf16(name: str, compress: Callable[..., Checkpoint], job: CompressionJob) -> None:
    check_trained(compress(name, precision="bf16", **METHODS[name]), job)


def test_a_narrower_student_trains_in_bf16(
    tuned: Path, compress: Callable[..., Checkpoint], job: CompressionJob
) -> None:
    check_trained(compress("mobilebert", precision="bf16", student=str(tuned)), job)
    check_trained(compress("ensemble", folder="other", precision="bf16", teachers=(str(tuned),)), job)
