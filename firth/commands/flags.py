"""Arguments of Python functions -> options of the command line, in messages.

Messages of the package name Python arguments in backticks and with an equals sign: `out=`, `seeds=5`, `resume=True`,
`recipe='gpt'`. A user of the command line reads --out, --seeds 5, --resume, --recipe gpt.
"""

import re
import sys
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from firth import models

CHANGES = {"evaluate": ("pattern", "label_words"), "tune": ("pattern", "label_words")}
"""Settings that a command has no option for and takes as key=value."""
ARGUMENT = re.compile(r"`(\w+)=([^`]*)`")
"""An argument in a message, with its value or without."""


class Flag(NamedTuple):
    """How an option is written."""

    on: str
    off: str = ""
    """How a yes-or-no option is turned off."""


def in_flags(text: str) -> str:
    """The message with options in place of arguments, and names of models in place of their folders.

    Arguments that no command has stay as they are.
    """

    def option(found: re.Match[str]) -> str:
        if found[1] in CHANGES.get(_running_command(), ()):
            return found[0]
        flag = _find(found[1])
        return found[0] if flag is None else _written(flag, found[2])

    return ARGUMENT.sub(option, models.with_names(text))


def _find(argument: str) -> Flag | None:
    """The flag of an argument: that of the running command, else of the first command that has one."""
    tables = dict(flags())
    running = tables.pop(_running_command(), {})
    for table in (running, *tables.values()):
        if argument in table:
            return table[argument]
    return None


def _running_command() -> str:
    """The subcommand that the user typed, or what stands in its place."""
    return sys.argv[1] if len(sys.argv) > 1 else ""


def _written(flag: Flag, value: str) -> str:
    if value == "False":
        return flag.off
    if value == "True":
        return flag.on
    if not value:
        # Options such as --cased/--uncased have two names of equal rank.
        has_two_names = flag.off and not flag.off.startswith("--no-")
        return f"{flag.on}/{flag.off}" if has_two_names else flag.on
    plain_value = value.strip("'")
    # In a shell, a value of several words needs quotes.
    return f'{flag.on} "{plain_value}"' if " " in plain_value else f"{flag.on} {plain_value}"


@cache
def flags() -> Mapping[str, Mapping[str, Flag]]:
    """The flags of every command, by the name of the argument that it stands for."""
    import typer

    from firth.commands.app import make_app

    tables = {}
    for name, command in typer.main.get_command(make_app()).commands.items():  # type: ignore[attr-defined]
        table = {}
        for parameter in command.params:
            if parameter.param_type_name == "option":
                off = parameter.secondary_opts[0] if parameter.secondary_opts else ""
                table[parameter.name] = Flag(parameter.opts[0], off)
        tables[name] = table
    return tables
