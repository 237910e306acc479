"""The demo, and the server that shows it.

`demo` takes a folder. It asks the models that come with firth, fine-tunes them next to random weights and classic
methods, pre-trains a small BERT from raw text, and leaves all these models and a page. Run again, it continues where it
stopped. `serve` answers over HTTP.
"""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from firth import models as shipped
from firth import pipeline, preparing, samples, starts
from firth.arguments import checked
from firth.config import check_limits
from firth.errors import BadConfig, BadInput, FirthError, Interrupted
from firth.files import MANIFEST, check_writable, write_bytes
from firth.run_folder import is_begun, is_finished
from firth.run_source import REPORT

if TYPE_CHECKING:
    from threading import Event

    from firth.inference.model import Model

log = logging.getLogger(__name__)

DEMO = "demo"
"""The folder of the demo that `serve` serves where no model is named."""
TABLE = "table.txt"
"""The file in the demo's folder from which `docs/generate.py --demo` renews the READMEs."""

# The models that come with firth
FILLS = {
    "en": (
        "The First World [MASK] began in 1914.",
        "Beethoven was a German [MASK].",
        "They have [MASK] married for ten years.",
        "She opened the [MASK] and walked into the house.",
    ),
    "zh": (
        "一年有十二个[MASK]。",
        "上海是一座城[MASK]。",
        "因为下雨，所[MASK]我没有出去。",
        "他病了，所以去[MASK]院看病。",
    ),
}
SENTENCES = {
    "en": (
        "A late goal decided the football game.",
        "The recipe needs flour, butter and two eggs.",
        "The doctor told her to stay in bed.",
        "Our flight from Paris was delayed.",
        "The team won the match in the last minute.",
        "Bake the cake in the oven for forty minutes.",
        "The nurse gave the patient some medicine.",
        "The train to London was an hour late.",
    ),
    "zh": (
        "足球队连续三场比赛获胜。",
        "这道菜要放两个鸡蛋和一点盐。",
        "医生让他卧床休息。",
        "飞机从北京起飞。",
        "主队在最后一分钟赢得了比赛。",
        "把面粉和黄油放进锅里煮。",
        "护士给病人打针吃药。",
        "这列火车开往上海。",
    ),
}
"""The first half are asked about; the second half are on the same subjects, in the same order."""
SEEDS = 2
# More passes would not fit into 4 minutes.
FINE_TUNING = {
    "classify": (*starts.FEW_ROWS, "batch_size=24", "epochs=3", "tasks.classify.pooling=mean"),
    "tag": (*starts.FEW_ROWS, "batch_size=16", "epochs=3"),
}

# The small model
MINUTES = 0.4
SIZE = "tiny"
VOCAB_SIZE = 6000
CHANGES = (
    # Many small steps, no dropout and short sequences: what learns soonest on one megabyte of text.
    "batches.tokens=1024",
    "batches.max_length=64",
    "batches.held_out_rate=0.03",
    "encoder.bert.num_heads=4",
    "encoder.bert.dropout=0.0",
    "encoder.bert.init_std=0.05",
    "objectives.masked_lm.rate=0.2",
    "train.optim.rate=1e-3",
    "train.optim.beta2=0.98",
    "train.log_every=50",
    "train.evaluate_every=500",
    "train.checkpoint_every=1000",
)
SMALL_FILLS = (
    "If the argument is omitted, the function [MASK] None.",
    "Return a [MASK] of all the files in the directory.",
    "Raise an exception if the file does not [MASK].",
    "The default value is [MASK].",
    "这是一个[MASK]好的下午。",
)
SMALL_SENTENCES = (
    "Return the number of items in the list.",
    "Give back how many elements the sequence holds.",
    "Open a connection to the server.",
    "Connect to a remote host over the network.",
    "The rain fell softly on the garden.",
    "春天的雨落在花园里。",
)
ATTENTION = "If the file does not exist, an exception is raised by the function."
# A tiny model learns in many small steps.
SMALL_FINE_TUNING = {
    "classify": (*starts.FEW_ROWS, "batch_size=8", "epochs=10", "tasks.classify.pooling=mean"),
    "tag": (*starts.FEW_ROWS, "batch_size=8", "epochs=20"),
}


