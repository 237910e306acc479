"""The rows of a compression: those that both models are measured on, and those that a method may learn from.

A fine-tuned model reads labelled rows as its training files were read. For any other model each line of a file is a
text. If a method without training looks at rows and the user gives one file only, half of them are for the method, the
others are measured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from firth.checkpoint import Checkpoint, only_task
from firth.corpus.small_files import read_texts
from firth.errors import BadConfig, BadInput
from firth.finetuning import labelled
from firth.types import Example

LEARNED_SHARE = 0.5


@dataclass(frozen=True)
class CompressionRows:
    task: str
    """Empty for a model that was not fine-tuned."""
    examples: Mapping[str, Sequence[Example]]
    """`data` is measured, `train` is what the method may look at."""
    files: Mapping[str, Path]


def read_rows(
    checkpoint: Checkpoint,
    model: Path,
    *,
    data: Path,
    train: Path | None,
    task: str,
    skip_bad: bool,
    learns: bool,
    seed: int,
) -> CompressionRows:
    """Reads the files. `learns`: whether the method looks at rows of its own."""
    files = {"data": data}
    if train is not None:
        files["train"] = train
    for path in files.values():
        if not path.exists():
            raise BadInput(f"{path} does not exist.")
    if not checkpoint.tasks and not task:
        return CompressionRows("", _read_texts(files), files)
    name, head = only_task(checkpoint, model, task)
    rows = labelled.read(name, head.config, files, labels=head.labels, model=str(model))
    if not skip_bad:
        labelled.refuse_bad(rows, files)
    examples = dict(rows.examples)
    if learns and train is None:
        examples = _halves(name, rows, data, seed=seed)
    return CompressionRows(name, examples, files)


def _read_texts(files: Mapping[str, Path]) -> dict[str, list[Example]]:
    """The lines of plain text."""
    examples: dict[str, list[Example]] = {}
    for part, path in files.items():
        rows = []
        for number, text in enumerate(read_texts(path), 1):
            if text.strip():
                rows.append(Example((text,), row=number))
        if not rows:
            raise BadInput(f"{path} has no text; put one text on each line.")
        examples[part] = rows
    return examples


def _halves(name: str, rows: labelled.Labelled, data: Path, *, seed: int) -> dict[str, Sequence[Example]]:
    """Half of the rows to learn from, the others to measure; the same texts stay together."""
    as_train = labelled.Labelled(rows.config, rows.labels, {"train": rows.examples["data"]})
    try:
        split = labelled.hold_out(name, as_train, rate=LEARNED_SHARE, seed=seed)
    except BadInput:
        raise BadConfig(
            f"{data} has too few rows to learn from one half and measure on the other; give `train=`, too."
        ) from None
    return {"train": split.examples["train"], "data": split.examples["dev"]}
