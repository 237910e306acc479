"""The walk: prepare, pretrain, evaluate, fill, embed, info ... One short function each; `firth.prepare` etc. are these.

Each function brings in only the rooms it walks through: preparation and word vectors never load torch.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firth.console import bar, say
from firth.errors import BadConfig, BadInput
from firth.files import check_writable, write_bytes

if TYPE_CHECKING:
    from firth.corpus.readers import Documents
    from firth.inference.senses import Senses
    from firth.run_folder import RunFolder
    from firth.tokenizers import Tokenizer
    from firth.types import Fill, Generated, Prediction


def prepare(
    texts: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    tokenizer: str | Path = "wordpiece",
    vocab_size: int | None = None,
    min_count: int | None = None,
    cased: bool = False,
    documents: "Documents" = "blank-line",
    field: str = "text",
    repair: bool = False,
    near_duplicates: int | None = None,
    segmenter: str | Path | None = None,
    processes: int = 2,
    seed: int = 1,
) -> dict[str, Any]:
    """Text files -> shards in `out`, with a vocabulary trained on them or a folder's tokenizer; gives their health.

    Chinese words are rjieba's, or those of a `segmenter` made by `finetune`, which works in this one process.
    """
    from firth import tokenizers
    from firth.data import prepare as preparation
    from firth.data.simhash import drop_near_duplicates
    from firth.tokenizers.word_list import Words

    if Path(out).exists():
        raise BadInput(f"{out} already exists; choose another --out or remove it.")
    if near_duplicates is not None:
        next(drop_near_duplicates((), within=near_duplicates, tally=Counter()), None)  # raises on a bad distance
    check_writable(Path(out))
    segmented = _segmented_by(segmenter)
    paths = [texts] if isinstance(texts, str | Path) else list(texts)
    reading: dict[str, Any] = {"documents": documents, "field": field, "repair": repair}
    sizes = {"vocab_size": vocab_size, "min_count": min_count}
    encoder = _tokenizer(str(tokenizer), paths, sizes, cased=cased, seed=seed, **reading)
    if segmenter and isinstance(encoder, Words):
        raise BadConfig(
            "A segmenter gives the words of whole-word masks; word vectors cut Chinese text by rjieba wherever they "
            "are used, so leave out --segmenter."
        )
    with segmented, bar("preparing", None, unit="MB") as advance:
        health = preparation.prepare(
            paths,
            Path(out),
            tokenizer=encoder,
            processes=0 if segmenter else processes,
            near=near_duplicates,
            fresh=str(tokenizer) in tokenizers.TABLE,
            progress=lambda read, expected, tokens: advance(
                read / 1e6, f"of about {expected / 1e6:,.0f} MB", expected / 1e6
            ),
            **reading,
        )
    for text in health["warnings"]:
        say(f"warning: {text}")
    return health


def _tokenizer(name: str, paths: Sequence[str | Path], sizes: dict[str, Any], **settings: Any) -> "Tokenizer":
    """One trained on the texts, or a folder's."""
    from firth import tokenizers
    from firth.data.vocabulary import train_tokenizer

    trained = [known for known in tokenizers.TABLE if known != "templates"]  # those are a tagger's features
    if name in trained:
        return train_tokenizer(name, paths, **sizes, **settings)
    if not Path(name).is_dir():
        raise BadInput(f"{name} is neither a folder nor a tokenizer that can be trained ({', '.join(trained)}).")
    if any(size is not None for size in sizes.values()):
        raise BadConfig(f"--vocab-size and --min-count are for a new vocabulary; the tokenizer in {name} has its own.")
    return tokenizers.load(Path(name))


def _segmented_by(segmenter: str | Path | None) -> AbstractContextManager[None]:
    if segmenter is None:
        return nullcontext()
    from firth.inference.model import load
    from firth.tokenizers.words import segmented_by

    model = load(segmenter)
    model.segment([])  # one that cannot is told of now
    return segmented_by(model.segment)


def pretrain(
    data: str | Path,
    *,
    out: str | Path,
    recipe: str | None = None,
    size: str | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    minutes: float | None = None,
    resume: bool = False,
    start_from: str | Path | None = None,
    config: str | Path | None = None,
    changes: Iterable[str] = (),
    device: str | None = None,
    width: int | None = None,
    window: int | None = None,
    min_count: int | None = None,
    threads: int | None = None,
) -> dict[str, float]:
    """Shards -> a pre-trained model in `out`; gives the last held-out figures. Word vectors also take plain text."""
    from firth.run_folder import RunFolder

    asked: dict[str, Any] = {
        "recipe": recipe,
        "size": size,
        "steps": steps,
        "epochs": epochs,
        "minutes": minutes,
        "config": config,
        "changes": tuple(changes),
    }
    given = {"width": width, "window": window, "min_count": min_count, "threads": threads}
    words = {name: value for name, value in given.items() if value is not None}
    with RunFolder(Path(out), command="pretrain", resume=resume) as folder:
        was_finished = folder.finished
        figures = _pretrain(Path(data), folder, asked, words, start_from=start_from, device=device)
        if not was_finished or not (folder.path / "report.html").exists():
            _report_pretraining(folder)
    return figures


