"""The table of routes: for each method and path the function that answers, and its types of request and response.

A function takes the server's state and a validated request; it gives the response as plain values.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from firth.serving import schemas
from firth.serving.explain_routes import explain
from firth.serving.openai_routes import openai_embeddings, openai_models
from firth.serving.predict_routes import predict
from firth.serving.responses import HttpResponse
from firth.serving.rewrite_routes import rewrite
from firth.serving.search_routes import search
from firth.serving.server_state import ServerState
from firth.serving.status_routes import health, info, metrics, run_rows, runs
from firth.serving.token_routes import attention, fill, tokenize
from firth.serving.vector_routes import embed, rerank, similarity
from firth.serving.word_routes import meaning, neighbours

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
