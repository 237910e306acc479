"""TinyBERT (Jiao et al. 2019): embeddings, states and attention scores first, soft labels after.

A student of k layers copies every (L / k)-th layer of a teacher of L. In the first part of the run only layers are
compared, in the second only soft labels. With `augment=` every row has copies in which words are replaced by what a
masked language model puts in their place; the teacher labels them. The general stage comes before: a model that was not
fine-tuned is compared on plain text, layers only, and its student is then fine-tuned by the task stage (`student=`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from firth import models
from firth.checkpoint import Checkpoint
from firth.compression.augmenting import Augmented
from firth.compression.distil import DistilConfig, SoftLabelExtension
from firth.compression.general import GeneralMethod
from firth.compression.hidden_states import LayerStates
from firth.compression.lesson import Term
from firth.compression.method import CompressionJob
from firth.compression.relations import AttentionScores, check_heads, check_relations
from firth.compression.teacher import Teacher, check_task
from firth.compression.trained_method import TrainingExtension
from firth.errors import BadConfig
from firth.objectives.objective import Objective
from firth.tasks.task import Head
from firth.tensors import Encoder
from firth.types import Example


@dataclass(frozen=True)
class TinyBertConfig(DistilConfig):
    temperature: float = 1.0
    """Temperature of both softmaxes."""
    soft_weight: float = 1.0
    """Weight of the loss of the soft labels."""
    label_weight: float = 0.0
    """Weight of the loss of the labels themselves."""
    layer_share: float = 0.5
    """Share of the steps in which layers are compared; the others have soft labels."""
    augment: int = 0
    """Copies of every training row with some words replaced."""
    masked_lm: str = ""
    """The pre-trained model that replaces the words, with `augment=`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.layer_share <= 1 or self.augment < 0:
            raise BadConfig("layer_share must be between 0 and 1, and augment at least 0.")
        if bool(self.augment) != bool(self.masked_lm):
            raise BadConfig("The settings augment and masked_lm, a pre-trained model that replaces words, go together.")


def copied_layers(student: Encoder, teacher: Encoder) -> dict[int, int]:
    """The teacher's layers by the student's, counted from 1."""
    num_own = student.num_layers
    layers: dict[int, int] = {}
    for own in range(1, num_own + 1):
        layers[own] = round(own * teacher.num_layers / num_own)
    return layers


def layer_terms(student: Encoder, teacher: Encoder) -> list[Term]:
    """Embeddings and states of all layers, and attention scores of all layers."""
    layers = copied_layers(student, teacher)
    with_embeddings = {0: 0, **layers}
    return [
        LayerStates(with_embeddings, student=student, teacher=teacher, weight=1.0),
        AttentionScores(layers, student=student, teacher=teacher, weight=1.0),
    ]


def check_shape(student: Checkpoint, original: Checkpoint, name: str) -> None:
    """Raises for a student whose layers cannot be compared with the teacher's."""
    own = student.encoder
    taught = original.encoder
    check_relations(own, "The student")
    if own.width > taught.width or own.num_layers > taught.num_layers:
        raise BadConfig(
            f"The student of `by='{name}'` must not be wider or deeper than its teacher: it has {own.num_layers} "
            f"layers of width {own.width}, the teacher {taught.num_layers} of {taught.width}."
        )
    check_heads(own, taught, name)


class TinyBertExtension(SoftLabelExtension):
    def terms(self, head: Head, encoder: Encoder) -> Sequence[Term]:
        return [*super().terms(head, encoder), *layer_terms(encoder, self.teacher.encoder)]

    def more_rows(self, name: str, examples: Sequence[Example]) -> Sequence[Example]:
        config = self.method.config
        rows = super().more_rows(name, examples)
        if not config.augment:
            return rows
        copies = Augmented(models.find(config.masked_lm), copies=config.augment, seed=self.job.seed)
        return [*rows, *copies.rows(examples, file=self.job.folder / "augmented.jsonl")]

    def before_step(self, encoder: Encoder, *, step: int, steps: int) -> None:
        config = self.method.config
        is_first_part = step < config.layer_share * steps
        for lesson in self.lessons:
            for term in lesson.all_terms:
                term.weight = float(term.needs_states == is_first_part)
                if not term.needs_states:
                    term.weight *= config.soft_weight


class TinyBert(GeneralMethod):
    """A student learns embeddings, states and attention of layers, then soft labels."""

    Config = TinyBertConfig
    name = "tinybert"

    def check(self, job: CompressionJob) -> None:
        check_task(job.head, str(job.model))
        check_relations(job.original.encoder, job.model)

    def check_student(self, student: Checkpoint, job: CompressionJob) -> None:
        check_shape(student, job.original, self.name)

    def extension(self, job: CompressionJob) -> TrainingExtension:
        return TinyBertExtension(self, job, self.name)

    def text_terms(self, goal: Objective, encoder: Encoder, teacher: Teacher) -> Sequence[Term]:
        return layer_terms(encoder, teacher.encoder)
