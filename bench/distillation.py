"""What a teacher is worth: students by several methods and the same student without a teacher, on the same rows.

    python bench/distillation.py --model TEACHER --train F --test F --num-layers 3 --seeds 3 --out rows.jsonl

Prints a row for each method and seed, then for each method the mean score, and the mean difference to the student
without a teacher, paired by seed, with its 95 % interval (Student's t).
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from firth import checkpoint as checkpoints  # noqa: E402
from firth import compression  # noqa: E402
from firth.checkpoint import only_task  # noqa: E402
from firth.compression.method import CompressionJob  # noqa: E402
from firth.finetuning.measuring import evaluate  # noqa: E402
from firth.tasks import scorer_of  # noqa: E402

ALONE = "alone"
"""The student without a teacher: soft labels of weight 0."""
T_VALUES = {2: 12.71, 3: 4.303, 4: 3.182, 5: 2.776}
"""The 97.5 % point of Student's t by the number of seeds."""


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    scores: dict[str, list[float]] = {}
    for name in (ALONE, *arguments.methods):
        for seed in range(1, arguments.seeds + 1):
            began = time.perf_counter()
            score = measure(name, seed, arguments)
            row = {"method": name, "seed": seed, "score": score, "seconds": round(time.perf_counter() - began, 1)}
            print(json.dumps(row), flush=True)
            with arguments.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
            scores.setdefault(name, []).append(score)
    for name, values in scores.items():
        differences = [value - alone for value, alone in zip(values, scores[ALONE], strict=True)]
        line = f"{name:14} {statistics.mean(values):.4f}"
        if name != ALONE and len(values) in T_VALUES:
            reach = T_VALUES[len(values)] * statistics.stdev(differences) / len(values) ** 0.5
            line += f"  difference {statistics.mean(differences):+.4f} +- {reach:.4f}"
        print(line)


def measure(name: str, seed: int, arguments: argparse.Namespace) -> float:
    """The main figure of a student on the test rows."""
    method = compression.resolve("distil" if name == ALONE else name)
    settings: dict[str, object] = {"epochs": arguments.epochs, "num_layers": arguments.num_layers}
    if name == ALONE:
        settings |= {"soft_weight": 0.0, "label_weight": 1.0}
    original = checkpoints.load(arguments.model)
    task, head = only_task(original, arguments.model)
    with TemporaryDirectory() as folder:
        job = CompressionJob(
            model=arguments.model,
            original=original,
            task=task,
            files={"train": arguments.train},
            seed=seed,
            folder=Path(folder) / "work",
        )
        small = method(method.Config(**settings)).compress(job)
        checkpoints.save(Path(folder) / "small", small)
        figures = evaluate(Path(folder) / "small", arguments.test)
    return figures[scorer_of(head).main_metric]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", default=["distil", "pkd", "minilm", "tinybert", "theseus"])
    parser.add_argument("--num-layers", type=int, default=3)
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, required=True)
    return parser.parse_args()


if __name__ == "__main__":
    main()
