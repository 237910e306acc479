"""The language model's loss on the texts of a task, added to the task's loss (Radford et al. 2018, equation 5).

In: a task's batch, unchanged. Out: the causal cross-entropy of every next token, times a weight. It keeps a model from
forgetting what it learned in pre-training, and helps where a task has many rows.
"""

from collections.abc import Mapping

from firth.objectives.causal_lm import CausalLM, next_tokens
from firth.tensors import Batch, Goal, Loss, States

NAME = "auxiliary_lm"


class AuxiliaryLM(Goal):
    def __init__(self, head: CausalLM, *, weight: float) -> None:
        super().__init__()
        self.head = head
        self.weight = weight

    def loss(self, states: States, batch: Batch) -> Loss:
        labels_N = self.head.known(next_tokens(batch))
        total, correct = self.head.summed(states.last_ND, labels_N, states.table_VD)
        return Loss({NAME: self.weight * total}, {f"{NAME}_correct": correct})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        # The last token of a sequence has no next one.
        num_sequences = int((batch.bounds_B1.diff() > 0).sum())
        return {NAME: batch.num_tokens - num_sequences}
