"""Which way to learn from few labels: cross-validation on the labelled rows.

In: a request and the ways to compare. Out: each way's figures over the folds, and the best way. Every fold is a
fine-tuning run in RUN/ways/WAY/fold-K, which leaves its figure there, so that an interrupted choice resumes with
the next fold.
"""

import shutil
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from firth.errors import BadInput
from firth.files import read_json, write_json
from firth.finetuning import running
from firth.finetuning.few.rows import table_request
from firth.finetuning.few.self_training import PLUS, labelled_by_teacher
from firth.finetuning.few.settings import FewConfig
from firth.finetuning.few.table import write_table
from firth.finetuning.few.ways import way_request
from firth.finetuning.folds import fold_of_rows
from firth.finetuning.job_config import FinetuneRequest
from firth.finetuning.labelled import Labelled
from firth.finetuning.quiet import quiet
from firth.run_folder import RunFolder, is_begun
from firth.train.parallel import current_world
from firth.types import Example

FOLDS = 4
"""Parts of the labelled rows, if the rarest label has as many rows."""
FIGURE = "figure.json"
RUN = "run"


@dataclass(frozen=True)
class WayChoice:
    """The outcome of cross-validation."""

    metric: str
    figures: Mapping[str, Sequence[float]]
    """Of each way, the figure of each fold."""
    best: str

    def lines(self) -> list[str]:
        """What a user reads."""
        num_folds = len(self.figures[self.best])
        described = [f"Cross-validation with {num_folds} folds, {self.metric}:"]
        for name, values in self.figures.items():
            mark = " (chosen)" if name == self.best else ""
            described.append(f"  {name}: {np.mean(values):.4f} ± {np.std(values, ddof=1):.4f}{mark}")
        return described


@dataclass(frozen=True)
class CrossValidation:
    """What all folds of all ways share."""

    request: FinetuneRequest
    rows: Labelled
    unlabelled: Sequence[Example]
    config: FewConfig
    device: str | None


def choose(folder: Path, validation: CrossValidation, ways: Sequence[str]) -> WayChoice:
    """Compares the ways; of several equally good ones the first is taken."""
    examples = validation.rows.examples["train"]
    labels = [example.gold for example in examples]
    texts = [example.texts for example in examples]
    num_folds = _num_folds(examples)
    folds_N = fold_of_rows(labels, texts, count=num_folds, seed=1)
    figures: dict[str, list[float]] = {}
    metric = ""
    for way in ways:
        figures[way] = []
        for fold in range(num_folds):
            held_out = np.flatnonzero(folds_N == fold).tolist()
            metric, value = _fold_figure(folder / way / f"fold-{fold + 1}", validation, way, held_out)
            figures[way].append(value)
    best = max(ways, key=lambda way: float(np.mean(figures[way])))
    return WayChoice(metric, figures, best)


def _num_folds(examples: Sequence[Example]) -> int:
    """As many folds as the rarest label has texts; rows with the same text are in one fold."""
    texts_of: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for example in examples:
        texts_of[example.gold].add(example.texts)
    rarest = min(texts_of, key=lambda label: len(texts_of[label]))
    num_texts = len(texts_of[rarest])
    if num_texts < 2:
        raise BadInput(
            f"The label '{rarest}' has one text; cross-validation needs at least 2 different ones of each label."
        )
    return min(FOLDS, num_texts)


def _fold_figure(folder: Path, validation: CrossValidation, way: str, held_out: Sequence[int]) -> tuple[str, float]:
    """Learns from the other folds and measures on this one; returns the figure's name and value."""
    if (folder / FIGURE).exists():
        known = read_json(folder / FIGURE)
        return str(known["metric"]), float(known["value"])
    examples = validation.rows.examples["train"]
    held = set(held_out)
    train = [example for row, example in enumerate(examples) if row not in held]
    test = [examples[row] for row in held_out]
    files = {"train": folder / "train.jsonl", "test": folder / "test.jsonl"}

    def write_files() -> None:
        write_table(files["train"], train)
        write_table(files["test"], test)

    world = current_world()
    world.on_main(write_files)
    request = table_request(validation.request, validation.rows, files)
    made = _way_request(folder, validation, way, request, train)
    run = folder / RUN
    with quiet(), RunFolder(run, command="finetune", resume=is_begun(run)) as run_folder:
        summary = running.finetune(run_folder, made, device=validation.device)
    (task,) = summary["tasks"].values()
    value = task["figures"]["test"][task["main"]]["mean"] or 0.0

    def write_figure() -> None:
        write_json(folder / FIGURE, {"metric": task["main"], "value": value})
        # The fold's model is not needed any more.
        shutil.rmtree(run)

    # All ranks have left the run before rank 0 deletes it.
    world.wait()
    world.on_main(write_figure)
    return task["main"], value


def _way_request(
    folder: Path, validation: CrossValidation, way: str, request: FinetuneRequest, train: Sequence[Example]
) -> FinetuneRequest:
    """The request for a fold's run by this way, after a teacher has labelled more rows where the way has one."""
    name = way.removesuffix(PLUS)
    if name == way:
        return way_request(name, request, num_rows=len(train))
    pseudo = labelled_by_teacher(
        folder,
        request,
        name,
        train,
        unlabelled=validation.unlabelled,
        config=validation.config,
        device=validation.device,
    )
    return way_request(name, request, num_rows=len(train) + pseudo.num_rows, more=pseudo.changes)
