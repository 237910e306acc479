"""The command line as typer builds it: all subcommands, in the order in which `firth --help` lists them."""

import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

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

SECTIONS: dict[str, dict[str, Callable[..., None]]] = {
    "Start here": {
        "demo": models.demo,
        "serve": serve,
    },
    "From text to a model": {
        "duplicates": word_tools.duplicates,
        "prepare": text.prepare,
        "plan": plan,
        "pretrain": text.pretrain,
        "vectors": models.vectors,
    },
    "From labelled rows to predictions": {
        "check": check,
        "finetune": finetune,
        "tune": tune,
        "evaluate": evaluate,
        "predict": predict,
        "drift": trust.drift,
    },
    "Ask a model": {
        "fill": answers.fill,
        "embed": answers.embed,
        "search": search,
        "rewrite": answers.rewrite,
        "generate": answers.generate,
        "senses": answers.senses,
    },
    "Words": {
        "neighbours": word_tools.neighbours,
        "analogy": word_tools.analogy,
        "map": word_tools.map_words,
        "keywords": word_tools.keywords,
        "ratios": word_tools.ratios,
    },
    "Change a model, or pass it on": {
        "info": models.info,
        "import": models.import_model,
        "extend": models.extend,
        "compress": compress,
        "export": models.export,
        "package": models.package,
    },
    "Test claims about models": {
        "study": study,
    },
}


class Sections(TyperGroup):
    """Lists the subcommands under their headings. The types of the arguments are click's, which typer may vendor."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        longest_name = max(len(name) for name in self.commands)
        limit = formatter.width - 6 - longest_name
        for title, functions in SECTIONS.items():
            rows = [(name.ljust(longest_name), self.commands[name].get_short_help_str(limit)) for name in functions]
            with formatter.section(title):
                formatter.write_dl(rows)


class Command(TyperCommand):
    """Says how a setting is written where one was typed as an option, such as --epochs 3."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Of click's errors, which typer may vendor, only that of an unknown option has possibilities.
            if self._takes_changes() and hasattr(error, "possibilities") and hasattr(error, "message"):
                setting = error.option_name.lstrip("-").replace("-", "_")  # type: ignore[attr-defined]
                error.message += f"; if it is a setting, write {setting}=VALUE."
            raise

    def _takes_changes(self) -> bool:
        """Whether the command has settings as key=value."""
        return any("changes" in str(parameter.metavar or parameter.name).lower() for parameter in self.params)


def make_app() -> typer.Typer:
    app = typer.Typer(
        name="firth",
        cls=Sections,
        help="From raw text to language models, and from models to answers.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    for functions in SECTIONS.values():
        for name, function in functions.items():
            app.command(name, cls=Command)(with_groups(function))
    app.callback(invoke_without_command=True)(_main)
    return app


def _main(show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        # A lone surrogate, or an emoji in a GBK terminal, becomes an escape such as \ud800, which JSON reads back.
        sys.stdout.reconfigure(errors="backslashreplace")
    if show:
        typer.echo(__version__)
        raise typer.Exit
