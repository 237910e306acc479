"""The contextual lineage learns: every recipe at one size on one file for some minutes, then two tasks from each start.

    python bench/lineage_gpu.py prepare --text wiki-0.txt.xz --work FOLDER
    python bench/lineage_gpu.py pretrain --work FOLDER --out rows.jsonl [--minutes 2] [--at-once 4] [--only bert,gpt]
    python bench/lineage_gpu.py finetune --work FOLDER --out rows.jsonl --data GLUE [--vectors RUN] [--at-once 14]
    python bench/lineage_gpu.py draw --out rows.jsonl --figure docs/images/lineage.svg

Each row is one `firth` command with its figures. The recipes run side by side on one GPU, so a recipe's tokens a
second are those of its share. Word pieces, byte-level BPE and letters have floors of their own, so the figure divides
each loss by its floor: 1 is what a model without context reaches.
"""

import argparse
import json
import lzma
import os
import re
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

TOKENIZERS = {"pieces": "", "bpe": "--tokenizer bpe", "letters": "--tokenizer characters --cased"}
RECIPES = {
    "bert": "pieces", "electra": "pieces", "gpt": "bpe", "elmo": "letters",
    "roberta": "bpe", "spanbert": "pieces", "albert": "pieces", "ulmfit": "pieces",
    "gpt-2": "bpe", "bert-wwm": "pieces", "ernie": "pieces", "distilbert": "pieces",
    "infoword": "bpe", "wklm": "bpe", "mass": "pieces", "t5": "pieces",
    "t5-v1.1": "pieces", "bart": "bpe", "transformer": "pieces", "unilm": "pieces", "xlnet": "pieces",
    "xlm": "pieces",
}  # fmt: skip
TASKS = {"sst-2": ("SST-2", "epochs=2 batch_size=64"), "cola": ("CoLA", "epochs=5")}
PREDICTION = ("masked_lm", "causal_lm", "generator", "mass", "span_corruption", "denoising", "unilm",
              "permutation_lm", "translation_lm")  # fmt: skip
NAMES = {"ernie": "objectives.masked_lm.entities", "wklm": "objectives.entity_replacement.entities"}
"""Recipes that take a list of names, and the setting that it is given to."""


def prepare(arguments: argparse.Namespace) -> None:
    """Three kinds of shards, and names for ernie and wklm: capitalised phrases found twenty times or more."""
    arguments.work.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        for name, words in TOKENIZERS.items():
            out = str(arguments.work / name)
            command = [
                "prepare",
                str(arguments.text),
                "--out",
                out,
                "--processes",
                str(arguments.at_once),
                *words.split(),
            ]
            size = [] if name == "letters" else ["--vocab-size", str(arguments.vocab_size)]
            pool.submit(firth, [*command, *size], {"name": name}, arguments)
        phrases: Counter[str] = Counter()
        with lzma.open(arguments.text, "rt", encoding="utf-8") as file:
            for line in file:
                phrases.update(re.findall(r"(?<=[a-z,] )[A-Z]\w+(?: [A-Z]\w+)+", line))
    frequent = [phrase for phrase, count in phrases.most_common() if count >= 20]
    (arguments.work / "names.txt").write_text("\n".join(frequent) + "\n", "utf-8")


def pretrain(arguments: argparse.Namespace) -> None:
    numbers = [f"batches.tokens={arguments.tokens}", f"batches.workers={arguments.workers}"]
    numbers += ["train.evaluate_every=1000", "train.checkpoint_every=1000000", *arguments.changes]
    limit = ["--steps", str(arguments.steps)] if arguments.steps else ["--minutes", str(arguments.minutes)]
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for recipe in chosen(arguments):
            out = arguments.work / "runs" / recipe
            names = [f"{NAMES[recipe]}={arguments.work / 'names.txt'}"] if recipe in NAMES else []
            command = ["pretrain", str(arguments.work / RECIPES[recipe]), "--recipe", recipe, "--size", arguments.size,
                       *limit, "--out", str(out), *numbers, *names]  # fmt: skip
            pool.submit(firth, command, {"recipe": recipe}, arguments, curve, out)


