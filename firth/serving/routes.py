"""What each route does: a validated request in, a response as plain values out. `TABLE` lists them all."""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

from firth import __version__
from firth.checkpoint import only_task
from firth.config import to_dict
from firth.data.items import Item
from firth.inference.embedding import TokenizedTexts, unit_vectors
from firth.inference.model import Model
from firth.serving import schemas
from firth.serving.batching import EmbedOperation, FillOperation, PredictOperation
from firth.serving.explain_routes import explain
from firth.serving.limits import raised_by
from firth.serving.responses import HttpError, HttpResponse, invalid_request, not_found, too_large, unsupported
from firth.serving.rewrite_routes import rewrite
from firth.serving.search_routes import search
from firth.serving.server_state import ServerState
from firth.serving.word_routes import meaning, neighbours
from firth.types import Cell, Fill, Prediction, TaskInput

RequestT = TypeVar("RequestT")
JsonResponse = Mapping[str, object]
"""One of the typed dicts of `schemas`."""


@dataclass(frozen=True)
class Route(Generic[RequestT]):
    """A row of the table: the function that answers, and what the OpenAPI document says about it."""

    handle: Callable[[ServerState, RequestT], Awaitable[JsonResponse | HttpResponse]]
    """Its name is the `operationId` of the OpenAPI document."""
    summary: str
    response: type | None = None
    """The type of the response; None if it is not JSON."""
    request: type[schemas.ModelRequest] | None = None
    """The type of the JSON body; None for GET."""
    query: type[schemas.RunRowsQuery] | None = None
    """A dataclass of the parameters in the query string."""


async def openai_embeddings(
    state: ServerState, request: schemas.OpenAIEmbeddingsRequest
) -> schemas.OpenAIEmbeddingsResponse:
    name, model = state.find_model(request.model)
    if request.dimensions is not None and request.dimensions > model.width:
        raise invalid_request(f"'dimensions' must be at most {model.width}, the model's width.")
    tokenized = await _tokenize_openai_input(state, model, request.input)
    state.unknown_share(name, tokenized.ids)
    vectors = await state.compute(EmbedOperation(model.embedder), tokenized, tokens=tokenized.num_tokens)
    if request.dimensions is not None:
        vectors = vectors[:, : request.dimensions]
        # A part of a vector of length 1 is shorter.
        if model.checkpoint.embedding.normalise:
            vectors = unit_vectors(vectors)
    data = []
    # base64 is that of little-endian float32 numbers.
    for index, vector in enumerate(np.ascontiguousarray(vectors, "<f4")):
        embedding: np.ndarray | str = vector
        if request.encoding_format == "base64":
            embedding = base64.b64encode(vector.tobytes()).decode()
        data.append(schemas.OpenAIEmbedding(object="embedding", index=index, embedding=embedding))
    usage = schemas.TokenUsage(prompt_tokens=tokenized.num_tokens, total_tokens=tokenized.num_tokens)
    return schemas.OpenAIEmbeddingsResponse(object="list", data=data, model=name, usage=usage)


async def _tokenize_openai_input(
    state: ServerState, model: Model, given: str | list[str] | list[int] | list[list[int]]
) -> TokenizedTexts:
    """OpenAI's input: a text, several texts, the ids of a text, or the ids of several texts."""
    if isinstance(given, str):
        return await state.tokenize(model, [given])
    if not given:
        # OpenAI's status for an empty list, so that their clients raise what they expect.
        raise HttpError(400, "invalid_request", "'input' must not be an empty list; give at least one text.")
    # Validation guarantees that all elements have the type of the first one.
    if isinstance(given[0], str):
        return await state.tokenize(model, [text for text in given if isinstance(text, str)])
    id_lists = [ids for ids in given if isinstance(ids, list)]
    if isinstance(given[0], int):
        id_lists = [[token for token in given if isinstance(token, int)]]
    state.check_texts((), inputs=len(id_lists))
    return model.embedder.tokenize_ids(_checked_ids(id_lists, model))


def _checked_ids(id_lists: list[list[int]], model: Model) -> list[np.ndarray]:
    """The ids as arrays; refuses those that are not in the vocabulary."""
    vocab_size = len(model.tokenizer.vocab)
    if model.tokenizer.has_word_parts:
        raise unsupported("'input' must be texts: this model's tokens are more than ids.")
    for ids in id_lists:
        if any(not 0 <= token < vocab_size for token in ids):
            raise invalid_request(f"'input' must have token ids from 0 to {vocab_size - 1}.")
    return [np.array(ids, np.int64) for ids in id_lists]


