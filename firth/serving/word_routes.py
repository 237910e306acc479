"""Routes about single words: their neighbours by word vectors, and their meanings in sentences."""

from collections.abc import Sequence

import numpy as np

from firth.inference.model import Model
from firth.inference.word_senses import Occurrence, find_occurrences, occurrence_vectors
from firth.metrics.cosines import unit_vectors
from firth.serving.responses import invalid_request, unsupported
from firth.serving.schemas import (
    MeaningRequest,
    MeaningResponse,
    NeighboursRequest,
    NeighboursResponse,
    NeighbourWord,
    OccurrencePoint,
)
from firth.serving.server_state import ServerState

MAX_OCCURRENCES = 64


async def neighbours(state: ServerState, request: NeighboursRequest) -> NeighboursResponse:
    """The words most similar to a word."""
    name, _ = state.find_model(request.model)
    lexicon = state.lexicons.get(name)
    if lexicon is None:
        raise unsupported("This model has no table of words.")
    found = await state.compute_alone(lambda: lexicon.neighbours(request.word, top=request.top), tokens=1)
    return NeighboursResponse(model=name, word=request.word, neighbours=_neighbour_words(found))


async def meaning(state: ServerState, request: MeaningRequest) -> MeaningResponse:
    """The occurrences of a word in texts, how similar they are to each other, and where they are on a map."""
    name, model = state.find_model(request.model)
    state.check_texts(request.texts)
    texts = request.texts
    found = await state.prepare(texts, lambda: find_occurrences(request.word, texts, limit=MAX_OCCURRENCES))
    if not found:
        raise invalid_request("None of the 'texts' has this 'word'.")
    id_lists = await state.prepare(texts, lambda: model.tokenizer.ids_batch(texts))

    def compute() -> tuple[np.ndarray, list[NeighbourWord]]:
        contextual_OD = occurrence_vectors(model, found, layer=-1)
        return contextual_OD, _static_neighbours(state, name, request.word)

    tokens = _num_tokens(model, found, id_lists)
    vectors_OD, static = await state.compute_alone(compute, tokens=tokens)
    return MeaningResponse(
        model=name,
        occurrences=_occurrence_points(found, vectors_OD),
        similarities=_cosines(vectors_OD),
        neighbours=static,
    )


def _num_tokens(model: Model, found: Sequence[Occurrence], id_lists: Sequence[Sequence[int]]) -> int:
    """How many tokens the model reads: the text of each occurrence, once for every occurrence."""
    num_specials = model.tokenizer.vocab.frame.size()
    tokens = 0
    for occurrence in found:
        ids = id_lists[occurrence.line - 1]
        # A long text is cut.
        tokens += min(len(ids) + num_specials, model.encoder.max_positions)
    return tokens


def _cosines(vectors_OD: np.ndarray) -> np.ndarray:
    """The cosines between all occurrences (O x O), without what they have in common."""
    centred_OD = vectors_OD
    # With only two occurrences the centred vectors would always be opposite.
    if len(vectors_OD) > 2:
        centred_OD = vectors_OD - vectors_OD.mean(0)
    units_OD = unit_vectors(centred_OD)
    return np.asarray(units_OD @ units_OD.T)


def _static_neighbours(state: ServerState, name: str, word: str) -> list[NeighbourWord]:
    """The word's neighbours without any context; none if the model has no vector for the word alone."""
    lexicon = state.lexicons.get(name)
    if lexicon is None or not lexicon.knows(word):
        return []
    return _neighbour_words(lexicon.neighbours(word))


def _map_points(vectors_OD: np.ndarray) -> np.ndarray:
    """The first two principal components of each vector (O x 2), scaled to at most 1."""
    centred_OD = vectors_OD - vectors_OD.mean(0)
    left, scales, _ = np.linalg.svd(centred_OD, full_matrices=False)
    components = left * scales
    # One vector has only one component; the other stays 0.
    num_components = min(2, len(scales))
    points_O2 = np.zeros((len(vectors_OD), 2), np.float32)
    points_O2[:, :num_components] = components[:, :2]
    largest = float(np.abs(points_O2).max())
    return points_O2 / max(largest, 1e-12)


def _occurrence_points(found: Sequence[Occurrence], vectors_OD: np.ndarray) -> list[OccurrencePoint]:
    """Each occurrence with its place on the map."""
    points = []
    for occurrence, (x, y) in zip(found, _map_points(vectors_OD).tolist(), strict=True):
        # Lines are counted from 1, texts from 0.
        text = occurrence.line - 1
        points.append(OccurrencePoint(text=text, start=occurrence.start, end=occurrence.end, x=x, y=y))
    return points


def _neighbour_words(found: list[tuple[str, float]]) -> list[NeighbourWord]:
    return [NeighbourWord(token=word, similarity=cosine) for word, cosine in found]
