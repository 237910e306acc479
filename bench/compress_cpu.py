"""What each compression method makes of a fine-tuned model: size, speed and score, one table a data set.

    python -m bench.compress_cpu sst-2 --model MODEL --seeds 3 --out rows.jsonl
    python -m bench.compress_cpu --show rows.jsonl

For each seed the model is fine-tuned once. Then each method makes a model of it: those that do not train at the
strongest setting that keeps 0.99 of the score (and at fixed settings with --fixed), those that train with their own
settings. `targets` asks for what the project promises: twice as fast at 0.99 of the score, four times at 0.97. What a
search chooses, it chooses on half of the rows for measuring; the table shows the other half. A row that is in the file
is not made again. Sets: sst-2, mrpc, chnsenticorp ($FIRTH_DATA).
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import firth
from bench.table import say
from bench.texts import minilm, unpacked
from firth import compression, models, rng
from firth.checkpoint import load
from firth.compression.compressing import CompressionSummary
from firth.compression.gate import Gate, Subject
from firth.compression.rows import read_rows
from firth.errors import FirthError

KEEP = 0.99
MINILM = "all-MiniLM-L6-v2"


@dataclass(frozen=True)
class DataSet:
    """Where the rows of a set are."""

    archive: str
    train: str
    test: str
    preset: str = ""
    language: str = "en"


SETS = {
    "sst-2": DataSet("en/glue.tar.xz", "SST-2/train.tsv", "SST-2/dev.tsv", "sst-2"),
    "mrpc": DataSet("en/glue.tar.xz", "MRPC/msr_paraphrase_train.txt", "MRPC/msr_paraphrase_test.txt", "mrpc"),
    "chnsenticorp": DataSet("zh/chnsenticorp.tar.xz", "chnsenticorp/train.tsv", "chnsenticorp/test.tsv", language="zh"),
}


@dataclass(frozen=True)
class Plan:
    """One compression: a row of the table."""

    name: str
    by: str
    changes: tuple[str, ...] = ()
    keep: float | None = None
    faster: float | None = None


FIXED = (
    Plan("heads 25 %", "heads", ("remove=0.25",)),
    Plan("heads 50 %", "heads", ("remove=0.5",)),
    Plan("ffn 25 %", "ffn", ("remove=0.25",)),
    Plan("ffn 50 %", "ffn", ("remove=0.5",)),
    Plan("layers, bottom half", "layers"),
    Plan("layers, every second", "layers", ("which=spread",)),
    Plan("low rank 0.95", "low-rank", ("energy=0.95",)),
    Plan("weights of 8 bits", "weights", ("bits=8",)),
    Plan("weights of 4 bits", "weights", ("bits=4",)),
)
TARGETS = ((2.0, 0.99), (4.0, 0.97))
"""Speed and share of the score."""


def main() -> None:
    arguments = _arguments()
    if arguments.show:
        for line in table(_read(arguments.show)):
            print(line)
        return
    data = SETS[arguments.set]
    model = arguments.model or (minilm() if data.language == "en" else models.find("zh-small"))
    label = arguments.label or (MINILM if model == minilm() else model.name)
    with TemporaryDirectory() as name:
        folder = Path(name)
        files = _files(data, folder, arguments.rows)
        for seed in range(1, arguments.seeds + 1):
            tuned = folder / f"tuned-{seed}"
            for plan in plans(arguments.methods, fixed=arguments.fixed, searched=not arguments.no_search):
                key = {"set": arguments.set, "model": label, "plan": plan.name, "seed": seed}
                if any(key.items() <= row.items() for row in _read(arguments.out)):
                    continue
                if not tuned.exists():
                    _finetune(model, files, data, tuned, seed=seed, changes=arguments.changes)
                say(f"{arguments.set}, seed {seed}: {plan.name} ...")
                row = key | measured(plan, tuned, files, folder / f"{seed}-{plan.name}", seed=seed)
                say(json.dumps(row))
                with arguments.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    for line in table(_read(arguments.out)):
        print(line)


def plans(methods: list[str], *, fixed: bool, searched: bool) -> Iterator[Plan]:
    """What is made of every fine-tuned model."""
    for method in compression.TABLE:
        if methods and method not in methods:
            continue
        method_class = compression.resolve(method)
        if fixed:
            yield from (plan for plan in FIXED if plan.by == method)
        has_strengths = "strengths" in vars(method_class)
        if method_class.trains or not has_strengths:
            yield Plan(method, method)
        elif searched:
            yield Plan(f"{method}, keep {KEEP}", method, keep=KEEP)
            for faster, keep in TARGETS:
                yield Plan(f"{method}, {faster:g} × at {keep}", method, keep=keep, faster=faster)


def measured(plan: Plan, tuned: Path, files: Mapping[str, Path], out: Path, *, seed: int) -> dict[str, Any]:
    """The figures of one compression; the reason where it cannot be made."""
    options: dict[str, Any] = {}
    if plan.by == "vocabulary":
        options["vocabulary_from"] = files["train"]
    try:
        summary = firth.compress(
            tuned,
            by=plan.by,
            train=files["train"],
            data=files["picked"],
            out=out,
            keep=plan.keep,
            faster=plan.faster,
            changes=plan.changes,
            seed=seed,
            **options,
        )
    except FirthError as error:
        return {"refused": str(error)}
    return _figures(summary, tuned, out, files["test"], by=plan.by)


def _figures(summary: CompressionSummary, tuned: Path, out: Path, test: Path, *, by: str) -> dict[str, Any]:
    """Size, speed and score on the rows that nothing was chosen on."""
    original = load(tuned)
    rows = read_rows(original, tuned, data=test, train=None, task="", skip_bad=False, learns=False, seed=1)
    gate = Gate(Subject(firth.Model(original), tuned, rows.task), rows.examples["data"])
    opened = compression.resolve(by)(compression.resolve(by).Config()).open(out)
    found = gate.compare(Subject(opened, out, rows.task), by)
    return {
        "strength": summary["strength"],
        "reached": summary["reached"],
        "parameters": found.compressed.parameters / found.original.parameters,
        "megabytes": found.compressed.disk_bytes / 1e6,
        "size": found.compressed.disk_bytes / found.original.disk_bytes,
        "speedup": found.speedup.batches,
        "single": found.speedup.single,
        "metric": found.metric,
        "score": found.compressed.score,
        "original": found.original.score,
        "kept": found.trial.kept,
        "low": found.low,
        "high": found.high,
    }


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Means over the seeds, in Markdown."""
    yield "| set | model | method | strength | MB | size | batches | single | score | original | kept | seeds |"
    yield "|" + "---|" * 12
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["set"], row["model"], row["plan"]), []).append(row)
    for (name, model, plan), group in groups.items():
        if "refused" in group[0]:
            yield f"| {name} | {model} | {plan} | {group[0]['refused']} |" + " |" * 8
            continue
        means = {key: float(np.mean([row[key] for row in group])) for key in ("megabytes", "size", "speedup", "single")}
        scores = [row["score"] for row in group]
        spread = f" ± {np.std(scores, ddof=1):.4f}" if len(scores) > 1 else ""
        original = float(np.mean([row["original"] for row in group]))
        kept = float(np.mean([row["kept"] for row in group]))
        missed = "" if all(row["reached"] for row in group) else " (not reached)"
        yield (
            f"| {name} | {model} | {plan}{missed} | {group[0]['strength']} | {means['megabytes']:.2f} | "
            f"{means['size']:.2f} | {means['speedup']:.2f} × | {means['single']:.2f} × | "
            f"{group[0]['metric']} {np.mean(scores):.4f}{spread} | {original:.4f} | {kept:.4f} | {len(group)} |"
        )


