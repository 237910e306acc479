"""Routes about the server itself: its models, its health, its counters, and the training runs that it shows."""

import asyncio

from firth import __version__
from firth.config import to_dict
from firth.serving import schemas
from firth.serving.responses import HttpResponse, not_found
from firth.serving.server_state import ServerState


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
        can=state.abilities(name),
        mask=mask_token,
        languages=state.languages[name],
    )


async def health(state: ServerState, request: None) -> schemas.HealthResponse:
    return schemas.HealthResponse(status="ok")


async def metrics(state: ServerState, request: None) -> HttpResponse:
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
