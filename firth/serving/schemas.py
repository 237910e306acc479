"""The JSON bodies of requests and responses.

Requests are pydantic models that validate what clients send. A field's description is also the remedy in the error
about a bad value: "'texts' must be a text or a list of texts." Responses are typed dicts that routes build. They are
not validated, but the OpenAPI document describes them. Arrays stay numpy arrays until they are written as JSON.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, FailFast, Field, GetPydanticSchema, JsonValue
from typing_extensions import TypedDict

from firth.files import JsonObject

# Types of fields


class StopAtFirstError(FailFast):
    """Of a million wrong elements only the first is reported. Hashable, because unions of types need that."""

    __hash__ = object.__hash__  # type: ignore[assignment]


STOP_AT_FIRST_ERROR = StopAtFirstError()
Texts = Annotated[list[str], STOP_AT_FIRST_ERROR]
Ids = Annotated[list[int], STOP_AT_FIRST_ERROR]
IdLists = Annotated[list[Ids], STOP_AT_FIRST_ERROR]
CellValue = str | bool | int | float | None | Texts
PredictInput = str | Texts | dict[str, CellValue]
Pooling = Literal["mean", "cls", "last", "max", "tokens"]
OneText = Annotated[str, Field(description="a text")]
TextOrTexts = Annotated[str | Texts, Field(description="a text or a list of texts")]
TextList = Annotated[Texts, Field(description="a list of texts", min_length=1)]
Word = Annotated[str, Field(min_length=1, max_length=200, description="a word of 1 to 200 characters")]


def text_list(texts: str | list[str]) -> list[str]:
    """The texts of a `TextOrTexts` as a list."""
    if isinstance(texts, str):
        return [texts]
    return texts


def described_as(json_type: object) -> GetPydanticSchema:
    """Lets the OpenAPI document describe a field as another type than it has in Python."""
    return GetPydanticSchema(lambda _, handler: handler(json_type))


# numpy arrays in Python, nested lists in JSON
IdArray = Annotated[np.ndarray, described_as(list[int])]
OffsetArray = Annotated[np.ndarray, described_as(list[list[int]])]
Vector = Annotated[np.ndarray, described_as(list[float])]
Matrix = Annotated[np.ndarray, described_as(list[list[float]])]
AttentionArray = Annotated[np.ndarray, described_as(list[list[list[list[float]]]])]


UnknownShare = Annotated[float, Field(description="the share of the texts' tokens that the model does not know")]

# Requests


class ModelRequest(BaseModel):
    """What all requests have in common."""

    model_config = ConfigDict(strict=True, extra="forbid")
    model: str | None = Field(None, description="the name of a model that `GET /info` lists, or nothing for the first")


class OpenAIEmbeddingsRequest(ModelRequest):
    """OpenAI's request; what else their clients send is ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")
    input: str | Texts | Ids | IdLists = Field(
        description="a text, a list of texts, a list of token ids, or a list of such lists, and not empty"
    )
    encoding_format: Literal["float", "base64"] = Field("float", description="float or base64")
    dimensions: int | None = Field(None, ge=1, description="how many numbers of each vector to keep, at least 1")


class EmbedRequest(ModelRequest):
    texts: TextOrTexts
    pooling: Pooling | None = Field(None, description="mean, cls, last, max or tokens, or nothing for the model's own")
    normalise: bool | None = Field(None, description="true, false, or nothing for the model's own")


class SimilarityRequest(ModelRequest):
    texts: TextList
    others: Texts | None = Field(None, min_length=1, description="a list of texts, or nothing to compare texts alone")


class RerankRequest(ModelRequest):
    query: OneText
    documents: TextList
    top: int | None = Field(None, ge=1, description="how many documents to give back, at least 1")


class SearchRequest(ModelRequest):
    query: OneText
    top: int = Field(5, ge=1, le=100, description="how many passages to give back, from 1 to 100")


class PredictRequest(ModelRequest):
    inputs: Annotated[list[PredictInput], STOP_AT_FIRST_ERROR] = Field(
        min_length=1,
        description="a list of at least one input: a text, a list of texts, or an object with the task's columns",
    )
    task: str = Field("", description="the name of a task, where the model has several")


class ExplainRequest(ModelRequest):
    input: str | Texts = Field(min_length=1, description="a text, or a list of two texts")
    by: Literal["auto", "gradients", "occlusion"] = Field("auto", description="auto, gradients or occlusion")
    task: str = Field("", description="the name of a task, where the model has several")


class FillRequest(ModelRequest):
    text: str = Field(description="a text with the model's mask token")
    top: int = Field(5, ge=1, le=100, description="how many candidates for each mask, from 1 to 100")


class TokenizeRequest(ModelRequest):
    texts: TextOrTexts


class NeighboursRequest(ModelRequest):
    word: Word
    top: int = Field(10, ge=1, le=100, description="how many neighbours, from 1 to 100")


class AttentionRequest(ModelRequest):
    text: OneText
    layer: int | None = Field(None, ge=0, description="a layer, counted from 0, or nothing for all")