async def embed(state: ServerState, request: schemas.EmbedRequest) -> schemas.EmbedResponse:
    name, model = state.find_model(request.model)
    tokenized = await state.tokenize(model, _text_list(request.texts))
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
        predictions, unknown = await _predictions(state, name, tasks[0], pairs)
        return np.asarray([prediction.label for prediction in predictions]), unknown
    vectors, unknown = await _unit_vectors(state, name, [query, *documents])
    query_vector = vectors[0]
    document_vectors = vectors[1:]
    return np.asarray(document_vectors @ query_vector), unknown


async def predict(state: ServerState, request: schemas.PredictRequest) -> schemas.PredictResponse:
    name, model = _able_model(state, request.model, "predict")
    task, _ = only_task(model.checkpoint, "This model", request.task)
    predictions, unknown = await _predictions(state, name, task, request.inputs)
    rows = [_input_prediction(prediction) for prediction in predictions]
    return schemas.PredictResponse(model=name, task=task, predictions=rows, unknown=unknown)


def _able_model(state: ServerState, given: str | None, route: str) -> tuple[str, Model]:
    """The model that answers; raises if none was named, the first one cannot answer, and others can."""
    name, model = state.find_model(given)
    if given is None and route not in abilities(state, name):
        able = [other for other in state.models if route in abilities(state, other)]
        if able:
            raise unsupported(
                f"No 'model' is named, and the first one ({name}) cannot {route}; name one that can: {', '.join(able)}."
            )
    return name, model


def _input_prediction(prediction: Prediction) -> schemas.InputPrediction:
    spans = []
    for span in prediction.spans:
        spans.append(
            schemas.PredictedSpan(
                label=span.label, start=span.start, end=span.end, text=span.text, probability=span.probability
            )
        )
    return schemas.InputPrediction(
        label=prediction.label,
        probability=prediction.probability,
        probabilities=dict(prediction.probabilities),
        spans=spans,
    )


async def fill(state: ServerState, request: schemas.FillRequest) -> schemas.FillResponse:
    name, model = _able_model(state, request.model, "fill")
    state.check_texts([request.text])
    mask_filler = model.require_mask_filler()
    masked_text = await state.prepare([request.text], lambda: mask_filler.tokenize(request.text))
    num_masks = len(masked_text.masks)
    num_candidates = num_masks * min(request.top, len(model.tokenizer.vocab))
    state.check_fills(len(request.text), num_candidates)
    operation = FillOperation(mask_filler, request.top)
    fills = await state.compute(operation, masked_text, tokens=len(masked_text.ids))
    # The candidates of all masks follow each other, the same number for each.
    per_mask = len(fills) // num_masks
    masks = []
    for number, (start, end) in enumerate(masked_text.spans.tolist()):
        first = number * per_mask
        candidates = [_fill_candidate(fill) for fill in fills[first : first + per_mask]]
        masks.append(schemas.FilledMask(start=start, end=end, candidates=candidates))
    return schemas.FillResponse(model=name, masks=masks)


def _fill_candidate(fill: Fill) -> schemas.FillCandidate:
    return schemas.FillCandidate(token=fill.token, probability=fill.probability, text=fill.text)


async def tokenize(state: ServerState, request: schemas.TokenizeRequest) -> schemas.TokenizeResponse:
    name, model = state.find_model(request.model)
    texts = _text_list(request.texts)
    state.check_texts(texts)
    encodings = await state.prepare(texts, lambda: model.tokenizer.encode_batch(texts))
    state.check_tokens(sum(map(len, encodings)))
    rows = []
    for encoding in encodings:
        row = schemas.TextTokens(
            ids=encoding.ids,
            tokens=list(encoding.tokens),
            offsets=encoding.offsets,
            word_starts=encoding.word_starts.tolist(),
        )
        rows.append(row)
    return schemas.TokenizeResponse(model=name, texts=rows)


