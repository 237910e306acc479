"""A run that keeps the weights of its best evaluation: what fine-tuning adds to `train.run.TrainingRun`."""

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from firth.files import atomic_file, read_json, write_json
from firth.train.loop import Progress
from firth.train.run import TrainingRun
from firth.train.state import load_tensors, saved_tensors

log = logging.getLogger(__name__)

BEST = "best.safetensors"


class PickingRun(TrainingRun):
    """Evaluates, keeps the best weights in `best.safetensors`, and stops early when nothing gets better."""

    def __init__(
        self,
        *arguments: Any,
        patience: int = 0,
        keep_last: bool = False,
        facts: Callable[[], dict[str, Any]] = dict,
        before_step: Callable[[Progress], None] = lambda progress: None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self.patience, self.keep_last, self.facts, self.before_step = patience, keep_last, facts, before_step

    def go(self) -> None:
        self.before_step(self.progress)
        super().go()

    def on_step(self, progress: Progress, norm: torch.Tensor) -> None:
        super().on_step(progress, norm)
        self.before_step(progress)

    def evaluate(self) -> dict[str, float]:
        values = super().evaluate()
        step, value = self.progress.step, values["picked"]
        best = read_best(self.folder)
        if self.keep_last or best is None or best["step"] >= step or (_number(value) > _number(best["value"])):
            keep(self.folder, self.learner, step=step, values=values, facts=self.facts())
        elif self.patience and step - best["step"] >= self.patience * self.config.evaluate_every:
            log.info(f"Stopped at step {step}: nothing better since step {best['step']}.")
            self.progress.steps = step
        return values


def keep(folder: Path, learner: nn.Module, *, step: int, values: Mapping[str, float], facts: Mapping[str, Any]) -> None:
    """Writes the weights and their figures."""
    weights = {n: t.detach().cpu().contiguous() for n, t in saved_tensors(learner).items()}
    with atomic_file(folder / BEST) as file:  # straight to the file: the bytes of a large table are not held, too
        save_file(weights, file.name)
    write_json(folder / "best.json", {"step": step, "value": values["picked"], "figures": values, **facts})


def read_best(folder: Path) -> dict[str, Any] | None:
    path = folder / "best.json"
    return read_json(path) if path.exists() and (folder / BEST).exists() else None


def load_best(folder: Path, learner: nn.Module) -> None:
    load_tensors(learner, load_file(folder / BEST))


def _number(value: float | None) -> float:
    """A correlation with a constant is not a number; anything is better."""
    return -math.inf if value is None or math.isnan(value) else value
