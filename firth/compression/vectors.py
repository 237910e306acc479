"""A student that copies its teacher's sentence vectors (Reimers & Gurevych 2020): `embed` of both gives the same.

In: a model that was not fine-tuned, such as one of sentence-transformers, and a text on each line. Out: a smaller model
whose vectors lie where the teacher's do. A line may hold a text and its translation, with a tab between: the student's
vectors of both are then drawn to the teacher's vector of the first, so it can be of another language and tokenizer.
The loss is the squared distance of the vectors.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.compression.distil import StudentConfig, StudentMethod
from firth.compression.method import CompressionJob
from firth.compression.row_cache import RowCache
from firth.compression.teacher import Teacher
from firth.compression.trained_method import TEACHER
from firth.convert.sentence_transformers import Embedding
from firth.corpus.small_files import read_lines
from firth.data.items import Item, ItemBatches, pack_items, text_items
from firth.errors import BadConfig, BadInput, Unsupported
from firth.inference.model import Model
from firth.interrupts import Interrupts
from firth.nn.pooling import pool
from firth.tensors import Batch, Goal, Loss, States
from firth.train.loop import Learner
from firth.train.parallel import current_world
from firth.train.run import CHECKPOINTS, TrainingRun
from firth.train.settings import OptimConfig, TrainConfig
from firth.types import Example

EPOCHS = 3.0
RATE = 2e-4
LONGEST = 128
"""Tokens of the longest text in training, unless the folder or the user says otherwise."""
TARGET = "teacher_vectors"
TEXT_TABLE = "vectors"


@dataclass(frozen=True)
class VectorsConfig(StudentConfig):
    precision: Literal["auto", "fp32", "bf16"] = "fp32"
    """Arithmetic of training; auto is bf16 on a GPU and on a CPU with units for it, else fp32."""


class VectorCopy(Goal):
    """The squared distance of a text's vector to the teacher's."""

    def __init__(self, embedding: Embedding) -> None:
        super().__init__()
        self.embedding = embedding

    def loss(self, states: States, batch: Batch) -> Loss:
        taught_ED = batch.targets[TARGET]
        vectors_ED = vectors_of(states, batch, self.embedding)
        cosines_E = F.cosine_similarity(vectors_ED, taught_ED, dim=-1)
        distances_E = (vectors_ED - taught_ED).square().sum(-1)
        # Divided by the mean square of a vector's numbers, so that one rate suits vectors of any length.
        squares_E = taught_ED.square().sum(-1)
        size = squares_E.mean().clamp(min=1e-12)
        return Loss(
            {"vectors": distances_E.sum() / size},
            {"vectors_cosine": cosines_E.sum(), "vectors_cosine_of": taught_ED.new_tensor(len(taught_ED))},
        )

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {"vectors": len(batch.targets[TARGET])}


def vectors_of(states: States, batch: Batch, embedding: Embedding) -> Tensor:
    """What `embed` gives for texts of one window each."""
    vectors_ED = pool(states.last_ND.float(), batch.bounds_B1, embedding.pooling)
    return F.normalize(vectors_ED, dim=-1) if embedding.normalise else vectors_ED


def _with_place_of_cls(embedding: Embedding, student: Checkpoint) -> Embedding:
    """The embedding with the place of the student's classification token, which XLNet has at the end."""
    if not student.encoder.cls_last:
        return embedding
    names = ["last" if name == "cls" else name for name in embedding.pooling.split("+")]
    return replace(embedding, pooling="+".join(names))


class VectorBatches:
    """Makes batches of texts with the teacher's vectors."""

    def __init__(self, vectors_ED: np.ndarray) -> None:
        self.vectors_ED = vectors_ED

    def batch(self, items: Sequence[Item]) -> Batch:
        packed, _ = pack_items(items)
        places = [item.example.row for item in items]
        taught_ED = torch.from_numpy(np.array(self.vectors_ED[places]))
        return replace(packed, targets={TARGET: taught_ED})


