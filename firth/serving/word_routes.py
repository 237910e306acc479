"""Routes about single words: their neighbours by word vectors, and what they mean in sentences."""

from typing import Any

import numpy as np

from firth.inference.senses import Occurrence, occurrence_vectors, occurrences
from firth.serving import schemas as shapes
from firth.serving.registry import House
from firth.serving.responses import Refusal

MOST_OCCURRENCES = 64


async def neighbours(house: House, asked: shapes.Neighbours) -> dict[str, Any]:
    name, _ = house.model(asked.model)
    lexicon = house.lexicons.get(name)
    if lexicon is None:
        raise Refusal(422, "unsupported", "This model has no table of words.")
    found = await house.compute_alone(lambda: lexicon.neighbours(asked.word, top=asked.top), tokens=1)
    return {"model": name, "word": asked.word, "neighbours": _rows(found)}


async def meaning(house: House, asked: shapes.Meaning) -> dict[str, Any]:
    """Where a word stands in texts, how alike these places are, and where they lie on a map."""
    name, model = house.model(asked.model)
    house.check(asked.texts)
    found = await house.make_ready(asked.texts, lambda: occurrences(asked.word, asked.texts, most=MOST_OCCURRENCES))
    if not found:
        raise Refusal(422, "invalid_request", "None of the 'texts' has this 'word'.")
    lengths = await house.make_ready(asked.texts, lambda: [len(ids) for ids in model.tokenizer.ids_batch(asked.texts)])
    tokens = sum(min(lengths[one.line - 1] + 2, model.encoder.max_positions) for one in found)
    vectors, alone = await house.compute_alone(
        lambda: (occurrence_vectors(model, found, -1), _static(house, name, asked.word)), tokens=tokens
    )
    centred = vectors - vectors.mean(0) if len(vectors) > 2 else vectors
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), 1e-12)
    places = [_place(one, *xy) for one, xy in zip(found, _map(vectors).tolist(), strict=True)]
    return {
        "model": name,
        "occurrences": places,
        "similarities": unit @ unit.T,
        "neighbours": alone,
    }


def _static(house: House, name: str, word: str) -> list[dict[str, Any]]:
    """The word's neighbours whatever stands around it; none where the model has no vector for the word alone."""
    lexicon = house.lexicons.get(name)
    return _rows(lexicon.neighbours(word)) if lexicon and lexicon.knows(word) else []


def _map(vectors: np.ndarray) -> np.ndarray:
    """The two directions in which the vectors differ most (principal components), scaled to at most 1."""
    left, scales, _ = np.linalg.svd(vectors - vectors.mean(0), full_matrices=False)
    flat = np.zeros((len(vectors), 2), np.float32)
    flat[:, : min(2, len(scales))] = (left * scales)[:, :2]
    return flat / max(float(np.abs(flat).max()), 1e-12)


def _place(one: Occurrence, x: float, y: float) -> dict[str, Any]:
    return {"text": one.line - 1, "start": one.start, "end": one.end, "x": x, "y": y}


def _rows(found: list[tuple[str, float]]) -> list[dict[str, Any]]:
    return [{"token": word, "similarity": cosine} for word, cosine in found]
