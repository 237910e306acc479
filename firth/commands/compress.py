"""The subcommand compress: a smaller or faster model, measured against the original."""

from pathlib import Path
from typing import Annotated

import typer

from firth import compression
from firth.commands.shown import Json, ModelFolder, show

NOT_REACHED = 3
"""The exit code if no strength reaches what --keep and --faster ask for."""


def compress(
    model: ModelFolder,
    changes: Annotated[
        list[str] | None, typer.Argument(help="Settings of the method, such as num_layers=3 for layers.")
    ] = None,
    *,
    by: Annotated[str, typer.Option(help=f"The method: {', '.join(compression.TABLE)}.")],
    data: Annotated[
        Path,
        typer.Option(help="Labelled rows that both models are measured on; lines of text for a model without task."),
    ],
    out: Annotated[Path, typer.Option(help="Model folder to write; must not exist, unless --resume.")],
    train: Annotated[
        Path | None,
        typer.Option(
            help="Rows that the method learns from. Without it, a method that does not train takes half of --data."
        ),
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(help="Search the strongest setting that keeps this share of the score, such as 0.99."),
    ] = None,
    faster: Annotated[
        float | None, typer.Option(help="Search the mildest setting that is so many times as fast, such as 1.5.")
    ] = None,
    then: Annotated[
        list[str] | None,
        typer.Option(
            help="A method without training that follows, such as int8 or weights; repeat for more. Its settings begin "
            "with its name: weights.bits=4."
        ),
    ] = None,
    vocabulary_from: Annotated[
        list[Path] | None, typer.Option(help="For the method vocabulary: text whose tokens are kept.")
    ] = None,
    task: Annotated[str, typer.Option(help="Which task, where the model has several.")] = "",
    skip_bad: Annotated[bool, typer.Option(help="Leave out rows that cannot be used.")] = False,
    resume: Annotated[bool, typer.Option(help="Continue a method that trains in --out where it stopped.")] = False,
    seed: Annotated[int, typer.Option(help="Decides which rows are learned from, and training.")] = 1,
    device: Annotated[str | None, typer.Option(help="For methods that train: cpu or cuda.")] = None,
    as_json: Json = False,
) -> None:
    """Make a model smaller or faster, and measure size, speed and score against the original."""
    from firth import model_files

    summary = model_files.compress(
        model,
        by=by,
        data=data,
        out=out,
        train=train,
        keep=keep,
        faster=faster,
        then=then or (),
        vocabulary_from=vocabulary_from or (),
        task=task,
        changes=changes or (),
        skip_bad=skip_bad,
        resume=resume,
        seed=seed,
        device=device,
    )
    if as_json:
        show(summary, as_json=True)
    else:
        for line in summary["lines"]:
            typer.echo(line)
    if not summary["reached"]:
        raise typer.Exit(NOT_REACHED)
