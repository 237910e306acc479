"""Routes about the vectors of texts: embed, similarity and rerank."""

import numpy as np

from firth.serving import schemas
from firth.serving.batching import EmbedOperation
from firth.serving.predict_routes import predict_inputs
from firth.serving.server_state import ServerState


async def embed(state: ServerState, request: schemas.EmbedRequest) -> schemas.EmbedResponse:
    name, model = state.find_model(request.model)
    tokenized = await state.tokenize(model, schemas.text_list(request.texts))
    width = model.embedder.width(request.pooling)
    vectors = np.empty((0, width), np.float32)
    if tokenized.num_texts:
        operation = EmbedOperation(model.embedder, request.pooling, request.normalise)
        vectors = await state.compute(operation, tokenized, tokens=tokenized.num_tokens)
    unknown = state.unknown_share(name, tokenized.ids)
    return schemas.EmbedResponse(model=name, width=width, vectors=vectors, tokens=tokenized.num_tokens, unknown=unknown)


async def similarity(state: ServerState, request: schemas.SimilarityRequest) -> schemas.SimilarityResponse:
    name, _ = state.find_model(request.model)
    others = request.others or []
    state.check_cosines(len(request.texts) * len(others or request.texts))
    vectors, unknown = await _unit_vectors(state, name, [*request.texts, *others])
    text_vectors, other_vectors = np.split(vectors, [len(request.texts)])
    if request.others is None:
        other_vectors = text_vectors
    return schemas.SimilarityResponse(model=name, similarities=text_vectors @ other_vectors.T, unknown=unknown)


async def rerank(state: ServerState, request: schemas.RerankRequest) -> schemas.RerankResponse:
    name, _ = state.find_model(request.model)
    scores, unknown = await _relevance(state, name, request.query, request.documents)
    # A stable sort keeps the given order of equally relevant documents.
    order = np.argsort(-scores, kind="stable")
    results = []
    for index in order[: request.top].tolist():
        document = request.documents[index]
        results.append(schemas.RankedDocument(index=index, score=float(scores[index]), document=document))
    return schemas.RerankResponse(model=name, results=results, unknown=unknown)


async def _relevance(state: ServerState, name: str, query: str, documents: list[str]) -> tuple[np.ndarray, float]:
    """How relevant each document is, and the share of unknown tokens.

    By a task that compares two texts if the model has one, otherwise by cosine.
    """
    model = state.models[name]
    tasks = [name for name in model.checkpoint.tasks if name.startswith("compare")]
    if tasks:
        pairs = [[query, document] for document in documents]
        predictions, unknown = await predict_inputs(state, name, tasks[0], pairs)
        return np.asarray([prediction.label for prediction in predictions]), unknown
    vectors, unknown = await _unit_vectors(state, name, [query, *documents])
    query_vector = vectors[0]
    document_vectors = vectors[1:]
    return np.asarray(document_vectors @ query_vector), unknown


async def _unit_vectors(state: ServerState, name: str, texts: list[str]) -> tuple[np.ndarray, float]:
    """The vectors of texts, scaled to length 1, by the model's own pooling; and the share of unknown tokens."""
    model = state.models[name]
    tokenized = await state.tokenize(model, texts)
    operation = EmbedOperation(model.embedder, pooling=None, normalise=True)
    vectors = await state.compute(operation, tokenized, tokens=tokenized.num_tokens)
    return vectors, state.unknown_share(name, tokenized.ids)
