"""The command line as typer builds it: all subcommands, in the order in which `firth --help` lists them."""

import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated

import typer

from firth import __version__
from firth.commands import answers, models, text, trust, word_tools
from firth.commands.compress import compress
from firth.commands.evaluate import evaluate
from firth.commands.finetune import check, finetune
from firth.commands.option_groups import with_groups
from firth.commands.plan import plan
from firth.commands.predict import predict
from firth.commands.search import search
from firth.commands.serve import serve
from firth.commands.study import study
from firth.commands.tune import tune

COMMANDS: dict[str, Callable[..., None]] = {
    "plan": plan,
    "prepare": text.prepare,
    "pretrain": text.pretrain,
    "check": check,
    "finetune": finetune,
    "tune": tune,
    "predict": predict,
    "evaluate": evaluate,
    "drift": trust.drift,
    "fill": answers.fill,
    "embed": answers.embed,
    "search": search,
    "generate": answers.generate,
    "rewrite": answers.rewrite,
    "info": models.info,
    "demo": models.demo,
    "serve": serve,
    "import": models.import_model,
    "extend": models.extend,
    "vectors": models.vectors,
    "senses": answers.senses,
    "map": word_tools.map_words,
    "neighbours": word_tools.neighbours,
    "analogy": word_tools.analogy,
    "compress": compress,
    "export": models.export,
    "study": study,
    "package": models.package,
    "ratios": word_tools.ratios,
    "keywords": word_tools.keywords,
    "duplicates": word_tools.duplicates,
}


def make_app() -> typer.Typer:
    app = typer.Typer(
        name="firth",
        help="From raw text to language models, and from models to answers.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for name, function in COMMANDS.items():
        app.command(name)(with_groups(function))
    app.callback(invoke_without_command=True)(_main)
    return app


def _main(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        # A lone surrogate, or an emoji in a GBK terminal, becomes an escape such as \ud800, which JSON reads back.
        sys.stdout.reconfigure(errors="backslashreplace")
    if show:
        typer.echo(__version__)
        raise typer.Exit
