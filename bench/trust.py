"""Answers people can trust: the tables of the guide, one row of JSON for each run.

    python bench/trust.py calibration --name sst-2 --model en-small --train F --test F --out rows.jsonl
    python bench/trust.py labels --name sst-2 --model en-small --train F --rows 5000 --way vectors --out rows.jsonl
    python bench/trust.py explain --name sst-2 --run RUN --test F --rows 200 --out rows.jsonl
    python bench/trust.py table rows.jsonl

calibration: fine-tunes, and gives the expected calibration error on the test rows before and after the temperature that
was fitted on held-out training rows. labels: flips 5 % of the labels and gives precision and recall of the rows that
`firth check --deep` lists, beside cleanlab on the same probabilities and by its usual recipe (scikit-learn's
cross-validated logistic regression on the same vectors). explain: how much the label's probability falls if the five
words with the largest weights are deleted, beside five random words.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import firth  # noqa: E402
from firth import models, rng  # noqa: E402
from firth.config import from_dict  # noqa: E402
from firth.finetuning import labelled  # noqa: E402
from firth.inference.explaining import Explanation, WordWeight  # noqa: E402
from firth.tasks import resolve  # noqa: E402
from firth.trust.label_errors import held_out_rows, suspicious  # noqa: E402
from firth.trust.label_noise import estimate_noise  # noqa: E402

TOP = 5
"""Words that are deleted."""


def main() -> None:
    arguments = _arguments()
    if arguments.command == "table":
        return table(arguments.rows_file)
    commands: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
        "calibration": calibration,
        "labels": labels,
        "explain": explain,
    }
    row = {"table": arguments.command, "name": arguments.name, **commands[arguments.command](arguments)}
    print(json.dumps(row), flush=True)
    if arguments.out:
        with arguments.out.open("a") as file:
            file.write(json.dumps(row) + "\n")


def _options(arguments: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if arguments.preset:
        options["preset"] = arguments.preset
    if arguments.text_column:
        options["text_column"] = arguments.text_column
    if arguments.label_column:
        options["label_columns"] = [arguments.label_column]
    return options


def calibration(arguments: argparse.Namespace) -> dict[str, Any]:
    """The calibration error on test before and after, with its temperature."""
    with TemporaryDirectory() as folder:
        summary = firth.finetune(
            arguments.model,
            task="classify",
            train=arguments.train,
            test=arguments.test,
            out=Path(folder) / "run",
            changes=arguments.changes,
            **_options(arguments),
        )
    task = summary["tasks"]["classify"]
    found = task["calibration"]
    return {
        "accuracy": task["figures"]["test"]["accuracy"]["mean"],
        "temperature": found["temperature"],
        "before": found["before"]["test"],
        "after": found["after"]["test"],
        "test_rows": task["rows"]["test"],
    }


def labels(arguments: argparse.Namespace) -> dict[str, Any]:
    """Precision and recall of flipped labels, beside cleanlab."""
    config = from_dict(resolve("classify").Config, _options(arguments))
    data = labelled.read("classify", config, {"train": arguments.train})
    key = rng.key("flipped labels", arguments.seed)
    examples = [data.examples["train"][i] for i in rng.permutation(key, len(data.examples["train"]))[: arguments.rows]]
    (names,) = data.labels.values()
    chosen = set(rng.permutation(rng.key("which rows", arguments.seed), len(examples))[: round(0.05 * len(examples))])
    changed = []
    for place, example in enumerate(examples):
        gold = example.gold
        if place in chosen:
            others = [name for name in names if name != gold]
            gold = others[int(rng.below(key, len(others), place, 0))]
        changed.append(type(example)(example.texts, gold, place + 1))
    flipped = labelled.Labelled(data.config, data.labels, {"train": changed})
    began = time.perf_counter()
    rows = held_out_rows("classify", flipped, model=models.find(arguments.model), way=arguments.way)
    ours = suspicious(estimate_noise(rows.probabilities_NT, rows.labels_N))
    seconds = time.perf_counter() - began
    found: dict[str, Any] = {
        "way": arguments.way,
        "rows": len(examples),
        "accuracy": float((rows.probabilities_NT.argmax(1) == rows.labels_N).mean()),
        "seconds": seconds,
        "firth": _precision_recall(ours, chosen),
    }
    from cleanlab.filter import find_label_issues
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    same = find_label_issues(rows.labels_N, rows.probabilities_NT, return_indices_ranked_by="self_confidence", n_jobs=1)
    found["cleanlab_same_probabilities"] = _precision_recall(same.tolist(), chosen)
    began = time.perf_counter()
    probabilities = cross_val_predict(
        LogisticRegression(max_iter=400), rows.vectors_ND, rows.labels_N, cv=5, method="predict_proba"
    )
    usual = find_label_issues(rows.labels_N, probabilities, return_indices_ranked_by="self_confidence", n_jobs=1)
    found["cleanlab_usual"] = _precision_recall(usual.tolist(), chosen)
    found["cleanlab_usual_seconds"] = time.perf_counter() - began  # without the vectors
    return found


def _precision_recall(found: Sequence[int], wrong: set[int]) -> dict[str, float]:
    """Of all rows found, and precision of the first as many as there are wrong ones."""
    right = len(wrong.intersection(found))
    first = len(wrong.intersection(found[: len(wrong)]))
    precision = right / max(len(found), 1)
    recall = right / max(len(wrong), 1)
    return {
        "found": len(found),
        "precision": precision,
        "recall": recall,
        "f1": 2 * precision * recall / max(precision + recall, 1e-9),
        "precision_at_n": first / max(len(wrong), 1),
    }


def explain(arguments: argparse.Namespace) -> dict[str, Any]:
    """The mean fall of the label's probability after deleting the top words of each method."""
    model = firth.load(arguments.run)
    examples = model.read_examples(arguments.test, **_options(arguments))
    order = rng.permutation(rng.key("explained rows"), len(examples))[: arguments.rows]
    chosen = [examples[i] for i in order.tolist()]
    falls: dict[str, float] = {}
    seconds: dict[str, float] = {}
    by_method: dict[str, list[Explanation]] = {}
    for method in ("gradients", "occlusion"):
        began = time.perf_counter()
        by_method[method] = model.explain_examples(chosen, by=method)  # type: ignore[arg-type]
        seconds[method] = (time.perf_counter() - began) / len(chosen)
    for method in ("gradients", "occlusion", "random"):
        source = by_method.get(method, by_method["gradients"])
        shortened = []
        for number, (example, found) in enumerate(zip(chosen, source, strict=True)):
            words = sorted(found.words, key=lambda word: -word.weight)[:TOP]
            if method == "random":
                places = rng.permutation(rng.key("random words", number), len(found.words))[:TOP]
                words = [found.words[place] for place in places.tolist()]
            shortened.append(type(example)((_without(example.texts[0], words), *example.texts[1:]), None, example.row))
        after = model.predict_examples(shortened)
        drops = [
            found.probability - prediction.probabilities[found.label]
            for found, prediction in zip(source, after, strict=True)
        ]
        falls[method] = float(np.mean(drops))
    return {"rows": len(chosen), "falls": falls, "seconds_per_text": seconds}


