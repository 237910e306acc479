"""The command line: one subcommand for each function of the pipeline. Mistakes get one sentence and exit code 2."""

import json
import sys
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from firth import __version__
from firth.errors import FirthError

app = typer.Typer(
    name="firth",
    help="From raw text to language models, and from models to answers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
ModelFolder = Annotated[Path, typer.Argument(help="A model folder: a finished run, or a Hugging Face BERT folder.")]
Changes = Annotated[list[str] | None, typer.Argument(help="Config changes such as train.optim.rate=1e-3.")]


@app.command()
def prepare(
    texts: Annotated[
        list[str], typer.Argument(help="Files, folders or globs: txt, jsonl, parquet; also .gz .xz .zst.")
    ],
    out: Annotated[Path, typer.Option(help="Folder to write; must not exist.")],
    tokenizer: Annotated[
        str, typer.Option(help="'wordpiece' trains a vocabulary; a folder uses its tokenizer.")
    ] = "wordpiece",
    vocab_size: Annotated[int | None, typer.Option(help="Pieces of a new vocabulary. [default: 30000]")] = None,
    cased: Annotated[bool, typer.Option(help="Keep capitals and accents in a new vocabulary.")] = False,
    documents: Annotated[
        str, typer.Option(help="What ends a document: blank-line, file, line or field.")
    ] = "blank-line",
    field: Annotated[str, typer.Option(help="The field with the text in jsonl and parquet files.")] = "text",
    repair: Annotated[bool, typer.Option(help="Repair mojibake (needs ftfy).")] = False,
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
        cased=cased,
        documents=documents,  # type: ignore[arg-type]
        field=field,
        repair=repair,
        processes=processes,
        seed=seed,
    )
    if as_json:
        _show(health, as_json=True)


@app.command()
def pretrain(
    data: Annotated[Path, typer.Argument(help="A folder made by `firth prepare`.")],
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
    )
    _show(figures, as_json=as_json)


@app.command()
def evaluate(
    run: ModelFolder,
    data: Annotated[Path, typer.Option(help="A folder made by `firth prepare` with the model's tokenizer.")],
    seed: Annotated[int, typer.Option(help="Decides masks and pairs.")] = 1,
    as_json: Json = False,
) -> None:
    """Measure masked-LM loss, perplexity and next-sentence accuracy on prepared text."""
    from firth import pipeline

    _show(pipeline.evaluate(run, data=data, seed=seed), as_json=as_json)


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
        _show({"fills": rows}, as_json=True)
    else:
        for row in rows:
            typer.echo(f"{row.probability:8.2%}  {row.token:<16}  {row.text}")


@app.command()
def embed(
    model: ModelFolder,
    file: Annotated[Path, typer.Option(help="A UTF-8 file with one text on each line.")],
    out: Annotated[Path, typer.Option(help="The .npy file to write.")],
    pooling: Annotated[
        str | None, typer.Option(help="mean, cls or max. [default: the folder's own, else mean]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Turn each line of a file into a vector."""
    from firth import pipeline

    rows, width = pipeline.embed(model, file=file, out=out, pooling=pooling)
    _show({"texts": rows, "width": width, "out": str(out)}, as_json=as_json)


@app.command()
def info(model: ModelFolder, as_json: Json = False) -> None:
    """Show what a model folder holds."""
    from firth import pipeline

    _show(pipeline.info(model), as_json=as_json)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes; run again, it continues.")] = Path(
        "demo"
    ),
    minutes: Annotated[float | None, typer.Option(help="Minutes of pre-training. [default: 4]")] = None,
) -> None:
    """From the text on this machine to a small BERT, its answers and a report, in some minutes."""
    from firth import pipeline

    pipeline.demo(out=out, **({} if minutes is None else {"minutes": minutes}))


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


def _show(values: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(values, ensure_ascii=False, default=_plain))
        return
    for name, value in values.items():
        typer.echo(
            f"{name.replace('_', ' '):<24} {value:,.4f}"
            if isinstance(value, float)
            else f"{name.replace('_', ' '):<24} {value}"
        )


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)
