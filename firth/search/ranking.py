"""The best passages in a better order: a cross-encoder reads the question together with each of them."""

from collections.abc import Sequence
from dataclasses import replace

from firth.errors import Unsupported
from firth.inference.model import Model
from firth.search.index import Hit

CANDIDATES = 50
"""Passages that the cross-encoder reads; the search brings them."""


def rerank(model: Model, question: str, hits: Sequence[Hit]) -> list[Hit]:
    """The hits in the order of a model that was fine-tuned to compare two texts, with its scores."""
    task = model.comparing_task
    if task is None:
        raise Unsupported(
            "Only a model that was fine-tuned to compare two texts can order passages; make one by fine-tuning with "
            "the task compare and tasks.compare.way=cross."
        )
    pairs = [[question, hit.passage.text] for hit in hits]
    predictions = model.predict(pairs, task=task)
    scored = []
    for hit, prediction in zip(hits, predictions, strict=True):
        scored.append(replace(hit, score=float(prediction.label)))
    return sorted(scored, key=lambda hit: -hit.score)
