"""The route of models that write: texts in; their translations or summaries out, with the attention on request."""

from collections.abc import Sequence

import numpy as np

from firth.data.items import Item
from firth.inference.rewriting import Rewriter, RewriteSettings, WrittenAttention
from firth.serving import schemas
from firth.serving.batching import RewriteOperation
from firth.serving.limits import raised_by
from firth.serving.responses import invalid_request, too_large
from firth.serving.server_state import ServerState
from firth.types import Rewritten


async def rewrite(state: ServerState, request: schemas.RewriteRequest) -> schemas.RewriteResponse:
    name, model = state.find_model(request.model)
    rewriter = model.rewriter(request.task)
    texts = schemas.text_list(request.texts)
    state.check_texts(texts)
    items = await state.prepare(texts, lambda: rewriter.tokenize(texts))
    settings = RewriteSettings(
        beams=request.beams,
        length_penalty=request.length_penalty,
        no_repeat_ngram=request.no_repeat_ngram,
        max_tokens=request.max_tokens,
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        seed=request.seed,
    )
    tokens = _num_tokens(rewriter, items, settings)
    if request.attention:
        shown = await _with_attention(state, rewriter, items, settings, tokens=tokens)
        return schemas.RewriteResponse(
            model=name, texts=[_rewritten_text(shown.rewritten)], attention=_cross_attention(shown)
        )
    written = await state.compute(RewriteOperation(rewriter, settings), items, tokens=tokens)
    rows = [_rewritten_text(text) for text in written]
    return schemas.RewriteResponse(model=name, texts=rows, attention=None)


def _num_tokens(rewriter: Rewriter, items: Sequence[Item], settings: RewriteSettings) -> int:
    """The tokens read and an estimate of those written: the maximum of the request, or as many as the source has."""
    options = settings.options(rewriter.head.config)
    total = 0
    for item in items:
        num_source = len(item.windows[0])
        num_written = options.max_tokens or num_source
        total += num_source + options.choice.beams * num_written
    return total


async def _with_attention(
    state: ServerState,
    rewriter: Rewriter,
    items: Sequence[Item],
    settings: RewriteSettings,
    *,
    tokens: int,
) -> WrittenAttention:
    if len(items) != 1:
        raise invalid_request("'attention' is shown of one text; send one.")
    [item] = items
    limit = state.limits.attention_tokens
    if len(item.windows[0]) > limit:
        num_tokens = len(item.windows[0])
        raise too_large(
            f"The text has {num_tokens} tokens; attention is shown of up to {limit}. Shorten it."
            + raised_by("attention_tokens", num_tokens)
        )
    return await state.compute_alone(lambda: rewriter.rewrite_with_attention(item, settings), tokens=tokens)


def _rewritten_text(text: Rewritten) -> schemas.RewrittenText:
    return schemas.RewrittenText(text=text.text, probability=text.probability, tokens=text.num_tokens, ended=text.ended)


def _cross_attention(shown: WrittenAttention) -> schemas.WrittenTextAttention:
    num_layers, num_heads = shown.weights.shape[:2]
    # Four digits keep the answer small.
    weights = np.ascontiguousarray(shown.weights.round(4))
    return schemas.WrittenTextAttention(
        source=shown.source, target=shown.target, layers=list(range(num_layers)), heads=num_heads, weights=weights
    )
