"""Subcommands about labelled rows: check, finetune, predict, evaluate."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firth import models, tasks
from firth.commands import trust, vectors
from firth.commands.flags import in_flags
from firth.commands.shown import (
    DEFAULT_MODEL,
    MODEL_HELP,
    EngineName,
    Json,
    ModelFolder,
    Processes,
    check_model_first,
    json_line,
    json_row,
    line,
    show,
    weights_line,
)
from firth.errors import BadConfig
from firth.nn import TAGGERS

if TYPE_CHECKING:
    from firth.inference.explaining import Explanation
    from firth.types import Example, Prediction

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
Kind = Annotated[
    str | None, typer.Option(help="What a label is: one (a name), many (any number of names) or number. [default: one]")
]
TargetEnding = Annotated[
    str | None, typer.Option(help="To rewrite: ending of the file of targets, such as de for train.en and train.de.")
]
Language = Annotated[
    str, typer.Option(help="The texts' language, for a model with language embeddings. [default: the model's own]")
]
Pattern = Annotated[
    str | None,
    typer.Option(help="A prompt with {text}, if need be {second}, and [MASK]. [default: {text} It was [MASK].]"),
]
Words = Annotated[
    str | None, typer.Option("--words", help="What [MASK] is for each label: positive=great/good,negative=terrible.")
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

    options = given(
        preset=preset,
        text_column=text_column,
        second_column=second_column,
        label_columns=label_columns,
        label_names=read_names(label_names),
        kind=kind,
        format=format,
        target_ending=target_ending,
    )
    settings = _settings(changes or (), task)
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

    _echo_messages(describe(findings))
    if "deep" in findings:
        from firth.trust import label_errors

        _echo_messages(label_errors.describe(findings["deep"]))


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
    few: Annotated[
        str, typer.Option(help="For few labels: contrast, prompt, plain, or choose (the best by cross-validation).")
    ] = "",
    unlabelled: Annotated[
        Path | None, typer.Option(help="With --few: a text on each line, labelled by the model and learned from.")
    ] = None,
    pattern: Pattern = None,
    label_words: Words = None,
    as_json: Json = False,
) -> None:
    """Fine-tune a model on labelled rows, measure it and write its card."""
    from firth import pipeline

    model, changes = model_and_changes(arguments or ())
    _check_not_swapped(model, train or ())
    options = given(
        preset=preset,
        text_column=text_column,
        second_column=second_column,
        label_columns=label_columns,
        label_names=read_names(label_names),
        kind=kind,
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

    _echo_messages(headlines(summary))


def model_and_changes(arguments: Iterable[str]) -> tuple[str | None, list[str]]:
    """Arguments with an equals sign are changes; at most one other argument names the model."""
    named = []
    changes = []
    for argument in arguments:
        if "=" in argument:
            changes.append(argument)
        else:
            named.append(argument)
    if len(named) > 1:
        raise BadConfig(f"Name one model; there are {len(named)}: {', '.join(named)}.")
    return (named[0] if named else None), changes


def _check_not_swapped(model: str | None, train: Iterable[Path]) -> None:
    """Raises if the rows are given as the model, and the model as the rows."""
    for path in train:
        if models.is_model(path) and not path.is_file():
            swapped = f" and {model} is a file of rows; swap the two" if model and Path(model).is_file() else ""
            remedy = swapped or "; give it as MODEL, and labelled rows as --train"
            raise BadConfig(f"--train {path} is a model{remedy}: firth finetune MODEL --train ROWS.")


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
    text_column: TextColumn = None,
    second_column: SecondColumn = None,
    language: Language = "",
    pattern: Pattern = None,
    label_words: Words = None,
    best: Annotated[int, typer.Option(help="Of a tagger, this many of the likeliest sequences for each text.")] = 1,
    wanted_precision: Annotated[
        float | None,
        typer.Option(help="Abstain where the held-out rows of fine-tuning say that precision would be lower."),
    ] = None,
    abstain_below: Annotated[
        float | None, typer.Option(help="Abstain where the label's probability is below this.")
    ] = None,
    explain: Annotated[bool, typer.Option(help="Show which words speak for the label of a classifier.")] = False,
    explain_by: Annotated[
        str, typer.Option(help="With --explain: gradients (integrated), occlusion (leave out each word), or auto.")
    ] = "auto",
    engine: EngineName = "local",
    processes: Processes = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines: one object for each input.")] = False,
) -> None:
    """Ask a fine-tuned model about texts: one line, or one JSON row, for each input, in order."""
    from firth.engines import open_engine
    from firth.inference.model import load

    check_model_first(model, texts or ())
    if bool(texts) == (file is not None):
        raise BadConfig("Give texts or a --file, one of the two.")
    columns = given(text_column=text_column, second_column=second_column)
    if columns and file is None:
        raise BadConfig("Columns are those of a --file; leave them out.")
    loaded = load(model, language=language)
    if pattern and not label_words:
        raise BadConfig("--pattern needs --words: what [MASK] is for each label.")
    if label_words:
        if engine != "local":
            raise BadConfig("A prompt (--words) is answered on this machine; leave out --engine.")
        loaded = loaded.prompted(words=label_words, pattern=pattern or "")
    if file is None:
        # A tab separates the texts of a pair.
        inputs = [text.split("\t") if "\t" in text else text for text in texts or ()]
        examples = loaded.examples(inputs, task=task)
    else:
        examples = loaded.read_examples(file, task=task, **columns)
    if best != 1:
        _show_best_sequences(loaded.k_best(examples, best, task=task), as_json=as_json)
        return
    threshold = abstain_below or 0.0
    if wanted_precision is not None:
        threshold = loaded.abstain_threshold(wanted_precision, task=task)
    with open_engine(engine, workers=processes) as opened:
        if opened is None:
            predictions = loaded.predict_examples(examples, task=task)
        else:
            from firth.inference import on_engine

            predictions = on_engine.predict(opened, loaded, examples, task=task, language=language)
    explanations: Sequence[Explanation | None] = [None] * len(examples)
    if explain:
        explanations = loaded.explain_examples(examples, task=task, by=explain_by)  # type: ignore[arg-type]
    rows = zip(examples, predictions, explanations, strict=True)
    _show_predictions(rows, abstain_below=threshold, as_json=as_json)


def _show_predictions(
    rows: "Iterable[tuple[Example, Prediction, Explanation | None]]", *, abstain_below: float, as_json: bool
) -> None:
    """Prints one line or one JSON object for each input, and below a line what speaks for the label."""
    for example, prediction, explanation in rows:
        is_sure = prediction.probability >= abstain_below
        if as_json:
            row = json_row(example, prediction, explanation)
            if abstain_below:
                row["sure"] = is_sure
            print(json_line(row))
            continue
        written = line(prediction)
        typer.echo(written if is_sure else f"(unsure)\t{written}")
        if explanation is not None:
            typer.echo(f"  {weights_line(explanation)}")


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

    options = given(
        preset=preset,
        text_column=text_column,
        second_column=second_column,
        label_columns=label_columns,
        label_names=read_names(label_names),
        kind=kind,
        target_ending=target_ending,
    )
    settings = _settings(changes or (), task)
    if against is not None or slices:
        trust.evaluate_rows(run, data, against=against, task=task, columns=options, as_json=as_json)
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
        vectors.show_tests(figures, as_json=as_json)
    else:
        show(figures, as_json=as_json)


def _echo_messages(lines: Iterable[str]) -> None:
    """Prints sentences of the package, which may name arguments."""
    typer.echo(in_flags("\n".join(lines)))


def given(**options: str | list[str] | None) -> dict[str, str | list[str]]:
    """The options that have a value."""
    return {name: value for name, value in options.items() if value}


def read_names(file: Path | None) -> list[str]:
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