@checked
def demo(*, out: str | Path, minutes: float | None = None, seeds: int = 0, tuning: Iterable[str] = ()) -> Path:
    """Shows what the models that come with firth can do, makes a small BERT from the text on this machine, and returns
    the page that shows it.

    `minutes` is the time of pre-training. Each fine-tuning runs `seeds` times, with the changes `tuning`. The defaults
    are at the top of this file. In an installation without models the small BERT is fine-tuned.
    """
    check_limits(minutes=minutes)
    folder = Path(out)
    check_writable(folder)
    with _continued_by_running_again():
        return _demo(folder, minutes or MINUTES, seeds or SEEDS, tuple(tuning))


@contextmanager
def _continued_by_running_again() -> Iterator[None]:
    """The demo resumes by itself, so errors must not tell the user to."""
    try:
        yield
    except Interrupted as error:
        error.remedy = "Run it again to continue."
        raise
    except FirthError as error:
        error.args = (str(error).replace("use `resume=True`", "run it again"),)
        raise


def _demo(folder: Path, minutes: float, seeds: int, tuning: Sequence[str]) -> Path:
    """The steps of the demo. Those that are finished in `folder` are not done again."""
    start_time = time.monotonic()
    is_new = not folder.exists()
    defaults = _default_models()
    if defaults:
        freeze = _ask(defaults)
        table = _compare_starts(folder, defaults, FINE_TUNING, seeds=seeds, tuning=tuning, freeze=freeze)
        page = _make_small_model(folder, minutes)
    else:
        log.info("This installation has no default models, so the demo makes a small one and fine-tunes that.")
        page = _make_small_model(folder, minutes)
        small = dict.fromkeys(samples.LANGUAGES, folder / "run")
        table = _compare_starts(folder, small, SMALL_FINE_TUNING, seeds=seeds, tuning=tuning)
    seconds = round(time.monotonic() - start_time)
    duration = f"{seconds // 60} min {seconds % 60} s"
    if is_new:
        table.append(f"{'all of the demo':<26}{duration}")
        write_bytes(folder / TABLE, "\n".join([*table, ""]).encode())
    log.info(
        f"\nThe demo took {duration}. {page} shows the small model; every fine-tuned folder has a page of its own."
    )
    _say_how_to_serve(folder)
    return page


# The models that come with firth


def _default_models() -> dict[str, str]:
    """The models that come with firth, by language."""
    found: dict[str, str] = {}
    for name in shipped.names():
        language = name.partition("-")[0]
        if language in samples.LANGUAGES:
            found.setdefault(language, name)
    return found


def _ask(models: Mapping[str, str]) -> dict[str, int]:
    """Lets the models fill masks and find the nearest sentences.

    Returns half of the layers of each, by language: the lower half need not learn from few rows, which saves time.
    """
    from firth.inference.model import load
    from firth.report.gather import nearest

    lower_half: dict[str, int] = {}
    for language, name in models.items():
        model = load(name)
        lower_half[language] = model.encoder.num_layers // 2
        log.info(f"\nFill the mask: {name} comes with firth.")
        _show_fills(model, FILLS[language])
        log.info(f"\nThe nearest sentence, by the vectors of {name}.")
        sentences = SENTENCES[language]
        num_questions = len(sentences) // 2
        for text, others in nearest(model, sentences)[:num_questions]:
            _show_nearest(text, others)
    return lower_half


def _show_fills(model: "Model", texts: Sequence[str]) -> None:
    for text in texts:
        candidates = [f"{row.token} {row.probability:.0%}" for row in model.fill(text, top=3)]
        log.info(f"   {text}\n      " + ", ".join(candidates))


def _show_nearest(text: str, others: Sequence[tuple[str, float]]) -> None:
    """Prints the first of `others`, which are sentences and their cosines."""
    sentence, cosine = others[0]
    log.info(f"   {text}\n      nearest: {sentence} (cosine {cosine:.2f})")


def _compare_starts(
    folder: Path,
    models: Mapping[str, str | Path],
    settings: starts.Settings,
    *,
    seeds: int,
    tuning: Sequence[str],
    freeze: Mapping[str, int] | None = None,
) -> list[str]:
    """Fine-tunes the models of all languages, and shows a table of what each start gives."""
    log.info("\nFine-tuning on about 300 labelled rows for each task and language: is pre-training worth anything?")
    changes = {task: (*numbers, *tuning) for task, numbers in settings.items()}
    table = starts.compare(folder, models, changes, seeds=seeds, freeze=freeze)
    log.info(f"{starts.LEGEND}\n   " + "\n   ".join(table))
    return table


# The small model


