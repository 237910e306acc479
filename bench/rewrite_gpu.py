"""Learning to rewrite on one GPU: translation of Multi30k (BLEU) and titles of CSL abstracts (ROUGE), from any start.

    python -m bench.rewrite_gpu --out RUNS [--only multi30k] [--start MODEL ... [--random]] [--seeds 3] [CHANGES ...]

Without --start a new Transformer is trained with a joint vocabulary of the training rows; each --start is a model
folder (t5, bart, mass, bert ...) that is fine-tuned on the same rows. Prints one line of JSON a run: figures on the
test rows, and minutes. The archives are those of $FIRTH_DATA. A rehearsal on a CPU:

    python -m bench.rewrite_gpu --out /tmp/runs --rows 400 epochs=1 transformer.width=64 transformer.num_layers=1
"""

import argparse
import gzip
import json
import time
from dataclasses import dataclass
from pathlib import Path

import firth
from bench.texts import unpacked
from firth.files import read_json

RAW = "mt/multi30k/data/task1/raw"
CSL_TEST = 1000
"""The last training rows, which are measured on: the archive has only rows for training and picking."""


@dataclass(frozen=True)
class Rows:
    """The files of a set, and what its runs are told."""

    train: Path
    dev: Path
    test: Path
    options: dict[str, object]
    changes: tuple[str, ...]
    figures: tuple[str, ...]
    """What is printed of the figures on test."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("changes", nargs="*", help="settings of the runs, such as epochs=40 train.optim.rate=1e-3")
    parser.add_argument("--out", type=Path, required=True, help="folder for the runs")
    parser.add_argument("--only", choices=["multi30k", "csl"], action="append", help="one set; may be repeated")
    parser.add_argument("--start", type=Path, action="append", default=[], help="a model folder; may be repeated")
    parser.add_argument("--random", action="store_true", help="new weights in the shape of each start")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=0, help="use only the first rows, to rehearse")
    parser.add_argument("--device", default=None)
    arguments = parser.parse_args()
    if arguments.random and not arguments.start:
        parser.error("--random goes with --start: without a start all weights are new")
    arguments.out.mkdir(parents=True, exist_ok=True)
    makers = {"multi30k": multi30k, "csl": csl}
    for name in arguments.only or makers:
        rows = makers[name](arguments.out / f"{name}-rows", arguments.rows)
        for start in arguments.start or [None]:
            run(name, rows, start, arguments)


def run(name: str, rows: Rows, start: Path | None, arguments: argparse.Namespace) -> None:
    """One run, and its line."""
    start_name = start.name if start else "transformer"
    if arguments.random:
        start_name += "-random"
    out = arguments.out / f"{name}-{start_name}"
    begun = time.monotonic()
    firth.finetune(
        start,
        task="rewrite",
        train=rows.train,
        dev=rows.dev,
        test=rows.test,
        out=out,
        seeds=arguments.seeds,
        random=arguments.random,
        device=arguments.device,
        changes=(*rows.changes, *(NEW_CHANGES if start is None else ()), *arguments.changes),
        **rows.options,
    )
    results = read_json(out / "results.json")
    figures = results["tasks"]["rewrite"]["figures"]["test"]
    shown = {figure: figures[figure] for figure in rows.figures}
    minutes = (time.monotonic() - begun) / 60
    print(json.dumps({"set": name, "start": start_name, "minutes": round(minutes, 2), "test": shown}), flush=True)


NEW_CHANGES = (
    "epochs=40",
    "batch_size=128",
    "train.optim.rate=5e-3",
    "train.optim.schedule=inverse-sqrt",
    "train.optim.beta2=0.98",
    "train.optim.warmup_rate=0.2",
    "transformer.width=128",
    "transformer.num_layers=4",
    "transformer.num_heads=4",
    "transformer.ffn_width=256",
    "transformer.dropout=0.3",
)
"""A small Transformer for a small set: without strong dropout it learns 29,000 sentences by heart."""


def multi30k(folder: Path, limit: int) -> Rows:
    """English to German: 29,000 captions to learn from, test2016 to measure on."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for part, name in (("train", "train"), ("dev", "val"), ("test", "test_2016_flickr")):
        for language in ("en", "de"):
            packed = unpacked("en/multi30k.tar.xz", f"{RAW}/{name}.{language}.gz", folder)
            lines = gzip.decompress(packed.read_bytes()).decode().splitlines()
            if limit:
                lines = lines[: limit if part == "train" else max(limit // 10, 4)]
            path = folder / f"{part}.{language}"
            path.write_text("\n".join(lines) + "\n", "utf-8")
            paths[part, language] = path
    return Rows(
        train=paths["train", "en"],
        dev=paths["dev", "en"],
        test=paths["test", "en"],
        options={"target_ending": "de"},
        changes=("batch_size=128", "pick=best"),
        figures=("bleu", "chrf"),
    )


def csl(folder: Path, limit: int) -> Rows:
    """Chinese abstracts to titles: 9,000 to learn from, 1,000 to pick on, 1,000 to measure on."""
    folder.mkdir(parents=True, exist_ok=True)
    train = unpacked("zh/csl_summary.tar.xz", "csl_summary/train.tsv", folder)
    dev = unpacked("zh/csl_summary.tar.xz", "csl_summary/val.tsv", folder)
    lines = train.read_text("utf-8").splitlines()
    parts = {"train": lines[:-CSL_TEST], "test": lines[-CSL_TEST:], "dev": dev.read_text("utf-8").splitlines()}
    paths = {}
    for part, rows in parts.items():
        kept = rows[: limit if part == "train" else max(limit // 10, 4)] if limit else rows
        paths[part] = folder / f"{part}.rows.tsv"
        paths[part].write_text("\n".join(kept) + "\n", "utf-8")
    return Rows(
        train=paths["train"],
        dev=paths["dev"],
        test=paths["test"],
        # A row is title, then abstract.
        options={"text_column": "2", "label_columns": ["1"], "metric": "rouge", "max_tokens": 48, "no_repeat_ngram": 4},
        changes=("batch_size=64",),
        figures=("rouge1", "rouge2", "rougeL", "bleu"),
    )


if __name__ == "__main__":
    main()
