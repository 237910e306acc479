"""What the precision of a teacher is worth in distillation on a CPU: CPU seconds of whole runs, in turns.

    OMP_NUM_THREADS=1 python -m bench.distil_cpu [--methods distil] [--rounds 2]

`distil`: en-small, fine-tuned on the embedded topics, labels so many paragraphs of the embedded prose, and a student of
one layer learns them and the topics, in the precision of `auto`. The teacher scores rows in fp32, then in the run's
precision. `minilm` and `tinybert`: a student of four layers of en-small learns plain text, 0.3 of the paragraphs, all
in fp32, then all in the precision of `auto`.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import firth
from bench.table import say
from firth import checkpoint as checkpoints
from firth import compression, models, samples
from firth.compression import distil
from firth.compression.method import CompressionJob
from firth.compression.teacher import row_scores

METHODS = ("distil", "minilm", "tinybert")


def main() -> None:
    arguments = _arguments()
    with TemporaryDirectory() as name:
        folder = Path(name)
        fewer = _written(folder / "fewer.txt", round(0.3 * arguments.texts))
        for number in range(arguments.rounds):
            for method in arguments.methods:
                inside = folder / f"{method}-{number}"
                if method == "distil":
                    _rows(inside, _written(folder / "texts.txt", arguments.texts))
                else:
                    _plain_text(method, inside, fewer)


def _rows(folder: Path, texts: Path) -> None:
    rows = samples.labelled("topics", "en")
    teacher = folder / "teacher"
    firth.finetune("en-small", task="classify", train=rows, out=teacher, changes=["epochs=2"], device="cpu")
    settings: dict[str, object] = {"num_layers": 1, "epochs": 1.0, "unlabelled": str(texts)}
    run = partial(_run, "distil", settings=settings, model=teacher, task="classify", rows=rows)
    with patch.object(distil, "row_scores", _in_fp32):
        before = run(folder=folder / "before")
    _report("distil", before, run(folder=folder / "after"))


def _plain_text(method: str, folder: Path, texts: Path) -> None:
    run = partial(_run, method, model=Path(models.find("en-small")), task="", rows=texts)
    settings: dict[str, object] = {"num_layers": 4, "epochs": 1.0}
    before = run(folder=folder / "before", settings={**settings, "precision": "fp32"})
    _report(method, before, run(folder=folder / "after", settings=settings))


def _in_fp32(*arguments: object, precision: str, **options: object) -> object:
    score: Callable[..., object] = row_scores
    return score(*arguments, precision="fp32", **options)


def _run(method: str, *, folder: Path, settings: dict[str, object], model: Path, task: str, rows: Path) -> float:
    """The CPU seconds of one run."""
    job = CompressionJob(model=model, original=checkpoints.load(model), task=task, files={"train": rows}, folder=folder)
    made = compression.resolve(method)
    config = made.Config(**settings)
    began = time.process_time()
    made(config).compress(job)
    return time.process_time() - began


def _report(what: str, before: float, after: float) -> None:
    print(f"{what:<22}{before:8.1f} -> {after:.1f} CPU s ({1 - after / before:.0%} less)", flush=True)


def _written(path: Path, count: int) -> Path:
    """The first paragraphs of the embedded prose, one on each line."""
    lines: list[str] = []
    for document in samples.documents("en"):
        lines += [line[:400] for line in document.splitlines() if len(line) > 40]
    path.write_text("\n".join(lines[:count]) + "\n", "utf-8")
    say(f"{len(lines[:count])} paragraphs")
    return path


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
