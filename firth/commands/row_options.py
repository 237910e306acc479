"""Options about labelled rows that several commands take, and how they are handed on to the package."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from firth import models
from firth.commands.shown import DEFAULT_MODEL, MODEL_HELP
from firth.errors import BadConfig

ModelAndChanges = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL] [CHANGES]...",
        help=f"{MODEL_HELP} {DEFAULT_MODEL} Changes: epochs=5, tasks.compare.pooling=cls (or pooling=cls) ...",
    ),
]
TextColumn = Annotated[str | None, typer.Option(help="Column of the text; a number counts columns without a header.")]
SecondColumn = Annotated[str | None, typer.Option(help="Column of the second text of a pair.")]
Format = Annotated[str | None, typer.Option(help="Of files of tagged words: columns, words or tagged (word/tag).")]
TargetEnding = Annotated[
    str | None, typer.Option(help="To rewrite: ending of the file of targets, such as de for train.en and train.de.")
]
SkipBad = Annotated[bool, typer.Option(help="Leave out rows that cannot be used, and count them.")]
Language = Annotated[
    str, typer.Option(help="The texts' language, for a model with language embeddings. [default: the model's own]")
]
Pattern = Annotated[
    str | None,
    typer.Option(
        help="A prompt with {text}, if need be {second}, and [MASK]. "
        "[default: {text} It was [MASK]. or, if --words are Chinese, {text} 总之很[MASK]。]"
    ),
]
LabelWords = Annotated[
    str | None, typer.Option("--words", help="What [MASK] is for each label: positive=great/good,negative=terrible.")
]

TaskOptions = dict[str, str | list[str]]
"""Settings of a task that the user gave."""


@dataclass(frozen=True)
class RowOptions:
    """How labelled rows are read: where their texts and labels are, and what a label is."""

    preset: Annotated[str | None, typer.Option(help="The form of a published set (GLUE), such as mrpc or mnli.")] = None
    text_column: TextColumn = None
    second_column: SecondColumn = None
    label_columns: Annotated[
        list[str] | None, typer.Option("--label-column", help="Column of the label; several are several questions.")
    ] = None
    label_names: Annotated[
        Path | None, typer.Option(help="A file with one name a line for labels given as numbers.")
    ] = None
    kind: Annotated[
        str | None,
        typer.Option(help="What a label is: one (a name), many (any number of names) or number. [default: one]"),
    ] = None

    def given(self, **others: str | None) -> TaskOptions:
        """These options and some others, those that have a value."""
        return given(
            preset=self.preset,
            text_column=self.text_column,
            second_column=self.second_column,
            label_columns=self.label_columns,
            label_names=_read_names(self.label_names),
            kind=self.kind,
            **others,
        )


def given(**options: str | list[str] | None) -> TaskOptions:
    """The options that have a value."""
    return {name: value for name, value in options.items() if value}


def check_pattern(pattern: str | None, label_words: str | None) -> None:
    """Raises for a pattern without words, which says nothing about labels."""
    if pattern and not label_words:
        raise BadConfig("--pattern needs --words: what [MASK] is for each label.")


def _read_names(file: Path | None) -> list[str]:
    """The names of labels, one on each line of a file."""
    from firth.corpus.small_files import read_lines

    if file is None:
        return []
    lines = read_lines(file, remedy="put one name on each line")
    return [line.strip() for line in lines]


def model_and_changes(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Arguments with an equals sign are changes; at most one other argument names the model."""
    _check_equals_signs(arguments)
    named = []
    changes = []
    for argument in arguments:
        if "=" in argument:
            changes.append(argument)
        else:
            named.append(argument)
    if len(named) > 1:
        raise BadConfig(
            f"Name one model; there are {len(named)}: {', '.join(named)}. "
            "Files of rows go to --train or --data, and a setting is one word: epochs=3."
        )
    return (named[0] if named else None), changes


def _check_equals_signs(arguments: Sequence[str]) -> None:
    """Raises for a setting of fine-tuning whose value is an argument of its own: `epochs 3` or `epochs = 3`."""
    typed = [argument.strip("=") for argument in arguments if argument != "="]
    for name, value in pairwise(typed):
        is_written_well = "=" in name or "=" in value
        if not is_written_well and not models.is_model(name) and _is_like_a_setting(name):
            raise BadConfig(f"A setting is one word: write {name}={value}, not {name} {value}.")


def _is_like_a_setting(name: str) -> bool:
    """Whether a name, or its last part, is that of a setting of fine-tuning or nearly so."""
    from firth.finetuning.settings import setting_names

    matches = get_close_matches(name.rpartition(".")[2], setting_names(), n=1, cutoff=0.8)
    return bool(matches)


def task_settings(changes: Iterable[str], task: str) -> dict[str, object]:
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
