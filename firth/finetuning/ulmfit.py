"""ULMFiT's stages after pre-training (Howard & Ruder 2018): a language model and labelled rows in, a classifier out.

First the language model is trained on the text of the training rows (RUN/lm), then the task is learned from there. Both
stages have slanted triangular rates (cut 0.1, ratio 32), and each layer learns 2.6 times more slowly than the one above
it; in the second the layers begin to learn one by one from the top, a quarter of an epoch each. (The paper gives each
an epoch, of up to 50; in a run of a few the rate would be down again before the lowest begin.) Texts are read whole;
the dropouts are the model's own. One linear layer scores the pooled text. (The paper has norms and a layer of 50 first;
with them a few epochs do not find a weak signal such as CoLA's: docs/results.md.)
"""

import json
import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.config import override, to_dict
from firth.data import prepare as preparation
from firth.data.shards import Shards
from firth.errors import BadConfig
from firth.files import write_bytes
from firth.finetuning import running
from firth.finetuning.figures import FinetuningSummary
from firth.finetuning.job_config import FinetuneRequest
from firth.finetuning.jobs import resolve_job
from firth.finetuning.labelled import texts_of
from firth.pretraining import training as pretraining
from firth.pretraining.planning import PretrainRequest
from firth.run_folder import RunFolder, is_begun, is_finished
from firth.run_source import DATA, LANGUAGE_MODEL, TEXT

log = logging.getLogger(__name__)

SLANTED = (
    "train.optim.schedule=slanted",
    "train.optim.warmup_rate=0.1",
    "train.optim.beta1=0.7",
    "train.optim.beta2=0.99",
)
"""Slanted triangular rates, and the paper's betas."""
DECAY = round(1 / 2.6, 4)
LM_EPOCHS = 5.0
LM_RATE = 4e-3
"""Of the second stage; the paper's rate."""
TASK = ("epochs=6", f"transfer.layer_decay={DECAY}", "transfer.unfreeze_every=0.25", "train.optim.rate=1e-2", *SLANTED)
"""Of the third stage; the paper's rate."""
CLASSIFIER = ("tasks.classify.pooling=concat",)
STEPS = 50
"""Steps of a pass over the second stage's text at least, if a step can be so small."""
LM_PREFIX = "lm."
"""Begins a change that is for the language model."""


@dataclass(frozen=True)
class LanguageModelStage:
    """What `lm.KEY=VALUE` sets of the second stage in addition to the settings of a pre-training."""

    epochs: float = LM_EPOCHS
    """Passes over the text of the training rows."""

    def __post_init__(self) -> None:
        if self.epochs <= 0:
            raise BadConfig(f"lm.epochs must be above 0; it is {self.epochs:g}.")


def finetune(folder: RunFolder, request: FinetuneRequest, *, device: str | None = None) -> FinetuningSummary:
    """Both stages; changes that begin with `lm.` are for the language model, `lm.epochs` are its passes."""
    lm_changes: list[str] = []
    task_changes: list[str] = []
    for change in request.changes:
        if change.startswith(LM_PREFIX):
            lm_changes.append(change.removeprefix(LM_PREFIX))
        else:
            task_changes.append(change)
    language_model = folder.path / LANGUAGE_MODEL
    if not is_finished(language_model):
        _train_language_model(folder, replace(request, changes=tuple(task_changes)), lm_changes, device=device)
    # A resumed run keeps its numbers, so nothing is added to the request.
    usual: list[str] = []
    if not folder.begun:
        usual += TASK
        if "classify" in request.tasks:
            usual += CLASSIFIER
    task_request = replace(request, model=str(language_model), changes=(*usual, *task_changes))
    return running.finetune(folder, task_request, device=device)


def _train_language_model(
    folder: RunFolder, request: FinetuneRequest, changes: Sequence[str], *, device: str | None
) -> None:
    """The second stage. Its run is RUN/lm; a killed one is resumed."""
    start = _language_model(request.model)
    stage, settings = _split_changes(changes)
    out = folder.path / LANGUAGE_MODEL
    # Rows are read, and bad ones refused, before anything is written.
    job = None if is_begun(out) else resolve_job(folder, request, device="cpu")
    folder.on_main(folder.claim)
    with RunFolder(out, command="pretrain", resume=is_begun(out)) as lm_folder:
        data = out / DATA
        if job is not None:
            texts = texts_of(job.data)
            lm_folder.on_main(lm_folder.claim)
            lm_folder.on_main(lambda: _prepare(texts, data, start))
        log.info("Training the language model on the text of the training rows ...")
        # The user's changes come after the usual settings.
        usual = _lm_settings(start, Shards.open(data))
        lm_request = PretrainRequest("ulmfit", epochs=stage.epochs, changes=(*usual, *settings))
        pretraining.pretrain(data, lm_folder, request=lm_request, start_from=request.model, device=device)


def _language_model(model: str) -> Checkpoint:
    """The model that the second stage starts from; raises if it does not predict the next token."""
    if not model:
        raise BadConfig("ULMFiT starts from a language model; name one pre-trained with `recipe='ulmfit'`.")
    start = checkpoints.load(Path(model))
    if "causal_lm" not in start.goals or start.goals["causal_lm"].config.directions != "forward":
        raise BadConfig(f"{model} does not predict the next token; ULMFiT needs one that does.")
    return start


def _prepare(texts: Iterable[str], data: Path, start: Checkpoint) -> None:
    """Writes shards of the rows' text, each a document, by the model's own tokenizer."""
    if data.exists():
        # Left by a run that was killed before it started, perhaps with other rows.
        shutil.rmtree(data)
    path = data.parent / TEXT
    # A line break inside a text would start another document.
    lines = [" ".join(text.split()) + "\n" for text in texts]
    write_bytes(path, "".join(lines).encode("utf-8", "replace"))
    preparation.prepare([path], data, tokenizer=start.tokenizer, documents="line", processes=0)


def _split_changes(changes: Sequence[str]) -> tuple[LanguageModelStage, list[str]]:
    """What the changes say about the stage, and those that are settings of its pre-training."""
    of_stage: list[str] = []
    settings: list[str] = []
    for change in changes:
        if change.startswith("epochs="):
            of_stage.append(change)
        else:
            settings.append(change)
    return override(LanguageModelStage(), of_stage), settings


def _lm_settings(start: Checkpoint, shards: Shards) -> list[str]:
    """The second stage: the model's own head, rates as in the paper, steps small enough for a small text."""
    head_config = to_dict(start.goals["causal_lm"].config)
    usual_length = int(start.info.get("max_length", 70))
    length = min(usual_length, max(8, shards.num_tokens // 8))
    # About 64 sequences a step, fewer if the text is so small that an epoch would have under 50 steps.
    tokens = max(length, min(64 * length, shards.num_tokens // STEPS))
    return [
        *(f"objectives.causal_lm.{name}={json.dumps(value)}" for name, value in head_config.items()),
        f"batches.max_length={length}",
        f"batches.tokens={tokens}",
        f"layer_decay={DECAY}",
        f"train.optim.rate={LM_RATE}",
        *SLANTED,
    ]