async def attention(state: ServerState, request: schemas.AttentionRequest) -> schemas.AttentionResponse:
    name, model = _able_model(state, request.model, "attention")
    state.check_texts([request.text])
    ids = await state.prepare([request.text], lambda: model.tokenizer.encode(request.text).ids)
    num_tokens = len(ids) + model.tokenizer.vocab.frame.size()
    limit = state.limits.attention_tokens
    if num_tokens > limit:
        raise too_large(
            f"The text has {num_tokens} tokens; attention is shown of up to {limit}. Shorten it."
            + raised_by("attention_tokens", num_tokens)
        )
    # weights: layers x heads x tokens x tokens
    tokens, weights = await state.compute_alone(lambda: model.attention(request.text), tokens=num_tokens)
    num_layers, num_heads = weights.shape[:2]
    layers = list(range(num_layers))
    if request.layer is not None:
        if request.layer >= num_layers:
            raise invalid_request(f"'layer' must be at most {num_layers - 1}, the model's last.")
        layers = [request.layer]
    # Four digits keep the answer small.
    shown = np.ascontiguousarray(weights[layers].round(4))
    return schemas.AttentionResponse(model=name, tokens=tokens, layers=layers, heads=num_heads, weights=shown)


async def info(state: ServerState, request: None) -> schemas.InfoResponse:
    return schemas.InfoResponse(
        firth=__version__,
        default=state.default_model,
        models={name: _model_info(state, name) for name in state.models},
        limits=to_dict(state.limits),
        runs=state.runs is not None,
    )


def _model_info(state: ServerState, name: str) -> schemas.ServedModelInfo:
    """What a model is, and what it can do here."""
    model = state.models[name]
    described = model.info()
    mask_token = None
    if model.mask_filler is not None:
        vocab = model.tokenizer.vocab
        mask_token = vocab.tokens[vocab.mask]
    return schemas.ServedModelInfo(
        encoder=described.encoder,
        parameters=described.parameters,
        encoder_parameters=described.encoder_parameters,
        vocabulary=described.vocabulary,
        heads=described.heads,
        tasks=described.tasks,
        embedding=described.embedding,
        training=described.training,
        can=abilities(state, name),
        mask=mask_token,
        languages=state.languages[name],
    )


def abilities(state: ServerState, name: str) -> list[str]:
    """The routes that this model can answer."""
    model = state.models[name]
    has_layers = model.encoder.num_layers > 0
    can = {
        "embed": True,
        "similarity": True,
        "rerank": True,
        "tokenize": True,
        "fill": model.mask_filler is not None,
        "predict": bool(model.checkpoint.tasks),
        "explain": state.can_explain(name),
        "rewrite": model.can_rewrite,
        "attention": model.encoder.shows_attention and has_layers,
        "meaning": has_layers,
        "neighbours": name in state.lexicons,
        "search": state.search is not None and state.search[0] == name,
    }
    return [route for route, is_able in can.items() if is_able]


async def openai_models(state: ServerState, request: None) -> schemas.OpenAIModelsResponse:
    models = []
    for name in state.models:
        models.append(schemas.OpenAIModel(id=name, object="model", created=0, owned_by="firth"))
    return schemas.OpenAIModelsResponse(object="list", data=models)


async def health(state: ServerState, request: None) -> schemas.HealthResponse:
    return schemas.HealthResponse(status="ok")


async def metrics(state: ServerState, request: None) -> HttpResponse:
    state.metrics.queued.set(len(state.batcher.queue))
    return HttpResponse(state.metrics.text(), content_type="text/plain; version=0.0.4; charset=utf-8")


async def runs(state: ServerState, request: None) -> schemas.RunsResponse:
    if state.runs is None:
        return schemas.RunsResponse(runs=[])
    # Files are read in a thread, so that no other client waits for the disk.
    return schemas.RunsResponse(runs=await asyncio.to_thread(state.runs.summaries))


async def run_rows(state: ServerState, request: schemas.RunRowsQuery) -> schemas.RunRowsResponse:
    if state.runs is None:
        raise not_found("This server shows no runs; it was started without a folder of runs.")
    return await asyncio.to_thread(state.runs.rows, request.run, request.after)


