"""What pre-training is worth: the embedded tasks learned from a model, from random weights, and by a classic method.

In: a folder, a model for each language, and settings. Out: a fine-tuned model for every task, language and start, and
one table of their figures on rows that no training saw. What is finished in the folder is not done again.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from firth import pipeline, samples
from firth.errors import Unsupported
from firth.files import write_bytes
from firth.run_folder import is_begun, is_finished

if TYPE_CHECKING:
    from firth.finetuning.figures import TaskSummary

TASKS = {"classify": "classify", "tag": "entities"}
"""The tasks, and the embedded set of each."""
STARTS = {"pre-trained": "", "random": "random", "classic": "classic"}
"""The starts, which are columns of the table, and the folder of each."""
LEGEND = (
    "Mean and deviation over the seeds, on rows that no training saw. `random`: the same network from random weights. "
    "`classic`: tf-idf and logistic regression (classify), hand-written features and a CRF (tag)."
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


def compare(folder: Path, models: Mapping[str, str | Path], settings: Settings, *, seeds: int) -> list[str]:
    """The lines of the table, after all trainings that are not finished. `models` are by language."""
    lines = [header()]
    for task in TASKS:
        for language, model in models.items():
            results = _all_starts(folder, task, language, model, changes=settings[task], seeds=seeds)
            lines.append(_row(row_name(task, language), results))
    return lines


def row_name(task: str, language: str) -> str:
    return f"{task}, {language}"


def header() -> str:
    """The first line of the table."""
    columns = "".join(f" {start:<17}" for start in STARTS)
    return f"{'':<14} {'test rows':>9}  {'figure':<9}{columns} majority"


def _all_starts(
    folder: Path, task: str, language: str, model: str | Path, *, changes: Sequence[str], seeds: int
) -> "dict[str, TaskSummary | None]":
    """The figures of one task in one language, by start; None for a start that cannot run here."""
    train, test = samples.split_train_test(TASKS[task], language, folder / "labelled")
    outs = {start: folder / subfolder / f"{task}-{language}" for start, subfolder in STARTS.items()}
    results: dict[str, TaskSummary | None] = {}
    for start in ("pre-trained", "random"):
        out = outs[start]
        summary = pipeline.finetune(
            model,
            task=task,
            train=train,
            test=test,
            out=out,
            random=start == "random",
            seeds=seeds,
            changes=changes,
            resume=is_begun(out),
        )
        results[start] = summary["tasks"][task]
    results["classic"] = _classic(folder, task, language, train=train, test=test, out=outs["classic"], seeds=seeds)
    return results


def _classic(
    folder: Path, task: str, language: str, *, train: Path, test: Path, out: Path, seeds: int
) -> "TaskSummary | None":
    """The figures of tf-idf with logistic regression, or of a CRF over hand-written features, which needs numba."""
    model: Path | None = None
    encoder: str | None = None
    if task == "classify":
        model = _tf_idf(folder / "tf-idf" / language, train)
    else:
        encoder = "bag"
    try:
        summary = pipeline.finetune(
            model,
            encoder=encoder,
            task=task,
            train=train,
            test=test,
            out=out,
            seeds=seeds,
            changes=CLASSIC[task],
            resume=is_begun(out),
        )
    except Unsupported:
        return None
    return summary["tasks"][task]


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
    from firth.finetuning.figures import format_spread

    # The rows, the main metric and the majority baseline are the same for all starts.
    one = results["pre-trained"]
    assert one is not None
    main = one["main"]
    cells = ""
    for result in results.values():
        cell = "needs numba"
        if result is not None:
            cell = format_spread(result["figures"]["test"][main])
        cells += f" {cell:<17}"
    majority = one["baseline"]["test"][main]
    return f"{name:<14} {one['rows']['test']:>9}  {main:<9}{cells} {majority:.4f}"
