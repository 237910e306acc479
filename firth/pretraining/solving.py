"""Runs of recipes that are solved without gradients: prepared shards or plain text in, a model folder out.

Plain text is first prepared into RUN/data with the recipe's own tokenizer. RUN/run.toml holds the numbers,
RUN/source.json what the run was made from, RUN/timing.jsonl the seconds and the words a second, RUN/figures.json the
figures of the result. RUN itself is the model. No torch here.
"""

import inspect
import math
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from firth import objectives, tokenizers
from firth.config import override
from firth.console import bar
from firth.convert.mapped import TABLE, WORD_ROWS, word_rows, write_rows
from firth.data.shards import INFO, Shards
from firth.data.stream import CorpusView
from firth.errors import BadConfig, BadInput
from firth.files import MANIFEST, read_json, sha256, write_json
from firth.folder import TOKENIZERS, save_table
from firth.lineage import Recipe
from firth.lineage.word_vectors import usual_epochs
from firth.objectives.passes import ROOM, Passes
from firth.objectives.solver import ROWS, Solver
from firth.run_folder import CONFIG, RunFolder
from firth.run_source import DATA, SOURCE, SolvingSource
from firth.tokenizers import Tokenizer
from firth.tokenizers.subwords import Subwords
from firth.tokenizers.word_list import Words
from firth.train.journal import Journal

THREADS = 2
"""If the user does not say how many."""
PASSES = "passes.npz"
"""The checkpoint of an unfinished run."""
FIGURES = "figures.json"
"""The figures of a finished run."""
WRITTEN_FIRST = (CONFIG, SOURCE, *TOKENIZERS, DATA)
"""What a run writes before it solves anything."""

Figures = dict[str, float]


@dataclass(frozen=True)
class SolveRequest:
    """What the user asks of a solved run; None leaves a number to the recipe."""

    width: int | None = None
    window: int | None = None
    epochs: float | None = None
    min_count: int | None = None
    threads: int | None = None
    changes: tuple[str, ...] = ()
    """Settings as `key=value`."""


@dataclass(frozen=True)
class Solution:
    """What a solver found."""

    arrays: dict[str, np.ndarray]
    """Of the encoder, by its names for them."""
    figures: Figures
    """What the objective says about the arrays."""
    timing: Figures
    """Seconds and words a second."""


def is_solved(recipe: Recipe) -> bool:
    """Whether a recipe is solved without gradients."""
    solved = [name for name in recipe.objectives if issubclass(objectives.resolve(name), Solver)]
    if solved and len(recipe.objectives) > 1:
        raise BadConfig(f"The objective {solved[0]} is solved without gradients, so it must be the only one.")
    return bool(solved)


def pretrain(data: Path, folder: RunFolder, recipe: Recipe, *, request: SolveRequest) -> Figures:
    """Solves the recipe's objective over the text and writes the model; returns its figures.

    A resumed run continues after the last pass that it kept, or begins again if it kept none.
    """
    recipe, request = _resolve_run(folder, recipe, request)
    with folder.undone_if_refused(WRITTEN_FIRST, keep=(folder.path / PASSES).exists):
        is_prepared = data.is_dir() and (data / INFO).exists()
        shards_folder = data if is_prepared else prepare_text(data, folder, recipe, request)
        if folder.begun:
            _refuse_other_data(folder, data, shards_folder)
        if folder.finished:
            folder.say_finished()
            return _kept_figures(folder.path)
        recipe, solver, shards = _begin(folder, data, shards_folder, recipe=recipe, request=request)
        solution = _solve(folder.path, recipe, solver, shards, threads=request.threads or THREADS)
    _write_model(folder.path, recipe, solver, solution, threads=request.threads or THREADS)
    return solution.figures | solution.timing


def _write_model(out: Path, recipe: Recipe, solver: Solver, solution: Solution, *, threads: int) -> None:
    """Writes the logs, the figures and the model, and deletes the checkpoint."""
    used_threads: dict[str, int] = {}
    if "threads" in _solver_parameters(recipe):
        used_threads["threads"] = threads
    Journal(out).timing(recipe.epochs, solution.timing | used_threads)
    tokenizer = tokenizers.load(out)
    ((name, config),) = recipe.encoder.items()
    # The vectors of whole words, n-grams included, are written as well, so that reading them needs no sums.
    if isinstance(tokenizer, Subwords) and solver.fills == "bag":
        write_rows(out / WORD_ROWS, TABLE, word_rows(tokenizer, solution.arrays[ROWS]))
    info = {
        "recipe": recipe.recipe,
        "size": recipe.size,
        "epochs": recipe.epochs,
        **used_threads,
        **solution.figures,
    }
    write_json(out / FIGURES, solution.figures | solution.timing)
    save_table(out, name, shape=config, arrays=solution.arrays, tokenizer=tokenizer, info=info)
    (out / PASSES).unlink(missing_ok=True)


def _kept_figures(out: Path) -> Figures:
    path = out / FIGURES
    if not path.exists():
        return {}
    return dict(read_json(path))