def _pretrain(
    data: Path,
    folder: "RunFolder",
    given: Mapping[str, Any],
    words: Mapping[str, int],
    *,
    start_from: str | Path | None,
    device: str | None,
) -> dict[str, float]:
    """With gradients or without, as the recipe needs it; `words` are the options of those without."""
    from firth.pretraining import planning, solving

    asked = planning.PretrainRequest(**given)
    plan = planning.named_recipe(asked, folder.config_path if folder.begun else None)
    if solving.is_solved(plan):
        if asked.steps is not None or asked.minutes is not None or start_from is not None:
            raise BadConfig(f"{plan.recipe} is solved without gradients: leave out --steps, --minutes and --from.")
        planning.report_unused_options(plan, size=asked.size, device=device)
        to_solve = solving.SolveRequest(epochs=asked.epochs, changes=asked.changes, **words)
        return solving.pretrain(data, folder, plan, request=to_solve)
    if words:
        option = min(words).replace("_", "-")
        raise BadConfig(f"--{option} is for recipes that are solved without gradients; change others by key=value.")
    from firth.pretraining import training as pretraining

    return pretraining.pretrain(data, folder, request=asked, start_from=start_from, device=device)


def _report_pretraining(folder: "RunFolder") -> None:
    """RUN/report.html, as every finished run has one."""
    if not folder.is_main:
        return
    from firth.report.gather import gather
    from firth.report.pretraining import render

    page = folder.path / "report.html"
    write_bytes(page, render(gather(folder.path)).encode())
    say(f"The model and its card are in {folder.path}; {page} shows the run.")


