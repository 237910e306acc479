"""Self-training (Scudder 1965; noisy student, Xie et al. 2020): unlabelled texts, with the labels a teacher gives them.

In: labelled rows, a way to learn, unlabelled texts. A teacher learns from the labelled rows and labels the texts. Its
most confident labels are kept, in the proportions of the labelled rows. Out: a file of rows for the run to learn from.
"""

import logging
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from firth import checkpoint as checkpoints
from firth.corpus.readers import read_lines
from firth.errors import BadInput
from firth.finetuning import running
from firth.finetuning.few.settings import FewConfig
from firth.finetuning.few.table import read_table, write_table
from firth.finetuning.few.ways import way_request
from firth.finetuning.job_config import FinetuneRequest
from firth.finetuning.quiet import quiet
from firth.run_folder import RunFolder, is_begun
from firth.tasks.predicting import predict
from firth.train.parallel import current_world
from firth.types import Example, Prediction

log = logging.getLogger(__name__)

PLUS = "+unlabelled"
"""Ends the name of a way that also learns from unlabelled texts."""
TEACHER = "teacher"
PSEUDO = "pseudo.jsonl"


@dataclass(frozen=True)
class PseudoRows:
    """What a teacher made of unlabelled texts."""

    path: Path
    num_rows: int

    @property
    def changes(self) -> tuple[str, ...]:
        """The setting of a run that learns from them; it may be resumed from another folder."""
        return (f"few.pseudo_rows={self.path.resolve()}",)


def read_unlabelled(path: Path) -> list[Example]:
    """The texts of a file, one on each line; blank lines are left out, and a text counts once."""
    lines = read_lines(path, remedy="put one text on each line")
    texts = dict.fromkeys(line.strip() for line in lines if line.strip())
    if not texts:
        raise BadInput(f"{path} has no text; put one on each line.")
    return [Example((text,), None, row) for row, text in enumerate(texts, 1)]


def labelled_by_teacher(
    folder: Path,
    request: FinetuneRequest,
    way: str,
    rows: Sequence[Example],
    *,
    unlabelled: Sequence[Example],
    config: FewConfig,
    device: str | None,
) -> PseudoRows:
    """The rows that a teacher labelled, in FOLDER/pseudo.jsonl; FOLDER/teacher is its run."""
    path = folder / PSEUDO
    if path.exists():
        return PseudoRows(path, len(read_table(path)))
    known = {row.texts for row in rows}
    texts = [example for example in unlabelled if example.texts not in known]
    if not texts:
        raise BadInput("All unlabelled texts are labelled rows, too; give others, or leave out `unlabelled=`.")
    teacher = folder / TEACHER
    teacher_request = way_request(way, request, num_rows=len(rows))
    with quiet(), RunFolder(teacher, command="finetune", resume=is_begun(teacher)) as run_folder:
        running.finetune(run_folder, teacher_request, device=device)
    predictions = answers(teacher, texts)
    kept = surest(texts, predictions, rows, share=config.pseudo_share, most=config.pseudo_most)
    log.info(f"Self-training: of {len(texts):,} unlabelled texts, {len(kept):,} keep the label that they were given.")

    def write() -> None:
        write_table(path, kept)
        # The teacher is not needed any more.
        shutil.rmtree(teacher)

    # All ranks have loaded the teacher before rank 0 deletes it.
    world = current_world()
    world.wait()
    world.on_main(write)
    return PseudoRows(path, len(kept))


def answers(model: Path, texts: Sequence[Example]) -> list[Prediction]:
    """What a fine-tuned model predicts for the texts."""
    checkpoint = checkpoints.load(model)
    _, head = checkpoints.only_task(checkpoint, model)
    max_length = int(checkpoint.info.get("max_length", checkpoint.encoder.max_positions))
    items = head.encode(texts, checkpoint.tokenizer, max_length=max_length, training=False)
    return predict(checkpoint.encoder, head, items)


def surest(
    texts: Sequence[Example], predictions: Sequence[Prediction], rows: Sequence[Example], *, share: float, most: int
) -> list[Example]:
    """The texts with the most confident answers, of each label in proportion to its share of the labelled rows."""
    num_kept = min(most, round(share * len(texts)))
    balance = Counter(row.gold for row in rows)
    kept: list[Example] = []
    for label, count in sorted(balance.items()):
        wanted = round(num_kept * count / len(rows))
        own = [i for i, prediction in enumerate(predictions) if prediction.label == label]
        own.sort(key=lambda i: -predictions[i].probability)
        for i in own[:wanted]:
            kept.append(Example(texts[i].texts, label, texts[i].row))
    return kept