def _begin(
    folder: RunFolder,
    data: Path,
    shards_folder: Path,
    *,
    recipe: Recipe,
    request: SolveRequest,
) -> tuple[Recipe, Solver, Shards]:
    """The recipe with as many rows as the text needs, its solver, and the text; writes what the run is made from.

    The tokenizer is saved in the run's folder and loaded again at the end, so that its words do not take memory
    meanwhile.
    """
    shards, tokenizer = open_words(shards_folder, request.min_count)
    ((encoder_name, encoder_config),) = recipe.encoder.items()
    ((objective_name, objective_config),) = recipe.objectives.items()
    solver_class: type[Solver] = objectives.resolve(objective_name)
    num_rows = len(tokenizer.vocab)
    if solver_class.fills == "bag":
        # A tokenizer of n-grams has a row for each of them, too.
        num_rows = tokenizer.num_rows
    encoder_config = replace(encoder_config, vocab_size=num_rows)
    solver = solver_class(objective_config, encoder_config, tokenizer=tokenizer, seed=recipe.train.seed)
    recipe = replace(recipe, encoder={encoder_name: encoder_config})
    text = ""
    if data != shards_folder:
        text = str(data.resolve())
    source = SolvingSource(
        data=str(shards_folder.resolve()),
        sha256=sha256(shards_folder / MANIFEST),
        min_count=request.min_count,
        threads=request.threads or THREADS,
        text=text,
    )
    folder.begin(source, recipe, leftovers=[FIGURES, PASSES, ROOM])
    tokenizer.save(folder.path)
    return recipe, solver, shards


def _solve(out: Path, recipe: Recipe, solver: Solver, shards: Shards, *, threads: int) -> Solution:
    """Runs the solver over all documents, with a progress bar."""
    stream = CorpusView(shards, np.arange(shards.num_documents))
    speed = _Speed(shards.num_tokens * recipe.epochs)
    with bar(recipe.recipe, 100, unit="%") as advance:
        arrays, figures = solver.solve(
            stream,
            epochs=recipe.epochs,
            threads=threads,
            report=lambda share: advance(100 * share, speed.describe(share)),
            passes=Passes(out / PASSES),
        )
    if not _all_finite(arrays):
        # A checkpoint of diverged vectors must not be resumed.
        (out / PASSES).unlink(missing_ok=True)
        (name,) = recipe.objectives
        raise BadConfig(f"The vectors of {recipe.recipe} diverged (NaN or infinite); lower objectives.{name}.rate.")
    return Solution(arrays, figures, speed.timing())


