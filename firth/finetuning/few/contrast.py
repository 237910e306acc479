"""Few labels by contrast: the encoder learns from pairs of labelled rows, then a head is fitted on its vectors.

SetFit (Tunstall et al. 2022) draws pairs of rows and reads both texts of each pair. Here every batch is a set of rows,
each read once, and all its pairs count: the supervised contrastive loss (Khosla et al. 2020, equation 2). A batch of 16
texts has 120 pairs, for which reading pair by pair would read 240 texts. The head is a logistic regression on the
vectors of all training rows, which L-BFGS finds after the last step.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth.data.items import Item
from firth.errors import BadConfig
from firth.finetuning.few.extension import FewExtension
from firth.finetuning.few.settings import FewConfig
from firth.finetuning.labelled import Labelled
from firth.nn.pooling import pooled_rows
from firth.tasks.classify import ClassifyConfig, ClassifyHead, means_of_windows
from firth.tasks.predicting import outputs_of
from firth.tasks.task import Head, as_array
from firth.tensors import Batch, Encoder, Goal, Loss, States
from firth.train import logistic


class Contrast(Goal):
    """Brings rows of one label together and parts those of different labels; holds the head that is fitted later."""

    def __init__(self, head: ClassifyHead, config: FewConfig) -> None:
        super().__init__()
        self.head = head
        self.few = config
        self.name = head.name

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return self.head.counts(batch)

    def loss(self, states: States, batch: Batch) -> Loss:
        pooled_BD = pooled_rows(states, batch.bounds_B1, self.head.config.pooling)
        gold_EG = batch.targets["gold_E"]
        vectors_ED = means_of_windows(pooled_BD, batch.targets["owners_B"], len(gold_EG)).float()
        losses_E = supervised_contrast(vectors_ED, gold_EG[:, 0], temperature=self.few.temperature)
        total = losses_E.sum()
        if self.few.cross_entropy:
            own = self.head.loss(states, batch)
            total = total + self.few.cross_entropy * own.sums[self.name]
            return Loss({self.name: total}, own.tallies)
        return Loss({self.name: total})


def supervised_contrast(vectors_ED: Tensor, gold_E: Tensor, *, temperature: float) -> Tensor:
    """For each row the mean over the rows of its label of -log softmax(cosine / temperature); 0 if it has none."""
    unit_ED = F.normalize(vectors_ED, dim=1)
    is_self_EE = torch.eye(len(gold_E), dtype=torch.bool, device=gold_E.device)
    scores_EE = (unit_ED @ unit_ED.T / temperature).masked_fill(is_self_EE, -torch.inf)
    log_shares_EE = scores_EE.log_softmax(1).masked_fill(is_self_EE, 0.0)
    is_alike_EE = (gold_E[:, None] == gold_E[None]) & ~is_self_EE
    num_alike_E = is_alike_EE.sum(1).clamp(min=1)
    return -(log_shares_EE * is_alike_EE).sum(1) / num_alike_E


class PooledVectors(Head):
    """A head whose outputs are the pooled vectors themselves."""

    config: ClassifyConfig

    def outputs(self, states: States, batch: Batch) -> list[np.ndarray]:
        pooled_BD = pooled_rows(states, batch.bounds_B1, self.config.pooling)
        return list(as_array(pooled_BD))


class ContrastExtension(FewExtension):
    """What contrastive learning adds to a run."""

    def check_rows(self, name: str, rows: Labelled) -> None:
        kind = getattr(rows.config, "kind", "")
        if not name.startswith("classify") or kind != "one" or len(rows.labels) != 1:
            raise BadConfig("few.way=contrast learns to choose one label for a text: `task='classify'` with kind=one.")

    def goal(self, head: Head, encoder: Encoder) -> Goal:
        assert isinstance(head, ClassifyHead)
        return Contrast(head, self.few)

    def before_measuring(self, head: Head, encoder: Encoder, items: Sequence[Item]) -> None:
        """Fits the head on the vectors of the training rows."""
        assert isinstance(head, ClassifyHead)
        layer = head.head
        assert isinstance(layer, nn.Linear)
        gold_E = head.batch(items).targets["gold_E"][:, 0].numpy()
        windows = outputs_of(encoder, PooledVectors(head.config, encoder, labels={}), items)
        vectors_ED = np.stack([np.mean(vectors, 0) for vectors in windows])
        fitted = logistic.fit(vectors_ED, gold_E, num_labels=layer.out_features, l2=self.few.l2)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(fitted.weight_TD))
            layer.bias.copy_(torch.from_numpy(fitted.bias_T))
