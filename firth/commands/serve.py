"""The subcommand that answers over HTTP."""

from pathlib import Path
from typing import Annotated

import typer


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=PATH]...",
            help="Model folders under the names clients use, or models that come with firth, such as en-small.",
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on; any but this machine's own needs a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8080,
    runs: Annotated[Path | None, typer.Option(help="A folder of runs whose curves the page shows.")] = None,
    index: Annotated[Path | None, typer.Option(help="An index made by `firth search build`, for /search.")] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token clients must send. [default: $FIRTH_TOKEN]")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Of vectors: fp32, bf16, int8, or auto, the fastest that stays alike. "
            "[default: the folder's own, else fp32]"
        ),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="Processes that answer on the port; one that ends is replaced.")
    ] = 1,
    limits: Annotated[
        list[str] | None,
        typer.Option("--limit", help="Change a limit, as in queued=100; `firth serve --limit help` lists them."),
    ] = None,
) -> None:
    """Answer over HTTP: embeddings, fills, predictions, and a page to look inside.

    Without models it serves all that come with firth, and those of `firth demo` if they are in the folder demo.
    """
    from firth import tour

    if limits == ["help"]:
        from firth.config import describe
        from firth.serving.limits import Limits

        defaults = Limits()
        for name, text in describe(Limits).items():
            typer.echo(f"{name}={getattr(defaults, name)}\n    {text}")
        return
    tour.serve(
        models or (),
        host=host,
        port=port,
        runs=runs,
        index=index,
        token_file=token_file,
        precision=precision,
        limits=limits or (),
        workers=workers,
    )
