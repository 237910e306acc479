"""Fine-tuning with few labels: a request and a way in, a fine-tuned and measured model out.

First what the way needs: with `choose`, cross-validation among the ways; with unlabelled texts, a teacher that labels
them (RUN/ways). Then one fine-tuning run from all labelled rows.
"""

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firth.config import from_dict, to_dict
from firth.errors import BadConfig, BadInput
from firth.files import read_json, write_json
from firth.finetuning import running
from firth.finetuning.few import ways
from firth.finetuning.few.choosing import CrossValidation, WayChoice, choose
from firth.finetuning.few.rows import read_labelled
from firth.finetuning.few.self_training import PLUS, labelled_by_teacher, read_unlabelled
from firth.finetuning.figures import FinetuningSummary
from firth.finetuning.job_config import FinetuneRequest, first_config
from firth.run_folder import RunFolder
from firth.run_source import WAYS, model_sha256
from firth.train.parallel import current_world
from firth.types import Example

log = logging.getLogger(__name__)

CHOICE = "choice.json"
TRIED_WITH = "tried-with.json"
"""The rows and settings that the ways were tried with."""


@dataclass(frozen=True)
class FewRequest:
    """The options of learning from few labels."""

    way: str
    """A name of `ways.WAYS`, or `choose`."""
    unlabelled: str = ""
    """A file with an unlabelled text on each line."""


def finetune(
    folder: RunFolder, request: FinetuneRequest, few: FewRequest, *, device: str | None = None
) -> FinetuningSummary:
    """Chooses, labels and trains; returns what `results.json` holds."""
    if folder.begun:
        # The run's settings are saved, and everything that precedes it is finished.
        return running.finetune(folder, replace(request, tasks=(), options={}), device=device)
    ways.check(few.way, request)
    validation = _validation(request, few, device=device)
    tried = folder.path / WAYS
    way = few.way
    if few.way == ways.CHOOSE or few.unlabelled:
        folder.on_main(folder.claim)
        folder.on_main(lambda: _forget_other(tried, validation, few.way))
    if few.way == ways.CHOOSE:
        choice = _chosen(tried, validation, few)
        for line in choice.lines():
            log.info(line)
        way = choice.best
    elif few.unlabelled:
        way += PLUS
    return running.finetune(folder, _final_request(tried, way, request, validation), device=device)


def _validation(request: FinetuneRequest, few: FewRequest, *, device: str | None) -> CrossValidation:
    """The rows, and what else is needed to try a way; the test file is never read for that."""
    plain_request = ways.classify_request(request)
    rows = read_labelled(plain_request)
    if len(rows.labels) != 1 or getattr(rows.config, "kind", "") != "one":
        raise BadConfig(f"`few='{few.way}'` chooses one label of one column for a text; use it with kind=one.")
    ways.check_words(few.way, request, rows)
    unlabelled: Sequence[Example] = ()
    if few.unlabelled:
        if any(len(row.texts) > 1 for row in rows.examples["train"]):
            raise BadInput("Self-training reads single texts; these rows are pairs, so leave out `unlabelled=`.")
        unlabelled = read_unlabelled(Path(few.unlabelled))
    without_test = replace(request, files={"train": request.files["train"]}, seeds=1)
    return CrossValidation(without_test, rows, unlabelled, config=first_config(plain_request).few, device=device)


def _forget_other(folder: Path, validation: CrossValidation, way: str) -> None:
    """Deletes the trials of an earlier process that stopped before the run itself, if its request was another one."""
    request = validation.request
    path = folder / TRIED_WITH
    tried_with = {
        "rows": [[*row.texts, row.gold] for row in validation.rows.examples["train"]],
        "unlabelled": [row.texts[0] for row in validation.unlabelled],
        "model": [request.model, model_sha256(request.model), request.random],
        "settings": [repr(sorted(request.options.items())), *request.changes],
        # A teacher labels by the way of the run.
        "way": way,
    }
    if path.exists() and read_json(path) == tried_with:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(path, tried_with)


def _final_request(folder: Path, way: str, request: FinetuneRequest, validation: CrossValidation) -> FinetuneRequest:
    """The request for the run itself, with the rows that a teacher has labelled if the way takes them."""
    name = way.removesuffix(PLUS)
    examples = validation.rows.examples["train"]
    if name == way:
        return ways.way_request(name, request, num_rows=len(examples))
    pseudo = labelled_by_teacher(
        folder,
        validation.request,
        name,
        examples,
        unlabelled=validation.unlabelled,
        config=validation.config,
        device=validation.device,
    )
    return ways.way_request(name, request, num_rows=len(examples) + pseudo.num_rows, more=pseudo.changes)


def _chosen(folder: Path, validation: CrossValidation, few: FewRequest) -> WayChoice:
    """The outcome of cross-validation, from its file if it was finished before."""
    path = folder / CHOICE
    if path.exists():
        return from_dict(WayChoice, read_json(path))
    candidates = ways.possible(few.way, validation.request)
    if few.unlabelled:
        candidates += [name + PLUS for name in candidates]
    choice = choose(folder, validation, candidates)
    current_world().on_main(lambda: write_json(path, to_dict(choice)))
    return choice
