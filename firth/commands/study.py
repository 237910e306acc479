"""The subcommand study: a question about the lineage, answered by runs on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from firth import study as studies
from firth.commands.shown import Json, show
from firth.errors import BadConfig, Resumable


def study(
    name: Annotated[str, typer.Argument(help=f"The study: {', '.join(studies.TABLE)}.")] = "",
    out: Annotated[Path, typer.Option(help="Folder for all studies; runs in it are not done again.")] = Path("study"),
    minutes: Annotated[
        float | None, typer.Option(help="Do only what fits into this time; run again, it goes on. Without it: all.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder with archives of public sets; without it: what comes with firth.")
    ] = None,
    run_all: Annotated[bool, typer.Option("--all", help="All studies, each with the same share of the time.")] = False,
    as_json: Json = False,
) -> None:
    """Test a claim about language models by runs on this machine, and write a page with verdicts and intervals."""
    from firth.study.studies import run
    from firth.study.studies import run_all as run_every_study

    if bool(name) == run_all:
        raise BadConfig(f"Name one study ({', '.join(studies.TABLE)}) or give --all.")
    try:
        pages = (
            run_every_study(out=out, minutes=minutes, data=data)
            if run_all
            else [run(name, out=out, minutes=minutes, data=data)]
        )
    except Resumable as error:
        error.remedy = "Give the same command again to continue."  # a study has no --resume
        raise
    if as_json:
        show({"pages": pages}, as_json=True)
        return
    for page in pages:
        typer.echo(page)
