"""Students without attention (Tang et al. 2019): a bidirectional LSTM, or a bag of words, taught by soft labels.

The student reads the tokens of its teacher and starts from the teacher's input embedding; everything else is new. Its
head reads the mean of its states.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch

from firth.checkpoint import Checkpoint
from firth.compression.distil import DistilConfig, SoftLabelExtension, StudentConfig, StudentMethod
from firth.compression.method import CompressionJob
from firth.compression.teacher import Teacher, check_task
from firth.compression.trained_method import TrainingExtension
from firth.config import to_dict
from firth.data.packing import pack_tokens
from firth.encoders.bilstm import BiLstm
from firth.encoders.static import Static
from firth.encoders.tables import StaticConfig
from firth.errors import BadConfig
from firth.files import JsonObject
from firth.tensors import Encoder
from firth.train.parallel import reseed

CELL_WIDTHS = (300, 150, 75, 32)
"""The widths of an LSTM that the search tries, before a bag of words."""
RATE = 2e-3
"""The learning rate, if the user does not say."""


@dataclass(frozen=True)
class SimpleStudentConfig(DistilConfig):
    kind: Literal["bilstm", "bag"] = "bilstm"
    """What reads the text: a bidirectional LSTM, or the mean of word vectors alone."""
    cell_width: int = 150
    """Width of the state of each direction of the LSTM."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.cell_width < 1:
            raise BadConfig("cell_width must be at least 1.")
        if self.num_layers or self.student or self.width:
            raise BadConfig("The student of `by='bilstm'` is made by kind and cell_width; leave out the others.")


class SimpleStudent(StudentMethod):
    """A BiLSTM or a bag of words learns the soft labels of the fine-tuned model."""

    Config = SimpleStudentConfig
    name = "bilstm"

    @classmethod
    def strengths(cls, original: Checkpoint, config: StudentConfig) -> Sequence[StudentConfig]:
        assert isinstance(config, SimpleStudentConfig)
        strengths = [replace(config, kind="bilstm", cell_width=width) for width in CELL_WIDTHS]
        return [*strengths, replace(config, kind="bag")]

    @property
    def described(self) -> str:
        if self.config.kind == "bag":
            return "a bag of words"
        return f"a BiLSTM of {self.config.cell_width} cells in each direction"

    @property
    def keeps_head(self) -> bool:
        return False

    def check(self, job: CompressionJob) -> None:
        check_task(job.head, str(job.model))

    def student(self, job: CompressionJob) -> Checkpoint:
        table_VE = _table(Teacher.of(job.model, job.original))
        vocab_size, width = table_VE.shape
        reseed(job.seed, "student")
        encoder: Encoder
        if self.config.kind == "bag":
            encoder = Static(StaticConfig(vocab_size=vocab_size, width=width))
            table = encoder.table
        else:
            encoder = BiLstm(
                BiLstm.Config(vocab_size=vocab_size, embedding_width=width, cell_width=self.config.cell_width)
            )
            table = encoder.tokens
        if not self.config.random:
            with torch.no_grad():
                table.weight.copy_(table_VE)
        info = {key: value for key, value in job.original.info.items() if key == "max_length"}
        return Checkpoint(encoder.eval(), {}, job.original.tokenizer, info=info)

    def extension(self, job: CompressionJob) -> TrainingExtension:
        return SoftLabelExtension(self, job, self.name)

    def head_options(self, job: CompressionJob) -> JsonObject:
        return {**to_dict(job.head.config), "pooling": "mean"}

    def changes(self, job: CompressionJob) -> Sequence[str]:
        changes = super().changes(job)
        if self.config.rate:
            return changes
        return [*changes, f"train.optim.rate={RATE}"]


def _table(teacher: Teacher) -> torch.Tensor:
    """The teacher's input embedding, V x E."""
    batch = pack_tokens([np.zeros(1, np.int64)])
    return teacher.states(batch).table_VD.detach()