def _without(text: str, words: Sequence[WordWeight]) -> str:
    """The text without some words of it."""
    for word in sorted(words, key=lambda word: -word.start):
        if word.text == 0:
            text = text[: word.start] + text[word.end :]
    return text


def table(path: Path) -> None:
    """The rows as Markdown tables."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    heads = {
        "calibration": "| set | accuracy | temperature | error before | error after |\n|---|---|---|---|---|",
        "labels": "| set | way | who | precision | recall | precision at n |\n|---|---|---|---|---|---|",
        "explain": "| set | gradients | occlusion | random words |\n|---|---|---|---|",
    }
    for kind, head in heads.items():
        own = [row for row in rows if row["table"] == kind]
        if not own:
            continue
        print(f"\n{head}")
        for row in own:
            for cells in _cells(kind, row):
                print(f"| {' | '.join(cells)} |")


def _cells(kind: str, row: dict[str, Any]) -> list[list[str]]:
    if kind == "calibration":
        return [[row["name"], *(f"{row[key]:.3f}" for key in ("accuracy", "temperature", "before", "after"))]]
    if kind == "explain":
        return [[row["name"], *(f"{row['falls'][key]:.3f}" for key in ("gradients", "occlusion", "random"))]]
    cells = []
    for who in ("firth", "cleanlab_same_probabilities", "cleanlab_usual"):
        figures = [f"{row[who][key]:.3f}" for key in ("precision", "recall", "precision_at_n")]
        cells.append([row["name"], row["way"], who.replace("_", " "), *figures])
    return cells


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("calibration", "labels", "explain"):
        one = commands.add_parser(name)
        one.add_argument("--name", required=True)
        one.add_argument("--model", default="en-small")
        one.add_argument("--run", type=Path)
        one.add_argument("--train", type=Path)
        one.add_argument("--test", type=Path)
        one.add_argument("--preset", default="")
        one.add_argument("--text-column", default="")
        one.add_argument("--label-column", default="")
        one.add_argument("--rows", type=int, default=2000)
        one.add_argument("--way", default="vectors")
        one.add_argument("--seed", type=int, default=1)
        one.add_argument("--out", type=Path)
        one.add_argument("changes", nargs="*")
    commands.add_parser("table").add_argument("rows_file", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
