"""Runs of recipes that are solved without gradients: prepared shards or plain text in, a model folder out.

Plain text is first prepared into RUN/data with the recipe's own tokenizer. RUN/run.toml holds the numbers,
RUN/source.json what the run was made from, RUN/timing.jsonl the seconds and the words a second, RUN itself the model.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from firth import checkpoint as checkpoints
from firth import encoders, objectives, tokenizers
from firth.checkpoint import Checkpoint, make_goal
from firth.config import override, to_dict, to_toml
from firth.console import bar
from firth.data import prepare as preparation
from firth.data.shards import INFO, Shards
from firth.data.stream import Stream
from firth.data.vocabulary import train_tokenizer
from firth.errors import BadConfig, BadInput
from firth.files import MANIFEST, sha256, write_bytes, write_json
from firth.recipes import lineage
from firth.recipes.lineage import Recipe
from firth.tensors import Encoder
from firth.tokenizers import Tokenizer
from firth.tokenizers.word_list import Words
from firth.train.journal import Journal
from firth.train.loop import reseed


@dataclass(frozen=True)
class Wanted:
    """What a person asked of a solved run; None where they left it to the recipe."""

    width: int | None = None
    window: int | None = None
    epochs: float | None = None
    min_count: int | None = None
    threads: int = 2
    changes: tuple[str, ...] = ()


def is_solved(plan: Recipe) -> bool:
    """Whether all objectives of a plan need no gradients."""
    return bool(plan.objectives) and all(objectives.resolve(name).solves() for name in plan.objectives)


def pretrain(data: Path, out: Path, plan: Recipe, *, wanted: Wanted) -> dict[str, float]:
    """Solves the plan's objective over the text and writes the model; gives its figures."""
    if out.exists():
        raise BadInput(f"{out} already exists; choose another --out: a run of {plan.recipe} is not resumed.")
    plan = settled(plan, wanted)
    folder = data if data.is_dir() and (data / INFO).exists() else prepared(data, out / "data", plan, wanted)
    shards, tokenizer = open_words(folder, wanted.min_count)
    ((name, shape),), ((goal_name, config),) = plan.encoder.items(), plan.objectives.items()
    plan = replace(plan, encoder={name: replace(shape, vocab_size=_rows(tokenizer))})
    reseed(plan.train.seed, "initial weights")
    encoder: Encoder = encoders.resolve(name)(plan.encoder[name])
    goal = make_goal(goal_name, config, encoder, tokenizer, seed=plan.train.seed)
    write_json(out / "source.json", {"data": str(folder.resolve()), "sha256": sha256(folder / MANIFEST)})
    write_bytes(out / "run.toml", (to_toml(to_dict(plan)) + "\n").encode())
    stream, clock = Stream(shards, np.arange(shards.num_documents)), _Clock(shards.num_tokens * plan.epochs)
    with bar(plan.recipe, 100, unit="%") as advance:
        figures = goal.solve(
            encoder,
            stream,
            epochs=plan.epochs,
            threads=wanted.threads,
            tokenizer=tokenizer,
            report=lambda share: advance(100 * share, clock.told(share)),
        )
    rates = clock.figures()
    Journal(out).timing(plan.epochs, rates | {"threads": wanted.threads})
    info = {"recipe": plan.recipe, "size": plan.size, "epochs": plan.epochs, "threads": wanted.threads, **figures}
    checkpoints.save(out, Checkpoint(encoder.eval(), {}, tokenizer, info=info))
    return figures | rates


def settled(plan: Recipe, wanted: Wanted) -> Recipe:
    """The plan with what was asked for by name and by changes."""
    if wanted.threads < 1:
        raise BadConfig(f"--threads must be at least 1; it is {wanted.threads}.")
    if wanted.epochs is not None:
        if wanted.epochs != int(wanted.epochs) or wanted.epochs < 1:
            raise BadConfig(f"{plan.recipe} takes whole passes over the text; --epochs is {wanted.epochs}.")
        plan = replace(plan, epochs=int(wanted.epochs))
    (encoder,), (goal,) = plan.encoder, plan.objectives
    named = {f"encoder.{encoder}.width": wanted.width, f"objectives.{goal}.window": wanted.window}
    changes: Iterable[str] = (f"{key}={value}" for key, value in named.items() if value is not None)
    return override(plan, [*changes, *wanted.changes])


def prepared(data: Path, folder: Path, plan: Recipe, wanted: Wanted) -> Path:
    """Shards of plain text: every line that a blank line does not part belongs to one document."""
    if data.is_dir() and (data / MANIFEST).exists():
        raise BadInput(
            f"{data} is a folder of firth but not of prepared text; name text files or `firth prepare`d data."
        )
    ((name, config),) = plan.tokenizer.items()
    config = config if wanted.min_count is None else replace(config, min_count=wanted.min_count)
    tokenizer = train_tokenizer(name, [data], config=config)
    with bar("preparing", None, unit="MB") as advance:
        preparation.prepare(
            [data],
            folder,
            tokenizer=tokenizer,
            processes=wanted.threads,
            progress=lambda read, expected, _: advance(read / 1e6, "", expected / 1e6),
        )
    return folder


def open_words(folder: Path, min_count: int | None) -> tuple[Shards, Tokenizer]:
    """Prepared text with its tokenizer, both without words that occur less than `min_count` times."""
    shards = Shards.open(folder)
    tokenizer = tokenizers.load(shards.tokenizer_folder)
    if min_count is None or not isinstance(tokenizer, Words):
        if min_count is not None:
            raise BadConfig(f"--min-count is for whole words; {folder} was prepared with another tokenizer.")
        return shards, tokenizer
    counts = np.array(shards.counts)
    if min_count <= counts[len(tokenizer.vocab.specials) :].min(initial=min_count):
        return shards, tokenizer
    fewer, new = replace_counts(tokenizer, counts).at_least(min_count)
    mapped = new.astype(shards.ids.dtype)[shards.ids]
    return replace(shards, ids=mapped, counts=np.bincount(mapped, minlength=len(fewer.vocab))), fewer


def replace_counts(tokenizer: Words, counts: np.ndarray) -> Words:
    return type(tokenizer)(tokenizer.vocab, tokenizer.config, counts=counts)


def _rows(tokenizer: Any) -> int:
    """Rows of the encoder's table: one a token, unless tokens are made of parts."""
    return int(getattr(tokenizer, "num_rows", len(tokenizer.vocab)))


class _Clock:
    """Counts from the first report, when compiling and counting are over, to the last."""

    def __init__(self, num_words: int) -> None:
        self.num_words, self.start, self.begun = num_words, time.perf_counter(), False

    def told(self, share: float) -> str:
        if not self.begun:
            self.start, self.begun = time.perf_counter(), True
        seconds = max(time.perf_counter() - self.start, 1e-9)
        return f"{share * self.num_words / seconds:,.0f} words/s"

    def figures(self) -> dict[str, float]:
        seconds = max(time.perf_counter() - self.start, 1e-9)
        return {"seconds": seconds, "words_per_second": self.num_words / seconds}


__all__ = ["Wanted", "is_solved", "lineage", "pretrain", "settled"]
