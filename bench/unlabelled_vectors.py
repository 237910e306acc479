"""Sentence vectors without labels: STS-B before and after each method, from a model that comes with firth.

    python -m bench.unlabelled_vectors en --text TEXT.txt --dev sts-dev.tsv --test sts-test.tsv --work W --steps 200

The methods train the whole encoder on the same text for as many steps: the same sentence twice with dropout (SimCSE),
neighbouring sentences, neighbouring runs of text, and TSDAE (the recipe `tsdae` as it is). Vectors are means over the
tokens. The vector head, which leaves the encoder as it is, is the model's own. Prints one JSON object a row; methods
that are in W already are only measured.
"""

import argparse
import json
from pathlib import Path

import numpy as np

import firth
from firth import metrics

CONTRASTIVE = 'objectives={{"contrastive": {{"unit": "{unit}", "positives": "{positives}", "pooling": "mean"}}}}'
DROPOUT = "encoder.bert.dropout=0.1"
METHODS: dict[str, tuple[str, ...]] = {
    "simcse": (CONTRASTIVE.format(unit="sentence", positives="same"), DROPOUT),
    "neighbouring sentences": (CONTRASTIVE.format(unit="sentence", positives="neighbour"),),
    "neighbouring runs": (CONTRASTIVE.format(unit="run", positives="neighbour"),),
    "tsdae": (),
}
"""The settings of each method."""
RATE = 1e-4
"""Of the contrastive methods; TSDAE has its own rates."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("language", choices=("en", "zh"))
    for name in ("text", "dev", "test", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of a step")
    parser.add_argument("--only", nargs="*", default=list(METHODS), choices=METHODS)
    given = parser.parse_args()
    name = f"{given.language}-small"
    given.work.mkdir(parents=True, exist_ok=True)
    shards = given.work / f"{name}-shards"
    if not shards.exists():
        firth.prepare(given.text, tokenizer=name, out=shards)
    files = (given.dev, given.test)
    show(f"{name}, mean over the tokens", firth.load(name), files, pooling="mean")
    show(f"{name}, vector head", firth.load(name), files, pooling=None)
    for method in given.only:
        run = given.work / f"{name}-{method.replace(' ', '-')}"
        if not (run / "manifest.json").exists():
            train(name, method, shards, run, given)
        show(f"{name}, {method}", firth.load(run), files, pooling="mean")


def train(name: str, method: str, shards: Path, out: Path, given: argparse.Namespace) -> None:
    """Trains a model with one method."""
    changes = [*METHODS[method], f"batches.tokens={given.tokens}", "batches.max_length=128"]
    recipe = None
    if method == "tsdae":
        recipe = "tsdae"
    else:
        changes.append(f"train.optim.rate={RATE}")
    firth.pretrain(shards, out=out, recipe=recipe, start_from=name, steps=given.steps, changes=changes, device="cpu")


def show(name: str, model: firth.Model, files: tuple[Path, ...], pooling: str | None) -> None:
    """Prints the rank correlation of cosines and scores, in hundredths."""
    row: dict[str, float] = {}
    for path in files:
        first, second, scores = pairs_of(path)
        first_ND = model.embed(first, pooling=pooling, normalise=True)
        second_ND = model.embed(second, pooling=pooling, normalise=True)
        cosines_N = (first_ND * second_ND).sum(1)
        row[path.stem] = round(100 * metrics.spearman(cosines_N, np.array(scores)), 2)
    print(json.dumps({"vectors": name, **row}), flush=True)


def pairs_of(path: Path) -> tuple[list[str], list[str], list[float]]:
    """The texts and scores of an STS-B file: the English one has four columns before the score, the Chinese none."""
    first: list[str] = []
    second: list[str] = []
    scores: list[float] = []
    for line in path.read_text("utf-8").splitlines():
        cells = line.split("\t")
        if path.suffix == ".tsv":
            _, _, _, _, score, text, other = cells[:7]
        else:
            text, other, score = cells[:3]
        first.append(text)
        second.append(other)
        scores.append(float(score))
    return first, second, scores


if __name__ == "__main__":
    main()
