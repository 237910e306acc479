"""Patient knowledge distillation (Sun et al. 2019): soft labels, and the first token's states of layers on the way.

A student of k layers copies k - 1 layers of a teacher of L: every (L / k)-th (`skip`), or the last ones (`last`). The
last layer of both is left to the labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from firth.checkpoint import Checkpoint
from firth.compression.distil import DistilConfig, SoftLabelExtension, StudentMethod
from firth.compression.hidden_states import ClsStates
from firth.compression.lesson import Term
from firth.compression.method import CompressionJob
from firth.compression.structure import block_encoder
from firth.compression.teacher import check_task
from firth.compression.trained_method import TrainingExtension
from firth.errors import BadConfig
from firth.tasks.task import Head
from firth.tensors import Encoder


@dataclass(frozen=True)
class PatientConfig(DistilConfig):
    copied: Literal["skip", "last"] = "skip"
    """Which layers of the teacher are copied: evenly spread ones, or the last ones."""
    state_weight: float = 100.0
    """Weight of the loss of the states (the paper tries 10 to 1000)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.state_weight < 0:
            raise BadConfig("state_weight must be at least 0.")


def copied_layers(num_own: int, num_taught: int, *, which: str) -> dict[int, int]:
    """The teacher's layers by the student's, both counted from 1, without the last of either."""
    if which == "last":
        return {own: num_taught - num_own + own for own in range(1, num_own)}
    return {own: round(own * num_taught / num_own) for own in range(1, num_own)}


class PatientExtension(SoftLabelExtension):
    def terms(self, head: Head, encoder: Encoder) -> Sequence[Term]:
        config = self.method.config
        layers = copied_layers(encoder.num_layers, self.teacher.encoder.num_layers, which=config.copied)
        return [*super().terms(head, encoder), ClsStates(layers, weight=config.state_weight)]


class PatientDistillation(StudentMethod):
    """Soft labels, and the first token's states of layers on the way (PKD)."""

    Config = PatientConfig
    name = "pkd"

    def check(self, job: CompressionJob) -> None:
        check_task(job.head, str(job.model))
        block_encoder(job.original)

    def check_student(self, student: Checkpoint, job: CompressionJob) -> None:
        widths = student.encoder.width, job.original.encoder.width
        if widths[0] != widths[1]:
            raise BadConfig(
                f"`by='pkd'` compares states of the same width; the student's is {widths[0]}, the model's {widths[1]}."
            )
        if student.encoder.num_layers > job.original.encoder.num_layers:
            raise BadConfig("The student of `by='pkd'` has more layers than its teacher.")

    def extension(self, job: CompressionJob) -> TrainingExtension:
        return PatientExtension(self, job, self.name)
