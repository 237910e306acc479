"""What reads the rows of a fine-tuning run, by the name that `encoder=` has for it.

A new backbone is a row here and its name in `FinetuneConfig.encoder`; its settings are a field of `FinetuneConfig`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from firth.data.items import Item
from firth.finetuning import bags, chains, new_transformer
from firth.finetuning.labelled import Labelled, texts_of
from firth.finetuning.settings import FinetuneConfig
from firth.finetuning.start import Start, start_from_model
from firth.run_source import FinetuningSource
from firth.tasks.task import Head, TaskConfig
from firth.tensors import Encoder
from firth.tokenizers import Tokenizer

LabelledTasks = Mapping[str, Labelled]
"""The rows of a run, by task."""


class Solve(Protocol):
    """Finds the weights of encoder and head from the training rows, without the loop."""

    def __call__(
        self,
        head: Head,
        encoder: Encoder,
        items: Sequence[Item],
        *,
        tokenizer: Tokenizer,
        config: FinetuneConfig,
        seed: int,
    ) -> None: ...


@dataclass(frozen=True)
class Backbone:
    start: Callable[[LabelledTasks, FinetuneConfig, FinetuningSource], Start]
    """What a run starts from."""
    resolve_config: Callable[[TaskConfig], TaskConfig] = chains.solved_in_loop
    """A task's config with what the backbone implies; raises if the two do not go together."""
    is_bag: bool = False
    """Whether it starts from no model, learns one task at a time, and does so on the CPU."""
    epochs: float = 0.0
    """Passes over the rows by default; 0: as many as suit their number."""
    origin: str = "random weights"
    """What the model card says it was made from if there was no model."""
    is_solved: Callable[[Head], bool] = lambda head: False
    """Whether the weights are found by `solve` and not by the loop."""
    solve: Solve | None = None


def _start_model(data: LabelledTasks, config: FinetuneConfig, source: FinetuningSource) -> Start:
    return start_from_model(source.model, random=source.random, texts=texts_of(data), language=config.language)


def _start_features(data: LabelledTasks, config: FinetuneConfig, source: FinetuningSource) -> Start:
    return chains.start_from_features(data, config.templates)


def _start_vectors(data: LabelledTasks, config: FinetuneConfig, source: FinetuningSource) -> Start:
    return chains.start_from_vectors(data, config.static)


def _start_fasttext(data: LabelledTasks, config: FinetuneConfig, source: FinetuningSource) -> Start:
    return bags.start_from_words(data, config.fasttext)


def _start_transformer(data: LabelledTasks, config: FinetuneConfig, source: FinetuningSource) -> Start:
    return new_transformer.start_from_pairs(data, config.transformer)


def _solve_tagger(
    head: Head, encoder: Encoder, items: Sequence[Item], *, tokenizer: Tokenizer, config: FinetuneConfig, seed: int
) -> None:
    chains.solve(head, encoder, items, tokenizer)


def _solve_fasttext(
    head: Head, encoder: Encoder, items: Sequence[Item], *, tokenizer: Tokenizer, config: FinetuneConfig, seed: int
) -> None:
    epochs = max(1, round(config.epochs))
    bags.solve(head, encoder, items, config=config.fasttext, epochs=epochs, seed=seed)


BACKBONES = {
    "model": Backbone(_start_model),
    "bag": Backbone(
        _start_features,
        chains.over_features,
        is_bag=True,
        origin="features written by hand",
        is_solved=chains.is_solved,
        solve=_solve_tagger,
    ),
    "static": Backbone(_start_vectors, chains.over_vectors),
    "fasttext": Backbone(
        _start_fasttext,
        is_bag=True,
        epochs=bags.EPOCHS,
        origin="the words of the training rows",
        is_solved=lambda head: True,
        solve=_solve_fasttext,
    ),
    "transformer": Backbone(_start_transformer, epochs=new_transformer.EPOCHS),
}
