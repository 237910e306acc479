"""Soft labels (Hinton et al. 2015; Ba & Caruana 2014): a teacher's scores in, the loss of a student out.

With one name a row, T^2 KL(teacher || student), both softmaxes at temperature T; T^2 keeps the size of the gradient
alike for all T. With any number of names the same for each name's two choices; with numbers, the squared error. Several
teachers are one whose probabilities are their means.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from firth.compression.lesson import Compared, Term
from firth.data.items import Item
from firth.tasks.classify import ClassifyHead
from firth.tensors import Batch

TARGET = "teacher_scores"
"""E x R x T in a batch's targets: the scores of R teachers."""


class SoftLabels(Term):
    name = "soft_labels"

    def __init__(self, head: ClassifyHead, *, temperature: float, weight: float) -> None:
        super().__init__()
        self.kind = head.config.kind
        self.slices = list(head.slices)
        self.temperature = temperature
        self.weight = weight

    def forward(self, compared: Compared) -> Tensor:
        assert compared.scores is not None
        taught_ERT = compared.batch.targets[TARGET]
        scores_ET = compared.scores.float()
        if self.kind == "number":
            return F.mse_loss(scores_ET, taught_ERT.mean(1), reduction="sum")
        if self.kind == "many":
            return self._many_loss(scores_ET, taught_ERT)
        return self._one_loss(scores_ET, taught_ERT)

    def _one_loss(self, scores_ET: Tensor, taught_ERT: Tensor) -> Tensor:
        total = scores_ET.new_zeros(())
        for part in self.slices:
            wanted_ET = (taught_ERT[..., part] / self.temperature).softmax(-1).mean(1)
            found_ET = (scores_ET[:, part] / self.temperature).log_softmax(-1)
            total = total + F.kl_div(found_ET, wanted_ET, reduction="sum")
        return total * self.temperature**2

    def _many_loss(self, scores_ET: Tensor, taught_ERT: Tensor) -> Tensor:
        wanted_ET = (taught_ERT / self.temperature).sigmoid().mean(1)
        found_ET = scores_ET / self.temperature
        cross_ET = F.binary_cross_entropy_with_logits(found_ET, wanted_ET, reduction="none")
        # The entropy of the teacher is subtracted, so that a perfect student loses nothing.
        entropy_ET = F.binary_cross_entropy(wanted_ET, wanted_ET, reduction="none")
        return (cross_ET - entropy_ET).mean(1).sum() * self.temperature**2

    def count(self, batch: Batch) -> int:
        return len(batch.targets[TARGET])


class TaughtBatches:
    """Makes a head's batches, with the teachers' scores for their rows."""

    def __init__(self, head: ClassifyHead, examples_rows: Sequence[int], scores_ERT: np.ndarray) -> None:
        """`examples_rows` are the numbers of the rows that the scores are of, in order."""
        self.head = head
        self.scores_ERT = scores_ERT
        self.places = {row: place for place, row in enumerate(examples_rows)}

    def batch(self, items: Sequence[Item]) -> Batch:
        batch = self.head.batch(items)
        places = [self.places[item.example.row] for item in items]
        taught_ERT = torch.from_numpy(np.array(self.scores_ERT[places]))
        return replace(batch, targets={**batch.targets, TARGET: taught_ERT})