class RewriteRequest(ModelRequest):
    texts: TextOrTexts
    beams: int | None = Field(None, ge=1, le=16, description="from 1 to 16, or nothing for the model's own")
    length_penalty: float | None = Field(
        None, ge=-10, le=10, description="a number from -10 to 10, or nothing for the model's own"
    )
    no_repeat_ngram: int | None = Field(
        None, ge=0, le=100, description="tokens of a run that may not occur twice, from 0 to 100, or nothing"
    )
    max_tokens: int | None = Field(
        None, ge=1, le=1024, description="the most tokens of a text, from 1 to 1024, or nothing for the model's own"
    )
    temperature: float = Field(0.0, ge=0, le=100, description="0 for the likeliest text, or up to 100 to draw one")
    top_k: int = Field(0, ge=0, description="how many of the likeliest tokens to draw from, 0 for all")
    top_p: float = Field(1.0, gt=0, le=1, description="above 0 and at most 1")
    seed: int = Field(1, description="a whole number, which decides what is drawn")
    attention: bool = Field(False, description="true to see where the words of one text come from, or false")
    task: str = Field("", description="the name of a task that rewrites, where the model has several")


class MeaningRequest(ModelRequest):
    word: Word
    texts: TextList


@dataclass(frozen=True)
class RunRowsQuery:
    """The query string of `GET /runs/rows`; a text is required, a number is 0 if it is not given."""

    run: str
    after: int


# Responses


class EmbedResponse(TypedDict):
    model: str
    width: int
    vectors: Matrix
    tokens: int
    unknown: UnknownShare


class OpenAIEmbedding(TypedDict):
    object: str
    index: int
    embedding: Vector | str


class TokenUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class OpenAIEmbeddingsResponse(TypedDict):
    object: str
    data: list[OpenAIEmbedding]
    model: str
    usage: TokenUsage


class SimilarityResponse(TypedDict):
    model: str
    similarities: Matrix
    unknown: UnknownShare


class RankedDocument(TypedDict):
    index: int
    score: float
    document: str


class RerankResponse(TypedDict):
    model: str
    results: list[RankedDocument]
    unknown: UnknownShare


class FoundPassage(TypedDict):
    score: float
    text: str
    file: str
    line: int
    start: int
    end: int


class SearchResponse(TypedDict):
    model: str
    passages: int
    hits: list[FoundPassage]
    unknown: UnknownShare


class PredictedSpan(TypedDict):
    label: str
    start: int
    end: int
    text: str
    probability: float


class InputPrediction(TypedDict):
    label: JsonValue
    probability: float | None
    probabilities: dict[str, float | None]
    spans: list[PredictedSpan]


class PredictResponse(TypedDict):
    model: str
    task: str
    predictions: list[InputPrediction]
    unknown: UnknownShare


class WeighedWord(TypedDict):
    """A word, what it adds to the label's probability, its characters, and which text it is in."""

    word: str
    weight: float
    start: int
    end: int
    text: int


class ExplainResponse(TypedDict):
    model: str
    label: str
    probability: float
    method: str
    words: list[WeighedWord]


class FillCandidate(TypedDict):
    token: str
    probability: float
    text: str


class FilledMask(TypedDict):
    start: int
    end: int
    candidates: list[FillCandidate]


class FillResponse(TypedDict):
    model: str
    masks: list[FilledMask]
    unknown: UnknownShare


class TextTokens(TypedDict):
    ids: IdArray
    tokens: list[str]
    offsets: OffsetArray
    word_starts: list[bool]


class TokenizeResponse(TypedDict):
    model: str
    texts: list[TextTokens]


class NeighbourWord(TypedDict):
    token: str
    similarity: float


class NeighboursResponse(TypedDict):
    model: str
    word: str
    neighbours: list[NeighbourWord]


class AttentionResponse(TypedDict):
    model: str
    tokens: list[str]
    layers: list[int]
    heads: int
    weights: AttentionArray


class RewrittenText(TypedDict):
    """A written text, the geometric mean of its tokens' probabilities, and whether the model ended it itself."""

    text: str
    probability: float
    tokens: int
    ended: bool


class WrittenTextAttention(TypedDict):
    """The attention of each written token to the tokens of the source: layers x heads x target x source."""

    source: list[str]
    target: list[str]
    layers: list[int]
    heads: int
    weights: AttentionArray


class RewriteResponse(TypedDict):
    model: str
    texts: list[RewrittenText]
    attention: WrittenTextAttention | None


class OccurrencePoint(TypedDict):
    """An occurrence of a word: the number of its text, its characters, and its place on the map."""

    text: int
    start: int
    end: int
    x: float
    y: float


class MeaningResponse(TypedDict):
    model: str
    occurrences: list[OccurrencePoint]
    similarities: Matrix
    neighbours: list[NeighbourWord]


class ServedModelInfo(TypedDict):
    """A model's `ModelInfo`, the routes that it can answer, its mask token, and the languages that it can read."""

    encoder: JsonObject
    parameters: int
    encoder_parameters: int
    vocabulary: int
    heads: list[str]
    tasks: dict[str, JsonObject]
    embedding: JsonObject
    training: JsonObject
    can: list[str]
    mask: str | None
    languages: list[str]


class InfoResponse(TypedDict):
    firth: str
    default: str
    models: dict[str, ServedModelInfo]
    limits: dict[str, float]
    runs: bool


class HealthResponse(TypedDict):
    status: str


class OpenAIModel(TypedDict):
    id: str
    object: str
    created: int
    owned_by: str


class OpenAIModelsResponse(TypedDict):
    object: str
    data: list[OpenAIModel]


class RunSummary(TypedDict):
    name: str
    state: str
    updated: float
    floor: float | None
    steps: int | None
    bytes: int


class RunsResponse(TypedDict):
    runs: Sequence[RunSummary]


class RunRowsResponse(TypedDict):
    run: str
    rows: list[JsonObject]
    next: int
    restarted: bool
    state: str
    floor: float | None


class ErrorDetail(TypedDict):
    type: str
    message: str


class ErrorResponse(TypedDict):
    error: ErrorDetail
