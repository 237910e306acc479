"""A teacher: a trained model whose outputs a student learns to give.

In: a model folder. Out: its states for the batches of a student that has the same tokenizer, or its scores for labelled
rows, which any student can learn from. Nothing of a teacher is trained.
"""

import copy
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from torch import nn

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.compression.row_cache import RowCache
from firth.errors import BadConfig, BadInput, Unsupported
from firth.files import sha256 as file_sha256
from firth.inference.quantization import block_linears, copy_with_layers, packed_linears
from firth.inference.saved_precision import ServingEncoder
from firth.run_source import model_sha256
from firth.tasks.classify import ClassifyHead
from firth.tasks.predicting import outputs_of
from firth.tasks.task import Head, Labels
from firth.tensors import Batch, Encoder, States
from firth.tokenizers import Tokenizer
from firth.train.parallel import Precision
from firth.types import Example


@dataclass(frozen=True)
class Teacher:
    """A model folder and what it holds, in evaluation mode and without gradients."""

    path: Path
    checkpoint: Checkpoint
    rounded: dict[torch.dtype, Encoder] = field(default_factory=dict, repr=False, compare=False)
    """Copies of its encoder in half precision, for students that are trained in it."""

    @classmethod
    def open(cls, path: Path) -> "Teacher":
        return cls.of(path, checkpoints.load(path))

    @classmethod
    def of(cls, path: Path, checkpoint: Checkpoint) -> "Teacher":
        teacher = cls(path, checkpoint)
        for part in teacher._parts():
            part.eval().requires_grad_(False)
        return teacher

    def _parts(self) -> list[nn.Module]:
        parts: list[nn.Module] = [self.encoder]
        parts += self.checkpoint.goals.values()
        parts += self.checkpoint.tasks.values()
        if self.checkpoint.feature_encoder is not None:
            parts.append(self.checkpoint.feature_encoder)
        return parts

    @property
    def encoder(self) -> Encoder:
        return self.checkpoint.encoder

    @property
    def tokenizer(self) -> Tokenizer:
        return self.checkpoint.tokenizer

    @property
    def max_length(self) -> int:
        return int(self.checkpoint.info.get("max_length", self.encoder.max_positions))

    @property
    def digest(self) -> str:
        """What tells this model from any other: the hash of its manifest, or of its weights if it has none."""
        digest = model_sha256(self.path)
        if digest:
            return digest
        digests = [file_sha256(path) for path in sorted(self.path.glob("*.safetensors"))]
        joined = " ".join(digests)
        return sha256(joined.encode()).hexdigest()

    def to(self, device: torch.device | str) -> None:
        """Moves all its parts."""
        for part in self._parts():
            part.to(device)

    @torch.no_grad()
    def states(self, batch: Batch, *, dtype: torch.dtype = torch.float32) -> States:
        """Its states of all layers for a batch that has its ids. `dtype` is what it computes in."""
        device = batch.ids_N.device
        if next(self.encoder.parameters()).device != device:
            self.to(device)
            self.rounded.clear()
        encoder = self.encoder
        if dtype != torch.float32:
            if dtype not in self.rounded:
                self.rounded[dtype] = copy.deepcopy(self.encoder).to(dtype)
            encoder = self.rounded[dtype]
        return encoder(batch, layers=True)  # type: ignore[no-any-return]

    def row_encoder(self, precision: Precision) -> Encoder:
        """What reads whole rows. In bf16 on a CPU its products are in bf16, and its states are fp32 as otherwise."""
        encoder = self.checkpoint.feature_encoder or self.encoder
        is_on_cpu = next(encoder.parameters()).device.type == "cpu"
        if precision == "fp32" or not is_on_cpu or not block_linears(encoder):
            return encoder
        return ServingEncoder(encoder, copy_with_layers(encoder, packed_linears(encoder, torch.bfloat16)))

    def check_same_tokenizer(self, tokenizer: Tokenizer, student: str) -> None:
        """Raises if a student reads other ids, so that their states cannot be compared token by token."""
        if tokenizer.fingerprint != self.tokenizer.fingerprint:
            raise BadInput(
                f"{student} has another tokenizer than its teacher {self.path}, so their states cannot be compared; "
                "use `by='distil'`, which needs none but labels."
            )

    def head(self, task: str, labels: Labels) -> ClassifyHead:
        """Its head for a task whose scores a student can learn; raises if it has none with these labels."""
        head = self.checkpoint.tasks.get(task)
        if head is None:
            known = ", ".join(self.checkpoint.tasks) or "no task"
            raise BadConfig(f"The teacher {self.path} is not fine-tuned for {task}; it knows {known}.")
        check_task(head, str(self.path))
        if dict(head.labels) != dict(labels):
            raise BadInput(
                f"The teacher {self.path} chooses from {_listed(head.labels)}, but the training rows have "
                f"{_listed(labels)}."
            )
        assert isinstance(head, ClassifyHead)
        return head


def check_task(head: Head, model: str) -> None:
    """Raises if a task has no scores for whole rows."""
    if not isinstance(head, ClassifyHead) or head.config.head != "linear":
        raise Unsupported(f"{model} does the task {head.name}; soft labels are known for classify with a linear head.")


def _listed(labels: Labels) -> str:
    groups = [", ".join(names) for names in labels.values()]
    return " and ".join(groups) or "numbers"


def row_scores(
    teachers: Sequence[Teacher],
    task: str,
    labels: Labels,
    examples: Sequence[Example],
    *,
    folder: Path,
    device: str = "cpu",
    precision: Precision = "fp32",
) -> np.ndarray:
    """The scores of all teachers for all rows, rows x teachers x labels: a memory-mapped file in `folder`.

    Each block of rows is computed by itself, so the bytes do not depend on where an earlier process stopped.
    `precision` is that of the training run.
    """
    heads = [teacher.head(task, labels) for teacher in teachers]
    num_scores = sum(len(names) for names in labels.values()) or 1
    fingerprint = _fingerprint(teachers, examples, precision)
    cache = RowCache(folder, fingerprint=fingerprint, shape=(len(examples), len(teachers), num_scores))

    for teacher in teachers:
        teacher.to(device)
    encoders = [teacher.row_encoder(precision) for teacher in teachers]

    def compute(rows: range) -> np.ndarray:
        block = [examples[row] for row in rows]
        by_teacher = []
        for teacher, encoder, head in zip(teachers, encoders, heads, strict=True):
            by_teacher.append(_scores(teacher, encoder, head, block))
        return np.stack(by_teacher, 1)

    return cache.filled(compute)


def _scores(teacher: Teacher, encoder: Encoder, head: ClassifyHead, examples: Sequence[Example]) -> np.ndarray:
    """Rows x labels: the mean over the windows of each row."""
    items = head.encode(examples, teacher.tokenizer, max_length=teacher.max_length, training=False)
    rows = [np.mean(windows, 0) for windows in outputs_of(encoder, head, items)]
    return np.stack(rows).astype(np.float32)


def _fingerprint(teachers: Sequence[Teacher], examples: Sequence[Example], precision: Precision) -> str:
    """A hash of the teachers, of the texts that they read, and of what they compute in."""
    digest = sha256()
    if precision != "fp32":
        digest.update(f"{precision}\n".encode())
    for teacher in teachers:
        digest.update(f"{teacher.digest} {teacher.max_length}\n".encode())
    for example in examples:
        line = json.dumps(list(example.texts))
        digest.update(f"{line}\n".encode())
    return digest.hexdigest()