def _all_finite(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether all numbers are finite; a sum shows it without a copy of the array."""
    sums = [float(array.sum()) for array in arrays.values()]
    return all(map(math.isfinite, sums))


def _resolve_run(folder: RunFolder, recipe: Recipe, request: SolveRequest) -> tuple[Recipe, SolveRequest]:
    """The recipe and the request of a new run; a run that is resumed keeps its own numbers."""
    resolved = resolve_config(recipe, request)
    if not folder.begun:
        return resolved, request
    source = folder.read_source(SolvingSource)
    other_count = request.min_count not in (None, source.min_count)
    other_threads = request.threads not in (None, source.threads)
    if resolved != recipe or other_count or other_threads:
        raise folder.refuse_other_numbers()
    return recipe, replace(request, min_count=source.min_count, threads=source.threads)


def _refuse_other_data(folder: RunFolder, data: Path, shards_folder: Path) -> None:
    """Raises if the data is not what the run began with."""
    source = folder.read_source(SolvingSource)
    same_shards = source.sha256 == sha256(shards_folder / MANIFEST)
    same_text = not source.text or source.text == str(data.resolve())
    if not same_shards or not same_text:
        raise BadInput(f"{folder.path} was made from other data than {data}; resume it with its own data.")


def resolve_config(recipe: Recipe, request: SolveRequest) -> Recipe:
    """The recipe with the options and changes of the request."""
    for option, value in (("threads", request.threads), ("min_count", request.min_count)):
        if value is not None and value < 1:
            raise BadConfig(f"`{option}=` must be at least 1; it is {value}.")
    # Recipes take whole passes; 0 marks a number that is not whole, which is refused below.
    epochs = recipe.epochs if request.epochs is None else request.epochs
    whole_epochs = int(epochs) if epochs % 1 == 0 else 0
    changed = replace(recipe, epochs=whole_epochs)
    changed = override(changed, [*_changes_by_option(recipe, request), *request.changes])
    if request.min_count is not None:
        # If the text is still to be prepared, its tokenizer follows the same count.
        lists = {name: replace(config, min_count=request.min_count) for name, config in changed.tokenizer.items()}
        changed = replace(changed, tokenizer=lists)
    epochs_changed = request.epochs is not None or changed.epochs != recipe.epochs
    if epochs_changed and "epochs" not in _solver_parameters(recipe):
        raise BadConfig(f"{recipe.recipe} needs no passes over the text; leave out `epochs=`.")
    # A recipe with 0 epochs leaves them to the width of the vectors.
    if recipe.epochs == 0 and request.epochs is None and changed.epochs == 0:
        (config,) = changed.encoder.values()
        changed = replace(changed, epochs=usual_epochs(config.width))
    if changed.epochs < 1:
        raise BadConfig(f"{recipe.recipe} takes whole passes over the text, at least 1; `epochs=` is {epochs:g}.")
    return changed


def _changes_by_option(recipe: Recipe, request: SolveRequest) -> Iterator[str]:
    """The options `width` and `window` as `key=value`."""
    (encoder,) = recipe.encoder.items()
    (objective,) = recipe.objectives.items()
    options = [
        ("width", request.width, "encoder", encoder),
        ("window", request.window, "objectives", objective),
    ]
    for option, value, part, (name, config) in options:
        if value is None:
            continue
        if not hasattr(config, option):
            raise BadConfig(f"{recipe.recipe} has no `{option}=`.")
        if value < 1:
            raise BadConfig(f"`{option}=` must be at least 1; it is {value}.")
        yield f"{part}.{name}.{option}={value}"


def _solver_parameters(recipe: Recipe) -> Collection[str]:
    """The arguments that the solver of a recipe uses: not all of them use epochs or threads."""
    (name,) = recipe.objectives
    return inspect.signature(objectives.resolve(name).solve).parameters


def prepare_text(data: Path, folder: RunFolder, recipe: Recipe, request: SolveRequest) -> Path:
    """Plain text -> shards in RUN/data; blank lines separate documents."""
    is_ours = (data / MANIFEST).exists() or (data / CONFIG).exists()
    if data.is_dir() and is_ours:
        raise BadInput(
            f"{data} is a folder of firth but not of prepared text; name text files or `firth prepare`d data."
        )
    shards_folder = folder.path / DATA
    if folder.begun and (shards_folder / MANIFEST).exists():
        return shards_folder
    processes = request.threads or THREADS
    folder.on_main(lambda: _prepare(data, shards_folder, folder, recipe, processes=processes))
    return shards_folder


def _prepare(data: Path, shards_folder: Path, folder: RunFolder, recipe: Recipe, *, processes: int) -> None:
    """Trains the recipe's tokenizer on the text and writes its shards."""
    from firth.data.prepare import prepare
    from firth.data.vocabulary import train_tokenizer

    ((name, config),) = recipe.tokenizer.items()
    tokenizer = train_tokenizer(name, [data], config=config)
    folder.claim()
    if shards_folder.exists():
        # A run that was killed before it began left it, perhaps made from another text.
        shutil.rmtree(shards_folder)
    with bar("preparing", None, unit="MB") as advance:
        prepare(
            [data],
            shards_folder,
            tokenizer=tokenizer,
            processes=processes,
            progress=lambda read, expected, _: advance(read / 1e6, "", expected / 1e6),
        )


def open_words(folder: Path, min_count: int | None) -> tuple[Shards, Tokenizer]:
    """Prepared text with its tokenizer, both without words that occur less than `min_count` times."""
    shards = Shards.open(folder)
    tokenizer = tokenizers.load(shards.tokenizer_folder)
    if min_count is None:
        return shards, tokenizer
    if not isinstance(tokenizer, Words):
        raise BadConfig(f"`min_count=` is for whole words; {folder} was prepared with another tokenizer.")
    counts = np.array(shards.counts)
    num_specials = len(tokenizer.vocab.specials)
    if min_count <= counts[num_specials:].min(initial=min_count):
        return shards, tokenizer
    counted = type(tokenizer)(tokenizer.vocab, tokenizer.config, counts=counts)
    fewer, new_ids = counted.at_least(min_count)
    if len(fewer.vocab) == len(fewer.vocab.specials):
        raise BadInput(f"{folder} has no word that occurs {min_count:,} times; lower `min_count=`.")
    # Words that were left out become the unknown token.
    ids = new_ids.astype(shards.ids.dtype)[shards.ids]
    new_counts = np.bincount(ids, minlength=len(fewer.vocab))
    return replace(shards, ids=ids, counts=new_counts), fewer


class _Speed:
    """Words a second, from the first report on, when compiling and counting are over."""

    def __init__(self, num_words: int) -> None:
        self.num_words = num_words
        self.first_share = -1.0
        """The share of the work that was done at the first report; negative before it."""
        self._start()

    def _start(self) -> None:
        self.start = time.perf_counter()
        self.cpu_start = time.process_time()

    def describe(self, share: float) -> str:
        """The speed as a text for the progress bar."""
        if self.first_share < 0:
            self._start()
            self.first_share = share
        seconds = max(time.perf_counter() - self.start, 1e-9)
        return f"{(share - self.first_share) * self.num_words / seconds:,.0f} words/s"

    def timing(self) -> Figures:
        """Seconds and speed since the first report: a resumed run did not read all words."""
        seconds = max(time.perf_counter() - self.start, 1e-9)
        cpu_seconds = time.process_time() - self.cpu_start
        words = self.num_words * (1 - max(self.first_share, 0.0))
        return {"seconds": seconds, "cpu_seconds": cpu_seconds, "words_per_second": words / seconds}


__all__ = ["SolveRequest", "is_solved", "pretrain", "resolve_config"]
