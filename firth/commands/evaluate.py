"""The subcommand evaluate: figures of a model on rows, on prepared text or on words."""

from pathlib import Path
from typing import Annotated

import typer

from firth.commands import trust, word_tools
from firth.commands.row_options import Language, RowOptions, SkipBad, TargetEnding, task_settings
from firth.commands.shown import Json, ModelFolder, show


def evaluate(
    run: ModelFolder,
    data: Annotated[
        Path | None, typer.Option(help="A labelled file for a fine-tuned model; else a folder made by `firth prepare`.")
    ] = None,
    *,
    words: Annotated[
        list[Path] | None, typer.Option("--words", help="Word pairs or analogies, to measure word vectors.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Argument(help="Settings of a task that needs no training, such as pooling=mean.")
    ] = None,
    task: Annotated[str, typer.Option(help="Which task, where the model has several; compare needs no training.")] = "",
    seed: Annotated[int, typer.Option(help="Decides masks and pairs.")] = 1,
    skip_bad: SkipBad = False,
    rows: RowOptions,
    target_ending: TargetEnding = None,
    language: Language = "",
    against: Annotated[
        Path | None, typer.Option(help="A second fine-tuned model: is one of the two really better on these rows?")
    ] = None,
    slices: Annotated[
        bool, typer.Option(help="List groups of rows on which the model has more errors than by chance.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a fine-tuned model on labelled rows, a pre-trained one on prepared text, word vectors on words."""
    from firth import pipeline

    options = rows.given(
        target_ending=target_ending,
    )
    settings = task_settings(changes or (), task)
    if against is not None or slices:
        trust.evaluate_rows(run, data, against=against, task=task, columns=options, skip_bad=skip_bad, as_json=as_json)
        return
    figures = pipeline.evaluate(
        run,
        data=data,
        words=words or (),
        task=task,
        seed=seed,
        skip_bad=skip_bad,
        language=language,
        **{**options, **settings},
    )
    if words:
        word_tools.show_tests(figures, as_json=as_json)
    else:
        show(figures, as_json=as_json)
