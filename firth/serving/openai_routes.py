"""OpenAI's routes: their JSON of embeddings and models, so that their clients work with this server."""

import base64

import numpy as np

from firth.inference.model import Model
from firth.inference.tokenized_texts import TokenizedTexts
from firth.metrics.cosines import unit_vectors
from firth.serving import schemas
from firth.serving.batching import EmbedOperation
from firth.serving.responses import HttpError, invalid_request, unsupported
from firth.serving.server_state import ServerState


async def openai_embeddings(
    state: ServerState,
    request: schemas.OpenAIEmbeddingsRequest,
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
        if model.embedder.normalises():
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
    state: ServerState,
    model: Model,
    given: str | list[str] | list[int] | list[list[int]],
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


async def openai_models(state: ServerState, request: None) -> schemas.OpenAIModelsResponse:
    models = []
    for name in state.models:
        models.append(schemas.OpenAIModel(id=name, object="model", created=0, owned_by="firth"))
    return schemas.OpenAIModelsResponse(object="list", data=models)
