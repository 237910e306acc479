"""The language model's loss on the texts of a task, beside the task's own (Radford et al. 2018, equation 5).

In: a task's batch, as it is. Out: the causal cross-entropy of every next token, times a weight. It keeps a model from
forgetting what it learned from running text, and helps where a task has many rows.
"""

from collections.abc import Mapping

from firth.objectives.causal_lm import CausalLM, next_tokens
from firth.tensors import Batch, Goal, Loss, States

NAME = "auxiliary_lm"


class AuxiliaryLM(Goal):
    def __init__(self, head: CausalLM, *, weight: float) -> None:
        super().__init__()
        self.head, self.weight = head, weight

    def loss(self, states: States, batch: Batch) -> Loss:
        labels_N = self.head.known(next_tokens(batch))
        total, right = self.head.summed(states.last_ND, labels_N, states.table_VD)
        return Loss({NAME: self.weight * total}, {f"{NAME}_correct": right})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {NAME: batch.num_tokens - int((batch.bounds_B1.diff() > 0).sum())}
