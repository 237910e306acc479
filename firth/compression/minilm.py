"""MiniLM (Wang et al. 2020): a student copies the attention of one layer of its teacher, and what values are to values.

Nothing else is compared, so the student may have any width, number of heads and number of layers. A model that was not
fine-tuned is copied on plain text. With a fine-tuned model and labelled rows the labels are learned as well.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from firth.checkpoint import Checkpoint
from firth.compression.distil import LessonExtension, StudentConfig
from firth.compression.general import GeneralMethod
from firth.compression.lesson import Term
from firth.compression.method import CompressionJob
from firth.compression.relations import LastRelations, check_relations
from firth.compression.structure import blocks_of
from firth.compression.teacher import Teacher
from firth.compression.trained_method import TrainingExtension
from firth.console import counted
from firth.errors import BadConfig
from firth.objectives.objective import Objective
from firth.tasks.task import Head
from firth.tensors import Encoder


@dataclass(frozen=True)
class MiniLMConfig(StudentConfig):
    label_weight: float = 1.0
    """Weight of the loss of the labels themselves."""
    relation_weight: float = 1.0
    """Weight of the loss of the relations."""
    layer: int = 0
    """The teacher's layer that is copied, counted from 1; 0: its last."""
    relation_heads: int = 0
    """Parts that queries, keys and values are cut into; 0: as many as the teacher has heads, if the widths allow it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.relation_weight, self.layer, self.relation_heads) < 0:
            raise BadConfig("relation_weight, layer and relation_heads must be at least 0.")


def inner_width(encoder: Encoder, layer: int) -> int:
    """The width of all queries of a token together, in a layer counted from 1."""
    return blocks_of(encoder)[layer - 1].attention.qkv.out_features // 3


def relation_heads(asked: int, student: Encoder, teacher: Encoder, *, layer: int = 0) -> int:
    """The number of parts that both widths can be cut into; `layer` is the teacher's, 0 for its last."""
    own_width = inner_width(student, student.num_layers)
    taught_width = inner_width(teacher, layer or teacher.num_layers)
    common = math.gcd(own_width, taught_width)
    if not asked:
        return math.gcd(common, int(teacher.config.num_heads))
    if common % asked:
        raise BadConfig(
            f"relation_heads={asked} must divide {own_width} and {taught_width}, the widths of the student's and of "
            "the model's attention."
        )
    return asked


def relation_terms(config: MiniLMConfig, student: Encoder, teacher: Encoder) -> list[Term]:
    term = LastRelations(
        student=student,
        teacher=teacher,
        layer=config.layer or teacher.num_layers,
        num_heads=relation_heads(config.relation_heads, student, teacher, layer=config.layer),
        weight=config.relation_weight,
    )
    return [term]


class RelationExtension(LessonExtension):
    def terms(self, head: Head, encoder: Encoder) -> Sequence[Term]:
        return relation_terms(self.method.config, encoder, self.teacher.encoder)


class MiniLM(GeneralMethod):
    """A student of any shape learns the attention and value relations of one layer."""

    Config = MiniLMConfig
    name = "minilm"

    def check(self, job: CompressionJob) -> None:
        self.check_text(job)

    def check_text(self, job: CompressionJob) -> None:
        check_relations(job.original.encoder, job.model)
        num_layers = job.original.encoder.num_layers
        if self.config.layer > num_layers:
            raise BadConfig(
                f"{job.model} has {counted(num_layers, 'layer')}; layer={self.config.layer} is not one of them."
            )

    def check_student(self, student: Checkpoint, job: CompressionJob) -> None:
        check_relations(student.encoder, self.config.student)
        config = self.config
        relation_heads(config.relation_heads, student.encoder, job.original.encoder, layer=config.layer)

    def extension(self, job: CompressionJob) -> TrainingExtension:
        return RelationExtension(self, job, self.name)

    def text_terms(self, goal: Objective, encoder: Encoder, teacher: Teacher) -> Sequence[Term]:
        return relation_terms(self.config, encoder, teacher.encoder)
