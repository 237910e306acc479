"""What each route does: a checked request in, an answer as plain values out. `TABLE` lists them all."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from firth import __version__
from firth.checkpoint import only_task
from firth.config import to_dict
from firth.inference.model import Model
from firth.objectives.replaced_token import filler
from firth.serving import schemas as shapes
from firth.serving.lanes import FillLane, PredictLane, VectorLane
from firth.serving.registry import House
from firth.serving.responses import Refusal, Reply, too_large
from firth.serving.word_routes import meaning, neighbours
from firth.types import Prediction

Answer = dict[str, Any] | Reply


async def openai_embeddings(house: House, asked: shapes.OpenAIEmbeddings) -> Answer:
    name, model = house.model(asked.model)
    if asked.dimensions is not None and asked.dimensions > model.width:
        raise Refusal(422, "invalid_request", f"'dimensions' must be at most {model.width}, the model's width.")
    inputs = _openai_inputs(asked.input)
    if not inputs:  # OpenAI's status for it, so that their clients raise what they expect
        raise Refusal(400, "invalid_request", "'input' must not be an empty list; give at least one text.")
    if isinstance(inputs[0], str):
        cut = await house.cut(model, inputs)
    else:
        house.check((), inputs=len(inputs))
        cut = model.cut(_known_ids(inputs, model))
    vectors = await house.compute(VectorLane(model), cut, tokens=cut.num_tokens)
    if asked.dimensions is not None:
        vectors = _shortened(vectors, asked.dimensions, normalise=model.checkpoint.embedding.normalise)
    as_text = asked.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": i, "embedding": base64.b64encode(row.tobytes()).decode() if as_text else row}
        for i, row in enumerate(np.ascontiguousarray(vectors, "<f4"))
    ]
    usage = {"prompt_tokens": cut.num_tokens, "total_tokens": cut.num_tokens}
    return {"object": "list", "data": data, "model": name, "usage": usage}


async def embed(house: House, asked: shapes.Embed) -> Answer:
    name, model = house.model(asked.model)
    cut = await house.cut(model, _list(asked.texts))
    lane = VectorLane(model, asked.pooling, asked.normalise)
    vectors = await house.compute(lane, cut, tokens=cut.num_tokens) if cut.num_texts else _no_vectors(model)
    return {"model": name, "width": model.width, "vectors": vectors, "tokens": cut.num_tokens}


async def similarity(house: House, asked: shapes.Similarity) -> Answer:
    name, model = house.model(asked.model)
    vectors = await _unit_vectors(house, model, [*asked.texts, *(asked.others or ())])
    first, others = np.split(vectors, [len(asked.texts)])
    return {"model": name, "similarities": first @ (first if asked.others is None else others).T}


async def rerank(house: House, asked: shapes.Rerank) -> Answer:
    name, model = house.model(asked.model)
    scores = await _relevance(house, model, asked.query, asked.documents)
    order = np.argsort(-np.asarray(scores), kind="stable")[: asked.top].tolist()
    results = [{"index": i, "score": float(scores[i]), "document": asked.documents[i]} for i in order]
    return {"model": name, "results": results}


async def predict(house: House, asked: shapes.Predict) -> Answer:
    name, model = house.model(asked.model)
    task, _ = only_task(model.checkpoint, "This model", asked.task)
    predictions = await _predictions(house, model, task, asked.inputs)
    rows = [
        {
            "label": row.label,
            "probability": row.probability,
            "probabilities": dict(row.probabilities),
            "spans": [asdict(span) for span in row.spans],
        }
        for row in predictions
    ]
    return {"model": name, "task": task, "predictions": rows}


async def fill(house: House, asked: shapes.Fill) -> Answer:
    name, model = house.model(asked.model)
    house.check([asked.text])
    masked = await house.make_ready([asked.text], lambda: model.masked(asked.text))
    house.check_fills(len(asked.text), len(masked.masks) * min(asked.top, len(model.tokenizer.vocab)))
    rows = await house.compute(FillLane(model, asked.top), masked, tokens=len(masked.ids))
    top = len(rows) // len(masked.masks)
    masks = [
        {"start": int(start), "end": int(end), "candidates": [asdict(row) for row in rows[i * top : (i + 1) * top]]}
        for i, (start, end) in enumerate(masked.spans)
    ]
    return {"model": name, "masks": masks}


async def tokenize(house: House, asked: shapes.Tokenize) -> Answer:
    name, model = house.model(asked.model)
    texts = _list(asked.texts)
    house.check(texts)
    encodings = await house.make_ready(texts, lambda: model.tokenizer.encode_batch(texts))
    house.check_tokens(sum(map(len, encodings)))
    rows = [
        {"ids": one.ids, "tokens": one.tokens, "offsets": one.offsets, "word_starts": one.word_starts.tolist()}
        for one in encodings
    ]
    return {"model": name, "texts": rows}


async def attention(house: House, asked: shapes.Attention) -> Answer:
    name, model = house.model(asked.model)
    house.check([asked.text])
    ids = await house.make_ready([asked.text], lambda: model.tokenizer.encode(asked.text).ids)
    tokens, most = len(ids) + model.tokenizer.vocab.frame.size(), house.limits.attention_tokens
    if tokens > most:
        raise too_large(f"The text has {tokens} tokens; attention is shown of up to {most}. Shorten it.")
    pieces, weights = await house.compute_alone(lambda: model.attention(asked.text), tokens=tokens)
    layers = list(range(len(weights))) if asked.layer is None else [asked.layer]
    if layers and layers[-1] >= len(weights):
        raise Refusal(422, "invalid_request", f"'layer' must be at most {len(weights) - 1}, the model's last.")
    shown = np.ascontiguousarray(weights[layers].round(4))
    return {"model": name, "tokens": pieces, "layers": layers, "heads": weights.shape[1], "weights": shown}


async def info(house: House, asked: None) -> Answer:
    models = {name: {**model.info(), **_offers(house, name)} for name, model in house.models.items()}
    limits = to_dict(house.limits)
    has_runs = house.runs is not None
    return {"firth": __version__, "default": house.default, "models": models, "limits": limits, "runs": has_runs}


async def openai_models(house: House, asked: None) -> Answer:
    rows = [{"id": name, "object": "model", "created": 0, "owned_by": "firth"} for name in house.models]
    return {"object": "list", "data": rows}


async def health(house: House, asked: None) -> Answer:
    return {"status": "ok"}


async def metrics(house: House, asked: None) -> Answer:
    house.meters.queued.set(len(house.batcher.waiting))
    return Reply(house.meters.text(), content_type="text/plain; version=0.0.4; charset=utf-8")


async def runs(house: House, asked: None) -> Answer:
    return {"runs": await asyncio.to_thread(house.runs.list) if house.runs else []}


async def run_rows(house: House, asked: dict[str, Any]) -> Answer:
    if house.runs is None:
        raise Refusal(404, "not_found", "This server shows no runs; it was started without a folder of runs.")
    return await asyncio.to_thread(house.runs.rows, asked["run"], asked["after"])


def _offers(house: House, name: str) -> dict[str, Any]:
    vocab = house.models[name].tokenizer.vocab
    can = abilities(house, name)
    return {"can": can, "mask": vocab.tokens[vocab.mask] if "fill" in can else None}


def abilities(house: House, name: str) -> list[str]:
    """Which of the routes this model can answer."""
    checkpoint = house.models[name].checkpoint
    has = {
        **dict.fromkeys(("embed", "similarity", "rerank", "tokenize"), True),
        "fill": filler(checkpoint.encoder, checkpoint.goals) is not None,
        "predict": bool(checkpoint.tasks),
        "attention": checkpoint.encoder.shows_attention and checkpoint.encoder.num_layers > 0,
        "meaning": checkpoint.encoder.num_layers > 0,
        "neighbours": name in house.lexicons,
    }
    return [ability for ability, there in has.items() if there]


@dataclass(frozen=True)
class Route:
    run: Callable[[House, Any], Awaitable[Answer]]
    summary: str
    answer: Any = None
    """The shape of the answer; None where it is not JSON."""
    asked: type[shapes.Asked] | None = None
    query: tuple[tuple[str, type], ...] = ()
    """Names and types of what stands behind the question mark."""


TABLE: dict[tuple[str, str], Route] = {
    ("POST", "/v1/embeddings"): Route(
        openai_embeddings, "Vectors in OpenAI's shape.", shapes.OpenAIVectors, shapes.OpenAIEmbeddings
    ),
    ("GET", "/v1/models"): Route(openai_models, "The models in OpenAI's shape.", shapes.ModelList),
    ("POST", "/embed"): Route(embed, "A vector for each text.", shapes.Vectors, shapes.Embed),
    ("POST", "/similarity"): Route(
        similarity, "Cosines between texts, or between texts and others.", shapes.Similarities, shapes.Similarity
    ),
    ("POST", "/rerank"): Route(
        rerank, "Documents in the order of what they say on a query.", shapes.Ranking, shapes.Rerank
    ),
    ("POST", "/predict"): Route(predict, "What a fine-tuned model says of inputs.", shapes.Predictions, shapes.Predict),
    ("POST", "/fill"): Route(fill, "The likeliest tokens for each mask of a text.", shapes.Fills, shapes.Fill),
    ("POST", "/tokenize"): Route(
        tokenize, "The tokens of texts; offsets count Unicode characters.", shapes.Tokenizations, shapes.Tokenize
    ),
    ("POST", "/attention"): Route(
        attention, "Who looks at whom: layers x heads x tokens x tokens.", shapes.AttentionWeights, shapes.Attention
    ),
    ("POST", "/neighbours"): Route(
        neighbours, "The words with vectors most like a word's own.", shapes.NeighbourList, shapes.Neighbours
    ),
    ("POST", "/meaning"): Route(
        meaning, "A word in several texts: how alike its places are, and a map.", shapes.Occurrences, shapes.Meaning
    ),
    ("GET", "/info"): Route(info, "The models, what each can do, and the limits.", shapes.Info),
    ("GET", "/health"): Route(health, "Whether the server is up; needs no token.", shapes.Health),
    ("GET", "/metrics"): Route(metrics, "Counters for Prometheus."),
    ("GET", "/runs"): Route(runs, "The training runs in the server's folder of runs.", shapes.RunList),
    ("GET", "/runs/rows"): Route(
        run_rows,
        "The rows of a run's metrics.jsonl behind a byte; `next` is the byte to ask for next.",
        shapes.RunRows,
        query=(("run", str), ("after", int)),
    ),
}


async def _unit_vectors(house: House, model: Model, texts: list[str]) -> np.ndarray:
    cut = await house.cut(model, texts)
    vectors: np.ndarray = await house.compute(VectorLane(model, None, True), cut, tokens=cut.num_tokens)
    return vectors


async def _relevance(house: House, model: Model, query: str, documents: list[str]) -> Any:
    """By a task that compares two texts where the model has one, else by cosine."""
    task = next((name for name in model.checkpoint.tasks if name.startswith("compare")), None)
    if task is None:
        query_vector, *vectors = await _unit_vectors(house, model, [query, *documents])
        return np.stack(vectors) @ query_vector
    pairs: list[Any] = [[query, document] for document in documents]
    return [row.label for row in await _predictions(house, model, task, pairs)]


async def _predictions(house: House, model: Model, task: str, inputs: list[shapes.Input]) -> list[Prediction]:
    texts = [text for value in inputs for text in _texts_of(value)]
    house.check(texts, inputs=len(inputs))
    items = await house.make_ready(texts, lambda: model.items(model.examples(inputs, task=task), task=task))
    tokens = sum(len(window.ids) for item in items for window in item.windows)
    predictions: list[Prediction] = await house.compute(PredictLane(model, task), items, tokens=tokens)
    return predictions


def _texts_of(value: Any) -> list[str]:
    parts = value.values() if isinstance(value, dict) else [value]
    return [text for part in parts for text in (part if isinstance(part, list) else [part]) if isinstance(text, str)]


def _openai_inputs(given: Any) -> list[Any]:
    """A list of texts, or a list of lists of ids."""
    if isinstance(given, str):
        return [given]
    return [given] if given and isinstance(given[0], int) else given


def _known_ids(inputs: list[list[int]], model: Model) -> list[np.ndarray]:
    size = len(model.tokenizer.vocab)
    if hasattr(model.tokenizer, "word_parts"):
        raise Refusal(422, "unsupported", "'input' must be texts: this model's tokens are more than ids.")
    if any(not 0 <= one < size for ids in inputs for one in ids):
        raise Refusal(422, "invalid_request", f"'input' must have token ids from 0 to {size - 1}.")
    return [np.array(ids, np.int64) for ids in inputs]


def _shortened(vectors: np.ndarray, width: int, *, normalise: bool) -> np.ndarray:
    cut = vectors[:, :width]
    return cut / np.maximum(np.linalg.norm(cut, axis=1, keepdims=True), 1e-12) if normalise else cut


def _no_vectors(model: Model) -> np.ndarray:
    return np.empty((0, model.width), np.float32)


def _list(texts: str | list[str]) -> list[str]:
    return [texts] if isinstance(texts, str) else texts
