"""What a student learns besides its labels: a goal in, the same goal with the losses of a method out.

A lesson takes the place of a task's head, or of masked LM, in the training loop. Its loss is that of the labels times a
weight, and the terms that a method adds (`soft_labels.py`, `hidden_states.py`, `relations.py` ...).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from firth.compression.teacher import Teacher
from firth.objectives.masked_lm import MaskedLM
from firth.tasks.classify import ClassifyHead
from firth.tensors import Batch, Goal, Loss, States


@dataclass(frozen=True)
class Compared:
    """What the terms of a lesson see of a batch."""

    batch: Batch
    states: States
    """The student's."""
    scores: Tensor | None
    """The student's: E x T of a classifier's rows, P x V of masked tokens; None for other goals."""
    taught: States | None
    """The teacher's states, if a term needs them."""


class Term(nn.Module):
    """One loss that compares a student with its teacher. It may have weights of its own, such as projections."""

    name: str
    needs_states: bool = False
    """Whether it compares states, so that the teacher reads every batch."""
    needs_scores: bool = False
    """Whether it compares scores over the vocabulary, which are not computed otherwise if labels do not count."""
    weight: float = 1.0
    """0 while a stage of the method leaves it out."""

    def forward(self, compared: Compared) -> Tensor:
        """The sum over what `count` counts."""
        raise NotImplementedError

    def count(self, batch: Batch) -> int:
        raise NotImplementedError


class Lesson(Goal):
    """A goal of the student, and the terms that its encoder learns as well."""

    teacher: Teacher | None

    def __init__(
        self,
        goal: Goal,
        terms: Sequence[Term],
        *,
        teacher: Teacher | None = None,
        label_weight: float = 1.0,
    ) -> None:
        super().__init__()
        self.goal = goal
        self.word_losses = goal.word_losses  # type: ignore[misc]
        self.terms = nn.ModuleList(terms)
        self.teacher = teacher
        self.label_weight = label_weight

    @property
    def all_terms(self) -> list[Term]:
        return [term for term in self.terms if isinstance(term, Term)]

    @property
    def active_terms(self) -> list[Term]:
        return [term for term in self.all_terms if term.weight]

    @property
    def needs_teacher(self) -> bool:
        """Whether the teacher reads every batch."""
        return any(term.needs_states for term in self.active_terms)

    @property
    def needs_layers(self) -> bool:  # type: ignore[override]
        return self.goal.needs_layers or self.needs_teacher

    def loss(self, states: States, batch: Batch) -> Loss:
        scores, labels = self._label_loss(states, batch)
        taught = None
        if self.needs_teacher:
            assert self.teacher is not None
            taught = self.teacher.states(batch, dtype=states.last_ND.dtype)
        compared = Compared(batch, states, scores, taught)
        sums = {name: self.label_weight * total for name, total in labels.sums.items()}
        for term in self.active_terms:
            sums[term.name] = term.weight * term(compared)
        return Loss(sums, labels.tallies)

    def _label_loss(self, states: States, batch: Batch) -> tuple[Tensor | None, Loss]:
        """The scores, computed once for all terms, and the loss of the labels."""
        if isinstance(self.goal, ClassifyHead):
            scores_ET = self.goal.example_scores(states, batch)
            return scores_ET, self.goal.loss_from_scores(scores_ET, batch)
        if isinstance(self.goal, MaskedLM):
            if not self.label_weight and not any(term.needs_scores for term in self.active_terms):
                return None, Loss({})
            scores_PV = self.goal.scores(states, batch.targets["masked_lm_positions"])
            return scores_PV, self.goal.loss_from_scores(scores_PV, batch)
        return None, self.goal.loss(states, batch)

    def counts(self, batch: Batch) -> Mapping[str, int]:
        counts = dict(self.goal.counts(batch))
        for term in self.active_terms:
            counts[term.name] = term.count(batch)
        return counts

    def nothing_learned(self, figures: Mapping[str, float]) -> str:
        return self.goal.nothing_learned(figures)
