"""DistilBERT (Sanh et al. 2019): a pre-trained BERT in, one with every second layer out, trained on plain text.

Three losses: KL of the predictions for masked tokens at temperature T, masked LM itself, and 1 - cosine of the last
states.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from firth.checkpoint import Checkpoint
from firth.compression.distil import StudentConfig
from firth.compression.general import GeneralMethod
from firth.compression.hidden_states import CosineStates
from firth.compression.lesson import Compared, Term
from firth.compression.method import CompressionJob
from firth.compression.structure import block_encoder
from firth.compression.teacher import Teacher
from firth.errors import BadConfig, Unsupported
from firth.nn.likelihood import IGNORE
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.objective import Objective
from firth.tensors import Batch, Encoder


@dataclass(frozen=True)
class DistilBertConfig(StudentConfig):
    temperature: float = 2.0
    """Temperature of both softmaxes over the vocabulary."""
    soft_weight: float = 5.0
    """Weight of the loss of the teacher's predictions."""
    label_weight: float = 2.0
    """Weight of masked LM itself."""
    cosine_weight: float = 1.0
    """Weight of the loss of the last states."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature <= 0 or min(self.soft_weight, self.cosine_weight) < 0:
            raise BadConfig("temperature must be above 0, and soft_weight and cosine_weight at least 0.")


class SoftWords(Term):
    """T^2 KL(teacher || student) of the predictions for masked tokens."""

    name = "soft_words"
    needs_states = True
    needs_scores = True

    def __init__(self, head: MaskedLM, *, temperature: float, weight: float) -> None:
        super().__init__()
        self.temperature = temperature
        self.weight = weight
        # The teacher's own head is not trained, so it is not a part of the term, and a dict hides it from torch.
        self.taught_heads = {torch.float32: head}

    def forward(self, compared: Compared) -> Tensor:
        assert compared.scores is not None
        assert compared.taught is not None
        targets = compared.batch.targets
        taught_head = self._taught_head(compared.taught.last_ND.dtype)
        taught_PV = taught_head.scores(compared.taught, targets["masked_lm_positions"])
        wanted_PV = (taught_PV.float() / self.temperature).softmax(-1)
        found_PV = (compared.scores.float() / self.temperature).log_softmax(-1)
        each_P = F.kl_div(found_PV, wanted_PV, reduction="none").sum(-1)
        is_predicted_P = targets["masked_lm_labels"] != IGNORE
        return (each_P * is_predicted_P).sum() * self.temperature**2

    def _taught_head(self, dtype: torch.dtype) -> MaskedLM:
        """The teacher's head in the precision of its states."""
        if dtype not in self.taught_heads:
            self.taught_heads[dtype] = copy.deepcopy(self.taught_heads[torch.float32]).to(dtype)
        return self.taught_heads[dtype]

    def count(self, batch: Batch) -> int:
        return int((batch.targets["masked_lm_labels"] != IGNORE).sum())


class DistilBert(GeneralMethod):
    """A pre-trained model with every second layer learns predictions and states on plain text."""

    Config = DistilBertConfig
    name = "distilbert"

    def compress(self, job: CompressionJob) -> Checkpoint:
        if job.task:
            raise Unsupported(
                f"`by='distilbert'` is for pre-trained models, and {job.model} is fine-tuned; compress the model that "
                "it was made from, or use `by='distil'`."
            )
        return super().compress(job)

    def check_text(self, job: CompressionJob) -> None:
        block_encoder(job.original)
        if not isinstance(job.original.goals.get("masked_lm"), MaskedLM):
            raise Unsupported(f"{job.model} has no head that predicts masked tokens, which `by='distilbert'` copies.")

    def check_student(self, student: Checkpoint, job: CompressionJob) -> None:
        if student.encoder.width != job.original.encoder.width:
            raise BadConfig(
                f"`by='distilbert'` compares states of the same width; the student's is {student.encoder.width}, the "
                f"model's {job.original.encoder.width}."
            )

    @property
    def text_label_weight(self) -> float:
        return float(self.config.label_weight)

    def text_terms(self, goal: Objective, encoder: Encoder, teacher: Teacher) -> Sequence[Term]:
        head = teacher.checkpoint.goals["masked_lm"]
        assert isinstance(head, MaskedLM)
        soft = SoftWords(head, temperature=self.config.temperature, weight=self.config.soft_weight)
        return [soft, CosineStates(weight=self.config.cosine_weight)]
