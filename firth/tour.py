"""The demo, and the server that shows it.

`demo` takes a folder and leaves prepared text, a small pre-trained BERT, models fine-tuned from it and from random
weights, and a page. Run again, it continues where it stopped. `serve` answers over HTTP.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from firth import models as shipped
from firth import pipeline
from firth.errors import BadInput, FirthError, Interrupted
from firth.files import MANIFEST, write_bytes
from firth.run_folder import REPORT, is_begun, is_finished

if TYPE_CHECKING:
    from threading import Event

    from firth.finetuning.figures import TaskSummary

log = logging.getLogger(__name__)

DEMO = "demo"
"""The folder of the demo that `serve` serves where no model is named."""
MINUTES = 3.0
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
TASKS = {"classify": "classify", "tag": "entities"}
"""What it is fine-tuned for, and the embedded set of each."""
SEEDS = 3
# Few rows: small batches for more steps, the last weights, and few rows spent on picking.
FEW_ROWS = ("batch_size=8", "pick=last", "held_out_rate=0.05")
FINE_TUNING = {
    "classify": (*FEW_ROWS, "epochs=20", "tasks.classify.pooling=mean"),
    "tag": (*FEW_ROWS, "epochs=40"),
}
"""Changes of each task, the same for both starts."""
FILLS = (
    "If the argument is omitted, the function [MASK] None.",
    "Return a [MASK] of all the files in the directory.",
    "Raise an exception if the file does not [MASK].",
    "The default value is [MASK].",
    "这是一个[MASK]好的下午。",
)
SENTENCES = (
    "Return the number of items in the list.",
    "Give back how many elements the sequence holds.",
    "Open a connection to the server.",
    "Connect to a remote host over the network.",
    "The rain fell softly on the garden.",
    "春天的雨落在花园里。",
)
ATTENTION = "If the file does not exist, an exception is raised by the function."
STARTS = {"pre-trained": "", "random": "random"}
"""The two starts of every fine-tuning, and the folder of each in the demo's."""


def demo(*, out: str | Path, minutes: float | None = None, seeds: int = 0, tuning: Iterable[str] = ()) -> Path:
    """Makes a small BERT from the text on this machine, measures what it is worth, and returns the page that shows it.

    `minutes` is the time of pre-training. Each fine-tuning runs `seeds` times, with the changes `tuning`. The defaults
    are at the top of this file.
    """
    with _continued_by_running_again():
        return _demo(Path(out), minutes or MINUTES, seeds or SEEDS, tuple(tuning))


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
    data = folder / "data"
    run = folder / "run"
    if not data.exists():
        _prepare(folder, data)
    if not is_finished(run):
        log.info("2. Pre-training: a small BERT learns to fill masks and to tell which text follows which.")
        pipeline.pretrain(data, out=run, size=SIZE, minutes=minutes, resume=is_begun(run), changes=CHANGES)
    page = _report(folder)
    log.info("4. Fine-tuning: is that worth anything? The same network learns from it and from random weights.")
    rows = _compare_starts(folder, seeds, tuning)
    log.info("   Mean and deviation over the seeds, on rows that no training saw:\n   " + "\n   ".join(rows))
    log.info(f"5. The report: open {page} in a browser; every fine-tuned folder has one of its own.")
    arguments = ""
    if str(folder) != DEMO:  # which is what `firth serve` serves by itself
        # The command line prints `runs=` as its option.
        arguments = f" {' '.join(_models(folder))} `runs='{folder}'`"
    log.info(f"6. All of it on a page, to try: firth serve{arguments}, then open http://127.0.0.1:8080.")
    return page


def _prepare(folder: Path, data: Path) -> None:
    from firth import samples
    from firth.data.health import describe

    log.info("1. Preparing: the standard library's docstrings and the project's own prose become ids.")
    texts = samples.corpus(folder / "text")
    health = pipeline.prepare(texts, out=data, vocab_size=VOCAB_SIZE)
    log.info("\n".join(describe(health)))


