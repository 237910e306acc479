"""The walk: prepare, pretrain, evaluate, fill, embed, info ... One short function each; `firth.prepare` etc. are these.

Each function brings in only the rooms it walks through: preparation never loads torch.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firth.config import resolve
from firth.console import bar, say
from firth.errors import BadConfig, BadInput
from firth.files import MANIFEST, write_bytes

if TYPE_CHECKING:
    from firth.corpus.readers import Documents
    from firth.types import Fill, Prediction

VOCABULARY_BYTES = 64_000_000
"""Text a vocabulary is trained on at most: a keyed sample of the documents when there is more."""


def prepare(
    texts: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    tokenizer: str | Path = "wordpiece",
    vocab_size: int | None = None,
    cased: bool = False,
    documents: "Documents" = "blank-line",
    field: str = "text",
    repair: bool = False,
    processes: int = 2,
    seed: int = 1,
) -> dict[str, Any]:
    """Text files -> shards in `out`, with a vocabulary trained on them or a folder's tokenizer; gives their health."""
    from firth import tokenizers
    from firth.data import prepare as preparation
    from firth.data.health import describe

    if Path(out).exists():
        raise BadInput(f"{out} already exists; choose another --out or remove it.")
    paths = [texts] if isinstance(texts, str | Path) else list(texts)
    reading: dict[str, Any] = {"documents": documents, "field": field, "repair": repair}
    if str(tokenizer) in tokenizers.TABLE:
        cls = resolve(tokenizers.TABLE, str(tokenizer), "tokenizer")
        sizes = {} if vocab_size is None else {"vocab_size": vocab_size}
        config = cls.Config(lowercase=not cased, strip_accents=not cased, **sizes)
        say(f"Training a vocabulary of {config.vocab_size:,} pieces ...")
        encoder = cls.train(preparation.sample_texts(paths, VOCABULARY_BYTES, seed=seed, **reading), config)
    elif vocab_size is not None:
        raise BadConfig(f"--vocab-size is for a new vocabulary; the tokenizer in {tokenizer} has its own.")
    else:
        encoder = tokenizers.load(Path(tokenizer))
    with bar("preparing", None, unit="MB") as advance:
        health = preparation.prepare(
            paths,
            Path(out),
            tokenizer=encoder,
            processes=processes,
            progress=lambda read, expected, tokens: advance(
                read / 1e6, f"of about {expected / 1e6:,.0f} MB", expected / 1e6
            ),
            **reading,
        )
    for line in describe(health):
        say(line)
    return health


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
) -> dict[str, float]:
    """Shards -> a pre-trained model in `out`; gives the last held-out figures."""
    from firth.recipes import pretraining

    asked = pretraining.Asked(recipe, size, steps, epochs, minutes, config, tuple(changes))
    return pretraining.pretrain(Path(data), Path(out), asked=asked, resume=resume, start_from=start_from, device=device)


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
    from firth.recipes import checking
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
    **options: Any,
) -> dict[str, Any]:
    """A model and labelled rows -> a fine-tuned, measured model in `out`; gives all its figures.

    `options` are fields of the task's config: preset, text_column, label_columns, kind ...
    """
    from firth.recipes import downstream
    from firth.recipes.figures import headline
    from firth.recipes.jobs import Asked
    from firth.report.finetuning import gather

    files = {part: _paths(given) for part, given in (("train", train), ("dev", dev), ("test", test))}
    tasks = (task,) if isinstance(task, str) else tuple(task)
    asked = Asked(str(model or ""), tasks, files, options, seeds, random, skip_bad, tuple(changes))
    summary = downstream.finetune(Path(out), asked, resume=resume, device=device)
    for name, row in summary["tasks"].items():
        for line in headline(name, row, len(summary["seeds"])):
            say(line)
    write_bytes(Path(out) / "report.html", gather(Path(out)).encode())
    say(f"The model and its card are in {out}; {Path(out) / 'report.html'} shows the run.")
    return summary


