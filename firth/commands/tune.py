"""The subcommand tune: the best settings of fine-tuning within a number of minutes."""

from pathlib import Path
from typing import Annotated

import typer

from firth import tasks
from firth.commands.row_options import Format, ModelAndChanges, RowOptions, SkipBad, model_and_changes
from firth.commands.shown import Device, Json, echo_messages, show


def tune(
    arguments: ModelAndChanges = None,
    *,
    task: Annotated[str, typer.Option(help=f"What to learn: {', '.join(tasks.TABLE)}.")],
    train: Annotated[Path, typer.Option(help="Labelled rows to learn from.")],
    dev: Annotated[
        Path | None, typer.Option(help="Rows that settings are picked on. Without it: some of those of --train.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write; refused if it exists, unless --resume.")],
    minutes: Annotated[float, typer.Option(help="How long all trials together may take.")] = 10.0,
    seed: Annotated[int, typer.Option(help="Decides which settings are tried.")] = 1,
    skip_bad: SkipBad = False,
    resume: Annotated[bool, typer.Option(help="Continue the search in --out where it stopped.")] = False,
    device: Device = None,
    rows: RowOptions,
    format: Format = None,
    as_json: Json = False,
) -> None:
    """Search rate, epochs, batch, layer decay and method on held-out rows; OUT is the best model."""
    from firth import pipeline
    from firth.finetuning.tuning.running import headlines

    model, changes = model_and_changes(arguments or ())
    options = rows.given(
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
    echo_messages(headlines(summary))
