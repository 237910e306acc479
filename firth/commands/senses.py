"""One word in many places: the subcommand that tells its senses apart."""

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
    from firth import pipeline

    found = pipeline.senses(model, word=word, file=file, groups=groups, layer=layer)
    if as_json:
        show({"word": found.word, "silhouette": found.silhouette, "groups": found.groups}, as_json=True)
        return
    total = sum(map(len, found.groups))
    typer.echo(f"{word}: {total} occurrences, {len(found.groups)} group(s), silhouette {found.silhouette:.2f}")
    for number, group in enumerate(found.groups, 1):
        typer.echo(f"\n{number}. {len(group)} occurrences")
        for one in group[:top]:
            near = ", ".join(f"{line} ({cosine:.2f})" for line, cosine in one.nearest)
            typer.echo(f"   {one.line:>5}  {_in_context(one)}\n          nearest: {near}")


def _in_context(one: "Occurrence") -> str:
    before, after = one.text[: one.start], one.text[one.end :]
    left = before if len(before) <= _AROUND else f"…{before[-_AROUND:]}"
    right = after if len(after) <= _AROUND else f"{after[:_AROUND]}…"
    return f"{left}[{one.text[one.start : one.end]}]{right}"
