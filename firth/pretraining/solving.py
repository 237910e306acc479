"""Runs of recipes that are solved without gradients: prepared shards or plain text in, a model folder out.

Plain text is first prepared into RUN/data with the recipe's own tokenizer. RUN/run.toml holds the numbers,
RUN/source.json what the run was made from, RUN/timing.jsonl the seconds and the words a second, RUN/figures.json what
the run gave, RUN itself the model.
"""

import inspect
import math
import shutil
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from firth import objectives, tokenizers
from firth.config import override
from firth.console import bar
from firth.convert.mapped import TABLE, WORD_ROWS, word_rows, write_rows
from firth.data.shards import INFO, Shards
from firth.data.stream import Stream
from firth.errors import BadConfig, BadInput
from firth.files import MANIFEST, read_json, sha256, write_json
from firth.folder import TOKENIZERS, save_table
from firth.lineage import Recipe
from firth.lineage.word_vectors import usual_epochs
from firth.objectives.passes import ROOM, Passes
from firth.objectives.solver import ROWS, Solver
from firth.run_folder import CONFIG, DATA, SOURCE, RunFolder, SolvingSource
from firth.tokenizers import Tokenizer
from firth.tokenizers.subwords import Subwords
from firth.tokenizers.word_list import Words
from firth.train.journal import Journal

THREADS = 2
"""Where nobody said how many."""
PASSES = "passes.npz"
"""What a run that was not finished keeps of itself."""
FIGURES = "figures.json"
"""What one that was finished gave."""
WRITTEN_FIRST = (CONFIG, SOURCE, *TOKENIZERS, DATA)
"""What a run writes before it solves anything."""


@dataclass(frozen=True)
class Wanted:
    """What a person asked of a solved run; None where they left it to the recipe."""

    width: int | None = None
    window: int | None = None
    epochs: float | None = None
    min_count: int | None = None
    threads: int | None = None
    changes: tuple[str, ...] = ()


def is_solved(plan: Recipe) -> bool:
    """Whether all objectives of a plan need no gradients."""
    solved = [name for name in plan.objectives if issubclass(objectives.resolve(name), Solver)]
    if solved and len(plan.objectives) > 1:
        raise BadConfig(f"The objective {solved[0]} is solved without gradients, which no other can be beside.")
    return bool(solved)


def pretrain(data: Path, folder: RunFolder, plan: Recipe, *, wanted: Wanted) -> dict[str, float]:
    """Solves the plan's objective over the text and writes the model; gives its figures.

    A resumed run continues after the last pass that it kept, or begins again where it kept none.
    """
    plan, wanted = _numbers(folder, plan, wanted)
    with folder.undone_if_refused(WRITTEN_FIRST, keep=(folder.path / PASSES).exists):
        is_prepared = data.is_dir() and (data / INFO).exists()
        shards_folder = data if is_prepared else prepare_text(data, folder, plan, wanted)
        if folder.begun:
            _refuse_other_data(folder, data, shards_folder)
        if folder.finished:
            folder.say_finished()
            return _kept_figures(folder.path)
        plan, goal, shards = _ready(folder, data, shards_folder, plan=plan, wanted=wanted)
        arrays, figures, rates = _solve(folder.path, plan, goal, shards, threads=wanted.threads or THREADS)
    threads = {"threads": wanted.threads or THREADS} if "threads" in _takes(plan) else {}
    out = folder.path
    Journal(out).timing(plan.epochs, rates | threads)
    tokenizer = tokenizers.load(out)
    ((name, shape),) = plan.encoder.items()
    if isinstance(tokenizer, Subwords) and goal.fills == "bag":
        write_rows(out / WORD_ROWS, TABLE, word_rows(tokenizer, arrays[ROWS]))
    info = {"recipe": plan.recipe, "size": plan.size, "epochs": plan.epochs, **threads, **figures}
    write_json(out / FIGURES, figures | rates)
    save_table(out, name, shape=shape, arrays=arrays, tokenizer=tokenizer, info=info)
    (out / PASSES).unlink(missing_ok=True)
    return figures | rates


def _kept_figures(out: Path) -> dict[str, float]:
    return dict(read_json(out / FIGURES)) if (out / FIGURES).exists() else {}


