"""What pre-training is worth: the embedded tasks learned from a model, from random weights, and by a classic method.

In: a folder, a model for each language, and settings. Out: a fine-tuned model for every task, language and start, and
one table of their figures on rows that no training saw. What is finished in the folder is not done again.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from firth import pipeline, samples
from firth.errors import Unsupported
from firth.files import write_bytes
from firth.run_folder import is_begun, is_finished

if TYPE_CHECKING:
    from firth.finetuning.figures import TaskSummary

log = logging.getLogger(__name__)

TASKS = {"classify": "topics", "tag": "entities"}
"""The tasks, and the embedded set of each."""
STARTS = {"pre-trained": "", "random": "random", "classic": "classic"}
"""The starts, which are columns of the table, and the folder of each."""
LEGEND = (
    "Mean and deviation over the seeds, on rows that no training saw.\n"
    "Random: the same network from random weights, one seed.\n"
    "Classic: tf-idf and logistic regression (classify), hand-written features and a CRF (tag)."
)
# Few rows: few of them are spent on picking, and the last weights are kept. A seed is short, so it is not saved midway.
FEW_ROWS = ("pick=last", "held_out_rate=0.05", "train.checkpoint_every=1000000")
CLASSIC = {
    # The idf weights stay as they were counted, and one linear layer learns.
    "classify": (
        *FEW_ROWS,
        "transfer.mode=features",
        "transfer.features.layers=-1",
        "transfer.features.combine=sum",
        "tasks.classify.pooling=mean",
        "tasks.classify.dropout=0",
        "epochs=15",
        "train.optim.rate=0.05",
    ),
    "tag": (*FEW_ROWS, "tasks.tag.tagger=crf"),
}
"""The settings of the classic methods, by task."""

Settings = Mapping[str, Sequence[str]]
"""Changes of `finetune`, by task."""


def compare(
    folder: Path,
    models: Mapping[str, str | Path],
    settings: Settings,
    *,
    seeds: int,
    freeze: Mapping[str, int] | None = None,
) -> list[str]:
    """The lines of the table, after all trainings that are not finished. `models` are by language.

    `freeze` is the number of lower layers of each model that stay as they are.
    """
    lines = [header()]
    for task in TASKS:
        for language, model in models.items():
            name = f"{task}, {language}"
            results: dict[str, TaskSummary | None] = {}
            for start in STARTS:
                changes = [*settings[task]]
                if start == "pre-trained" and freeze:
                    changes.append(f"transfer.frozen_layers={freeze[language]}")
                # Random weights learn next to nothing, so that one seed is enough.
                num_seeds = 1 if start == "random" else seeds
                results[start] = _train(folder, start, task, language, model, changes=changes, seeds=num_seeds)
                log.info(f"   {name}, {start}: {_cell(results[start])}")
            lines.append(_row(name, results))
    return lines


def header() -> str:
    """The first line of the table."""
    columns = "".join(f" {start:<17}" for start in STARTS)
    return f"{'':<14} {'test rows':>9}  {'figure':<9}{columns} majority"


def _train(
    folder: Path,
    start: str,
    task: str,
    language: str,
    model: str | Path | None,
    *,
    changes: Sequence[str],
    seeds: int,
) -> "TaskSummary | None":
    """Trains from one start, or reads what an earlier call left; None without numba, which the CRF needs."""
    train, test = samples.split_train_test(TASKS[task], language, folder / "labelled")
    out = folder / STARTS[start] / f"{task}-{language}"
    encoder = None
    # That random weights collapse to one answer is no surprise.
    level = logging.WARNING if start == "pre-trained" else logging.ERROR
    with quiet(level):
        if start == "classic":
            changes = CLASSIC[task]
            if task == "classify":
                model = _tf_idf(folder / "tf-idf" / language, train)
            else:
                model = None
                encoder = "bag"
        try:
            summary = pipeline.finetune(
                model,
                encoder=encoder,
                task=task,
                train=train,
                test=test,
                out=out,
                random=start == "random",
                seeds=seeds,
                changes=changes,
                resume=is_begun(out),
            )
        except Unsupported:
            if encoder != "bag":
                raise
            return None
    return summary["tasks"][task]


@contextmanager
def quiet(level: int) -> Iterator[None]:
    """Inside, the package logs only what is at least of this level."""
    logger = logging.getLogger("firth")
    level_before = logger.level
    logger.setLevel(max(level, level_before))
    try:
        yield
    finally:
        logger.setLevel(level_before)


def _tf_idf(out: Path, train: Path) -> Path:
    """A model folder with the idf weights of the training rows' words."""
    if not is_finished(out):
        rows = train.read_text("utf-8").splitlines()[1:]
        texts = [row.partition("\t")[0] for row in rows]
        documents = train.with_suffix(".txt")
        write_bytes(documents, "\n\n".join([*texts, ""]).encode())
        pipeline.pretrain(documents, out=out, recipe="tf-idf", min_count=1, resume=is_begun(out))
    return out


def _row(name: str, results: "Mapping[str, TaskSummary | None]") -> str:
    """A line of the table; `results` are those of one task, by start."""
    cells = "".join(f" {_cell(result):<17}" for result in results.values())
    # The rows, the main metric and the majority baseline are the same for all starts.
    one = results["pre-trained"]
    assert one is not None
    main = one["main"]
    majority = one["baseline"]["test"][main]
    return f"{name:<14} {one['rows']['test']:>9}  {main:<9}{cells} {majority:.4f}"


def _cell(result: "TaskSummary | None") -> str:
    """The figure of one start, as the table shows it."""
    from firth.finetuning.figures import format_spread

    if result is None:
        return "needs numba"
    return format_spread(result["figures"]["test"][result["main"]])
