"""Subcommands about labelled rows: check, finetune, predict, evaluate."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firth import tasks
from firth.commands import vectors
from firth.commands.flags import in_flags
from firth.commands.shown import (
    DEFAULT_MODEL,
    MODEL_HELP,
    EngineName,
    Json,
    ModelFolder,
    Processes,
    line,
    show,
)
from firth.errors import BadConfig
from firth.files import finite
from firth.nn import TAGGERS

if TYPE_CHECKING:
    from firth.types import Prediction

ModelAndChanges = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL] [CHANGES]...",
        help=f"{MODEL_HELP} {DEFAULT_MODEL} Changes: epochs=5, tasks.compare.pooling=cls (or pooling=cls) ...",
    ),
]
NewEncoder = Annotated[
    str | None, typer.Option(help="bag: features by hand; static: new vectors, a BiLSTM; or a model folder.")
]
RecipeName = Annotated[
    str | None,
    typer.Option(
        help="fasttext: a linear model of words; ulmfit: a language model in two stages; transformer: a new one."
    ),
]
Preset = Annotated[str | None, typer.Option(help="The form of a published set (GLUE), such as mrpc or mnli.")]
TextColumn = Annotated[str | None, typer.Option(help="Column of the text; a number counts columns without a header.")]
SecondColumn = Annotated[str | None, typer.Option(help="Column of the second text of a pair.")]
LabelColumns = Annotated[
    list[str] | None, typer.Option("--label-column", help="Column of the label; several are several questions.")
]
LabelNames = Annotated[Path | None, typer.Option(help="A file with one name a line for labels given as numbers.")]
Kind = Annotated[str | None, typer.Option(help="What a label is: one name, many names, or a number.")]
TargetEnding = Annotated[
    str | None, typer.Option(help="To rewrite: ending of the file of targets, such as de for train.en and train.de.")
]
Language = Annotated[
    str, typer.Option(help="The texts' language, for a model with language embeddings. [default: the model's own]")
]
Format = Annotated[str | None, typer.Option(help="Of files of tagged words: columns, words or tagged (word/tag).")]


def check(
    file: Annotated[Path, typer.Argument(help="Labelled rows to learn from.")],
    task: Annotated[str, typer.Option(help=f"What they are for: {', '.join(tasks.TABLE)}.")],
    dev: Annotated[Path | None, typer.Option(help="A dev file, looked at for rows it shares with the first.")] = None,
    test: Annotated[Path | None, typer.Option(help="A test file, likewise.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="A model folder or name; lengths are counted in its tokens.")
    ] = None,
    preset: Preset = None,
    text_column: TextColumn = None,
    second_column: SecondColumn = None,
    label_columns: LabelColumns = None,
    label_names: LabelNames = None,
    kind: Kind = None,
    format: Format = None,
    target_ending: TargetEnding = None,
    changes: Annotated[list[str] | None, typer.Argument(help="The task's settings, such as scheme=BIOES.")] = None,
    as_json: Json = False,
) -> None:
    """Look at labelled rows before training: balance, lengths, duplicates, leaks, conflicts, bad rows."""
    from firth import pipeline

    options = _given(
        preset=preset,
        text_column=text_column,
        second_column=second_column,
        label_columns=label_columns,
        label_names=_read_names(label_names),
        kind=kind,
        format=format,
        target_ending=target_ending,
    )
    settings = _settings(changes or (), task)
    findings = pipeline.check(file, task=task, dev=dev, test=test, model=model, **{**options, **settings})
    if as_json:
        show(findings, as_json=True)
    else:
        from firth.finetuning.checking import describe

        _echo_messages(describe(findings))


def finetune(
    arguments: ModelAndChanges = None,
    task: Annotated[
        list[str] | None, typer.Option(help=f"What to learn: {', '.join(tasks.TABLE)}; several share one encoder.")
    ] = None,
    train: Annotated[list[Path] | None, typer.Option(help="Labelled rows to learn from, one file a task.")] = None,
    dev: Annotated[list[Path] | None, typer.Option(help="Rows that epochs and seeds are picked on.")] = None,
    test: Annotated[list[Path] | None, typer.Option(help="Rows that only the kept weights are measured on.")] = None,
    out: Annotated[Path, typer.Option(help="Run folder to write; refused if it exists, unless --resume.")] = ...,  # type: ignore[assignment]
    seeds: Annotated[int, typer.Option(min=1, help="How many times to train, for mean and deviation.")] = 1,
    random: Annotated[
        bool, typer.Option(help="The model's shape with random weights, as a control. Without MODEL: a tiny BERT.")
    ] = False,
    skip_bad: Annotated[bool, typer.Option(help="Leave out rows that cannot be used, and count them.")] = False,
    resume: Annotated[bool, typer.Option(help="Continue the run in --out where it stopped.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. [default: cuda where there is one]")] = None,
    preset: Preset = None,
    text_column: TextColumn = None,
    second_column: SecondColumn = None,
    label_columns: LabelColumns = None,
    label_names: LabelNames = None,
    kind: Kind = None,
    encoder: NewEncoder = None,
    recipe: RecipeName = None,
    tagger: Annotated[str | None, typer.Option(help=f"For tagging: {', '.join(TAGGERS)}.")] = None,
    format: Format = None,
    target_ending: TargetEnding = None,
    language: Language = "",
    as_json: Json = False,
) -> None:
    """Fine-tune a model on labelled rows, measure it and write its card."""
    from firth import pipeline

    model, changes = _model_and_changes(arguments or ())
    options = _given(
        preset=preset,
        text_column=text_column,
        second_column=second_column,
        label_columns=label_columns,
        label_names=_read_names(label_names),
        kind=kind,
        tagger=tagger,
        format=format,
        target_ending=target_ending,
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
        **options,
    )
    if as_json:
        show(summary, as_json=True)
        return
    from firth.finetuning.figures import headlines

    _echo_messages(headlines(summary))


def _model_and_changes(arguments: Iterable[str]) -> tuple[str | None, list[str]]:
    """Arguments with an equals sign are changes; at most one other argument names the model."""
    models = []
    changes = []
    for argument in arguments:
        if "=" in argument:
            changes.append(argument)
        else:
            models.append(argument)
    if len(models) > 1:
        raise BadConfig(f"Name one model; there are {len(models)}: {', '.join(models)}.")
    return (models[0] if models else None), changes


def predict(
    model: ModelFolder,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; a tab parts the two texts of a pair.")] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            help="Plain text, in which every line is an input, blank ones too; or rows like those of the training file."
        ),
    ] = None,
    task: Annotated[str, typer.Option(help="Which task, where the model has several.")] = "",
    language: Language = "",
    best: Annotated[int, typer.Option(help="Of a tagger, this many of the likeliest sequences for each text.")] = 1,
    engine: EngineName = "local",
    processes: Processes = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines: one object for each input.")] = False,
) -> None:
    """Ask a fine-tuned model about texts: one line, or one JSON row, for each input, in order."""
    from firth.engines import open_engine
    from firth.inference.model import load

    if bool(texts) == (file is not None):
        raise BadConfig("Give texts or a --file, one of the two.")
    loaded = load(model, language=language)
    # A tab separates the texts of a pair.
    inputs = [text.split("\t") if "\t" in text else text for text in texts or ()]
    examples = loaded.examples(inputs, task=task) if file is None else loaded.read_examples(file, task=task)
    if best != 1:
        _show_best_sequences(loaded.k_best(examples, best, task=task), as_json=as_json)
        return
    with open_engine(engine, workers=processes) as opened:
        if opened is None:
            predictions = loaded.predict_examples(examples, task=task)
        else:
            from firth.inference import on_engine

            predictions = on_engine.predict(opened, loaded, examples, task=task, language=language)
    for prediction in predictions:
        if as_json:
            print(json.dumps(finite(asdict(prediction)), ensure_ascii=False))
        else:
            typer.echo(line(prediction))


def _show_best_sequences(sequences: "list[list[Prediction]]", *, as_json: bool) -> None:
    """Prints the likeliest tag sequences of each input, which are numbered from 1."""
    for number, predictions in enumerate(sequences, 1):
        for prediction in predictions:
            if as_json:
                row = {"input": number, **asdict(prediction)}
                typer.echo(json.dumps(row, ensure_ascii=False))
            else:
                typer.echo(f"{number}\t{prediction.probability:.4f}\t{line(prediction)}")


def evaluate(
    run: ModelFolder,
    data: Annotated[
        Path | None, typer.Option(help="A labelled file for a fine-tuned model; else a folder made by `firth prepare`.")
    ] = None,
    words: Annotated[
        list[Path] | None, typer.Option("--words", help="Word pairs or analogies, to measure word vectors.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Argument(help="Settings of a task that needs no training, such as pooling=mean.")
    ] = None,
    task: Annotated[str, typer.Option(help="Which task, where the model has several; compare needs no training.")] = "",
    seed: Annotated[int, typer.Option(help="Decides masks and pairs.")] = 1,
    skip_bad: Annotated[bool, typer.Option(help="Leave out rows that cannot be used, and count them.")] = False,
    preset: Preset = None,
    text_column: TextColumn = None,
    second_column: SecondColumn = None,
    label_columns: LabelColumns = None,
    label_names: LabelNames = None,
    kind: Kind = None,
    target_ending: TargetEnding = None,
    language: Language = "",
    as_json: Json = False,
) -> None:
    """Measure a fine-tuned model on labelled rows, a pre-trained one on prepared text, word vectors on words."""
    from firth import pipeline

    options = _given(
        preset=preset,
        text_column=text_column,
        second_column=second_column,
        label_columns=label_columns,
        label_names=_read_names(label_names),
        kind=kind,
        target_ending=target_ending,
    )
    settings = _settings(changes or (), task)
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
        vectors.show_tests(figures, as_json=as_json)
    else:
        show(figures, as_json=as_json)


def _echo_messages(lines: Iterable[str]) -> None:
    """Prints sentences of the package, which may name arguments."""
    typer.echo(in_flags("\n".join(lines)))


def _given(**options: str | list[str] | None) -> dict[str, str | list[str]]:
    """The options that have a value."""
    return {name: value for name, value in options.items() if value}


def _read_names(file: Path | None) -> list[str]:
    """The names of labels, one on each line of a file."""
    from firth.corpus.readers import read_lines

    if file is None:
        return []
    lines = read_lines(file, remedy="put one name on each line")
    return [line.strip() for line in lines]


def _settings(changes: Iterable[str], task: str) -> dict[str, object]:
    """`key=value` settings of a task as a dict. Keys may be full (`tasks.compare.pooling`) or short (`pooling`)."""
    from firth.config import read_value

    settings = {}
    for change in changes:
        name, equals, text = change.partition("=")
        if not equals:
            raise BadConfig(f"'{change}' is not of the form key=value.")
        short_name = name.removeprefix(f"tasks.{task}.")
        settings[short_name] = read_value(text)  # JSON, or plain text
    return settings
