"""The command line: one subcommand for each function of the pipeline. Mistakes get one sentence and exit code 2."""

import os
import sys
from typing import Annotated

import typer

from firth import __version__
from firth.commands import generating, models, rows, senses, serving, text, vectors
from firth.errors import FirthError

app = typer.Typer(
    name="firth",
    help="From raw text to language models, and from models to answers.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for step in (
    text.prepare,
    text.pretrain,
    rows.check,
    rows.finetune,
    rows.predict,
    rows.evaluate,
    text.fill,
    text.embed,
):
    app.command()(step)
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
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        told = error.strerror or error
        print(f"firth: {error.filename or 'A file'} could not be read or written: {told}.", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("firth: stopped.", file=sys.stderr)
        sys.exit(130)
