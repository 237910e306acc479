"""Distillation by soft labels (Hinton et al. 2015): a fine-tuned teacher and rows in, a smaller student out.

The student is the teacher without some of its layers, another model folder, or random weights of any width. It may have
another tokenizer: it learns from the teacher's scores of whole rows, which are computed once and kept on disk.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from firth import models
from firth.checkpoint import Checkpoint
from firth.compression.depth import check_depth, depth_strengths, described_depth, fewer_layers, with_depth
from firth.compression.lesson import Lesson, Term
from firth.compression.method import CompressionJob, MethodConfig
from firth.compression.soft_labels import SoftLabels, TaughtBatches
from firth.compression.student import other_model, random_weights
from firth.compression.teacher import Teacher, check_task, row_scores
from firth.compression.trained_method import TEACHER, TrainedMethod, TrainingConfig, TrainingExtension
from firth.compression.unlabelled import check_unlabelled, is_unlabelled, new_texts, with_labels
from firth.data.items import BatchMaker, Item
from firth.errors import BadConfig
from firth.tasks.classify import ClassifyHead
from firth.tasks.task import Head, Labels
from firth.tensors import Encoder, Goal
from firth.train.parallel import chosen_precision
from firth.train.settings import TrainConfig
from firth.types import Example

UNLABELLED = "teacher-unlabelled"
"""The folder with the teachers' scores of unlabelled texts."""


@dataclass(frozen=True)
class StudentConfig(TrainingConfig):
    """The settings of methods that make a student."""

    num_layers: int = 0
    """Layers of the student; 0: half of the model's."""
    student: str = ""
    """A model folder or name to start from, instead of the model without some of its layers."""
    random: bool = False
    """Whether the student starts from random weights."""
    width: int = 0
    """Width of a student with random weights; 0: the model's."""
    label_weight: float = 0.5
    """Weight of the loss of the labels themselves."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_layers < 0 or self.width < 0 or self.label_weight < 0:
            raise BadConfig("num_layers, width and label_weight must be at least 0.")
        if self.width and not self.random:
            raise BadConfig("Another width needs random weights; add random=true.")
        if self.student and self.num_layers:
            raise BadConfig("The setting student names a whole model, which keeps its layers; leave out num_layers.")


@dataclass(frozen=True)
class DistilConfig(StudentConfig):
    temperature: float = 2.0
    """Temperature of both softmaxes; higher shows more of what a teacher thinks of wrong names."""
    soft_weight: float = 0.5
    """Weight of the loss of the soft labels."""
    unlabelled: str = ""
    """A file with an unlabelled text on each line: the teacher labels them, and the student learns from them, too."""

    @property
    def input_files(self) -> Mapping[str, Path]:
        return {"unlabelled": Path(self.unlabelled)} if self.unlabelled else {}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature <= 0 or self.soft_weight < 0:
            raise BadConfig("temperature must be above 0 and soft_weight at least 0.")


class StudentMethod(TrainedMethod):
    """A method that makes a student of any of the three kinds."""

    Config: ClassVar[type[MethodConfig]] = StudentConfig
    same_tokenizer: ClassVar[bool] = True
    """Whether the student must read the same ids as the teacher."""

    @classmethod
    def strengths(cls, original: Checkpoint, config: StudentConfig) -> Sequence[StudentConfig]:
        """Fewer and fewer layers; one strength if the student is another model."""
        if config.student:
            return [config]
        return depth_strengths(original, config, most=fewer_layers(original))

    @property
    def described(self) -> str:
        if self.config.student:
            return f"{self.name}, student {Path(self.config.student).name}"
        return f"{self.name}, {described_depth(self.config.num_layers)}"

    def student(self, job: CompressionJob) -> Checkpoint:
        config = self.config
        if config.student:
            student = other_model(str(models.find(config.student)))
        else:
            check_depth(job, config.num_layers)
            student = with_depth(job.original, config.num_layers)
        if config.random:
            student = random_weights(student, width=config.width, seed=job.seed)
        if self.same_tokenizer:
            Teacher.of(job.model, job.original).check_same_tokenizer(student.tokenizer, config.student)
        self.check_student(student, job)
        return student

    @property
    def keeps_head(self) -> bool:
        """Whether the student starts with the head of the model: its states are near the model's."""
        return not self.config.random and not self.config.student

    def check_student(self, student: Checkpoint, job: CompressionJob) -> None:
        """Raises for a student whose shape the method does not allow."""