def evaluate(
    run: str | Path, *, data: str | Path, task: str = "", seed: int = 1, skip_bad: bool = False, **options: Any
) -> dict[str, Any]:
    """A model's figures: on a labelled file for a fine-tuned one, on all documents of prepared shards otherwise.

    With a `task` that needs no training (compare) and its `options`, any model is measured on a labelled file.
    """
    from firth.recipes import downstream, pretraining

    if not Path(data).exists():
        raise BadInput(f"{data} does not exist.")
    if Path(data).is_file():
        return downstream.evaluate(Path(run), Path(data), task_name=task, options=options, skip_bad=skip_bad)
    return pretraining.evaluate(Path(run), Path(data), seed=seed)


def predict(
    model: str | Path, inputs: Sequence[Any] = (), *, file: str | Path | None = None, task: str = ""
) -> "list[Prediction]":
    """What a fine-tuned model says of each input, or of each row of a file, in order."""
    from firth.recipes.inputs import read_inputs
    from firth.serve.predictor import load

    loaded = load(model)
    if file is None:
        return loaded.predict(inputs, task=task)
    return loaded.predict_examples(read_inputs(loaded.checkpoint, Path(file), task), task=task)


def _paths(given: str | Path | Sequence[str | Path]) -> list[str]:
    return [str(path) for path in ([given] if isinstance(given, str | Path) else given)]


def fill(model: str | Path, text: str, *, top: int = 5, specials: bool = False) -> "list[Fill]":
    """The likeliest words for each [MASK] of a text."""
    from firth.serve.predictor import load

    return load(model).fill(text, top=top, specials=specials)


def embed(
    model: str | Path, *, file: str | Path, out: str | Path, pooling: str | None = None, precision: str = "fp32"
) -> tuple[int, ...]:
    """A vector for each line of a file, written as a .npy array; gives its shape."""
    from io import BytesIO

    import numpy as np

    from firth.corpus.readers import read_lines
    from firth.serve.predictor import load

    vectors = load(model, precision=precision).embed(read_lines(Path(file)), pooling=pooling)
    buffer = BytesIO()
    np.save(buffer, vectors)
    write_bytes(Path(out), buffer.getvalue())
    return vectors.shape


def info(model: str | Path) -> dict[str, Any]:
    """What a model folder holds."""
    from firth.serve.predictor import load

    return load(model).info()


def demo(*, out: str | Path, minutes: float | None = None) -> Path:
    """From the text every machine has to a small BERT and a page that shows it; gives the page."""
    from firth import samples
    from firth.recipes import demo as numbers
    from firth.report.gather import gather
    from firth.report.pretraining import render
    from firth.serve.predictor import load

    folder = Path(out)
    data, run, page = folder / "data", folder / "run", folder / "report.html"
    if not data.exists():
        say("1. Preparing: the standard library's docstrings and the project's own prose become ids.")
        prepare(samples.corpus(folder / "text"), out=data, vocab_size=numbers.VOCAB_SIZE)
    if not (run / MANIFEST).exists():
        say("2. Pre-training: a small BERT learns to fill masks and to tell which text follows which.")
        limits: dict[str, Any] = {
            "minutes": minutes or numbers.MINUTES,
            "size": numbers.SIZE,
            "changes": numbers.CHANGES,
        }
        pretrain(data, out=run, resume=run.exists(), **limits)
    say("3. Asking it: fill the mask.")
    model = load(run)
    for text in numbers.FILLS:
        say(f"   {text}\n      " + ", ".join(f"{row.token} {row.probability:.0%}" for row in model.fill(text)))
    shown = gather(run, data, fills=numbers.FILLS, sentences=numbers.SENTENCES, attention=numbers.ATTENTION)
    for text, others in shown.neighbours:
        say(f"   {text}\n      nearest: {others[0][0]} (cosine {others[0][1]:.2f})")
    write_bytes(page, render(shown).encode())
    say(f"4. The report: open {page} in a browser.")
    return page
