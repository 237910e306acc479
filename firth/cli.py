"""The command line: one subcommand for each function of the pipeline. Mistakes get one sentence and exit code 2."""

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from firth import __version__
from firth.commands import generating, models, senses, serving, vectors
from firth.commands.shown import Json, ModelFolder, line, show
from firth.errors import BadConfig, FirthError

app = typer.Typer(
    name="firth",
    help="From raw text to language models, and from models to answers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Changes = Annotated[list[str] | None, typer.Argument(help="Config changes such as train.optim.rate=1e-3.")]


Preset = Annotated[str | None, typer.Option(help="A published set's form: cola, sst-2, mrpc, stsb, qqp, mnli ...")]
TextColumn = Annotated[str | None, typer.Option(help="Column of the text; a number counts columns without a header.")]
SecondColumn = Annotated[str | None, typer.Option(help="Column of the second text of a pair.")]
LabelColumn = Annotated[list[str] | None, typer.Option(help="Column of the label; several are several questions.")]
LabelNames = Annotated[Path | None, typer.Option(help="A file with one name a line for labels given as numbers.")]
Kind = Annotated[str | None, typer.Option(help="What a label is: one name, many names, or a number.")]


Format = Annotated[str | None, typer.Option(help="Of files of tagged words: columns, words or tagged (word/tag).")]


@app.command()
def prepare(
    texts: Annotated[
        list[str], typer.Argument(help="Files, folders or globs: txt, jsonl, parquet; also .gz .xz .zst.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write; must not exist.")],
    tokenizer: Annotated[
        str, typer.Option(help="'wordpiece', 'bpe' or 'words' trains a vocabulary; a folder uses its tokenizer.")
    ] = "wordpiece",
    vocab_size: Annotated[int | None, typer.Option(help="Pieces of a new vocabulary. [default: 30000]")] = None,
    min_count: Annotated[
        int | None, typer.Option(help="How often a word must occur to be in a new vocabulary.")
    ] = None,
    cased: Annotated[bool, typer.Option(help="Keep capitals and accents in a new vocabulary.")] = False,
    documents: Annotated[
        str, typer.Option(help="What ends a document: blank-line, file, line or field.")
    ] = "blank-line",
    field: Annotated[str, typer.Option(help="The field with the text in jsonl and parquet files.")] = "text",
    repair: Annotated[bool, typer.Option(help="Repair mojibake (needs ftfy).")] = False,
    near_duplicates: Annotated[
        int | None, typer.Option(help="Also drop documents whose 64-bit SimHash differs in at most so many bits.")
    ] = None,
    segmenter: Annotated[
        Path | None, typer.Option(help="A model fine-tuned on segmented text, for Chinese words. [default: rjieba]")
    ] = None,
    processes: Annotated[int, typer.Option(help="Worker processes.")] = 2,
    seed: Annotated[
        int, typer.Option(help="Decides which documents a vocabulary is trained on when there are many.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Turn text into a vocabulary and shards, and report the text's health."""
    from firth import pipeline

    health = pipeline.prepare(
        texts,
        out=out,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        min_count=min_count,
        cased=cased,
        documents=documents,  # type: ignore[arg-type]
        field=field,
        repair=repair,
        near_duplicates=near_duplicates,
        segmenter=segmenter,
        processes=processes,
        seed=seed,
    )
    if as_json:
        show(health, as_json=True)


@app.command()
def pretrain(
    data: Annotated[Path, typer.Argument(help="A folder made by `firth prepare`; for word vectors also plain text.")],
    changes: Changes = None,
    out: Annotated[Path, typer.Option(help="Run folder to write; refused if it exists, unless --resume.")] = ...,  # type: ignore[assignment]
    recipe: Annotated[str | None, typer.Option(help="Name in the lineage. [default: bert]")] = None,
    size: Annotated[str | None, typer.Option(help="tiny, mini, small, medium, base or large. [default: tiny]")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimizer steps. [default: 1000]")] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the text instead of steps.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Time limit instead of steps.")] = None,
    resume: Annotated[bool, typer.Option(help="Continue the run in --out where it stopped.")] = False,
    start_from: Annotated[Path | None, typer.Option("--from", help="A model whose weights to start from.")] = None,
    config: Annotated[Path | None, typer.Option(help="A run.toml to take every number from.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. [default: cuda where there is one]")] = None,
    width: Annotated[int | None, typer.Option(help="Width of word vectors.")] = None,
    window: Annotated[int | None, typer.Option(help="Words on either side that word vectors look at.")] = None,
    min_count: Annotated[int | None, typer.Option(help="How often a word must occur to get a vector.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of recipes solved without gradients. [default: 2]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Pre-train a model on prepared text."""
    from firth import pipeline

    figures = pipeline.pretrain(
        data,
        out=out,
        recipe=recipe,
        size=size,
        steps=steps,
        epochs=epochs,
        minutes=minutes,
        resume=resume,
        start_from=start_from,
        config=config,
        changes=changes or (),
        device=device,
        width=width,
        window=window,
        min_count=min_count,
        threads=threads,
    )
    show(figures, as_json=as_json)


@app.command()
def check(
    file: Annotated[Path, typer.Argument(help="Labelled rows to learn from.")],
    task: Annotated[str, typer.Option(help="What they are for: classify, tag ...")],
    dev: Annotated[Path | None, typer.Option(help="A dev file, looked at for rows it shares with the first.")] = None,
    test: Annotated[Path | None, typer.Option(help="A test file, likewise.")] = None,
    model: Annotated[Path | None, typer.Option(help="A model: lengths are told in its tokens.")] = None,
    preset: Preset = None,
    text_column: TextColumn = None,
    second_column: SecondColumn = None,
    label_column: LabelColumn = None,
    label_names: LabelNames = None,
    kind: Kind = None,
    format: Format = None,
    changes: Annotated[list[str] | None, typer.Argument(help="The task's settings, such as scheme=BIOES.")] = None,
    as_json: Json = False,
) -> None:
    """Look at labelled rows before training: balance, lengths, duplicates, leaks, conflicts, bad rows."""
    from firth import pipeline

    options = _options(preset, text_column, second_column, label_column, label_names, kind, format=format)
    options |= _settings(changes or ())
    findings = pipeline.check(file, task=task, dev=dev, test=test, model=model, **options)
    if as_json:
        show(findings, as_json=True)
    else:
        from firth.recipes.checking import describe

        for line in describe(findings):
            typer.echo(line)


@app.command()
def finetune(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL] [CHANGES]...", help="A model folder, and changes such as epochs=5."),
    ] = None,
    task: Annotated[list[str] | None, typer.Option(help="What to learn; several tasks share one encoder.")] = None,
    train: Annotated[list[Path] | None, typer.Option(help="Labelled rows to learn from, one file a task.")] = None,
    dev: Annotated[list[Path] | None, typer.Option(help="Rows that epochs and seeds are picked on.")] = None,
    test: Annotated[list[Path] | None, typer.Option(help="Rows that only the kept weights are measured on.")] = None,
    out: Annotated[Path, typer.Option(help="Run folder to write; refused if it exists, unless --resume.")] = ...,  # type: ignore[assignment]
    seeds: Annotated[int, typer.Option(min=1, help="How many times to train, for mean and deviation.")] = 1,
    random: Annotated[bool, typer.Option(help="The model's shape with random weights, as a control.")] = False,
    skip_bad: Annotated[bool, typer.Option(help="Leave out rows that cannot be used, and count them.")] = False,
    resume: Annotated[bool, typer.Option(help="Continue the run in --out where it stopped.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. [default: cuda where there is one]")] = None,
    preset: Preset = None,
    text_column: TextColumn = None,
    second_column: SecondColumn = None,
    label_column: LabelColumn = None,
    label_names: LabelNames = None,
    kind: Kind = None,
    encoder: Annotated[str | None, typer.Option(help="bag: features written by hand; or a model folder.")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="fasttext: a linear model of words; ulmfit: a language model in two stages.")
    ] = None,
    tagger: Annotated[str | None, typer.Option(help="For tagging: softmax, hmm, memm or crf.")] = None,
    format: Format = None,
    as_json: Json = False,
) -> None:
    """Fine-tune a model on labelled rows, measure it and write its card. Without MODEL: from random weights."""
    from firth import pipeline

    models = [argument for argument in arguments or () if "=" not in argument]
    if len(models) > 1:
        raise BadConfig(f"Name one model; there are {len(models)}: {', '.join(models)}.")
    summary = pipeline.finetune(
        models[0] if models else None,
        task=task or (),
        train=train or (),
        dev=dev or (),
        test=test or (),
        out=out,
        seeds=seeds,
        random=random,
        skip_bad=skip_bad,
        resume=resume,
        changes=[argument for argument in arguments or () if "=" in argument],
        device=device,
        encoder=encoder,
        recipe=recipe,
        **_options(preset, text_column, second_column, label_column, label_names, kind, tagger=tagger, format=format),
    )
    if as_json:
        show(summary, as_json=True)


@app.command()
def predict(
    model: ModelFolder,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; a tab parts the two texts of a pair.")] = None,
    file: Annotated[Path | None, typer.Option(help="One text a line, or rows like those of the training file.")] = None,
    task: Annotated[str, typer.Option(help="Which task, where the model has several.")] = "",
    as_json: Json = False,
) -> None:
    """Ask a fine-tuned model about texts: one line, or one JSON row, for each input, in order."""
    from firth import pipeline

    if bool(texts) == (file is not None):
        raise BadConfig("Give texts or a --file, one of the two.")
    inputs = [text.split("\t") if "\t" in text else text for text in texts or ()]
    for prediction in pipeline.predict(model, inputs, file=file, task=task):
        if as_json:
            print(json.dumps(asdict(prediction), ensure_ascii=False))
        else:
            typer.echo(line(prediction))


@app.command()
def evaluate(
    run: ModelFolder,
    data: Annotated[
        Path | None, typer.Option(help="A labelled file for a fine-tuned model; else a folder made by `firth prepare`.")
    ] = None,
    words_file: Annotated[
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
    label_column: LabelColumn = None,
    label_names: LabelNames = None,
    kind: Kind = None,
    as_json: Json = False,
) -> None:
    """Measure a fine-tuned model on labelled rows, a pre-trained one on prepared text, word vectors on words."""
    from firth import pipeline

    if bool(words_file) == (data is not None):
        raise BadConfig("Give --data or --words, one of the two.")
    if data is None:
        from firth.words import evaluate_words

        vectors.show_tests(evaluate_words(run, words_file or ()), as_json=as_json)
        return
    options = _options(preset, text_column, second_column, label_column, label_names, kind)
    options |= _settings(changes or ())
    show(pipeline.evaluate(run, data=data, task=task, seed=seed, skip_bad=skip_bad, **options), as_json=as_json)


@app.command()
def fill(
    model: ModelFolder,
    text: Annotated[str, typer.Argument(help="A text with [MASK] where a word is missing.")],
    top: Annotated[int, typer.Option(min=1, help="Candidates for each mask.")] = 5,
    specials: Annotated[bool, typer.Option(help="Take every special token the text spells as special.")] = False,
    as_json: Json = False,
) -> None:
    """Fill the masks of a text."""
    from firth import pipeline

    rows = pipeline.fill(model, text, top=top, specials=specials)
    if as_json:
        show({"fills": rows}, as_json=True)
    else:
        for row in rows:
            typer.echo(f"{row.probability:8.2%}  {row.token:<16}  {row.text}")


@app.command()
def embed(
    model: ModelFolder,
    file: Annotated[Path, typer.Option(help="A UTF-8 file with one text on each line.")],
    out: Annotated[Path, typer.Option(help="The .npy file to write.")],
    pooling: Annotated[
        str | None, typer.Option(help="mean, cls, last or max. [default: the folder's own, else mean]")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="fp32, bf16, int8, or auto: the fastest here that keeps the cosine to fp32 above 0.999.")
    ] = "fp32",
    as_json: Json = False,
) -> None:
    """Turn each line of a file into a vector."""
    from firth import pipeline

    rows, width = pipeline.embed(model, file=file, out=out, pooling=pooling, precision=precision)
    show({"texts": rows, "width": width, "out": str(out)}, as_json=as_json)


app.command()(generating.generate)
app.command()(models.info)
app.command()(models.demo)
app.command()(serving.serve)
app.command("import")(models.import_model)
app.command()(models.extend)
app.command()(senses.senses)
app.command("map")(vectors.map_words)
for command in vectors.COMMANDS:
    app.command()(command)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit


def main() -> None:
    """Runs the command; what a user can put right is one sentence on standard error."""
    try:
        app()
    except FirthError as error:
        print(f"firth: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"firth: {error.filename or 'A file'} could not be read or written: {error.strerror}.", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("firth: stopped.", file=sys.stderr)
        sys.exit(130)


def _options(
    preset: str | None,
    text_column: str | None,
    second_column: str | None,
    label_column: list[str] | None,
    label_names: Path | None,
    kind: str | None,
    **others: str | None,
) -> dict[str, Any]:
    """The fields of a task's config that were given."""
    from firth.corpus.readers import read_lines

    given: dict[str, Any] = {
        "preset": preset,
        "text_column": text_column,
        "second_column": second_column,
        "label_columns": label_column,
        "label_names": [line.strip() for line in read_lines(label_names)] if label_names else None,
        "kind": kind,
        **others,
    }
    return {name: value for name, value in given.items() if value}


def _settings(changes: Iterable[str]) -> dict[str, Any]:
    """`key=value` settings, the values as JSON where they are."""
    from firth.config import read_value

    pairs = [change.partition("=") for change in changes]
    if wrong := [name for name, equals, _ in pairs if not equals]:
        raise BadConfig(f"'{wrong[0]}' is not of the form key=value.")
    return {name: read_value(text) for name, _, text in pairs}
