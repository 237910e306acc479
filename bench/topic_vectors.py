"""Do vectors know what sentences are about? The share of the embedded topic sentences whose nearest is on their topic.

    python -m bench.topic_vectors en MODEL ...        or zh

Prints it for each model and pooling: none (the model's own vectors), `tokens` (a vector head without the encoder),
`mean` and `cls`.
"""

import csv
import sys
from pathlib import Path

import numpy as np

import firth
from firth import samples
from firth.errors import BadConfig

POOLINGS = (None, "tokens", "mean", "cls")


def read_topics(language: str) -> tuple[list[str], np.ndarray]:
    """The sentences and their topics."""
    path = Path(samples.__file__).with_name(f"topics.{language}.tsv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return [row["text"] for row in rows], np.array([row["label"] for row in rows])


def share_on_topic(vectors_ND: np.ndarray, topics_N: np.ndarray) -> float:
    """The share of the sentences whose nearest one, by cosine, is on the same topic."""
    cosines_NN = vectors_ND @ vectors_ND.T
    np.fill_diagonal(cosines_NN, -np.inf)
    nearest_N = cosines_NN.argmax(1)
    return float((topics_N[nearest_N] == topics_N).mean())


def main() -> None:
    language, *folders = sys.argv[1:]
    texts, topics_N = read_topics(language)
    for folder in folders:
        model = firth.load(folder)
        for pooling in POOLINGS:
            try:
                vectors_ND = model.embed(texts, pooling=pooling, normalise=True)
            except BadConfig:  # no vector head
                continue
            print(f"{folder} {pooling or 'as it is'}: {share_on_topic(vectors_ND, topics_N):.1%}", flush=True)


if __name__ == "__main__":
    main()
