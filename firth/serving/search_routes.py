"""The route that searches the server's index of passages."""

from firth.search.index import Hit
from firth.serving.responses import invalid_request, unsupported
from firth.serving.schemas import FoundPassage, SearchRequest, SearchResponse
from firth.serving.server_state import ServerState


async def search(state: ServerState, request: SearchRequest) -> SearchResponse:
    """The passages that fit a query best, by meaning and words."""
    if state.search is None:
        raise unsupported("This server has no index; start it with `firth serve --index INDEX`.")
    name, index = state.search
    if request.model not in (None, name):
        raise unsupported(f"The index was built with the model {name}; ask without 'model'.")
    if not request.query.strip():
        raise invalid_request("'query' is empty; write what to look for.")
    model = state.models[name]
    tokenized = await state.tokenize(model, [request.query])

    def find() -> list[Hit]:
        pooling = model.embedder.fast_pooling
        [vectors] = model.embedder.embed_tokenized([tokenized], pooling=pooling, normalise=True)
        return index.hits(model, request.query, vectors[0], top=request.top)

    hits = await state.compute_alone(find, tokens=max(1, tokenized.num_tokens))
    unknown = state.unknown_share(name, tokenized.ids)
    return SearchResponse(model=name, passages=len(index), hits=[_found(hit) for hit in hits], unknown=unknown)


def _found(hit: Hit) -> FoundPassage:
    passage = hit.passage
    return FoundPassage(
        score=hit.score,
        text=passage.text,
        file=passage.file,
        line=passage.line,
        start=passage.start,
        end=passage.end,
    )