def _ready(
    folder: RunFolder, data: Path, shards_folder: Path, *, plan: Recipe, wanted: Wanted
) -> tuple[Recipe, Solver, Shards]:
    """The plan with as many rows as the text asks for, its solver, and the text; writes what the run is made from.

    The tokenizer goes to the run's folder, where it waits for the vectors: its words need not lie in memory meanwhile.
    """
    shards, tokenizer = open_words(shards_folder, wanted.min_count)
    ((name, shape),) = plan.encoder.items()
    ((goal, config),) = plan.objectives.items()
    cls = objectives.resolve(goal)
    parts = getattr(tokenizer, "num_rows", 0) if cls.fills == "bag" else 0
    shape = replace(shape, vocab_size=parts or len(tokenizer.vocab))
    made = cls(config, shape, tokenizer=tokenizer, seed=plan.train.seed)
    plan = replace(plan, encoder={name: shape})
    source = SolvingSource(
        data=str(shards_folder.resolve()),
        sha256=sha256(shards_folder / MANIFEST),
        min_count=wanted.min_count,
        threads=wanted.threads or THREADS,
        text=str(data.resolve()) if data != shards_folder else "",
    )
    folder.begin(source, plan, leftovers=[FIGURES, PASSES, ROOM])
    tokenizer.save(folder.path)
    return plan, made, shards


def _solve(
    out: Path, plan: Recipe, goal: Solver, shards: Shards, *, threads: int
) -> tuple[dict[str, np.ndarray], dict[str, float], dict[str, float]]:
    """The encoder's arrays; what its objective says of them, and how quick it was."""
    stream, clock = Stream(shards, np.arange(shards.num_documents)), _Clock(shards.num_tokens * plan.epochs)
    with bar(plan.recipe, 100, unit="%") as advance:
        arrays, figures = goal.solve(
            stream,
            epochs=plan.epochs,
            threads=threads,
            report=lambda share: advance(100 * share, clock.told(share)),
            passes=Passes(out / PASSES),
        )
    if not all(math.isfinite(float(array.sum())) for array in arrays.values()):
        (out / PASSES).unlink(missing_ok=True)
        (name,) = plan.objectives
        raise BadConfig(f"The vectors of {plan.recipe} grew beyond all numbers; lower objectives.{name}.rate.")
    return arrays, figures, clock.figures()


def _numbers(folder: RunFolder, plan: Recipe, wanted: Wanted) -> tuple[Recipe, Wanted]:
    """The plan of a new run, or of the one that is resumed: it keeps its numbers."""
    new = resolve_config(plan, wanted)
    if not folder.begun:
        return new, wanted
    source = folder.read_source(SolvingSource)
    other_count = wanted.min_count not in (None, source.min_count)
    other_threads = wanted.threads not in (None, source.threads)
    if new != plan or other_count or other_threads:
        raise folder.refuse_other_numbers()
    return plan, replace(wanted, min_count=source.min_count, threads=source.threads)


def _refuse_other_data(folder: RunFolder, data: Path, shards_folder: Path) -> None:
    source = folder.read_source(SolvingSource)
    same_shards = source.sha256 == sha256(shards_folder / MANIFEST)
    same_text = not source.text or source.text == str(data.resolve())
    if not same_shards or not same_text:
        raise BadInput(f"{folder.path} was made from other data than {data}; resume it with its own data.")


def resolve_config(plan: Recipe, wanted: Wanted) -> Recipe:
    """The plan with what was asked for by name and by changes."""
    if wanted.threads is not None and wanted.threads < 1:
        raise BadConfig(f"`threads=` must be at least 1; it is {wanted.threads}.")
    if wanted.min_count is not None and wanted.min_count < 1:
        raise BadConfig(f"`min_count=` must be at least 1; it is {wanted.min_count}.")
    passes = plan.epochs if wanted.epochs is None else wanted.epochs
    changed = replace(plan, epochs=0 if passes % 1 else int(passes))
    changed = override(changed, [*_named(plan, wanted), *wanted.changes])
    if wanted.min_count is not None:  # the list's own, where a text is still to be prepared
        lists = {name: replace(config, min_count=wanted.min_count) for name, config in changed.tokenizer.items()}
        changed = replace(changed, tokenizer=lists)
    if "epochs" not in _takes(plan) and (wanted.epochs is not None or changed.epochs != plan.epochs):
        raise BadConfig(f"{plan.recipe} needs no passes over the text; leave out `epochs=`.")
    if plan.epochs == 0 and wanted.epochs is None and changed.epochs == 0:
        (shape,) = changed.encoder.values()
        changed = replace(changed, epochs=usual_epochs(shape.width))
    if changed.epochs < 1:
        raise BadConfig(f"{plan.recipe} takes whole passes over the text, at least 1; `epochs=` is {passes:g}.")
    return changed


