"""The ways to learn from few labels: for each, the task, its usual settings, and how many steps it makes.

In: the name of a way, the request, and the number of training rows. Out: the request for one fine-tuning run.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from firth.errors import BadConfig
from firth.finetuning.job_config import FinetuneRequest
from firth.finetuning.labelled import Labelled
from firth.tasks.prompt import words_example

BATCH = 16
"""Rows of a batch."""
CHOOSE = "choose"
"""Not a way: the best of all ways by cross-validation."""
PROMPT_OPTIONS = ("pattern", "label_words")
COMMON = (f"batch_size={BATCH}", "train.checkpoint_every=1000000")
WITHOUT_DEV = ("held_out_rate=0", "pick=last", "train.evaluate_every=1000000")
"""Rows are too few to hold some out, and none are left to pick an epoch on: the last weights count."""


@dataclass(frozen=True)
class Way:
    """How to learn from few labels."""

    task: str
    changes: tuple[str, ...]
    """Its usual settings."""
    steps: int
    """Steps for the fewest rows ..."""
    epochs: float
    """... and passes over more rows, if those are more steps."""
    gentle_rate: float = 0.0
    """The rate for the fewest rows, which rises with the square root of their number; 0: the usual rate."""


GENTLE = "train.optim.optimizer=adamw"
"""Gentle rates were chosen for AdamW, also for models that Muon pre-trained."""
WAYS: Mapping[str, Way] = {
    "plain": Way("classify", ("few.way=plain",), steps=100, epochs=5.0),
    "contrast": Way("classify", ("few.way=contrast", "pooling=mean"), steps=30, epochs=3.0),
    "prompt": Way("prompt", ("few.way=prompt", "dropout=0", GENTLE), steps=20, epochs=3.0, gentle_rate=3e-5),
}
"""Steps and rates were chosen on rows of SST-2's training file that no figure is reported on. A prompt answers before
it has learned anything: with 8 rows of each label, a rate of 1e-4 made it worse than 3e-5, and 2e-4 still more."""
FEWEST_ROWS = 16
HIGHEST_GENTLE_RATE = 2e-4


def check(few: str, request: FinetuneRequest) -> None:
    """Raises for a way that does not exist or does not go with the request."""
    if few not in (*WAYS, CHOOSE):
        raise BadConfig(f"There is no way '{few}' to learn from few labels (known: {', '.join(WAYS)}, {CHOOSE}).")
    if len(request.tasks) != 1 or request.tasks[0] not in ("classify", "prompt"):
        raise BadConfig(f"`few='{few}'` chooses one label for a text: give `task='classify'`.")
    has_words = bool(request.options.get("label_words"))
    if few in ("plain", "contrast") and has_words:
        raise BadConfig(
            f"`label_words=` and `pattern=` are for `few='prompt'` or `few='choose'`, not for `few='{few}'`."
        )


def check_words(few: str, request: FinetuneRequest, rows: Labelled) -> None:
    """Raises for a prompt without words; the example is in the language of the rows."""
    if few != "prompt" or request.options.get("label_words"):
        return
    (names,) = rows.labels.values()
    texts = [text for row in rows.examples["train"] for text in row.texts]
    raise BadConfig(
        f"`few='prompt'` needs `label_words=` for the labels ({', '.join(names)}), such as "
        f"{words_example([*names, *texts])}."
    )


def possible(few: str, request: FinetuneRequest) -> list[str]:
    """The ways that can be tried: all for which the request has what they need."""
    if few != CHOOSE:
        return [few]
    return [name for name in WAYS if name != "prompt" or request.options.get("label_words")]


def classify_request(request: FinetuneRequest) -> FinetuneRequest:
    """The request without what only a prompt knows; its rows are read in the same way."""
    options = {key: value for key, value in request.options.items() if key not in PROMPT_OPTIONS}
    return replace(request, tasks=("classify",), options=options)


def way_request(name: str, request: FinetuneRequest, *, num_rows: int, more: tuple[str, ...] = ()) -> FinetuneRequest:
    """The request for a run by this way; the user's changes take precedence over the usual ones.

    `more` are changes that the way itself made.
    """
    way = WAYS[name]
    request = replace(request, tasks=("prompt",)) if way.task == "prompt" else classify_request(request)
    usual = [*way.changes, *COMMON, f"epochs={usual_epochs(way, num_rows)}"]
    if way.gentle_rate:
        usual.append(f"train.optim.rate={gentle_rate(way, num_rows):.3g}")
    if not request.files.get("dev"):
        usual += WITHOUT_DEV
    return replace(request, changes=(*usual, *request.changes, *more))


def usual_epochs(way: Way, num_rows: int) -> float:
    """As many passes as make the way's steps, or its passes if those are more steps."""
    steps_of_epoch = math.ceil(num_rows / BATCH)
    return round(max(way.epochs, way.steps / steps_of_epoch), 3)


def gentle_rate(way: Way, num_rows: int) -> float:
    """The learning rate of a way that should keep what the model already knows."""
    share = math.sqrt(max(1.0, num_rows / FEWEST_ROWS))
    return min(HIGHEST_GENTLE_RATE, way.gentle_rate * share)