def _report(folder: Path) -> Path:
    """Asks the pre-trained model, and writes the page."""
    from firth.inference.model import load
    from firth.report.gather import gather
    from firth.report.pretraining import render

    run = folder / "run"
    page = folder / REPORT
    log.info("3. Asking it: fill the mask.")
    model = load(run)
    for text in FILLS:
        candidates = [f"{row.token} {row.probability:.0%}" for row in model.fill(text)]
        log.info(f"   {text}\n      " + ", ".join(candidates))
    report = gather(run, data=folder / "data", fills=FILLS, sentences=SENTENCES, attention=ATTENTION)
    for text, others in report.neighbours:
        nearest, cosine = others[0]
        log.info(f"   {text}\n      nearest: {nearest} (cosine {cosine:.2f})")
    write_bytes(page, render(report).encode())
    return page


def _compare_starts(folder: Path, seeds: int, tuning: Sequence[str]) -> list[str]:
    """A table as lines: for each task and language, figures on rows that no training saw, from both starts."""
    from firth import samples

    names = "".join(f" {start:<17}" for start in STARTS)
    rows = [f"{'':<14} {'test rows':>9}  {'figure':<9}{names} majority"]
    for task, kind in TASKS.items():
        for language in samples.LANGUAGES:
            # The demo's own split: the test rows are those that no training sees.
            train, test = samples.split_train_test(kind, language, folder / "labelled")
            results = {}
            for start, subfolder in STARTS.items():
                out = folder / subfolder / f"{task}-{language}"
                summary = pipeline.finetune(
                    folder / "run",
                    task=task,
                    train=train,
                    test=test,
                    out=out,
                    random=start == "random",
                    seeds=seeds,
                    changes=(*FINE_TUNING[task], *tuning),
                    resume=is_begun(out),
                )
                results[start] = summary["tasks"][task]
            rows.append(_row(f"{task}, {language}", results))
    return rows


def _row(name: str, results: "Mapping[str, TaskSummary]") -> str:
    """A line of the table; `results` are those of one task, by start."""
    from firth.finetuning.figures import format_spread

    figures = ""
    for result in results.values():
        figure = result["figures"]["test"][result["main"]]
        figures += f" {format_spread(figure):<17}"
    # The rows, the main metric and the majority baseline are the same for both starts.
    one = results["pre-trained"]
    main = one["main"]
    majority = one["baseline"]["test"][main]
    return f"{name:<14} {one['rows']['test']:>9}  {main:<9}{figures} {majority:.4f}"


def _models(folder: Path) -> list[str]:
    """The models that the demo left, as NAME=PATH: the pre-trained one first, then those fine-tuned from it."""
    from firth import samples

    models = [f"demo={folder / 'run'}"]
    for task in TASKS:
        for language in samples.LANGUAGES:
            name = f"{task}-{language}"
            if (folder / name / MANIFEST).exists():
                models.append(f"{name}={folder / name}")
    return models


def serve(
    models: str | Path | Sequence[str | Path] | Mapping[str, str | Path] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    runs: str | Path | None = None,
    token_file: str | Path | None = None,
    precision: str | None = None,
    limits: Iterable[str] = (),
    stop: "Event | None" = None,
) -> None:
    """Answers over HTTP until Ctrl-C, SIGTERM, or until another thread sets `stop`. Requests it has taken are finished.

    `models` are folders: {name: folder}, or "name=folder" or folders alone, which are named by their last part.
    Without models it serves those that come with firth, and those of the demo if they are in the folder `demo`.
    `limits` are changes such as "queued=100".
    """
    from firth.config import override
    from firth.serving import server
    from firth.serving.limits import Limits

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
    server.serve(
        server.named_folders(named),
        host=host,
        port=port,
        limits=override(Limits(), limits),
        token=server.read_token(Path(token_file) if token_file else None),
        runs=Path(runs) if runs else None,
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