def _finetune(
    model: Path, files: Mapping[str, Path], data: DataSet, out: Path, *, seed: int, changes: list[str]
) -> None:
    options = {"preset": data.preset} if data.preset else {}
    firth.finetune(
        model,
        task="classify",
        train=files["train"],
        out=out,
        changes=[f"train.seed={seed}", *changes],
        device="cpu",
        **options,
    )


def _files(data: DataSet, folder: Path, limit: int) -> dict[str, Path]:
    """The rows to learn from, and two halves of the test rows: one to choose strengths on, one that is shown."""
    train = unpacked(data.archive, data.train, folder)
    test = unpacked(data.archive, data.test, folder)
    header, *train_lines = train.read_text("utf-8-sig").splitlines()
    test_header, *test_lines = test.read_text("utf-8-sig").splitlines()
    train_order = rng.permutation(rng.key("compress: train"), len(train_lines))[: limit or None]
    test_order = rng.permutation(rng.key("compress: test"), len(test_lines))[: limit or None]
    middle = len(test_order) // 2
    parts = {
        "train": (header, [train_lines[row] for row in train_order]),
        "picked": (test_header, [test_lines[row] for row in test_order[:middle]]),
        "test": (test_header, [test_lines[row] for row in test_order[middle:]]),
    }
    files = {}
    for part, (first, lines) in parts.items():
        files[part] = folder / f"{part}.tsv"
        files[part].write_text("\n".join([first, *lines]) + "\n", "utf-8")
    return files


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", nargs="?", choices=SETS, default="sst-2")
    parser.add_argument("--model", type=Path, help="what is fine-tuned; MiniLM, or zh-small for Chinese, unless given")
    parser.add_argument("--label", help="what the table calls the model; its folder's name unless given")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=0, help="use only so many rows of each file, for a rehearsal")
    parser.add_argument("--methods", nargs="*", default=[], help="only these methods")
    parser.add_argument("--fixed", action="store_true", help="also fixed settings")
    parser.add_argument("--no-search", action="store_true", help="no searches")
    parser.add_argument("--changes", nargs="*", default=[], help="settings of fine-tuning, as key=value")
    parser.add_argument("--out", type=Path, default=Path("compress.jsonl"))
    parser.add_argument("--show", type=Path, help="only print the table of this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