def _make_small_model(folder: Path, minutes: float) -> Path:
    """Prepares the raw text, pre-trains a small BERT on it, asks it, and returns the page that shows it."""
    data = folder / "data"
    run = folder / "run"
    if not data.exists():
        _prepare(folder, data)
    if not is_finished(run):
        log.info("\nPre-training: a small BERT learns to fill masks and to tell which text follows which.")
        pipeline.pretrain(data, out=run, size=SIZE, minutes=minutes, resume=is_begun(run), changes=CHANGES)
    return _report(folder)


def _prepare(folder: Path, data: Path) -> None:
    from firth.data.health import describe

    log.info("\nPreparing raw text: the standard library's docstrings and the project's own prose become ids.")
    texts = samples.corpus(folder / "text")
    health = preparing.prepare(texts, out=data, vocab_size=VOCAB_SIZE)
    log.info("\n".join(describe(health)))


def _report(folder: Path) -> Path:
    """Asks the small model, and writes the page."""
    from firth.inference.model import load
    from firth.report.gather import gather
    from firth.report.pretraining import render

    run = folder / "run"
    page = folder / REPORT
    log.info("\nAsking the small model, which has seen little text.")
    _show_fills(load(run), SMALL_FILLS)
    report = gather(run, data=folder / "data", fills=SMALL_FILLS, sentences=SMALL_SENTENCES, attention=ATTENTION)
    for text, others in report.neighbours:
        _show_nearest(text, others)
    write_bytes(page, render(report).encode())
    return page


# The page


def _say_how_to_serve(folder: Path) -> None:
    arguments = ""
    if str(folder) != DEMO:  # which is what `firth serve` serves by itself
        # The command line prints `runs=` as its option.
        arguments = f" {' '.join(served_models(folder))} `runs='{folder}'`"
    log.info(f"All models on a page, to try: firth serve{arguments}, then open http://127.0.0.1:8080.")


def served_models(folder: Path) -> list[str]:
    """What there is to serve after a demo: the models that come with firth, and those in its folder."""
    return [*shipped.names(), *_models(folder)]


def _models(folder: Path) -> list[str]:
    """The models that the demo left, as NAME=PATH: the pre-trained one first, then those fine-tuned."""
    models = [f"demo={folder / 'run'}"]
    for task in starts.TASKS:
        for language in samples.LANGUAGES:
            name = f"{task}-{language}"
            if (folder / name / MANIFEST).exists():
                models.append(f"{name}={folder / name}")
    return models


@checked
def serve(
    models: str | Path | Sequence[str | Path] | Mapping[str, str | Path] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    runs: str | Path | None = None,
    index: str | Path | None = None,
    token_file: str | Path | None = None,
    precision: str | None = None,
    limits: Iterable[str] = (),
    workers: int = 1,
    stop: "Event | None" = None,
) -> None:
    """Answers over HTTP until Ctrl-C, SIGTERM, or until another thread sets `stop`. Requests it has taken are finished.

    `models` are folders: {name: folder}, or "name=folder" or folders alone, which are named by their last part.
    Without models it serves those that come with firth, and those of the demo if they are in the folder `demo`.
    `index` is a folder of `firth search build`, for /search. `limits` are changes such as "queued=100". Several
    `workers` are processes that answer on one port; each has these limits, and one that ends is replaced.
    """
    from firth.config import override
    from firth.serving import server
    from firth.serving.limits import Limits

    if workers < 1:
        raise BadConfig(f"workers must be at least 1; it is {workers}.")

    named = _as_arguments(models)
    if not named:
        named = shipped.names()
        if is_finished(Path(DEMO) / "run"):
            named += _models(Path(DEMO))
            runs = runs or DEMO
        if not named:
            raise BadInput("This installation has no models: name a model folder to serve, or run `firth demo` first.")
        shown = ", ".join(name.partition("=")[0] for name in named)
        log.info(f"No model was named: serving {shown}.")
    if workers > 1:
        from firth.serving.workers import serve_many

        run = partial(serve_many, workers=workers)
    else:
        run = partial(server.serve)
    token_path = Path(token_file) if token_file else None
    runs_path = Path(runs) if runs else None
    index_path = Path(index) if index else None
    run(
        server.named_folders(named),
        host=host,
        port=port,
        limits=override(Limits(), limits),
        token=server.read_token(token_path),
        runs=runs_path,
        index=index_path,
        precision=precision,
        stop=stop,
    )


def _as_arguments(models: str | Path | Sequence[str | Path] | Mapping[str, str | Path]) -> list[str]:
    """Models as the command line takes them: NAME=PATH or PATH."""
    if isinstance(models, Mapping):
        return [f"{name}={folder}" for name, folder in models.items()]
    if isinstance(models, str | Path):
        return [str(models)]
    return [str(model) for model in models]
