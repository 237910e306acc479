"""Short texts by their words alone: Spearman on STS-B of SimHash and of the models named, in English or Chinese.

    python bench/short_texts.py FILE --columns 6 7 5 [--models RUN ...]

FILE has one pair a line, parted by tabs; the columns are those of the two texts and of the score, counted from 1.
Models are compared by the cosine of `embed`'s vectors.
"""

import argparse
from pathlib import Path

import numpy as np

import firth
from firth import metrics
from firth.data.simhash import BITS, distance, fingerprint


def read(path: Path, columns: list[int]) -> tuple[list[str], list[str], list[float]]:
    rows = [line.rstrip("\n").split("\t") for line in path.open(encoding="utf-8")]
    first, second, gold = ([row[column - 1] for row in rows] for column in columns)
    return first, second, [float(value) for value in gold]


def simhash(first: list[str], second: list[str], *, shingle: int) -> list[float]:
    marks = [[fingerprint(text, shingle=shingle) for text in side] for side in (first, second)]
    return [1 - distance(a, b) / BITS for a, b in zip(*marks, strict=True)]


def cosines(model: Path, first: list[str], second: list[str]) -> np.ndarray:
    a, b = (firth.load(model).embed(side, normalise=True) for side in (first, second))
    return np.einsum("nd,nd->n", a, b)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--columns", type=int, nargs=3, required=True)
    parser.add_argument("--models", type=Path, nargs="*", default=[])
    asked = parser.parse_args()
    first, second, gold = read(asked.file, asked.columns)
    print(f"| {asked.file.name}, {len(gold):,} pairs | Spearman |\n|---|---|")
    for shingle in (1, 2):
        said = simhash(first, second, shingle=shingle)
        print(f"| SimHash, runs of {shingle} word(s) | {metrics.spearman(gold, said):.3f} |")
    for model in asked.models:
        print(f"| {model.name} | {metrics.spearman(gold, cosines(model, first, second)):.3f} |")


if __name__ == "__main__":
    main()