# A table of different requests: only the app knows which type goes to which route.
TABLE: dict[tuple[str, str], Route[Any]] = {
    ("POST", "/v1/embeddings"): Route(
        openai_embeddings,
        "Vectors in OpenAI's shape.",
        schemas.OpenAIEmbeddingsResponse,
        schemas.OpenAIEmbeddingsRequest,
    ),
    ("GET", "/v1/models"): Route(openai_models, "The models in OpenAI's shape.", schemas.OpenAIModelsResponse),
    ("POST", "/embed"): Route(embed, "A vector for each text.", schemas.EmbedResponse, schemas.EmbedRequest),
    ("POST", "/similarity"): Route(
        similarity,
        "Cosines between texts, or between texts and others.",
        schemas.SimilarityResponse,
        schemas.SimilarityRequest,
    ),
    ("POST", "/rerank"): Route(
        rerank, "Documents in the order of their relevance to a query.", schemas.RerankResponse, schemas.RerankRequest
    ),
    ("POST", "/search"): Route(
        search, "The passages of the server's index nearest to a query.", schemas.SearchResponse, schemas.SearchRequest
    ),
    ("POST", "/predict"): Route(
        predict, "What a fine-tuned model predicts for inputs.", schemas.PredictResponse, schemas.PredictRequest
    ),
    ("POST", "/explain"): Route(
        explain, "Which words speak for a classifier's label.", schemas.ExplainResponse, schemas.ExplainRequest
    ),
    ("POST", "/fill"): Route(
        fill, "The most likely tokens for each mask of a text.", schemas.FillResponse, schemas.FillRequest
    ),
    ("POST", "/tokenize"): Route(
        tokenize,
        "The tokens of texts; offsets count Unicode characters.",
        schemas.TokenizeResponse,
        schemas.TokenizeRequest,
    ),
    ("POST", "/attention"): Route(
        attention,
        "The attention weights of a text: layers x heads x tokens x tokens.",
        schemas.AttentionResponse,
        schemas.AttentionRequest,
    ),
    ("POST", "/rewrite"): Route(
        rewrite,
        "What a model writes for texts: translations, summaries.",
        schemas.RewriteResponse,
        schemas.RewriteRequest,
    ),
    ("POST", "/neighbours"): Route(
        neighbours, "The words most similar to a word.", schemas.NeighboursResponse, schemas.NeighboursRequest
    ),
    ("POST", "/meaning"): Route(
        meaning,
        "A word in several texts: how similar its occurrences are, and a map of them.",
        schemas.MeaningResponse,
        schemas.MeaningRequest,
    ),
    ("GET", "/info"): Route(info, "The models, what each can do, and the limits.", schemas.InfoResponse),
    ("GET", "/health"): Route(health, "Whether the server is up; needs no token.", schemas.HealthResponse),
    ("GET", "/metrics"): Route(metrics, "Counters for Prometheus."),
    ("GET", "/runs"): Route(runs, "The training runs in the server's folder of runs.", schemas.RunsResponse),
    ("GET", "/runs/rows"): Route(
        run_rows,
        "The rows of a run's metrics.jsonl after a byte; `next` is the byte to ask for next.",
        schemas.RunRowsResponse,
        query=schemas.RunRowsQuery,
    ),
}


async def _unit_vectors(state: ServerState, name: str, texts: list[str]) -> tuple[np.ndarray, float]:
    """The vectors of texts, scaled to length 1, by the model's own pooling; and the share of unknown tokens."""
    model = state.models[name]
    tokenized = await state.tokenize(model, texts)
    operation = EmbedOperation(model.embedder, pooling=None, normalise=True)
    vectors = await state.compute(operation, tokenized, tokens=tokenized.num_tokens)
    return vectors, state.unknown_share(name, tokenized.ids)


async def _predictions(
    state: ServerState, name: str, task: str, inputs: Sequence[TaskInput]
) -> tuple[list[Prediction], float]:
    """What the task predicts for each input, after all checks; and the share of unknown tokens."""
    model = state.models[name]
    texts: list[str] = []
    for value in inputs:
        texts += _texts_of(value)
    state.check_texts(texts, inputs=len(inputs))

    def encode() -> Sequence[Item]:
        examples = model.examples(inputs, task=task)
        return model.encode_examples(examples, task=task)

    items = await state.prepare(texts, encode)
    sequences = [window.ids for item in items for window in item.windows]
    tokens = sum(map(len, sequences))
    predictions = await state.compute(PredictOperation(model, task), items, tokens=tokens)
    return predictions, state.unknown_share(name, sequences)


def _texts_of(value: TaskInput) -> list[str]:
    """All texts of an input; numbers in its columns are not texts."""
    if not isinstance(value, Mapping):
        return _texts_of_cell(value)
    texts = []
    for cell in value.values():
        texts += _texts_of_cell(cell)
    return texts


def _texts_of_cell(cell: Cell) -> list[str]:
    if isinstance(cell, str):
        return [cell]
    if isinstance(cell, Sequence):
        return [text for text in cell if isinstance(text, str)]
    return []


def _text_list(texts: str | list[str]) -> list[str]:
    if isinstance(texts, str):
        return [texts]
    return texts