def _named(plan: Recipe, wanted: Wanted) -> Iterator[str]:
    """The changes that have a name on the command line."""
    for name, part in (("width", "encoder"), ("window", "objectives")):
        ((owner, config),) = getattr(plan, part).items()
        if (value := getattr(wanted, name)) is None:
            continue
        if not hasattr(config, name):
            raise BadConfig(f"{plan.recipe} has no --{name}.")
        if value < 1:
            raise BadConfig(f"--{name} must be at least 1; it is {value}.")
        yield f"{part}.{owner}.{name}={value}"


def _takes(plan: Recipe) -> Collection[str]:
    """What the solver of a plan's objective looks at: not all know passes or threads."""
    (goal,) = plan.objectives
    return inspect.signature(objectives.resolve(goal).solve).parameters


def prepare_text(data: Path, folder: RunFolder, plan: Recipe, wanted: Wanted) -> Path:
    """Shards of plain text: every line that a blank line does not part belongs to one document."""
    if data.is_dir() and any((data / name).exists() for name in (MANIFEST, "run.toml")):
        raise BadInput(
            f"{data} is a folder of firth but not of prepared text; name text files or `firth prepare`d data."
        )
    shards_folder = folder.path / DATA
    if folder.begun and (shards_folder / MANIFEST).exists():
        return shards_folder
    from firth.data.prepare import prepare
    from firth.data.vocabulary import train_tokenizer

    ((name, config),) = plan.tokenizer.items()
    tokenizer = train_tokenizer(name, [data], config=config)
    folder.claim()
    if shards_folder.exists():  # of a run that was killed before it began, perhaps with another text
        shutil.rmtree(shards_folder)
    with bar("preparing", None, unit="MB") as advance:
        prepare(
            [data],
            shards_folder,
            tokenizer=tokenizer,
            processes=wanted.threads or THREADS,
            progress=lambda read, expected, _: advance(read / 1e6, "", expected / 1e6),
        )
    return shards_folder


def open_words(folder: Path, min_count: int | None) -> tuple[Shards, Tokenizer]:
    """Prepared text with its tokenizer, both without words that occur less than `min_count` times."""
    shards = Shards.open(folder)
    tokenizer = tokenizers.load(shards.tokenizer_folder)
    if min_count is None or not isinstance(tokenizer, Words):
        if min_count is not None:
            raise BadConfig(f"`min_count=` is for whole words; {folder} was prepared with another tokenizer.")
        return shards, tokenizer
    counts = np.array(shards.counts)
    if min_count <= counts[len(tokenizer.vocab.specials) :].min(initial=min_count):
        return shards, tokenizer
    fewer, new = replace_counts(tokenizer, counts).at_least(min_count)
    if len(fewer.vocab) == len(fewer.vocab.specials):
        raise BadInput(f"{folder} has no word that occurs {min_count:,} times; lower `min_count=`.")
    mapped = new.astype(shards.ids.dtype)[shards.ids]
    return replace(shards, ids=mapped, counts=np.bincount(mapped, minlength=len(fewer.vocab))), fewer


def replace_counts(tokenizer: Words, counts: np.ndarray) -> Words:
    return type(tokenizer)(tokenizer.vocab, tokenizer.config, counts=counts)


class _Clock:
    """Counts from the first report, when compiling and counting are over, to the last."""

    def __init__(self, num_words: int) -> None:
        self.num_words, self.first = num_words, -1.0
        self.start, self.cpu_start = time.perf_counter(), time.process_time()

    def told(self, share: float) -> str:
        if self.first < 0:
            self.start, self.cpu_start, self.first = time.perf_counter(), time.process_time(), share
        seconds = max(time.perf_counter() - self.start, 1e-9)
        return f"{(share - self.first) * self.num_words / seconds:,.0f} words/s"

    def figures(self) -> dict[str, float]:
        """Of the words read since then: a run that was resumed did not read them all."""
        seconds, busy = max(time.perf_counter() - self.start, 1e-9), time.process_time() - self.cpu_start
        words = self.num_words * (1 - max(self.first, 0.0))
        return {"seconds": seconds, "cpu_seconds": busy, "words_per_second": words / seconds}


__all__ = ["Wanted", "is_solved", "pretrain", "resolve_config"]
