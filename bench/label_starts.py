"""What pre-training is worth when labels are few: accuracy with 50, 200 and 1,000 labels from three starts.

    python bench/label_starts.py sst-2 --start pretrained --model MODEL --train F --test F --out rows.jsonl
    python bench/label_starts.py --draw rows.jsonl --figure docs/images/few-labels.svg

Starts: random weights of the model's shape, the model, and the model after more masked-LM training on the task's own
text without labels (`firth prepare`, `firth pretrain --from`). Each of five seeds draws other rows.
"""

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import firth  # noqa: E402
from firth import rng  # noqa: E402

SIZES = (50, 200, 1000)
SEEDS = 5
STARTS = ("random", "pretrained", "two-stage")


def main() -> None:
    arguments = _arguments()
    if arguments.draw:
        return draw(arguments.draw, arguments.figure)
    lines = arguments.train.read_text("utf-8").splitlines()
    header, rows = lines[:1], lines[1:]
    for size in SIZES:
        for seed in range(1, SEEDS + 1):
            order = rng.permutation(rng.key("few labels", seed), len(rows))[:size]
            with TemporaryDirectory() as folder:
                train = Path(folder) / f"train{arguments.train.suffix}"
                train.write_text("\n".join([*header, *(rows[i] for i in order)]) + "\n", "utf-8")
                figures = firth.finetune(
                    arguments.model,
                    task="classify",
                    train=train,
                    test=arguments.test,
                    out=Path(folder) / "run",
                    random=arguments.start == "random",
                    changes=[f"train.seed={seed}", "pick=last", "train.checkpoint_every=1000000", *arguments.changes],
                    **({"preset": arguments.preset} if arguments.preset else {}),
                )
            accuracy = figures["tasks"]["classify"]["figures"]["test"]["accuracy"]["mean"]
            row = {"set": arguments.name, "start": arguments.start, "labels": size, "seed": seed, "accuracy": accuracy}
            print(json.dumps(row), flush=True)
            with arguments.out.open("a") as file:
                file.write(json.dumps(row) + "\n")


def draw(source: Path, figure: Path) -> None:
    """Mean and deviation of each start over the number of labels, one panel a data set; prints the table too."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    found: dict[tuple[str, str, int], list[float]] = {}
    for line in source.read_text().splitlines():
        row = json.loads(line)
        found.setdefault((row["set"], row["start"], row["labels"]), []).append(row["accuracy"])
    names = sorted({key[0] for key in found}, reverse=True)
    matplotlib.rcParams["svg.hashsalt"] = "firth"  # the same bytes from the same rows
    page, panels = pyplot.subplots(1, len(names), figsize=(4.2 * len(names), 3.4), sharey=True, squeeze=False)
    for name, panel in zip(names, panels[0], strict=True):
        for start, colour, marker in zip(STARTS, ("#888888", "#0072b2", "#d55e00"), "os^", strict=True):
            values = [found.get((name, start, size), [np.nan]) for size in SIZES]
            means, deviations = [np.mean(v) for v in values], [np.std(v, ddof=1) if len(v) > 1 else 0 for v in values]
            panel.errorbar(SIZES, means, deviations, color=colour, marker=marker, capsize=3, label=start)
            print(name, start, " ".join(f"{m:.3f}±{d:.3f}" for m, d in zip(means, deviations, strict=True)))
        panel.set(title=name, xscale="log", xlabel="labels", xticks=SIZES, xticklabels=SIZES)
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("accuracy")
    panels[0][-1].legend(loc="lower right", frameon=False)
    page.tight_layout()
    figure.parent.mkdir(parents=True, exist_ok=True)
    page.savefig(figure, metadata={"Date": None})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", default="")
    parser.add_argument("--start", choices=STARTS)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--train", type=Path)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--preset", default="")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--changes", nargs="*", default=[])
    return parser.parse_args()


if __name__ == "__main__":
    main()
