"""A fine-tuned model and a labelled file in; its examples and predictions out, as `evaluate` sees them."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from firth import models
from firth.checkpoint import only_task
from firth.console import counted
from firth.errors import Unsupported
from firth.finetuning import labelled
from firth.finetuning.measuring import warn_if_trained_on
from firth.inference.model import Model, load
from firth.tasks import scorer_of
from firth.tasks.columns import with_columns
from firth.tasks.task import Scorer
from firth.types import Example, Prediction

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AnsweredRows:
    """The rows of a file with a model's predictions."""

    model: Model
    task: str
    examples: Sequence[Example]
    predictions: Sequence[Prediction]
    scorer: Scorer

    @property
    def row_numbers(self) -> set[int]:
        """The numbers of the rows in the file."""
        return {example.row for example in self.examples}

    @property
    def is_right(self) -> list[bool]:
        """Whether each prediction is the gold label."""
        pairs = zip(self.predictions, self.examples, strict=True)
        return [self.scorer.error(prediction, example) == 0 for prediction, example in pairs]


def answer_file(
    folder: str | Path,
    data: str | Path,
    *,
    task: str = "",
    columns: Mapping[str, object] | None = None,
    skip_bad: bool = False,
) -> AnsweredRows:
    """What a fine-tuned model says about the rows of a labelled file; bad rows are refused or left out."""
    found = models.find(folder)
    model = load(found)
    name, head = only_task(model.checkpoint, str(folder), task)
    kind = getattr(head.config, "kind", "")
    if kind == "number":
        raise Unsupported("Rows with numbers are neither right nor wrong; `firth evaluate` measures correlations.")
    if kind == "positives":
        raise Unsupported(
            "Pairs that belong together are neither right nor wrong; `firth evaluate` measures how early texts find "
            "their partners."
        )
    path = Path(data)
    config = with_columns(head.config, columns or {})
    rows = labelled.read(name, config, {"data": path}, labels=head.labels, model=str(folder))
    if not skip_bad:
        labelled.refuse_bad(rows, {"data": path})
    count = rows.num_skipped["data"]
    if count:
        log.info(f"{path}: {counted(count, 'bad row')} skipped.")
    warn_if_trained_on(found, path, labelled.rows_sha256(name, rows.config, path))
    examples = rows.examples["data"]
    return AnsweredRows(model, name, examples, model.predict_examples(examples, task=name), scorer_of(head))
