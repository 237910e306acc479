"""Distillation of several teachers into one student (Hinton et al. 2015): soft labels that are the means of theirs.

The teachers are the model and others that were fine-tuned for the same labels; they may differ in everything else.
"""

from dataclasses import dataclass
from functools import cached_property

from firth import models
from firth.compression.distil import Distil, DistilConfig, SoftLabelExtension
from firth.compression.method import CompressionJob
from firth.compression.teacher import Teacher
from firth.compression.trained_method import TrainingExtension
from firth.errors import BadConfig


@dataclass(frozen=True)
class EnsembleConfig(DistilConfig):
    teachers: tuple[str, ...] = ()
    """The other teachers: folders of models that are fine-tuned for the same labels."""


class EnsembleExtension(SoftLabelExtension):
    @cached_property
    def _others(self) -> list[Teacher]:
        return [Teacher.open(models.find(name)) for name in self.method.config.teachers]

    @property
    def teachers(self) -> list[Teacher]:
        return [self.teacher, *self._others]


class Ensemble(Distil):
    """A student learns the mean of the soft labels of several models."""

    Config = EnsembleConfig
    name = "ensemble"

    def check(self, job: CompressionJob) -> None:
        super().check(job)
        if not self.config.teachers:
            raise BadConfig("An ensemble has several teachers; name the others with teachers=FOLDER.")
        for name in self.config.teachers:
            # Raises if one of them does not know the task or has other labels.
            Teacher.open(models.find(name)).head(job.task, job.head.labels)

    def extension(self, job: CompressionJob) -> TrainingExtension:
        return EnsembleExtension(self, job, self.name)
