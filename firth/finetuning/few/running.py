"""Fine-tuning with few labels: a request and a way in, a fine-tuned and measured model out.

First what the way needs: with `choose`, cross-validation among the ways; with unlabelled texts, a teacher that labels
them (RUN/ways). Then one fine-tuning run from all labelled rows.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firth.config import from_dict, to_dict
from firth.errors import BadConfig
from firth.files import read_json, write_json
from firth.finetuning import running
from firth.finetuning.few import ways
from firth.finetuning.few.choosing import Choice, Trial, choose
from firth.finetuning.few.rows import read_labelled
from firth.finetuning.few.self_training import PLUS, labelled_by_teacher, read_unlabelled
from firth.finetuning.figures import FinetuningSummary
from firth.finetuning.jobs import FinetuneRequest, first_config
from firth.run_folder import WAYS, RunFolder
from firth.types import Example

log = logging.getLogger(__name__)

CHOICE = "choice.json"


@dataclass(frozen=True)
class FewRequest:
    """What the user asks for besides plain fine-tuning."""

    way: str
    """A name of `ways.WAYS`, or `choose`."""
    unlabelled: str = ""
    """A file with an unlabelled text on each line."""


def finetune(
    folder: RunFolder, request: FinetuneRequest, few: FewRequest, *, device: str | None = None
) -> FinetuningSummary:
    """Chooses, labels and trains; returns what `results.json` holds."""
    if folder.begun:
        # The numbers of the run are saved, and all that was tried before it is done.
        return running.finetune(folder, replace(request, tasks=(), options={}), device=device)
    ways.check(few.way, request)
    plain_request = ways.classify_request(request)
    rows = read_labelled(plain_request)
    if len(rows.labels) != 1 or getattr(rows.config, "kind", "") != "one":
        raise BadConfig(f"`few='{few.way}'` chooses one label of one column for a text; use it with kind=one.")
    unlabelled: Sequence[Example] = read_unlabelled(Path(few.unlabelled)) if few.unlabelled else ()
    trial = Trial(_without_test(request), rows, unlabelled, config=first_config(plain_request).few, device=device)
    way = few.way + (PLUS if few.unlabelled else "")
    tried = folder.path / WAYS
    if few.way == ways.CHOOSE or few.unlabelled:
        folder.on_main(folder.claim)
    if few.way == ways.CHOOSE:
        choice = _chosen(tried, trial, few)
        for line in choice.lines():
            log.info(line)
        way = choice.best
    num_rows = len(rows.examples["train"])
    changes: tuple[str, ...] = ()
    name = way.removesuffix(PLUS)
    if way.endswith(PLUS):
        pseudo = labelled_by_teacher(
            tried,
            trial.request,
            name,
            rows.examples["train"],
            unlabelled=unlabelled,
            config=trial.config,
            device=device,
        )
        num_rows += pseudo.num_rows
        changes = pseudo.changes
    return running.finetune(folder, ways.way_request(name, request, num_rows=num_rows, more=changes), device=device)


def _chosen(folder: Path, trial: Trial, few: FewRequest) -> Choice:
    """The outcome of cross-validation, from its file if it was finished before."""
    path = folder / CHOICE
    if path.exists():
        return from_dict(Choice, read_json(path))
    candidates = ways.possible(few.way, trial.request)
    if few.unlabelled:
        candidates += [name + PLUS for name in candidates]
    choice = choose(folder, trial, candidates)
    write_json(path, to_dict(choice))
    return choice


def _without_test(request: FinetuneRequest) -> FinetuneRequest:
    """The request for what is tried before the run: it never reads the test file."""
    return replace(request, files={"train": request.files["train"]}, seeds=1)
