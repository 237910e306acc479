"""The JSON that goes in and out of the server. A field's description is also the remedy in the error of a bad value:
"'texts' must be a text or a list of texts." Answers are only described here, for the OpenAPI document."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field
from typing_extensions import TypedDict


class First(FailFast):
    """Of a million wrong elements only the first is looked at. Hashable, as unions of types ask."""

    __hash__ = object.__hash__  # type: ignore[assignment]


FIRST = First()
Texts = Annotated[list[str], FIRST]
Ids = Annotated[list[int], FIRST]
IdLists = Annotated[list[Ids], FIRST]
Cell = str | bool | int | float | None | Texts
Input = str | Texts | dict[str, Cell]
Pooling = Literal["mean", "cls", "last", "max"]
OneText = Annotated[str, Field(description="a text")]
SomeTexts = Annotated[str | Texts, Field(description="a text or a list of texts")]
ManyTexts = Annotated[Texts, Field(description="a list of texts", min_length=1)]


class Asked(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    model: str | None = Field(None, description="the name of a model that `GET /info` lists, or nothing for the first")


class OpenAIEmbeddings(Asked):
    """OpenAI's request; what else their clients send is ignored."""

    model_config = ConfigDict(strict=True, extra="ignore")
    input: str | Texts | Ids | IdLists = Field(
        description="a text, a list of texts, a list of token ids, or a list of such lists, and not empty"
    )
    encoding_format: Literal["float", "base64"] = Field("float", description="float or base64")
    dimensions: int | None = Field(None, ge=1, description="how many numbers of each vector to keep, at least 1")


class Embed(Asked):
    texts: SomeTexts
    pooling: Pooling | None = Field(None, description="mean, cls, last or max, or nothing for the model's own")
    normalise: bool | None = Field(None, description="true, false, or nothing for the model's own")


class Similarity(Asked):
    texts: ManyTexts
    others: Texts | None = Field(None, min_length=1, description="a list of texts, or nothing to compare texts alone")


class Rerank(Asked):
    query: OneText
    documents: ManyTexts
    top: int | None = Field(None, ge=1, description="how many documents to give back, at least 1")


class Predict(Asked):
    inputs: Annotated[list[Input], FIRST] = Field(
        min_length=1, description="a list; each of it a text, a list of texts, or an object with the task's columns"
    )
    task: str = Field("", description="the name of a task, where the model has several")


class Fill(Asked):
    text: str = Field(description="a text with the model's mask token")
    top: int = Field(5, ge=1, le=100, description="how many candidates for each mask, from 1 to 100")


class Tokenize(Asked):
    texts: SomeTexts


class Neighbours(Asked):
    word: str = Field(min_length=1, max_length=200, description="a word of 1 to 200 characters")
    top: int = Field(10, ge=1, le=100, description="how many neighbours, from 1 to 100")


class Attention(Asked):
    text: OneText
    layer: int | None = Field(None, ge=0, description="a layer, counted from 0, or nothing for all")


class Meaning(Asked):
    word: str = Field(min_length=1, max_length=200, description="a word of 1 to 200 characters")
    texts: ManyTexts


# Answers


class Vectors(TypedDict):
    model: str
    width: int
    vectors: list[list[float]]
    tokens: int


class OpenAIVector(TypedDict):
    object: str
    index: int
    embedding: list[float] | str


class Usage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class OpenAIVectors(TypedDict):
    object: str
    data: list[OpenAIVector]
    model: str
    usage: Usage


class Similarities(TypedDict):
    model: str
    similarities: list[list[float]]


class Ranked(TypedDict):
    index: int
    score: float
    document: str


class Ranking(TypedDict):
    model: str
    results: list[Ranked]


class SpanShape(TypedDict):
    label: str
    start: int
    end: int
    text: str
    probability: float


class PredictionShape(TypedDict):
    label: Any
    probability: float | None
    probabilities: dict[str, float | None]
    spans: list[SpanShape]


class Predictions(TypedDict):
    model: str
    task: str
    predictions: list[PredictionShape]


class Candidate(TypedDict):
    token: str
    probability: float
    text: str


class FilledMask(TypedDict):
    start: int
    end: int
    candidates: list[Candidate]


class Fills(TypedDict):
    model: str
    masks: list[FilledMask]


class Tokenized(TypedDict):
    ids: list[int]
    tokens: list[str]
    offsets: list[list[int]]
    word_starts: list[bool]


class Tokenizations(TypedDict):
    model: str
    texts: list[Tokenized]


class Neighbour(TypedDict):
    token: str
    similarity: float


class NeighbourList(TypedDict):
    model: str
    word: str
    neighbours: list[Neighbour]


class AttentionWeights(TypedDict):
    model: str
    tokens: list[str]
    layers: list[int]
    heads: int
    weights: list[list[list[list[float]]]]


class Occurrence(TypedDict):
    text: int
    start: int
    end: int
    x: float
    y: float


class Occurrences(TypedDict):
    model: str
    occurrences: list[Occurrence]
    similarities: list[list[float]]
    neighbours: list[Neighbour]


class Info(TypedDict):
    firth: str
    default: str
    models: dict[str, Any]
    limits: dict[str, float]
    runs: bool


class Health(TypedDict):
    status: str


class ModelRow(TypedDict):
    id: str
    object: str
    created: int
    owned_by: str


class ModelList(TypedDict):
    object: str
    data: list[ModelRow]


class RunRow(TypedDict):
    name: str
    state: str
    updated: float
    floor: float | None
    steps: int | None
    bytes: int


class RunList(TypedDict):
    runs: list[RunRow]


class RunRows(TypedDict):
    run: str
    rows: list[dict[str, Any]]
    next: int
    restarted: bool
    state: str
    floor: float | None


class ErrorBody(TypedDict):
    type: str
    message: str


class Error(TypedDict):
    error: ErrorBody