def finetune(arguments: argparse.Namespace) -> None:
    """Each task from each recipe's model; random weights of four shapes; word vectors as they are and learned on."""
    runs = arguments.work / "runs"
    starts = {recipe: [str(runs / recipe)] for recipe in chosen(arguments) if (runs / recipe / "config.json").exists()}
    starts |= {
        f"{r}, random weights": [str(runs / r), "--random"] for r in ("bert", "gpt-2", "elmo", "ulmfit") if r in starts
    }
    if "ulmfit" in starts:
        starts["ulmfit, its stages"] = [str(runs / "ulmfit"), "--recipe", "ulmfit"]
    if arguments.vectors:
        starts["mean of word vectors"] = [str(arguments.vectors)]
    slow_first = sorted(starts.items(), key=lambda start: not start[0].startswith(("elmo", "ulmfit")))
    with ThreadPoolExecutor(arguments.at_once) as pool:
        for task, (folder, numbers) in TASKS.items():
            for start, words in slow_first:
                out = arguments.work / "tasks" / f"{task}, {start}"
                files = [
                    "--train",
                    str(arguments.data / folder / "train.tsv"),
                    "--test",
                    str(arguments.data / folder / "dev.tsv"),
                ]
                # The stages bring their own numbers, but for the size of a step.
                usual = [n for n in numbers.split() if "--recipe" not in words or n.startswith("batch_size")]
                command = ["finetune", *words, "--task", "classify", "--preset", task, *files, "--out", str(out)]
                command += ["--seeds", str(arguments.seeds), *usual, "train.checkpoint_every=1000000"]
                command += arguments.changes
                pool.submit(firth, command, {"task": task, "start": start}, arguments, figures, out)


def chosen(arguments: argparse.Namespace) -> list[str]:
    return [recipe for recipe in RECIPES if not arguments.only or recipe in arguments.only.split(",")]


def firth(
    command: list[str], row: dict[str, Any], arguments: argparse.Namespace, read: Any = None, out: Any = None
) -> None:
    """Runs the command and appends its row."""
    began = time.time()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-m", "firth", *command], capture_output=True, text=True, env=environment, check=False
    )
    row |= {"seconds": round(time.time() - began, 1), "command": " ".join(command)}
    row |= {"failed": done.stderr[-1500:]} if done.returncode else read(out) if read else {}
    print(
        json.dumps({k: v for k, v in row.items() if k not in ("curve", "command")}, ensure_ascii=False)[:400],
        flush=True,
    )
    if arguments.out:
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")


def curve(run: Path) -> dict[str, Any]:
    """The run's training losses, its last figures on held-out text, its floor and its speed after the warm-up."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    train = [row for row in rows if row["split"] == "train"]
    name = next(name for name in PREDICTION if name in train[-1])
    timing = [json.loads(line) for line in (run / "timing.jsonl").read_text().splitlines()]
    steady = [row["tokens_per_second"] for row in timing[len(timing) // 2 :] if "tokens_per_second" in row]
    held_out = [row for row in rows if row["split"] == "held-out"]
    return {
        "steps": train[-1]["step"],
        "floor": json.loads((run / "firth.json").read_text())["unigram_floor"],
        "tokens_per_second": sorted(steady)[len(steady) // 2],
        "loss": name,
        "curve": [[row["step"], round(row[name], 4)] for row in train],
        "held_out": held_out[-1] if held_out else {},
    }


def figures(run: Path) -> dict[str, Any]:
    ((_, found),) = json.loads((run / "results.json").read_text())["tasks"].items()
    return {"figures": found["figures"]["test"], "by_seed": [seed[found["main"]] for seed in found["by_seed"]["test"]]}


def draw(arguments: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "firth"  # the same bytes from the same rows
    from matplotlib import pyplot

    rows = [json.loads(line) for line in arguments.out.read_text("utf-8").splitlines()]
    page, panel = pyplot.subplots(figsize=(8.4, 4.6))
    colours = pyplot.get_cmap("tab20").colors  # type: ignore[attr-defined]
    curves = [row for row in rows if "curve" in row]
    for number, row in enumerate(sorted(curves, key=lambda row: -row["curve"][-1][1] / row["floor"])):
        steps, losses = zip(*row["curve"], strict=True)
        share = [step / steps[-1] for step in steps]
        label = f"{row['recipe']} ({losses[-1]:.2f} of {row['floor']:.2f})"
        panel.plot(share, [loss / row["floor"] for loss in losses], lw=1.2, color=colours[number], label=label)
    panel.axhline(1, color="black", lw=0.8, ls="--")
    panel.set(xlabel="share of the run", ylabel="loss / unigram floor", ylim=(0.3, 1.3), xlim=(0, 1))
    panel.grid(alpha=0.3)
    panel.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False, fontsize=8)
    page.tight_layout()
    page.savefig(arguments.figure, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("prepare", "pretrain", "finetune", "draw"))
    for name in ("--text", "--work", "--out", "--data", "--vectors", "--figure"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=0, help="instead of minutes")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--vocab-size", type=int, default=30_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=4)
    parser.add_argument("--only", default="")
    parser.add_argument("changes", nargs="*")
    arguments = parser.parse_args()
    {"prepare": prepare, "pretrain": pretrain, "finetune": finetune, "draw": draw}[arguments.stage](arguments)


if __name__ == "__main__":
    main()
