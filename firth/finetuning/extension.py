"""What compression, or a way to learn from few labels, adds to fine-tuning: hooks, which do nothing here.

In: the parts of a run while they are built and trained. Out: the same parts, changed. Everything that an extension does
is a function of the run's files, its numbers and the step, so that a resumed run ends as one that was never stopped.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from firth.data.items import BatchMaker, Item
from firth.tasks.task import Head
from firth.tensors import Encoder, Goal
from firth.types import Example

if TYPE_CHECKING:
    from firth.finetuning.labelled import Labelled


class Extension:
    """The base class: plain fine-tuning."""

    def record(self) -> Mapping[str, object]:
        """All its numbers and what it reads, as plain JSON values: run.toml holds them, and resuming compares them."""
        return {}

    def check_rows(self, name: str, rows: "Labelled") -> None:
        """Raises if it cannot learn from these rows."""

    def more_rows(self, name: str, examples: Sequence[Example]) -> Sequence[Example]:
        """The training rows, with those that it adds."""
        return examples

    def prepare_encoder(self, encoder: Encoder) -> None:
        """Changes the encoder before training, in place."""

    def goal(self, head: Head, encoder: Encoder) -> Goal:
        """What learns in the place of a task's head; it must hold the head."""
        return head

    def batch_maker(self, head: Head, items: Sequence[Item], *, folder: Path) -> BatchMaker:
        """What makes the batches of a task from its training rows; `folder` is the run's."""
        return head

    def rate_share(self, name: str) -> float:
        """The share of the learning rate that a parameter of the learner gets."""
        return 1.0

    def before_step(self, encoder: Encoder, *, step: int, steps: int) -> None:
        """Called before every step with the number of steps that are done, and of all steps."""

    def before_measuring(self, head: Head, encoder: Encoder, items: Sequence[Item]) -> None:
        """Called before every evaluation with a task's training rows; fits what gradients do not, in place."""

    def finish_encoder(self, encoder: Encoder) -> None:
        """Takes its own parts out of the trained encoder, which is then measured and saved."""
