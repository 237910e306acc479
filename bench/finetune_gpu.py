"""The tables of fine-tuning in docs/results.md: public data sets, several seeds, many runs side by side on one GPU.

    python bench/finetune_gpu.py --data $FIRTH_DATA_UNPACKED --english MODEL --chinese MODEL --out rows.jsonl \
        [--only cola,mrpc] [--at-once 12] [--seeds 5] [--no-random] [--split-seeds]
    python bench/finetune_gpu.py --table --out rows.jsonl

Every row is one `firth finetune` command, printed with its figures; `random` rows are the same command with --random.
The data folder holds the unpacked archives, `squadshifts.json` (the three files of SQuADShifts in one) and
`pd-words.txt` (People's Daily without its tags).
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ENGLISH: dict[str, str] = {
    "cola": "--task classify --preset cola --train CoLA/train.tsv --test CoLA/dev.tsv --seeds 5",
    "sst-2": "--task classify --preset sst-2 --train SST-2/train.tsv --test SST-2/dev.tsv --seeds 3 epochs=2",
    "mrpc": "--task classify --preset mrpc --train MRPC/msr_paraphrase_train.txt --test MRPC/msr_paraphrase_test.txt"
    " --seeds 5",
    "stsb": "--task classify --preset stsb --train STS-B/original/sts-train.tsv --dev STS-B/original/sts-dev.tsv"
    " --test STS-B/original/sts-test.tsv --seeds 5",
    "rte": "--task classify --preset rte --train RTE/train.tsv --test RTE/dev.tsv --seeds 5",
    "stsb-siamese": "--task compare --preset stsb --train STS-B/original/sts-train.tsv"
    " --dev STS-B/original/sts-dev.tsv --test STS-B/original/sts-test.tsv --seeds 5 tasks.compare.way=siamese",
    "stsb-cross": "--task compare --preset stsb --train STS-B/original/sts-train.tsv"
    " --dev STS-B/original/sts-dev.tsv --test STS-B/original/sts-test.tsv --seeds 5 tasks.compare.way=cross",
    "conll-softmax": "--task tag --train ner/conll2003/eng.train --dev ner/conll2003/eng.testa"
    " --test ner/conll2003/eng.testb --seeds 3 tasks.tag.tagger=softmax",
    "conll-crf": "--task tag --train ner/conll2003/eng.train --dev ner/conll2003/eng.testa"
    " --test ner/conll2003/eng.testb --seeds 3 tasks.tag.tagger=crf",
    "squad": "--task answer --train squadshifts.json --test qa/squad_dev_from_explorer/dev-v1.1.reconstructed.json"
    " --seeds 2 epochs=2 max_length=384 --skip-bad",
    "dream": "--task choose --train multiple_choice/DREAM/data/train.json --dev multiple_choice/DREAM/data/dev.json"
    " --test multiple_choice/DREAM/data/test.json --seeds 3 batch_size=16",
    "goemotions": "--task classify --kind many --text-column 1 --label-column 2"
    " --label-names multilabel/goemotions/data/original/labels.txt"
    " --train multilabel/goemotions/data/original/train.tsv --dev multilabel/goemotions/data/original/dev.tsv"
    " --test multilabel/goemotions/data/original/test.tsv --seeds 3",
}
CHINESE: dict[str, str] = {
    "chnsenticorp": "--task classify --train chnsenticorp/train.tsv --dev chnsenticorp/dev.tsv"
    " --test chnsenticorp/test.tsv --seeds 3",
    "tnews": "--task classify --train tnews/tnews_public/train.json --test tnews/tnews_public/test.json --seeds 3"
    " epochs=2",
    "stsb-zh": "--task compare --text-column 1 --second-column 2 --label-column 3"
    " --train pairs/Chinese-STS-B/sts-b-train.txt --dev pairs/Chinese-STS-B/sts-b-dev.txt"
    " --test pairs/Chinese-STS-B/sts-b-test.txt --seeds 5 tasks.compare.way=cross",
    "stsb-zh-siamese": "--task compare --text-column 1 --second-column 2 --label-column 3"
    " --train pairs/Chinese-STS-B/sts-b-train.txt --dev pairs/Chinese-STS-B/sts-b-dev.txt"
    " --test pairs/Chinese-STS-B/sts-b-test.txt --seeds 5 tasks.compare.way=siamese",
    "afqmc": "--task classify --text-column 1 --second-column 2 --label-column 3 --train pairs/AFQMC/train.txt"
    " --test pairs/AFQMC/dev.txt --seeds 3",
    "msra": "--task tag --train ner_msra_ymcui/train.txt --test ner_msra_ymcui/dev.txt --skip-bad"
    " --seeds 2 epochs=2 tasks.tag.tagger=softmax",
    "msra-crf": "--task tag --train ner_msra_ymcui/train.txt --test ner_msra_ymcui/dev.txt --skip-bad"
    " --seeds 2 epochs=2 tasks.tag.tagger=crf",
    "cmrc": "--task answer --train cmrc2018/train.json --test cmrc2018/dev.json --seeds 2 epochs=2 --skip-bad",
    "pku": "--task tag --train pd-words.txt --test icwb2/gold/pku_test_gold.utf8 --seeds 2 epochs=2"
    " held_out_rate=0.01 tasks.tag.format=words tasks.tag.tagger=softmax",
    "pku-crf": "--task tag --train pd-words.txt --test icwb2/gold/pku_test_gold.utf8 --seeds 2 epochs=2"
    " held_out_rate=0.01 tasks.tag.format=words tasks.tag.tagger=crf",
    "sxu": "--task tag --train sxu/train.txt --test sxu/test.txt --seeds 2 epochs=2 held_out_rate=0.01"
    " tasks.tag.format=words tasks.tag.tagger=softmax",
    "sxu-crf": "--task tag --train sxu/train.txt --test sxu/test.txt --seeds 2 epochs=2 held_out_rate=0.01"
    " tasks.tag.format=words tasks.tag.tagger=crf",
}
SLOW = ("msra", "squad", "pku", "sxu", "cmrc", "conll", "tnews", "goemotions", "sst-2")
"""These begin first, so that no core waits for a straggler at the end."""


def jobs(arguments: argparse.Namespace) -> list[tuple[str, list[str]]]:
    """Every command by name, pre-trained and with random weights."""
    rows = []
    for model, table in ((arguments.english, ENGLISH), (arguments.chinese, CHINESE)):
        if model is None:
            continue
        for name, line in table.items():
            words = [str(arguments.data / word) if "/" in word or word.endswith((".json", ".txt")) else word
                     for word in line.split()]  # fmt: skip
            at = words.index("--seeds")
            if arguments.seeds:
                words[at + 1] = str(arguments.seeds)
            if arguments.split_seeds:
                for seed in range(1, int(words[at + 1]) + 1):
                    one_seed = [*words[:at], *words[at + 2 :], f"train.seed={seed}"]
                    rows.append((name, [str(model), *one_seed]))
            else:
                rows.append((name, [str(model), *words]))
            if arguments.random and not name.endswith(("-crf", "-siamese")):
                rows.append((f"{name}, random", [str(model), *words[:at], "--random", *words[at + 2 :]]))
    chosen = [row for row in rows if not arguments.only or row[0].split(",")[0] in arguments.only.split(",")]
    chosen = [row for row in chosen if row[0] not in arguments.skip.split(";")]
    return sorted(chosen, key=lambda row: not row[0].startswith(SLOW))


def run(name: str, words: list[str], out: Path, arguments: argparse.Namespace) -> None:
    # A saved state for every 500 steps is for runs of hours.
    command = [sys.executable, "-m", "firth", "finetune", *words, "--out", str(out), "train.checkpoint_every=1000000"]
    command += arguments.changes
    began = time.time()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    row: dict[str, Any] = {"name": name, "seconds": round(time.time() - began, 1), "command": " ".join(words)}
    if done.returncode:
        row["failed"] = done.stderr[-600:]
    else:
        found = json.loads((out / "results.json").read_text())
        ((task, figures),) = found["tasks"].items()
        part = "test" if "test" in figures["figures"] else "dev"
        row |= {"task": task, "part": part, "figures": figures["figures"][part], "baseline": figures["baseline"][part]}
        row["by_seed"] = [seed.get(figures["main"]) for seed in figures["by_seed"][part]]
    print(json.dumps(row, ensure_ascii=False), flush=True)
    with arguments.out.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row, ensure_ascii=False) + "\n")


def print_table(path: Path) -> None:
    """One line a set: mean and deviation over its seeds of the figure that it is judged by, and the others' means."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        by_name.setdefault(row["name"], []).append(row)
    print("| set | seeds | by seed | mean | deviation | all figures |")
    print("|---|---|---|---|---|---|")
    for name, rows in sorted(by_name.items()):
        done = [row for row in rows if "failed" not in row]
        by_seed = [score for row in done for score in row["by_seed"]]
        if not by_seed:
            print(f"| {name} | failed | | | | {rows[0]['failed'][-100:]!r} |")
            continue
        deviation = statistics.stdev(by_seed) if len(by_seed) > 1 else 0.0
        others = []
        for figure, value in done[0]["figures"].items():
            if isinstance(value, dict):
                mean = statistics.mean(row["figures"][figure]["mean"] for row in done)
                others.append(f"{figure} {100 * mean:.1f}")
        seeds = " ".join(f"{100 * score:.1f}" for score in sorted(by_seed))
        mean = statistics.mean(by_seed)
        print(f"| {name} | {len(by_seed)} | {seeds} | {100 * mean:.1f} | {100 * deviation:.1f} | {', '.join(others)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder of unpacked sets")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--english", type=Path, help="a model for the English sets; without it they are left out")
    parser.add_argument("--chinese", type=Path, help="a model for the Chinese sets; without it they are left out")
    parser.add_argument("--seeds", type=int, default=0, help="seeds of every row instead of those of the tables")
    parser.add_argument("--no-random", dest="random", action="store_false", help="no rows with random weights")
    parser.add_argument("--split-seeds", action="store_true", help="every seed is a process of its own")
    parser.add_argument("--table", action="store_true", help="only print a table of the rows in --out")
    parser.add_argument("--only", default="")
    parser.add_argument("--skip", default="", help="whole names of rows, with ; between them")
    parser.add_argument("--at-once", type=int, default=12)
    parser.add_argument("changes", nargs="*", help="changes for every run, such as epochs=0.1")
    arguments = parser.parse_args()
    if arguments.table:
        print_table(arguments.out)
        return
    if arguments.data is None:
        parser.error("--data is missing")
    with TemporaryDirectory() as folder, ThreadPoolExecutor(arguments.at_once) as pool:
        for number, (name, words) in enumerate(jobs(arguments)):
            pool.submit(run, name, words, Path(folder) / str(number), arguments)


if __name__ == "__main__":
    main()
