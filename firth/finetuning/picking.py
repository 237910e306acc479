"""Keeps the weights of the best evaluation: what fine-tuning adds to `train.run.TrainingRun`.

SEED/best.safetensors holds the weights, SEED/best.json their figures, SEED/result.json the figures of a finished seed.
With several ranks only rank 0 writes them.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from firth.config import from_dict, to_dict
from firth.files import JsonObject, atomic_file, read_json, write_json
from firth.train.loop import Progress
from firth.train.parallel import current_world
from firth.train.run import TrainingRun
from firth.train.state import load_tensors, saved_tensors

BEST = "best.safetensors"
BEST_FIGURES = "best.json"
RESULT = "result.json"
PICKED = "picked"
"""The name of the figure that the best evaluation is picked by: the mean of the tasks' main ones."""

Figures = Mapping[str, float | None]
"""Figures by name; None if one is undefined, as a correlation with a constant is."""


@dataclass(frozen=True)
class HeadState:
    """What an evaluation finds about the heads apart from their weights."""

    configs: Mapping[str, JsonObject]
    """By task, with what was found on the rows for picking, such as a threshold."""
    collapsed: Mapping[str, str]
    """The tasks that gave all rows the same answer, and that answer."""


@dataclass(frozen=True)
class BestEvaluation:
    """What best.json holds: the evaluation whose weights are kept."""

    step: int
    value: float | None
    """The figure it was picked by; None if it is undefined."""
    figures: Figures
    configs: Mapping[str, JsonObject]
    """Of the heads, by task."""
    collapsed: Mapping[str, str] = field(default_factory=dict)
    """The tasks that gave all rows the same answer, and that answer."""


@dataclass(frozen=True)
class SeedResult:
    """What result.json holds: the best evaluation of a finished seed, and its figures on the test files."""

    seed: int
    step: int
    value: float | None
    figures: Figures
    configs: Mapping[str, JsonObject]
    epochs: float
    """After which the best evaluation was made."""
    test: Mapping[str, Figures]
    """By task, for the tasks that have a test file."""
    collapsed: Mapping[str, str] = field(default_factory=dict)

    @property
    def picked_value(self) -> float:
        """The figure to compare seeds by; an undefined one is below all others."""
        return _comparable(self.value)


class PickingRun(TrainingRun):
    """Evaluates, keeps the best weights, and stops early if nothing gets better."""

    def __init__(
        self,
        *arguments: Any,
        patience: int = 0,
        keep_last: bool = False,
        head_state: Callable[[], HeadState],
        before_step: Callable[[Progress], None] = lambda progress: None,
        **options: Any,
    ) -> None:
        """`patience` is the number of evaluations without a better one after which the run stops; 0 never stops it.

        `keep_last` keeps the weights of the last evaluation instead. `before_step` is called before every step.
        """
        super().__init__(*arguments, **options)
        self.patience = patience
        self.keep_last = keep_last
        self.head_state = head_state
        self.before_step = before_step

    def go(self) -> None:
        self.before_step(self.progress)
        super().go()

    def on_step(self, progress: Progress, norm: torch.Tensor) -> None:
        super().on_step(progress, norm)
        self.before_step(progress)

    def evaluate(self) -> dict[str, float]:
        values = super().evaluate()
        step = self.progress.step
        best = read_best(self.folder)
        # All ranks must compare with the same best evaluation, before rank 0 replaces it.
        self.world.wait()
        if self.keep_last or best is None or _is_better(values[PICKED], step, best):
            keep(self.folder, self.learner, step=step, values=values, head_state=self.head_state())
        elif self.patience and step - best.step >= self.patience * self.config.evaluate_every:
            self._inform(f"Stopped at step {step}: nothing better since step {best.step}.")
            self.progress.steps = step
        return values


def _is_better(value: float, step: int, best: BestEvaluation) -> bool:
    # A run that was killed after it wrote the best evaluation comes here again and writes the same one.
    is_same_step = best.step >= step
    return is_same_step or _comparable(value) > _comparable(best.value)


def _comparable(value: float | None) -> float:
    """A correlation with a constant is undefined; anything is better."""
    if value is None or math.isnan(value):
        return -math.inf
    return value


def keep(folder: Path, learner: nn.Module, *, step: int, values: Mapping[str, float], head_state: HeadState) -> None:
    """Writes the weights and their figures."""
    best = BestEvaluation(
        step=step,
        value=values[PICKED],
        figures=values,
        configs=head_state.configs,
        collapsed=head_state.collapsed,
    )

    def write() -> None:
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in saved_tensors(learner).items()}
        # Written straight to the file, so that the bytes of a large table are not held in memory as well.
        with atomic_file(folder / BEST) as file:
            save_file(weights, file.name)
        write_json(folder / BEST_FIGURES, to_dict(best))

    current_world().on_main(write)


def read_best(folder: Path) -> BestEvaluation | None:
    """The best evaluation of a seed so far; None before the first."""
    path = folder / BEST_FIGURES
    if not path.exists() or not (folder / BEST).exists():
        return None
    return from_dict(BestEvaluation, read_json(path))


def load_best(folder: Path, learner: nn.Module) -> None:
    """Loads the weights of the best evaluation."""
    load_tensors(learner, load_file(folder / BEST))
