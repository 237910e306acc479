"""Few labels: accuracy and seconds with 8, 16, 50 and 200 labels of each class, beside SetFit over the same model.

    python -m bench.few_labels sst-2 --model MINILM --out rows.jsonl             # 5 seeds, all sizes and ways
    python -m bench.few_labels chnsenticorp --model M3E --out rows.jsonl --sizes 8 16 --seeds 2 --ways contrast setfit
    python -m bench.few_labels --table rows.jsonl

Each seed draws other rows; every way learns from the same ones. The seconds are those from files to a saved model, as
wall time and as the process's CPU time, which other processes disturb less. SetFit runs by its published recipe (20
pairs of each kind for a row, one epoch, batches of 16, rate 2e-5, a logistic regression). Sets are read from
$FIRTH_DATA. SST-2's figures are those of its development file, ChnSentiCorp's those of its test file. A row that the
output file has is not measured again, so a stopped run goes on.
"""

import argparse
import io
import json
import os
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import firth
from firth import rng

SIZES = (8, 16, 50, 200)
SEEDS = 5
ITERATIONS = 20
"""Pairs of each kind that SetFit draws for a row."""
SETFIT_RATE = 2e-5


@dataclass(frozen=True)
class Set:
    """Where a set is, and how it is asked about."""

    archive: str
    train: str
    test: str
    model: str
    pattern: str
    words: str


SETS = {
    "sst-2": Set(
        "en/glue.tar.xz",
        "SST-2/train.tsv",
        "SST-2/dev.tsv",
        "en-small",
        "{text} It was [MASK].",
        "1=great/good/wonderful/excellent,0=terrible/bad/awful/poor",
    ),
    "chnsenticorp": Set(
        "zh/chnsenticorp.tar.xz",
        "chnsenticorp/train.tsv",
        "chnsenticorp/test.tsv",
        "zh-small",
        "{text} 总之很[MASK]。",
        "1=好/棒,0=差/糟",
    ),
}

Rows = list[tuple[str, str]]
"""Texts with their labels."""
Row = dict[str, str | int | float]
"""A line of the output file."""


@dataclass(frozen=True)
class Job:
    """What all ways get."""

    chosen: Set
    model: str
    max_length: int
    train: Path
    test: Path
    folder: Path
    seed: int


def main() -> None:
    arguments = _arguments()
    if arguments.table:
        return show(arguments.table)
    chosen = SETS[arguments.name]
    train, test = read(chosen)
    if arguments.characters:
        train = cut(train, arguments.characters)
        test = cut(test, arguments.characters)
    test = sample(test, arguments.test_rows)
    for size in arguments.sizes:
        for seed in range(1, arguments.seeds + 1):
            for way in arguments.ways:
                _measure(arguments, draw(train, size, seed), test, size=size, seed=seed, way=way)
    show(arguments.out)


def _measure(arguments: argparse.Namespace, train: Rows, test: Rows, *, size: int, seed: int, way: str) -> None:
    chosen = SETS[arguments.name]
    model = arguments.model or chosen.model
    row: Row = {"set": arguments.name, "base": Path(model).name, "way": way, "size": size, "seed": seed}
    if any(row.items() <= known.items() for known in measured(arguments.out)):
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = Job(chosen, model, arguments.max_length, folder / "train.tsv", folder / "test.tsv", folder, seed)
        write(job.train, train)
        write(job.test, test)
        accuracy, wall, cpu = WAYS[way](job)
    row |= {"accuracy": accuracy, "wall": wall, "cpu": cpu, "test_rows": len(test), "characters": arguments.characters}
    print(json.dumps(row), flush=True)
    with arguments.out.open("a") as file:
        file.write(json.dumps(row) + "\n")


