"""The command line as typer builds it: all subcommands, in the order in which `firth --help` lists them."""

from collections.abc import Callable
from typing import Annotated

import typer

from firth import __version__
from firth.commands import (
    answers,
    compressing,
    models,
    planning,
    rows,
    searching,
    serving,
    studying,
    text,
    trust,
    tuning,
    vectors,
)

COMMANDS: dict[str, Callable[..., None]] = {
    "plan": planning.plan,
    "prepare": text.prepare,
    "pretrain": text.pretrain,
    "check": rows.check,
    "finetune": rows.finetune,
    "tune": tuning.tune,
    "predict": rows.predict,
    "evaluate": rows.evaluate,
    "drift": trust.drift,
    "fill": answers.fill,
    "embed": answers.embed,
    "search": searching.search,
    "generate": answers.generate,
    "rewrite": answers.rewrite,
    "info": models.info,
    "demo": models.demo,
    "serve": serving.serve,
    "import": models.import_model,
    "extend": models.extend,
    "vectors": models.vectors,
    "senses": answers.senses,
    "map": vectors.map_words,
    "neighbours": vectors.neighbours,
    "analogy": vectors.analogy,
    "compress": compressing.compress,
    "export": models.export,
    "study": studying.study,
    "package": models.package,
    "ratios": vectors.ratios,
    "keywords": vectors.keywords,
    "duplicates": vectors.duplicates,
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
        app.command(name)(function)
    app.callback(invoke_without_command=True)(_main)
    return app


def _main(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if show:
        typer.echo(__version__)
        raise typer.Exit
