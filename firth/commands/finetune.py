"""Subcommands that learn from labelled rows: check looks at them first, finetune trains."""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from firth import models, tasks
from firth.commands.row_options import (
    Format,
    LabelWords,
    Language,
    ModelAndChanges,
    Pattern,
    RowOptions,
    SkipBad,
    TargetEnding,
    check_pattern,
    model_and_changes,
    task_settings,
)
from firth.commands.shown import Device, Json, echo_messages, show
from firth.errors import BadConfig
from firth.nn import TAGGERS


def check(
    file: Annotated[Path, typer.Argument(help="Labelled rows to learn from.")],
    task: Annotated[str, typer.Option(help=f"What they are for: {', '.join(tasks.TABLE)}.")],
    *,
    dev: Annotated[Path | None, typer.Option(help="A dev file, looked at for rows it shares with the first.")] = None,
    test: Annotated[Path | None, typer.Option(help="A test file, likewise.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="A model folder or name; lengths are counted in its tokens.")
    ] = None,
    rows: RowOptions,
    format: Format = None,
    target_ending: TargetEnding = None,
    changes: Annotated[list[str] | None, typer.Argument(help="The task's settings, such as scheme=BIOES.")] = None,
    deep: Annotated[
        bool, typer.Option(help="Also cross-validate the rows, and list labels that are probably wrong.")
    ] = False,
    deep_by: Annotated[
        str, typer.Option(help="With --deep: vectors (regression on the model's vectors) or finetune (slower, surer).")
    ] = "vectors",
    as_json: Json = False,
) -> None:
    """Look at labelled rows before training: balance, lengths, duplicates, leaks, conflicts, bad rows."""
    from firth import pipeline

    options = rows.given(
        format=format,
        target_ending=target_ending,
    )
    settings = task_settings(changes or (), task)
    findings = pipeline.check(
        file,
        task=task,
        dev=dev,
        test=test,
        model=model,
        deep=deep,
        deep_by=deep_by,  # type: ignore[arg-type]
        **{**options, **settings},
    )
    if as_json:
        show(findings, as_json=True)
        return
    from firth.finetuning.checking import describe

    echo_messages(describe(findings))
    if "deep" in findings:
        from firth.trust import label_errors

        echo_messages(label_errors.describe(findings["deep"]))


def finetune(
    arguments: ModelAndChanges = None,
    *,
    task: Annotated[
        list[str] | None, typer.Option(help=f"What to learn: {', '.join(tasks.TABLE)}; several share one encoder.")
    ] = None,
    train: Annotated[list[Path] | None, typer.Option(help="Labelled rows to learn from, one file a task.")] = None,
    dev: Annotated[list[Path] | None, typer.Option(help="Rows that epochs and seeds are picked on.")] = None,
    test: Annotated[list[Path] | None, typer.Option(help="Rows that only the kept weights are measured on.")] = None,
    out: Annotated[Path, typer.Option(help="Run folder to write; refused if it exists, unless --resume.")],
    seeds: Annotated[int, typer.Option(min=1, help="How many times to train, for mean and deviation.")] = 1,
    random: Annotated[
        bool, typer.Option(help="The model's shape with random weights, as a control. Without MODEL: a tiny BERT.")
    ] = False,
    skip_bad: SkipBad = False,
    resume: Annotated[bool, typer.Option(help="Continue the run in --out where it stopped.")] = False,
    device: Device = None,
    rows: RowOptions,
    encoder: Annotated[
        str | None, typer.Option(help="bag: features by hand; static: new vectors, a BiLSTM; or a model folder.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="fasttext: a linear model of words; ulmfit: a language model in two stages; transformer: a new one."
        ),
    ] = None,
    tagger: Annotated[str | None, typer.Option(help=f"For tagging: {', '.join(TAGGERS)}.")] = None,
    format: Format = None,
    target_ending: TargetEnding = None,
    language: Language = "",
    few: Annotated[
        str, typer.Option(help="For few labels: contrast, prompt, plain, or choose (the best by cross-validation).")
    ] = "",
    unlabelled: Annotated[
        Path | None, typer.Option(help="With --few: a text on each line, labelled by the model and learned from.")
    ] = None,
    pattern: Pattern = None,
    label_words: LabelWords = None,
    as_json: Json = False,
) -> None:
    """Fine-tune a model on labelled rows, measure it and write its card."""
    from firth import pipeline

    model, changes = model_and_changes(arguments or ())
    _check_not_swapped(model, train or ())
    check_pattern(pattern, label_words)
    options = rows.given(
        tagger=tagger,
        format=format,
        target_ending=target_ending,
        pattern=pattern,
        label_words=label_words,
    )
    summary = pipeline.finetune(
        model,
        task=task or (),
        train=train or (),
        dev=dev or (),
        test=test or (),
        out=out,
        seeds=seeds,
        random=random,
        skip_bad=skip_bad,
        resume=resume,
        changes=changes,
        device=device,
        encoder=encoder,
        recipe=recipe,
        language=language,
        few=few,
        unlabelled=unlabelled or "",
        **options,
    )
    if as_json:
        show(summary, as_json=True)
        return
    from firth.finetuning.figures import headlines

    echo_messages(headlines(summary))


def _check_not_swapped(model: str | None, train: Iterable[Path]) -> None:
    """Raises if the rows are given as the model, and the model as the rows."""
    for path in train:
        if models.is_model(path) and not path.is_file():
            swapped = f" and {model} is a file of rows; swap the two" if model and Path(model).is_file() else ""
            remedy = swapped or "; give it as MODEL, and labelled rows as --train"
            raise BadConfig(f"--train {path} is a model{remedy}: firth finetune MODEL --train ROWS.")
