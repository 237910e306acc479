"""MobileBERT's loss (Sun et al. 2020): a student with the same layers, each narrower inside, copies its teacher's.

Compared are the states and the attention of every layer, so the student has as many layers and heads as its teacher,
and states of the same width; what is smaller is inside of the layers, such as fewer feed-forward rows (`by='ffn'` makes
such a student). MobileBERT's own bottlenecks are not a part of firth. On plain text, or on labelled rows with labels.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from firth.checkpoint import Checkpoint
from firth.compression.distil import LessonExtension, StudentConfig
from firth.compression.general import GeneralMethod
from firth.compression.hidden_states import LayerStates
from firth.compression.lesson import Term
from firth.compression.method import CompressionJob
from firth.compression.relations import AttentionMaps, check_heads, check_relations
from firth.compression.teacher import Teacher
from firth.compression.trained_method import TrainingExtension
from firth.errors import BadConfig
from firth.objectives.objective import Objective
from firth.tasks.task import Head
from firth.tensors import Encoder


@dataclass(frozen=True)
class MobileBertConfig(StudentConfig):
    label_weight: float = 1.0
    """Weight of the loss of the labels themselves."""
    state_weight: float = 1.0
    """Weight of the loss of the states of layers."""
    attention_weight: float = 1.0
    """Weight of the loss of attention."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.state_weight, self.attention_weight) < 0:
            raise BadConfig("state_weight and attention_weight must be at least 0.")


def map_terms(config: MobileBertConfig, student: Encoder, teacher: Encoder) -> list[Term]:
    layers = {layer: layer for layer in range(1, teacher.num_layers + 1)}
    return [
        LayerStates(layers, student=student, teacher=teacher, weight=config.state_weight),
        AttentionMaps(layers, student=student, teacher=teacher, weight=config.attention_weight),
    ]


class MapExtension(LessonExtension):
    def terms(self, head: Head, encoder: Encoder) -> Sequence[Term]:
        return map_terms(self.method.config, encoder, self.teacher.encoder)


class MobileBert(GeneralMethod):
    """A student with the same layers, narrower inside, learns states and attention of each."""

    Config = MobileBertConfig
    name = "mobilebert"

    def check(self, job: CompressionJob) -> None:
        self.check_text(job)

    def check_text(self, job: CompressionJob) -> None:
        check_relations(job.original.encoder, job.model)
        if not self.config.student:
            raise BadConfig("`by='mobilebert'` needs student=FOLDER: a model with the same layers, narrower inside.")

    def check_student(self, student: Checkpoint, job: CompressionJob) -> None:
        check_relations(student.encoder, self.config.student)
        own = student.encoder
        taught = job.original.encoder
        if (own.width, own.num_layers) != (taught.width, taught.num_layers):
            raise BadConfig(
                f"`by='mobilebert'` compares layer by layer: {self.config.student} must have the width and the number "
                f"of layers of {job.model}."
            )
        check_heads(own, taught, self.name)

    def extension(self, job: CompressionJob) -> TrainingExtension:
        return MapExtension(self, job, self.name)

    def text_terms(self, goal: Objective, encoder: Encoder, teacher: Teacher) -> Sequence[Term]:
        return map_terms(self.config, encoder, teacher.encoder)
