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
    model, shards = load(run), Shards.open(data, verify=False)
    trained = model.checkpoint.info
    seconds = sum(row["seconds"] for row in read_rows(run / "timing.jsonl"))
    facts = {
        "Recipe": f"{trained['recipe']} {trained['size']}",
        "Parameters": model.num_parameters,
        "Steps": trained["steps"],
        "Tokens seen": trained["tokens"],
        "Minutes": round(seconds / 60, 1),
        "Tokens a second": round(trained["tokens"] / seconds) if seconds else 0,
    }
    return PretrainingReport(
        "A BERT from raw text",
        facts,
        read_rows(run / "metrics.jsonl"),
        trained["unigram_floor"],
        shards.info["health"],
        [(text, [(row.token, row.probability) for row in model.fill(text)]) for text in fills],
        nearest(model, sentences),
        model.attention(attention),
    )


def nearest(model: Model, sentences: Sequence[str], *, top: int = 3) -> Ranked:
    """For each sentence the others most like it, by the cosine of their centred vectors.

    Raw vectors of a young model all point much the same way; what they share says nothing and is taken off first.
    """
    vectors = model.embed(sentences)
    vectors = vectors - vectors.mean(0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    ranks = np.argsort(-cosines, axis=1)[:, :top]
    return [(text, [(sentences[j], float(cosines[i, j])) for j in ranks[i]]) for i, text in enumerate(sentences)]
