"""The subcommand tune: the best settings of fine-tuning within a number of minutes."""

from pathlib import Path
from typing import Annotated

import typer

from firth import tasks
from firth.commands.flags import in_flags
from firth.commands.rows import (
    Format,
    Kind,
    LabelColumns,
    LabelNames,
    ModelAndChanges,
    Preset,
    SecondColumn,
    TextColumn,
    given,
    model_and_changes,
    read_names,
)
from firth.commands.shown import Json, show


def tune(
    arguments: ModelAndChanges = None,
    task: Annotated[str, typer.Option(help=f"What to learn: {', '.join(tasks.TABLE)}.")] = ...,  # type: ignore[assignment]
    train: Annotated[Path, typer.Option(help="Labelled rows to learn from.")] = ...,  # type: ignore[assignment]
    dev: Annotated[
        Path | None, typer.Option(help="Rows that settings are picked on. Without it: some of those of --train.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write; refused if it exists, unless --resume.")] = ...,  # type: ignore[assignment]
    minutes: Annotated[float, typer.Option(help="How long all trials together may take.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Decides which settings are tried.")] = 1,
    skip_bad: Annotated[bool, typer.Option(help="Leave out rows that cannot be used, and count them.")] = False,
    resume: Annotated[bool, typer.Option(help="Continue the search in --out where it stopped.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. [default: cuda where there is one]")] = None,
    preset: Preset = None,
    text_column: TextColumn = None,
    second_column: SecondColumn = None,
    label_columns: LabelColumns = None,
    label_names: LabelNames = None,
    kind: Kind = None,
    format: Format = None,
    as_json: Json = False,
) -> None:
    """Search rate, epochs, batch, layer decay and method on held-out rows; OUT is the best model."""
    from firth import pipeline
    from firth.finetuning.tuning.running import headlines

    model, changes = model_and_changes(arguments or ())
    options = given(
        preset=preset,
        text_column=text_column,
        second_column=second_column,
        label_columns=label_columns,
        label_names=read_names(label_names),
        kind=kind,
        format=format,
    )
    summary = pipeline.tune(
        model,
        task=task,
        train=train,
        dev=dev,
        out=out,
        minutes=minutes,
        seed=seed,
        skip_bad=skip_bad,
        resume=resume,
        changes=changes,
        device=device,
        **options,
    )
    if as_json:
        show(summary, as_json=True)
        return
    typer.echo(in_flags("\n".join(headlines(summary))))
