"""A finished run's folder, its data and some questions in; what the page of a pre-training run shows out."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from firth.data.shards import Shards
from firth.inference.model import Model, load
from firth.report.pretraining import PretrainingReport, Ranked
from firth.train.journal import read_rows


def gather(
    run: Path, data: Path, *, fills: Sequence[str], sentences: Sequence[str], attention: str
) -> PretrainingReport:
    """Loads the model of `run` and asks it everything the page shows.

    `fills` are texts with [MASK], `sentences` are compared with each other, and the attention is shown on one sentence.
    """
    model = load(run)
    shards = Shards.open(data, verify=False)
    return PretrainingReport(
        title="A BERT from raw text",
        facts=_facts(model, run),
        metrics=read_rows(run / "metrics.jsonl"),
        unigram_floor=model.checkpoint.info["unigram_floor"],
        health=shards.info["health"],
        fills=_filled(model, fills),
        neighbours=nearest(model, sentences),
        attention=model.attention(attention),
    )


def _facts(model: Model, run: Path) -> dict[str, object]:
    """The key facts at the top of the page."""
    trained = model.checkpoint.info
    seconds = sum(row["seconds"] for row in read_rows(run / "timing.jsonl"))
    # A run that was stopped before its first record has no timing.
    speed = 0
    if seconds:
        speed = round(trained["tokens"] / seconds)
    return {
        "Recipe": f"{trained['recipe']} {trained['size']}",
        "Parameters": model.num_parameters,
        "Steps": trained["steps"],
        "Tokens seen": trained["tokens"],
        "Minutes": round(seconds / 60, 1),
        "Tokens a second": speed,
    }


def _filled(model: Model, texts: Sequence[str]) -> Ranked:
    """For each text with [MASK] the likeliest tokens and their probabilities."""
    filled = []
    for text in texts:
        candidates = [(row.token, row.probability) for row in model.fill(text)]
        filled.append((text, candidates))
    return filled


def nearest(model: Model, sentences: Sequence[str], *, top: int = 3) -> Ranked:
    """For each sentence the others most like it, by the cosine of their centred vectors.

    Raw vectors of a young model all point in nearly the same direction. That common part says nothing about a
    sentence, so the mean is subtracted first.
    """
    vectors = model.embed(sentences)
    vectors = vectors - vectors.mean(0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    # Sentences x sentences.
    cosines = vectors @ vectors.T
    # A sentence is not its own neighbour.
    np.fill_diagonal(cosines, -np.inf)
    ranks = np.argsort(-cosines, axis=1)[:, :top]
    found = []
    for i, text in enumerate(sentences):
        neighbours = [(sentences[j], float(cosines[i, j])) for j in ranks[i]]
        found.append((text, neighbours))
    return found
