"""The subcommand that tells the senses of a word apart."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firth.commands.shown import Json, ModelFolder, show

if TYPE_CHECKING:
    from firth.inference.senses import Occurrence

_AROUND = 40
"""Characters shown on each side of an occurrence."""


def senses(
    model: ModelFolder,
    word: Annotated[str, typer.Option(help="The word to look at; its case does not matter.")],
    file: Annotated[Path, typer.Option(help="A UTF-8 file with one text on each line.")],
    groups: Annotated[
        int | None, typer.Option(min=1, help="How many groups. [default: as many as lie well apart, at most 6]")
    ] = None,
    layer: Annotated[
        int, typer.Option(help="Whose states to compare: 0 is before any context, -1 is the last layer.")
    ] = -1,
    top: Annotated[int, typer.Option(min=1, help="Occurrences shown of each group, the most typical first.")] = 5,
    as_json: Json = False,
) -> None:
    """Group the occurrences of a word by what it means there, and show the nearest ones of each."""
    from firth.corpus.readers import read_lines
    from firth.inference.model import load

    lines = read_lines(file)
    found = load(model).senses(word, lines, groups=groups, layer=layer)
    if as_json:
        show({"word": found.word, "silhouette": found.silhouette, "groups": found.groups}, as_json=True)
        return
    total = sum(len(group) for group in found.groups)
    typer.echo(f"{word}: {total} occurrences, {len(found.groups)} group(s), silhouette {found.silhouette:.2f}")
    for number, group in enumerate(found.groups, 1):
        typer.echo(f"\n{number}. {len(group)} occurrences")
        for occurrence in group[:top]:
            nearest = ", ".join(f"{line} ({cosine:.2f})" for line, cosine in occurrence.nearest)
            typer.echo(f"   {occurrence.line:>5}  {_in_context(occurrence)}\n          nearest: {nearest}")


def _in_context(occurrence: "Occurrence") -> str:
    """The word in brackets, with some characters of the text on each side."""
    before = occurrence.text[: occurrence.start]
    word = occurrence.text[occurrence.start : occurrence.end]
    after = occurrence.text[occurrence.end :]
    if len(before) > _AROUND:
        before = f"…{before[-_AROUND:]}"
    if len(after) > _AROUND:
        after = f"{after[:_AROUND]}…"
    return f"{before}[{word}]{after}"
