"""The tour: the whole house on the text that every machine has, and the door through which others see it.

`demo` takes a folder and leaves prepared text, a small pre-trained BERT, models fine-tuned from it and, beside them,
from random weights, and a page; run again, it goes on where it stopped. `serve` answers over HTTP.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from firth import pipeline
from firth.console import say
from firth.errors import FirthError, Interrupted
from firth.files import MANIFEST, write_bytes

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
    """From the text every machine has to a small BERT, what it is worth, and a page that shows it; gives the page.

    `tuning` are changes of the fine-tunings, each with so many `seeds`; the usual numbers are at the top of this file.
    """
    with _run_again():
        return _demo(Path(out), minutes, seeds, tuning)


@contextmanager
def _run_again() -> Iterator[None]:
    """The tour has no --resume: it goes on by itself."""
    try:
        yield
    except Interrupted as error:
        error.remedy = "Run it again to continue."
        raise
    except FirthError as error:
        error.args = (str(error).replace("use --resume", "run it again"),)
        raise


def _demo(folder: Path, minutes: float | None, seeds: int, tuning: Iterable[str]) -> Path:
    from firth import samples
    from firth.data.health import describe
    from firth.run_folder import is_begun

    data, run = folder / "data", folder / "run"
    if not data.exists():
        say("1. Preparing: the standard library's docstrings and the project's own prose become ids.")
        health = pipeline.prepare(samples.corpus(folder / "text"), out=data, vocab_size=VOCAB_SIZE)
        say("\n".join(describe(health)))
    if not (run / MANIFEST).exists():
        say("2. Pre-training: a small BERT learns to fill masks and to tell which text follows which.")
        limits: dict[str, Any] = {"minutes": minutes or MINUTES, "size": SIZE}
        pipeline.pretrain(data, out=run, resume=is_begun(run), changes=CHANGES, **limits)
    page = _report(folder)
    say("4. Fine-tuning: is that worth anything? The same network learns from it and from random weights.")
    rows = list(_compared(folder, seeds or SEEDS, tuning))
    say("   Mean and deviation over the seeds, on rows that no training saw:\n   " + "\n   ".join(rows))
    say(f"5. The report: open {page} in a browser; every fine-tuned folder has one of its own.")
    here = "" if str(folder) == "demo" else f" {' '.join(_models(folder))} --runs {folder}"
    say(f"6. All of it on a page, to try: firth serve{here}, then open http://127.0.0.1:8080.")
    return page


def _report(folder: Path) -> Path:
    """Asks the pre-trained model, and writes the page."""
    from firth.inference.model import load
    from firth.report.gather import gather
    from firth.report.pretraining import render

    run, page = folder / "run", folder / "report.html"
    say("3. Asking it: fill the mask.")
    model = load(run)
    for text in FILLS:
        say(f"   {text}\n      " + ", ".join(f"{row.token} {row.probability:.0%}" for row in model.fill(text)))
    shown = gather(run, data=folder / "data", fills=FILLS, sentences=SENTENCES, attention=ATTENTION)
    for text, others in shown.neighbours:
        say(f"   {text}\n      nearest: {others[0][0]} (cosine {others[0][1]:.2f})")
    write_bytes(page, render(shown).encode())
    return page


def _compared(folder: Path, seeds: int, tuning: Iterable[str]) -> Iterator[str]:
    """A line for each task and language: figures on rows that no training saw, from both starts."""
    from firth import samples
    from firth.run_folder import is_begun

    yield f"{'':<14} {'test rows':>9}  {'figure':<9}" + "".join(f" {start:<17}" for start in STARTS) + " majority"
    for task, kind in TASKS.items():
        for language in samples.LANGUAGES:
            train, test = samples.parted(kind, language, folder / "labelled")
            found: dict[str, Mapping[str, Any]] = {}
            for start, inner in STARTS.items():
                out = folder / inner / f"{task}-{language}"
                found[start] = pipeline.finetune(
                    folder / "run",
                    task=task,
                    train=train,
                    test=test,
                    out=out,
                    random=start == "random",
                    seeds=seeds,
                    changes=(*FINE_TUNING[task], *tuning),
                    resume=is_begun(out),
                )["tasks"][task]
            yield _row(f"{task}, {language}", found)


def _row(name: str, found: Mapping[str, Mapping[str, Any]]) -> str:
    from firth.finetuning.figures import spoken

    one = found["pre-trained"]
    figures = "".join(f" {spoken(row['figures']['test'][row['main']]):<17}" for row in found.values())
    return f"{name:<14} {one['rows']['test']:>9}  {one['main']:<9}{figures} {one['baseline']['test'][one['main']]:.4f}"


def _models(folder: Path) -> list[str]:
    """What the demo left, as NAME=PATH: the pre-trained model first, then those fine-tuned from it."""
    from firth import samples

    tuned = [f"{task}-{language}" for task in TASKS for language in samples.LANGUAGES]
    there = [name for name in tuned if (folder / name / MANIFEST).exists()]
    return [f"demo={folder / 'run'}", *(f"{name}={folder / name}" for name in there)]


def serve(
    models: Sequence[str] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    runs: str | Path | None = None,
    token_file: str | Path | None = None,
    precision: str = "fp32",
    limits: Iterable[str] = (),
) -> None:
    """Answers over HTTP until it is told to stop; without models it serves the demo's, which it makes if need be."""
    from firth.config import override
    from firth.serving import server
    from firth.serving.limits import Limits

    if not models:
        if not (Path("demo/run") / MANIFEST).exists():
            demo(out="demo")
        models, runs = _models(Path("demo")), runs or "demo"
    server.serve(
        server.named_folders(models),
        host=host,
        port=port,
        limits=override(Limits(), limits),
        token=server.read_token(Path(token_file) if token_file else None),
        runs=Path(runs) if runs else None,
        precision=precision,
    )
