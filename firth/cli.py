"""The command line: one subcommand for each function of the pipeline. Mistakes get one sentence and exit code 2."""

import os
import signal
import sys
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

from firth import __version__, console
from firth.errors import FirthError

if TYPE_CHECKING:
    from typer import Typer


STOPPED = 130
"""What a shell says of a command that Ctrl-C ended."""


def commands() -> "Typer":
    """All of them; brought in only here, for who stops them while they come in should see one line, too."""
    import typer

    from firth.commands import generating, models, rows, senses, serving, text, vectors

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

    return app


def main() -> None:
    """Runs the command; what a user can put right is one sentence on standard error."""
    before = signal.signal(signal.SIGINT, _interrupt)
    try:
        with console.shown():
            commands()()
    except FirthError as error:
        print(f"firth: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        from firth.files import trouble

        print(f"firth: {trouble(error)}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        _stopped()
    except SystemExit as end:
        if end.code == STOPPED:  # typer makes this of Ctrl-C
            _stopped()
        raise
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C. What is raised while modules come in can get lost in their compiled parts: there this is the end."""
    while frame:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            print("firth: Stopped.", file=sys.stderr, flush=True)
            os._exit(STOPPED)
        frame = frame.f_back
    raise KeyboardInterrupt


def _stopped() -> NoReturn:
    print("firth: Stopped.", file=sys.stderr)
    sys.exit(STOPPED)