def check(
    file: str | Path,
    *,
    task: str,
    dev: str | Path | None = None,
    test: str | Path | None = None,
    model: str | Path | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Looks at labelled rows before any training; gives what is there and what is wrong, with row numbers."""
    from firth.config import from_dict
    from firth.finetuning import checking
    from firth.tasks import resolve as task_class

    files = {part: Path(path) for part, path in (("train", file), ("dev", dev), ("test", test)) if path}
    config = from_dict(task_class(task).Config, options)
    return checking.check(task, config, files, model=Path(model) if model else None)


def finetune(
    model: str | Path | None = None,
    *,
    task: str | Sequence[str] = (),
    train: str | Path | Sequence[str | Path] = (),
    dev: str | Path | Sequence[str | Path] = (),
    test: str | Path | Sequence[str | Path] = (),
    out: str | Path,
    seeds: int = 1,
    random: bool = False,
    skip_bad: bool = False,
    resume: bool = False,
    changes: Iterable[str] = (),
    device: str | None = None,
    encoder: str | Path | None = None,
    recipe: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """A model and labelled rows -> a fine-tuned, measured model in `out`; gives all its figures.

    `encoder` is `bag` (features written by hand), `static` (new vectors of words or characters) or a model folder.
    `options` are fields of the task's config: preset, text_column, label_columns, kind, tagger, format ...
    """
    from firth.finetuning import running as downstream
    from firth.finetuning import ulmfit
    from firth.finetuning.jobs import FinetuneRequest
    from firth.report.finetuning import gather
    from firth.run_folder import RunFolder

    if model and encoder:
        raise BadConfig(f"{model} and --encoder {encoder} both say what to start from; leave one out.")
    if recipe not in (None, "fasttext", "ulmfit"):
        raise BadConfig(f"There is no recipe '{recipe}' for fine-tuning (known: fasttext, ulmfit).")
    if recipe == "fasttext" and (model or encoder):
        raise BadConfig(f"--recipe {recipe} starts from nothing; leave out the model and --encoder.")
    if recipe == "fasttext" or encoder in ("bag", "static"):
        changes = [*changes, f"encoder={recipe or encoder}"]
    else:
        model = model or encoder
    files = {part: _paths(given) for part, given in (("train", train), ("dev", dev), ("test", test))}
    tasks = (task,) if isinstance(task, str) else tuple(task)
    asked = FinetuneRequest(str(model or ""), tasks, files, options, seeds, random, skip_bad, tuple(changes))
    walk = ulmfit.finetune if recipe == "ulmfit" else downstream.finetune
    with RunFolder(Path(out), command="finetune", resume=resume) as folder:
        summary = walk(folder, asked, device=device)
        if folder.is_main:
            write_bytes(Path(out) / "report.html", gather(Path(out)).encode())
    say(f"The model and its card are in {out}; {Path(out) / 'report.html'} shows the run.")
    return summary


def evaluate(
    run: str | Path, *, data: str | Path, task: str = "", seed: int = 1, skip_bad: bool = False, **options: Any
) -> dict[str, Any]:
    """A model's figures: on a labelled file for a fine-tuned one, on all documents of prepared shards otherwise.

    With a `task` that needs no training (compare) and its `options`, any model is measured on a labelled file.
    """
    from firth.finetuning import measuring
    from firth.pretraining import training as pretraining

    if not Path(data).exists():
        raise BadInput(f"{data} does not exist.")
    if Path(data).is_file():
        return measuring.evaluate(Path(run), Path(data), task_name=task, options=options, skip_bad=skip_bad)
    if task or options or skip_bad:
        raise BadConfig(f"{data} is a folder of prepared text, which takes no task, columns or settings of one.")
    return pretraining.evaluate(Path(run), Path(data), seed=seed)


def predict(
    model: str | Path, inputs: Sequence[Any] = (), *, file: str | Path | None = None, task: str = ""
) -> "list[Prediction]":
    """What a fine-tuned model says of each input, or of each row of a file, in order."""
    from firth.inference.inputs_file import read_inputs
    from firth.inference.model import load

    loaded = load(model)
    if file is None:
        return loaded.predict(inputs, task=task)
    return loaded.predict_examples(read_inputs(loaded.checkpoint, Path(file), task), task=task)


def _paths(given: str | Path | Sequence[str | Path]) -> list[str]:
    return [str(path) for path in ([given] if isinstance(given, str | Path) else given)]


def k_best(
    model: str | Path, inputs: Sequence[Any] = (), *, k: int, file: str | Path | None = None, task: str = ""
) -> "list[list[Prediction]]":
    """The k likeliest tag sequences of each input, or of each row of a file, by a fine-tuned tagger."""
    from firth.inference.inputs_file import read_inputs
    from firth.inference.model import load

    loaded = load(model)
    examples = loaded.examples(inputs, task=task) if file is None else read_inputs(loaded.checkpoint, Path(file), task)
    return loaded.k_best(examples, k, task=task)


def fill(model: str | Path, text: str, *, top: int = 5, specials: bool = False) -> "list[Fill]":
    """The likeliest words for each [MASK] of a text."""
    from firth.inference.model import load

    return load(model).fill(text, top=top, specials=specials)


def generate(model: str | Path, text: str, *, max_tokens: int = 50, seed: int = 1, **choice: Any) -> "Generated":
    """A text and what a causal language model goes on with; `choice`: temperature, top_k, top_p, no_repeat."""
    from firth.inference.model import load

    return load(model).generate(text, max_tokens=max_tokens, seed=seed, **choice)


def embed(
    model: str | Path, *, file: str | Path, out: str | Path, pooling: str | None = None, precision: str = "fp32"
) -> tuple[int, ...]:
    """A vector for each line of a file, written as a .npy array; gives its shape."""
    from io import BytesIO

    import numpy as np

    from firth.corpus.readers import read_texts
    from firth.inference.inputs_file import tell_of_long
    from firth.inference.model import load
    from firth.train.shared_cores import share_cores

    if Path(out).exists():
        raise BadInput(f"{out} already exists; choose another --out or remove it.")
    if Path(out).suffix != ".npy":
        raise BadInput(f"{out} would hold a numpy array; let its name end in .npy.")
    check_writable(Path(out))
    texts = read_texts(Path(file))
    loaded = load(model, precision=precision)
    tell_of_long(loaded, texts)
    with share_cores():
        vectors = loaded.embed(texts, pooling=pooling)
    buffer = BytesIO()
    np.save(buffer, vectors)
    write_bytes(Path(out), buffer.getvalue())
    return vectors.shape


def info(model: str | Path) -> dict[str, Any]:
    """What a model folder holds."""
    from firth.inference.model import load

    return load(model).info()


def import_model(
    source: str | Path,
    *,
    out: str | Path,
    unsafe_pickle: bool = False,
    cased: bool | None = None,
    skip_bad: bool = False,
) -> dict[str, Any]:
    """Other people's model files, or a file of word vectors -> a model folder in `out`; gives what it holds."""
    from firth.inference.model import Model
    from firth.surgery import importing

    said = importing.Said(unsafe_pickle, cased, skip_bad)
    return Model(importing.import_model(Path(source), Path(out), said=said)).info()


def senses(model: str | Path, *, word: str, file: str | Path, groups: int | None = None, layer: int = -1) -> "Senses":
    """A word's occurrences in the lines of a file, grouped by what it means there."""
    from firth.corpus.readers import read_lines
    from firth.inference import senses as grouping
    from firth.inference.model import load

    return grouping.senses(load(model), word, read_lines(Path(file)), count=groups, layer=layer)


def extend(
    model: str | Path, *, text: str | Path | Sequence[str | Path], add: int, out: str | Path, min_count: int = 5
) -> dict[str, Any]:
    """A model with new tokens for the words of a domain's text, in `out`; gives tokens per text before and after."""
    from firth.surgery import extending

    texts = [Path(path) for path in _paths(text)]
    return extending.extend(Path(model), texts, add=add, min_count=min_count, out=Path(out))