class LessonExtension(TrainingExtension):
    """A run whose heads learn the terms of a method besides their labels."""

    method: StudentMethod

    def __init__(self, method: StudentMethod, job: CompressionJob, name: str) -> None:
        super().__init__(method, job, name)
        self.teacher = Teacher.of(job.model, job.original)
        self.lessons: list[Lesson] = []

    def terms(self, head: Head, encoder: Encoder) -> Sequence[Term]:
        raise NotImplementedError

    def goal(self, head: Head, encoder: Encoder) -> Goal:
        if self.method.keeps_head:
            self.start_head(head)
        lesson = Lesson(
            head,
            self.terms(head, encoder),
            teacher=self.teacher,
            label_weight=self.method.config.label_weight,
        )
        self.lessons = [lesson]
        return lesson


class SoftLabelExtension(LessonExtension):
    """A run whose head learns soft labels."""

    def __init__(self, method: StudentMethod, job: CompressionJob, name: str) -> None:
        super().__init__(method, job, name)
        self.unlabelled: str = method.config.unlabelled
        if self.unlabelled:
            check_unlabelled(job, name)

    @property
    def teachers(self) -> list[Teacher]:
        return [self.teacher]

    def record(self) -> Mapping[str, object]:
        facts = dict(super().record())
        facts["teachers"] = [teacher.digest for teacher in self.teachers]
        return facts

    def more_rows(self, name: str, examples: Sequence[Example]) -> Sequence[Example]:
        """The rows, and the unlabelled texts with the labels that the teachers give them."""
        if not self.unlabelled:
            return examples
        # Also the rows that are held out and those that the gate measures on: nothing may learn from them.
        known = list(examples)
        for rows in self.job.examples.values():
            known += rows
        texts = new_texts(self.unlabelled, known)
        labels = self.job.head.labels
        (names,) = labels.values()
        return [*examples, *with_labels(texts, self._teacher_scores(labels, texts, UNLABELLED), names)]

    def terms(self, head: Head, encoder: Encoder) -> Sequence[Term]:
        config = self.method.config
        assert isinstance(head, ClassifyHead)
        return [SoftLabels(head, temperature=config.temperature, weight=config.soft_weight)]

    def batch_maker(self, head: Head, items: Sequence[Item], *, folder: Path) -> BatchMaker:
        assert isinstance(head, ClassifyHead)
        examples = [item.example for item in items if not is_unlabelled(item.example)]
        scores_ERT = self._teacher_scores(head.labels, examples, TEACHER)
        if self.unlabelled:
            texts = [item.example for item in items if is_unlabelled(item.example)]
            scores_ERT = np.concatenate([scores_ERT, self._teacher_scores(head.labels, texts, UNLABELLED)])
            examples += texts
        return TaughtBatches(head, [example.row for example in examples], scores_ERT)

    def _teacher_scores(self, labels: Labels, examples: Sequence[Example], folder: str) -> np.ndarray:
        """Rows x teachers x labels, kept in a folder of the run."""
        job = self.job
        train_config = TrainConfig(precision=self.method.config.precision)
        return row_scores(
            self.teachers,
            job.task,
            labels,
            examples,
            folder=job.folder / folder,
            device=job.device,
            precision=chosen_precision(train_config, torch.device(job.device)),
        )


class Distil(StudentMethod):
    """A smaller student learns the soft labels of the fine-tuned model."""

    Config = DistilConfig
    name = "distil"
    same_tokenizer = False

    def check(self, job: CompressionJob) -> None:
        check_task(job.head, str(job.model))

    def extension(self, job: CompressionJob) -> TrainingExtension:
        return SoftLabelExtension(self, job, self.name)
