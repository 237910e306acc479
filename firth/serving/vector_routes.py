"""Routes about the vectors of texts: embed, similarity and rerank."""

import numpy as np

from firth.errors import BadConfig
from firth.serving import schemas
from firth.serving.batching import EmbedOperation
from firth.serving.predict_routes import predict_inputs
from firth.serving.responses import unsupported
from firth.serving.server_state import ServerState


async def embed(state: ServerState, request: schemas.EmbedRequest) -> schemas.EmbedResponse:
    name, model = state.find_model(request.model)
    texts = schemas.text_list(request.texts)
    try:
        model.embedder.check_pooling(request.pooling)
    except BadConfig as error:
        raise unsupported(str(error)) from None
    tokenized = await state.tokenize(model, texts)
    width = model.embedder.width(request.pooling)
    # No texts have no vectors, which is no work for a batch.
    vectors = np.empty((0, width), np.float32)
    if tokenized.num_texts:
        operation = EmbedOperation(model.embedder, request.pooling, request.normalise)
        vectors = await state.compute(operation, tokenized, tokens=tokenized.num_tokens)
    return schemas.EmbedResponse(
        model=name,
        width=width,
        vectors=vectors,
        tokens=tokenized.num_tokens,
        unknown=state.unknown_share(name, tokenized.ids),
    )


async def similarity(state: ServerState, request: schemas.SimilarityRequest) -> schemas.SimilarityResponse:
    """Between the texts and the others; without others, between the texts themselves."""
    name, _ = state.find_model(request.model)
    num_texts = len(request.texts)
    others = request.others or []
    num_columns = len(others) or num_texts
    state.check_cosines(num_texts * num_columns)
    vectors, unknown = await _unit_vectors(state, name, [*request.texts, *others])
    text_vectors = vectors[:num_texts]
    other_vectors = vectors[num_texts:]
    if request.others is None:
        other_vectors = text_vectors
    # The cosine of two vectors of length 1 is their product.
    cosines = text_vectors @ other_vectors.T
    return schemas.SimilarityResponse(model=name, similarities=cosines, unknown=unknown)


async def rerank(state: ServerState, request: schemas.RerankRequest) -> schemas.RerankResponse:
    name, _ = state.find_model(request.model)
    scores, unknown = await _relevance(state, name, request.query, request.documents)
    # A stable sort keeps the given order of equally relevant documents.
    order = np.argsort(-scores, kind="stable")
    best = order[: request.top].tolist()
    results = []
    for index in best:
        row = schemas.RankedDocument(
            index=index,
            score=float(scores[index]),
            document=request.documents[index],
        )
        results.append(row)
    return schemas.RerankResponse(model=name, results=results, unknown=unknown)


async def _relevance(state: ServerState, name: str, query: str, documents: list[str]) -> tuple[np.ndarray, float]:
    """How relevant each document is, and the share of unknown tokens.

    By a task that compares two texts if the model has one, otherwise by cosine.
    """
    task = state.models[name].comparing_task
    if task is None:
        vectors, unknown = await _unit_vectors(state, name, [query, *documents])
        query_vector = vectors[0]
        document_vectors = vectors[1:]
        return np.asarray(document_vectors @ query_vector), unknown
    pairs = [[query, document] for document in documents]
    predictions, unknown = await predict_inputs(state, name, task, pairs)
    scores = [prediction.label for prediction in predictions]
    return np.asarray(scores), unknown


async def _unit_vectors(state: ServerState, name: str, texts: list[str]) -> tuple[np.ndarray, float]:
    """The vectors of texts, scaled to length 1, by the model's own pooling; and the share of unknown tokens."""
    model = state.models[name]
    tokenized = await state.tokenize(model, texts)
    operation = EmbedOperation(model.embedder, pooling=None, normalise=True)
    vectors = await state.compute(operation, tokenized, tokens=tokenized.num_tokens)
    unknown = state.unknown_share(name, tokenized.ids)
    return vectors, unknown
