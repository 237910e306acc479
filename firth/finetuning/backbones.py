"""What may read the rows of a fine-tuning run, by the name that `encoder=` has for it.

Adding one is a row here and its name in `FinetuneConfig.encoder`; numbers of its own are a field of `FinetuneConfig`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from firth.data.items import Item
from firth.finetuning import bags, chains
from firth.finetuning.labelled import Labelled
from firth.finetuning.start import Start, begin
from firth.run_folder import FinetuningSource
from firth.tasks.task import Head
from firth.tensors import Encoder

Data = Mapping[str, Labelled]


@dataclass(frozen=True)
class Kind:
    begin: Callable[[Data, Any, FinetuningSource], Start]
    """What a run starts from, given its rows, its plan and its source."""
    resolve_config: Callable[[Any], Any] = chains.in_the_loop
    """A task's config with what the kind implies; raises where the two do not go together."""
    alone: bool = False
    """Whether it starts from no model, learns one task at a time, and does so on the CPU."""
    epochs: float = 0.0
    """Passes over the rows when nobody says; 0 goes by their number."""
    origin: str = "random weights"
    """What its card says it was made from, where there was no model."""
    solves: Callable[[Head], bool] = lambda task: False
    """Whether the weights are found without the loop, by `solve`."""
    solve: Callable[[Head, Encoder, Sequence[Item], Any, int], None] | None = None
    """Finds the weights of encoder and task from a job's rows, with this seed."""


def _model(data: Data, plan: Any, source: FinetuningSource) -> Start:
    texts = (text for part in data.values() for row in part.examples["train"] for text in row.texts)
    return begin(source.model, random=source.random, texts=texts)


def _find_chain(task: Head, encoder: Encoder, items: Sequence[Item], job: Any, seed: int) -> None:
    chains.solve(task, encoder, items, job.start.tokenizer)


def _find_bag(task: Head, encoder: Encoder, items: Sequence[Item], job: Any, seed: int) -> None:
    epochs = max(1, round(job.plan.epochs))
    bags.solve(task, encoder, items, config=job.plan.fasttext, epochs=epochs, seed=seed)


KINDS = {
    "model": Kind(_model),
    "bag": Kind(
        lambda data, plan, source: chains.begin(data, plan.templates),
        chains.over_features,
        alone=True,
        origin="features written by hand",
        solves=chains.solves,
        solve=_find_chain,
    ),
    "static": Kind(lambda data, plan, source: chains.begin_vectors(data, plan.static), chains.over_vectors),
    "fasttext": Kind(
        lambda data, plan, source: bags.begin(data, plan.fasttext),
        alone=True,
        epochs=bags.EPOCHS,
        origin="the words of the training rows",
        solves=lambda task: True,
        solve=_find_bag,
    ),
}
