"""Routes about the tokens of a text: tokenize, fill (the tokens behind masks) and attention (between tokens)."""

import numpy as np

from firth.serving import schemas
from firth.serving.batching import FillOperation
from firth.serving.limits import raised_by
from firth.serving.responses import invalid_request, too_large
from firth.serving.server_state import ServerState
from firth.types import Fill


async def fill(state: ServerState, request: schemas.FillRequest) -> schemas.FillResponse:
    name, model = state.find_able_model(request.model, "fill", text=request.text)
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
    unknown = state.unknown_share(name, [masked_text.ids])
    return schemas.FillResponse(model=name, masks=masks, unknown=unknown)


def _fill_candidate(fill: Fill) -> schemas.FillCandidate:
    return schemas.FillCandidate(token=fill.token, probability=fill.probability, text=fill.text)


async def tokenize(state: ServerState, request: schemas.TokenizeRequest) -> schemas.TokenizeResponse:
    name, model = state.find_model(request.model)
    texts = schemas.text_list(request.texts)
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
    name, model = state.find_able_model(request.model, "attention")
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
