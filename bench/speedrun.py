"""The speedrun: how good a small model gets in a few minutes of one GPU. Paired trials, then the score of each.

    python bench/speedrun.py --data SHARDS --glue GLUE --work FOLDER --out rows.jsonl --trials muon,adamw \
        [--steps 1500 | --minutes 8] [--at-once 2] [--tasks cola,mrpc,stsb,rte] [--seeds 3] [CHANGES ...]

Each trial is `firth pretrain --recipe small` with the changes that `TRIALS` names, followed by `firth finetune` on each
task. A row holds the held-out figures, the tokens a second, and the score of every seed. Trials that run side by side
share the GPU, so compare them by steps and not by minutes.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MASKED = 'objectives={"masked_lm": {"rate": 0.3, "pair_rate": 0.9}}'
DETECTION = "objectives.replaced_token."
ONLY_DETECTION = (f"{DETECTION}kept_masks=0", f"{DETECTION}corrective_weight=0", f"{DETECTION}masking.rate=0.15")
FEW_MASKS = (f"{DETECTION}kept_masks=0.3", f"{DETECTION}corrective_weight=1", f"{DETECTION}masking.rate=0.2")
NARROW = '{"width": 64, "num_layers": 12, "num_heads": 1, "ffn_width": 256}'
CONTRASTIVE = (
    'objectives={"contrastive": {"pooling": "mean", "weight": 3.0, "pair_rate": 0.9}, "replaced_token": {'
    '"generator": {"width": 256, "num_layers": 4, "num_heads": 4, "ffn_width": 1024}, "corrective_weight": 1.0, '
    '"kept_masks": 0.3, "masking": {"mask_share": 0.85, "random_share": 0.0, "rate": 0.2, "pair_rate": 0.9}}}'
)
TRIALS: dict[str, tuple[str, tuple[str, ...]]] = {
    "small": ("12x256", ()),
    "detection-only": ("12x256", ONLY_DETECTION),
    "corrective-1": ("12x256", (f"{DETECTION}corrective_weight=1",)),
    "adamw": ("12x256", ("train.optim.optimizer=adamw",)),
    "adamw-5e-4": ("12x256", ("train.optim.optimizer=adamw", "train.optim.rate=5e-4")),
    "muon-5e-4": ("12x256", ("train.optim.rate=5e-4",)),
    "muon-2e-3": ("12x256", ("train.optim.rate=2e-3",)),
    "normal-init": ("12x256", ("encoder.bert.init=normal",)),
    "narrow-generator": ("12x256", (f"{DETECTION}generator={NARROW}",)),
    "half-step": ("12x256", ("batches.tokens=32768",)),
    "mask-20": ("12x256", (f"{DETECTION}masking.rate=0.2",)),
    "weight-10": ("12x256", (f"{DETECTION}weight=10",)),
    "dropout": ("12x256", ("encoder.bert.dropout=0.1",)),
    "8x384": ("8x384", ()),
    "8x384-fast": ("8x384", ("train.optim.rate=1.5e-3",)),
    "8x384-sentences": ("8x384", ("train.optim.rate=1.5e-3", f"{DETECTION}masking.sentence_rate=0.2")),
    "few-masks": ("12x256", FEW_MASKS),
    "decay-0.01": ("12x256", ("train.optim.weight_decay=0.01",)),
    "decay-0.3": ("12x256", ("train.optim.weight_decay=0.3",)),
    "decay-1": ("12x256", ("train.optim.weight_decay=1",)),
    "decay-0.3-dropout": ("12x256", ("train.optim.weight_decay=0.3", "encoder.bert.dropout=0.1")),
    "short": ("12x256", ("batches.last_length=0",)),
    "contrastive": ("12x256", (CONTRASTIVE,)),
    "wide": ("12x384", ()),
    "6x512": ("small", ("encoder.bert.num_layers=6", f"{DETECTION}generator.num_layers=2")),
    "masked-lm": ("12x256", (MASKED, "train.optim.rate=2e-3")),
    "masked-lm-decay": ("12x256", (MASKED, "train.optim.rate=1e-3", "train.optim.weight_decay=0.3")),
}
"""By name: the size, and what differs from the recipe `small`."""

CLASSIFY = "--task classify --preset"
STSB = "STS-B/original/sts-"
TASKS = {
    "cola": f"{CLASSIFY} cola --train CoLA/train.tsv --test CoLA/dev.tsv epochs=8",
    "sst-2": f"{CLASSIFY} sst-2 --train SST-2/train.tsv --test SST-2/dev.tsv epochs=2 batch_size=64",
    "mrpc": f"{CLASSIFY} mrpc --train MRPC/msr_paraphrase_train.txt --test MRPC/msr_paraphrase_test.txt epochs=8",
    "stsb": f"{CLASSIFY} stsb --train {STSB}train.tsv --dev {STSB}dev.tsv --test {STSB}test.tsv epochs=8",
    "rte": f"{CLASSIFY} rte --train RTE/train.tsv --test RTE/dev.tsv epochs=10",
    "choose-cola": f"{CLASSIFY} cola --train choose/cola-train.tsv --test choose/cola-test.tsv epochs=5",
    "choose-qqp": f"{CLASSIFY} qqp --train choose/qqp-train.tsv --test choose/qqp-test.tsv epochs=3",
    "choose-qnli": f"{CLASSIFY} qnli --train choose/qnli-train.tsv --test choose/qnli-test.tsv epochs=5",
    "choose-stsb": f"{CLASSIFY} stsb --train {STSB}train.tsv --test {STSB}dev.tsv epochs=5",
    "choose-sst": f"{CLASSIFY} sst-2 --train choose/sst-train.tsv --test choose/sst-test.tsv epochs=2",
    "choose-conll": "--task tag --train choose/conll-train.txt --test choose/conll-test.txt epochs=2"
    " tasks.tag.tagger=softmax",
}
"""Tasks whose names begin with `choose` are for choosing settings. Their test rows are in no reported figure: a tenth
of CoLA's training rows, parts of QQP, of QNLI's development set, of the training rows of SST-2 and of CoNLL-2003, and
the development set of STS-B, whose test set is reported."""
CHOSEN = {
    "cola": ("CoLA/train.tsv", 0, 850, 7_700),
    "qqp": ("QQP/new_dev.tsv", 0, 3_000, 10_000),
    "qnli": ("QNLI/dev.tsv", 1, 1_000, 4_400),
    "sst": ("SST-2/train.tsv", 1, 2_000, 20_000),
}
"""For each: the published file, its header lines, and how many rows become test and training rows."""
CONLL = ("ner/conll2003/eng.train", 1_000, 7_000)
"""The published file, and how many of its sentences become test and training sentences."""


def write_choosing_sets(glue: Path) -> None:
    """Splits published files into training and test rows for choosing settings; every row by a hash of its text."""
    folder = glue / "choose"
    folder.mkdir(exist_ok=True)
    for name, (source, num_headers, num_test, num_train) in CHOSEN.items():
        lines = (glue / source).read_text(encoding="utf-8").splitlines()
        header = lines[:num_headers]
        # A few published rows lack a column or have one too many.
        num_tabs = lines[-1].count("\t")
        whole = [row for row in lines[num_headers:] if row.count("\t") == num_tabs]
        rows = sorted(whole, key=lambda row: hashlib.sha256(row.encode()).digest())
        parts = {"test": rows[:num_test], "train": rows[num_test : num_test + num_train]}
        for part, chosen in parts.items():
            text = "\n".join([*header, *chosen]) + "\n"
            (folder / f"{name}-{part}.tsv").write_text(text, encoding="utf-8")
    source, num_test, num_train = CONLL
    if (glue / source).exists():
        blocks = (glue / source).read_text(encoding="utf-8").split("\n\n")
        sentences = [block.strip("\n") for block in blocks if block.strip() and not block.startswith("-DOCSTART-")]
        sentences.sort(key=lambda block: hashlib.sha256(block.encode()).digest())
        parts = {"test": sentences[:num_test], "train": sentences[num_test : num_test + num_train]}
        for part, chosen in parts.items():
            (folder / f"conll-{part}.txt").write_text("\n\n".join(chosen) + "\n", encoding="utf-8")


def firth(*words: object) -> tuple[float, str]:
    """Runs one command; gives its seconds, and the end of what it said if it failed."""
    began = time.time()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, "-m", "firth", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    return time.time() - began, done.stderr[-1500:] if done.returncode else ""


def pretrain(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    size, changes = TRIALS[name]
    out = arguments.work / name
    limit = ("--steps", arguments.steps) if arguments.steps else ("--minutes", arguments.minutes)
    seconds, failed = firth(
        "pretrain", arguments.data, "--recipe", "small", "--size", size, "--out", out, *limit,
        "train.evaluate_every=1000000", "train.checkpoint_every=1000000", *changes, *arguments.changes,
    )  # fmt: skip
    row: dict[str, Any] = {"trial": name, "seconds": round(seconds, 1), "changes": changes}
    if failed:
        return row | {"failed": failed}
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    timing = [json.loads(line) for line in (out / "timing.jsonl").read_text().splitlines()]
    steady = sorted(step["tokens_per_second"] for step in timing[len(timing) // 2 :])
    held_out = [step for step in rows if step["split"] == "held-out"][-1]
    curve = [step for step in rows if step["split"] == "train"][:: max(1, len(rows) // 12)]
    row["tokens_per_second"] = round(steady[len(steady) // 2])
    row["held_out"] = {key: round(value, 4) for key, value in held_out.items() if isinstance(value, float)}
    row["curve"] = [[step["step"], round(step.get("masked_lm", 0.0), 3)] for step in curve]
    row["steps"] = rows[-1]["step"]
    return row


def finetune(name: str, task: str, arguments: argparse.Namespace) -> dict[str, Any]:
    words = [str(arguments.glue / word) if "/" in word else word for word in TASKS[task].split()]
    out = arguments.work / f"{name}-{task}"
    seconds, failed = firth(
        "finetune", arguments.work / name, *words, "--out", out, "--seeds", arguments.seeds,
        "train.checkpoint_every=1000000", *arguments.finetune,
    )  # fmt: skip
    row: dict[str, Any] = {"trial": name, "task": task, "seconds": round(seconds, 1)}
    if failed:
        return row | {"failed": failed}
    ((_, found),) = json.loads((out / "results.json").read_text())["tasks"].items()
    row["by_seed"] = [round(seed[found["main"]], 4) for seed in found["by_seed"]["test"]]
    row["figures"] = {key: value for key, value in found["figures"]["test"].items() if key != "examples"}
    return row


def report(row: dict[str, Any], arguments: argparse.Namespace) -> None:
    print(json.dumps({key: value for key, value in row.items() if key != "curve"})[:900], flush=True)
    with arguments.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--data", "--glue", "--work", "--out"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--trials", default=",".join(TRIALS))
    parser.add_argument("--tasks", default="cola,sst-2,mrpc,stsb,rte")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--at-once", type=int, default=1, help="pre-training runs side by side")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--finetune", action="append", default=[], help="a change for every fine-tuning run")
    parser.add_argument("changes", nargs="*", help="changes for every pre-training run")
    arguments = parser.parse_args()
    trials = [name for name in arguments.trials.split(",") if name]
    tasks = [name for name in arguments.tasks.split(",") if name]
    if any(task.startswith("choose") for task in tasks):
        write_choosing_sets(arguments.glue)
    with ThreadPoolExecutor(arguments.at_once) as pool:
        new = [name for name in trials if not (arguments.work / name / "config.json").exists()]
        for row in pool.map(lambda name: pretrain(name, arguments), new):
            report(row, arguments)
    with ThreadPoolExecutor(14) as pool:
        jobs = [(name, task) for task in tasks for name in trials]
        for row in pool.map(lambda job: finetune(*job, arguments), jobs):
            report(row, arguments)


if __name__ == "__main__":
    main()