def measured(path: Path) -> list[Row]:
    """The rows of the output file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


# Data


def read(chosen: Set) -> tuple[Rows, Rows]:
    """The rows of the training file and of the file that is reported."""
    path = Path(os.environ["FIRTH_DATA"]) / chosen.archive
    with tarfile.open(path) as archive:
        return _member(archive, chosen.train), _member(archive, chosen.test)


def _member(archive: tarfile.TarFile, name: str) -> Rows:
    file = archive.extractfile(name)
    assert file is not None
    header, *lines = io.TextIOWrapper(file, "utf-8").read().split("\n")
    label = header.split("\t").index("label")
    rows = []
    for line in lines:
        cells = line.split("\t")
        if len(cells) == 2:
            rows.append((cells[1 - label].strip(), cells[label].strip()))
    return rows


def draw(rows: Rows, size: int, seed: int) -> Rows:
    """So many rows of each label."""
    drawn: Rows = []
    for label in sorted({gold for _, gold in rows}):
        own = [row for row in rows if row[1] == label]
        order = rng.permutation(rng.key("few labels", seed, label), len(own))
        drawn += [own[i] for i in order[:size]]
    return drawn


def cut(rows: Rows, characters: int) -> Rows:
    """The beginnings of the texts: firth would read a long text in windows, SetFit only its beginning."""
    return [(text[:characters], label) for text, label in rows]


def sample(rows: Rows, count: int) -> Rows:
    """So many rows, the same in every run; 0 takes all."""
    if not count:
        return rows
    order = rng.permutation(rng.key("few labels", "test rows"), len(rows))
    return [rows[i] for i in order[:count]]


def write(path: Path, rows: Rows) -> None:
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows), "utf-8")


# The ways


def _firth(few: str) -> Callable[[Job], tuple[float, float, float]]:
    def learn(job: Job) -> tuple[float, float, float]:
        words = {"label_words": job.chosen.words, "pattern": job.chosen.pattern} if few in ("prompt", "choose") else {}
        wall, cpu = time.perf_counter(), time.process_time()
        firth.finetune(
            job.model,
            task="classify",
            train=job.train,
            out=job.folder / "run",
            few=few,
            device="cpu",
            changes=[f"train.seed={job.seed}", f"max_length={job.max_length}"],
            **words,
        )
        seconds = time.perf_counter() - wall, time.process_time() - cpu
        return firth.evaluate(job.folder / "run", data=job.test)["accuracy"], *seconds

    return learn


def zero_shot(job: Job) -> tuple[float, float, float]:
    words = {"label_words": job.chosen.words, "pattern": job.chosen.pattern}
    return firth.evaluate(job.model, data=job.test, task="prompt", **words)["accuracy"], 0.0, 0.0


def setfit(job: Job) -> tuple[float, float, float]:
    import datasets
    from setfit import SetFitModel, Trainer, TrainingArguments

    datasets.disable_progress_bars()
    base = job.folder / "base"
    _sentence_transformer(job, base)
    train = _pairs_of(job.train)
    wall, cpu = time.perf_counter(), time.process_time()
    model = SetFitModel.from_pretrained(str(base))
    settings = TrainingArguments(
        batch_size=16,
        num_epochs=1,
        num_iterations=ITERATIONS,
        body_learning_rate=SETFIT_RATE,
        seed=job.seed,
        output_dir=str(job.folder / "setfit"),
        save_strategy="no",
        report_to="none",
        show_progress_bar=False,
    )
    rows = datasets.Dataset.from_dict({"text": [text for text, _ in train], "label": [int(gold) for _, gold in train]})
    Trainer(model=model, args=settings, train_dataset=rows).train()
    model.save_pretrained(str(job.folder / "setfit-model"))
    seconds = time.perf_counter() - wall, time.process_time() - cpu
    test = _pairs_of(job.test)
    answers = model.predict([text for text, _ in test], show_progress_bar=False)
    right = [int(answer) == int(gold) for answer, (_, gold) in zip(answers, test, strict=True)]
    return float(np.mean(right)), *seconds


def _sentence_transformer(job: Job, folder: Path) -> None:
    """The same model as a sentence-transformers folder; one that is none yet gets mean pooling."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers import models as modules

    if (Path(job.model) / "modules.json").exists():
        sentences = SentenceTransformer(job.model, device="cpu")
    else:
        plain = folder.with_name("plain")
        firth.load(job.model).save(plain)
        reader = modules.Transformer(str(plain))
        pooling = modules.Pooling(reader.get_word_embedding_dimension())
        sentences = SentenceTransformer(modules=[reader, pooling], device="cpu")
    sentences.max_seq_length = job.max_length
    sentences.save(str(folder))


def _pairs_of(path: Path) -> Rows:
    lines = path.read_text("utf-8").split("\n")[1:-1]
    return [(text, label) for text, _, label in (line.rpartition("\t") for line in lines)]


WAYS: dict[str, Callable[[Job], tuple[float, float, float]]] = {
    "zero-shot": zero_shot,
    "plain": _firth("plain"),
    "contrast": _firth("contrast"),
    "prompt": _firth("prompt"),
    "choose": _firth("choose"),
    "setfit": setfit,
}


# The table


def show(path: Path) -> None:
    """Mean and deviation of the accuracy, and the mean CPU seconds, of every way and size."""
    found: dict[tuple[str, str, str], dict[int, list[Row]]] = {}
    for row in measured(path):
        key = (str(row["set"]), str(row["base"]), str(row["way"]))
        found.setdefault(key, {}).setdefault(int(row["size"]), []).append(row)
    sizes = sorted({size for by_size in found.values() for size in by_size})
    print("| set | base | way | " + " | ".join(f"{size} a label" for size in sizes) + " |")
    print("|---|---|---|" + "---|" * len(sizes))
    for key, by_size in found.items():
        cells = [_cell(by_size.get(size, ())) for size in sizes]
        print("| " + " | ".join([*key, *cells]) + " |")


def _cell(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    values = [100 * float(row["accuracy"]) for row in rows]
    deviation = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    cpu = np.mean([float(row["cpu"]) for row in rows])
    seeds = "" if len(rows) == SEEDS else f", {len(rows)} seeds"
    return f"{np.mean(values):.1f}{deviation}, {cpu:.0f} s{seeds}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="sst-2", choices=SETS)
    parser.add_argument("--model", default="", help="the base; without it the model that comes with firth")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--ways", nargs="+", default=[way for way in WAYS if way != "choose"], choices=WAYS)
    parser.add_argument("--test-rows", type=int, default=0, help="measure on a fixed sample of so many rows")
    parser.add_argument("--max-length", type=int, default=128, help="tokens of a text that all ways read")
    parser.add_argument("--characters", type=int, default=0, help="keep only the beginning of every text; 0: all of it")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("few_labels.jsonl"))
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    return arguments


if __name__ == "__main__":
    main()