class CopiedVectors(StudentMethod):
    """A smaller student learns to give the same vectors of texts."""

    Config = VectorsConfig
    name = "vectors"
    needs_rows = False
    same_tokenizer = False

    def compress(self, job: CompressionJob) -> Checkpoint:
        if job.task:
            raise Unsupported(
                f"`by='vectors'` copies the vectors of `embed`, and {job.model} is fine-tuned for {job.task}; use "
                "`by='distil'`."
            )
        if "train" not in job.files:
            raise BadConfig("`by='vectors'` trains, so it needs text: give a `train=` file.")
        _refuse_other_vectors(job)
        lines = _lines(job.files["train"])
        student = self._written_student(job)
        vectors_ED = _teacher_vectors(job, [line[0] for line in lines])
        self._train(job, student, lines, vectors_ED)
        return self.finished(replace(student, embedding=job.original.embedding), job)

    def check_student(self, student: Checkpoint, job: CompressionJob) -> None:
        if student.encoder.width != job.original.encoder.width:
            raise BadConfig(
                f"`by='vectors'` copies vectors of width {job.original.encoder.width}; the student's are of "
                f"{student.encoder.width}."
            )

    def _written_student(self, job: CompressionJob) -> Checkpoint:
        """The student as a resumed run finds it, too."""
        return checkpoints.load(self._start(job))

    def _train(
        self,
        job: CompressionJob,
        student: Checkpoint,
        lines: Sequence[tuple[str, ...]],
        vectors_ED: np.ndarray,
    ) -> None:
        """Trains the student in place."""
        config = self.config
        embedding = job.original.embedding
        longest = config.max_length or embedding.max_length or LONGEST
        max_length = min(longest, student.encoder.max_positions)
        examples: list[Example] = []
        for row, line in enumerate(lines):
            # All texts of a line have the same vector.
            examples += [Example((text,), row=row) for text in line]
        items = text_items(examples, student.tokenizer, max_length=max_length, max_windows=1)
        batches = ItemBatches({TEXT_TABLE: VectorBatches(vectors_ED)}, {TEXT_TABLE: items}, config.batch_size, job.seed)
        num_batches = batches.num_packs(0)
        num_ranks = current_world().size
        epochs = config.epochs or EPOCHS
        steps = max(1, round(epochs * num_batches / num_ranks))
        train_config = TrainConfig(
            steps=steps,
            accumulate=num_ranks,
            seed=job.seed,
            log_every=max(1, min(20, steps // 50)),
            checkpoint_every=max(1, min(500, num_batches)),
            compile="no",
            precision=config.precision,
            optim=OptimConfig(rate=config.rate or RATE, warmup_rate=0.1),
        )
        goal = VectorCopy(_with_place_of_cls(embedding, student))
        learner = Learner(student.encoder, {TEXT_TABLE: goal}).to(job.device)
        folder = self.run_path(job)
        folder.mkdir(parents=True, exist_ok=True)
        interrupts = job.run.interrupts if job.run else Interrupts()
        run = TrainingRun(
            folder,
            learner,
            packs=batches,
            measure=None,
            config=train_config,
            resume=True,
            interrupts=interrupts,
            label="copying vectors",
            needs_whole="compression changes whole weights",
        )
        run.go()
        learner.cpu().eval()

    def is_run_begun(self, job: CompressionJob) -> bool:
        return (self.run_path(job) / CHECKPOINTS).exists()


def _refuse_other_vectors(job: CompressionJob) -> None:
    """Raises for a model whose vectors are more than pooled states, which are all that a student learns."""
    if job.original.vector_head is not None:
        raise Unsupported(
            f"The vectors of {job.model} come from its vector head, which is more than pooled states; "
            "`by='vectors'` is for models without one."
        )
    if job.original.vector_layers:
        raise Unsupported(f"{job.model} has layers over its pooled vectors, which `by='vectors'` does not know.")


def _lines(path: Path) -> list[tuple[str, ...]]:
    """The texts of each line: one, or one and its translation."""
    lines: list[tuple[str, ...]] = []
    for line in read_lines(path):
        texts = tuple(text.strip() for text in line.split("\t")[:2] if text.strip())
        if texts:
            lines.append(texts)
    if not lines:
        raise BadInput(f"{path} has no text; put one text on each line.")
    return lines


def _teacher_vectors(job: CompressionJob, texts: Sequence[str]) -> np.ndarray:
    """The teacher's vector of each text: a memory-mapped file."""
    teacher = Teacher.of(job.model, job.original)
    digest = sha256(teacher.digest.encode())
    for text in texts:
        digest.update(text.encode() + b"\n")
    model = Model(job.original)
    shape = (len(texts), model.width)
    cache = RowCache(job.folder / TEACHER, fingerprint=digest.hexdigest(), shape=shape)
    return cache.filled(lambda rows: model.embed([texts[row] for row in rows]))
