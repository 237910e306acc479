"""ULMFiT's stages after pre-training (Howard & Ruder 2018): a language model and labelled rows in, a classifier out.

First the language model goes on with the text of the training rows (RUN/lm), then the task is learned from there. Both
stages have slanted triangular rates (cut 0.1, ratio 32), and each layer learns 2.6 times more slowly than the one above
it; in the second the layers begin to learn one by one from the top, a quarter of an epoch each. (The paper gives each
an epoch, of up to 50; in a run of a few the rate would be down again before the lowest begin.) Texts are read whole;
the dropouts are the model's own. One linear layer scores the pooled text. (The paper has norms and a layer of 50 first;
with them a few epochs do not find a weak signal such as CoLA's: docs/results.md.)
"""

import json
import logging
import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint
from firth.config import read_value, to_dict
from firth.data import prepare as preparation
from firth.data.shards import Shards
from firth.errors import BadConfig
from firth.files import MANIFEST, write_bytes
from firth.finetuning import running as downstream
from firth.finetuning.jobs import FinetuneRequest, resolve_job
from firth.pretraining import planning
from firth.pretraining import training as pretraining
from firth.run_folder import DATA, RunFolder, is_begun

log = logging.getLogger(__name__)

SLANTED = (
    "train.optim.schedule=slanted",
    "train.optim.warmup_rate=0.1",
    "train.optim.beta1=0.7",
    "train.optim.beta2=0.99",
)
DECAY = round(1 / 2.6, 4)
LM_EPOCHS, LM_RATE = 5.0, 4e-3
"""Of the second stage; the paper's rate."""
TASK = ("epochs=6", f"transfer.layer_decay={DECAY}", "transfer.unfreeze_every=0.25", "train.optim.rate=1e-2", *SLANTED)
"""Of the third stage; the paper's rate."""
CLASSIFIER = ("tasks.classify.pooling=concat",)
STEPS = 50
"""Steps of a pass over the second stage's text at least, where a step can be so small."""


def finetune(folder: RunFolder, asked: FinetuneRequest, *, device: str | None = None) -> dict[str, Any]:
    """Both stages; changes that begin with `lm.` are for the language model, `lm.epochs` are its passes."""
    own = tuple(change for change in asked.changes if not change.startswith("lm."))
    language_model = folder.path / "lm"
    if not (language_model / MANIFEST).exists():
        lm_changes = [change.removeprefix("lm.") for change in asked.changes if change.startswith("lm.")]
        _language_model(folder, replace(asked, changes=own), lm_changes, device=device)
    usual: tuple[str, ...] = ()
    if not folder.begun:
        usual = (*TASK, *CLASSIFIER) if "classify" in asked.tasks else TASK
    task = replace(asked, model=str(language_model), changes=(*usual, *own))
    return downstream.finetune(folder, task, device=device)


def _language_model(folder: RunFolder, asked: FinetuneRequest, changes: list[str], *, device: str | None) -> None:
    """The second stage: its run lies in RUN/lm, and what a killed process left there is continued."""
    if not asked.model:
        raise BadConfig("ULMFiT starts from a language model; name one pre-trained with `recipe='ulmfit'`.")
    start = checkpoints.load(Path(asked.model))
    if "causal_lm" not in start.goals or start.goals["causal_lm"].config.directions != "forward":
        raise BadConfig(f"{asked.model} does not predict the next token; ULMFiT needs one that does.")
    out = folder.path / "lm"
    job = None if is_begun(out) else resolve_job(folder, asked, device="cpu")
    folder.claim()
    with RunFolder(out, command="pretrain", resume=is_begun(out)) as lm_folder:
        data = out / DATA
        if job is not None:
            lm_folder.claim()
            rows = (row for part in job.data.values() for row in part.examples["train"])
            _prepare((text for row in rows for text in row.texts), data, start)
        log.info("Training the language model on the text of the training rows ...")
        epochs = [change for change in changes if change.startswith("epochs=")]
        wanted = planning.PretrainRequest(
            "ulmfit",
            epochs=float(read_value(epochs[-1].partition("=")[2])) if epochs else LM_EPOCHS,
            changes=(*_numbers(start, Shards.open(data)), *(c for c in changes if c not in epochs)),
        )
        pretraining.pretrain(data, lm_folder, request=wanted, start_from=asked.model, device=device)


def _prepare(texts: Iterable[str], data: Path, start: Checkpoint) -> None:
    """Shards of the rows' text, each a document, by the model's own tokenizer."""
    if data.exists():  # of a run that was killed before it began, perhaps with other rows
        shutil.rmtree(data)
    lines = data.parent / "text.txt"
    write_bytes(lines, "".join(f"{' '.join(text.split())}\n" for text in texts).encode("utf-8", "replace"))
    preparation.prepare([lines], data, tokenizer=start.tokenizer, documents="line", processes=0)


def _numbers(start: Checkpoint, shards: Shards) -> list[str]:
    """The second stage: the model's own head, rates as in the paper, steps small enough for a small text."""
    goal = to_dict(start.goals["causal_lm"].config)
    usual = int(start.info.get("max_length", 70))
    length = min(usual, max(8, shards.num_tokens // 8))
    tokens = max(length, min(64 * length, shards.num_tokens // STEPS))
    head = [f"objectives.causal_lm.{name}={json.dumps(value)}" for name, value in goal.items()]
    sizes = [f"batches.max_length={length}", f"batches.tokens={tokens}", f"layer_decay={DECAY}"]
    return [*head, *sizes, f"train.optim.rate={LM_RATE}", *SLANTED]
