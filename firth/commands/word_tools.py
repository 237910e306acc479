"""Subcommands about words: their vectors, and what the words of a text show without a model."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from firth import models
from firth.commands.shown import (
    DEFAULT_MODEL,
    MODEL_HELP,
    EngineName,
    Json,
    ModelFolder,
    Processes,
    show,
    split_model,
)

if TYPE_CHECKING:
    from firth.corpus.readers import Documents

log = logging.getLogger(__name__)


SHOWN_CHARACTERS = 200
"""Characters of a text that `duplicates` shows."""
Top = Annotated[int, typer.Option(min=1, help="How many words to show.")]


def neighbours(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] WORD",
            help=f"The word whose neighbours to find, and before it the model. {MODEL_HELP} {DEFAULT_MODEL}",
        ),
    ],
    top: Top = 10,
    as_json: Json = False,
) -> None:
    """Find the words nearest to a word by the cosine of their vectors."""
    from firth.inference.lexicon import open_lexicon  # without torch

    model, [word] = split_model(arguments, rest=["WORD"])
    folder = models.find(model) if model else models.suiting(word)
    found = open_lexicon(folder).neighbours(word, top=top)
    if not found:
        log.info(f"{folder} has no word besides '{word}', so '{word}' has no neighbours.")
    _show_ranking(found, as_json=as_json)


def analogy(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] FIRST SECOND THIRD",
            help=f"Three words, such as king man woman, and before them the model. {MODEL_HELP} {DEFAULT_MODEL}",
        ),
    ],
    top: Top = 10,
    as_json: Json = False,
) -> None:
    """Find the words nearest to FIRST - SECOND + THIRD: king man woman should give queen."""
    from firth.inference.lexicon import open_lexicon

    model, words = split_model(arguments, rest=["FIRST", "SECOND", "THIRD"])
    first, second, third = words
    folder = models.find(model) if model else models.suiting(words)
    found = open_lexicon(folder).analogy(first, second, third, top=top)
    if not found:
        log.info(f"{folder} has no words besides '{first}', '{second}' and '{third}', so none can be the answer.")
    _show_ranking(found, as_json=as_json)


def map_words(
    model: ModelFolder,
    words: Annotated[list[str], typer.Argument(help="The words to draw.")],
    out: Annotated[Path, typer.Option(help="The .svg or .png file to write; must not exist.")] = Path("map.svg"),
    as_json: Json = False,
) -> None:
    """Draw words on the plane in which their vectors differ most."""
    from firth.words import map_words as draw

    draw(model, words, out=out)
    show({"words": len(words), "out": str(out)}, as_json=as_json)


def ratios(
    data: Annotated[
        Path, typer.Argument(help="A folder made by `firth prepare --tokenizer words`, or a run made from words.")
    ],
    first: Annotated[str, typer.Argument(help="A word, such as ice.")],
    second: Annotated[str, typer.Argument(help="Another, such as steam.")],
    words: Annotated[list[str], typer.Argument(help="Words to look for around both: solid gas water fashion.")],
    window: Annotated[int, typer.Option(min=1, help="How many words away a neighbour may be.")] = 10,
    as_json: Json = False,
) -> None:
    """Show how much more often words occur near one word than near another: what GloVe learns from."""
    from firth.words import ratios as cooccurrence_ratios

    table = cooccurrence_ratios(data, first, second, words=words, window=window)
    if as_json:
        show(table, as_json=True)
        return
    given_first = f"P(. | {first})"
    given_second = f"P(. | {second})"
    typer.echo(f"{'':<16} {given_first:>20} {given_second:>20} {'ratio':>10}")
    for word, row in table.items():
        typer.echo(f"{word:<16} {row[first]:>20.2e} {row[second]:>20.2e} {row['ratio']:>10.3g}")


def keywords(
    file: Annotated[Path, typer.Argument(help="A UTF-8 text file.")],
    top: Top = 10,
    window: Annotated[int, typer.Option(min=2, help="Words within a window of this size are linked.")] = 4,
    as_json: Json = False,
) -> None:
    """Find the keywords of a text: words that occur near many others (TextRank)."""
    from firth import words

    _show_ranking(words.keywords(file, top=top, window=window), as_json=as_json)


def duplicates(
    texts: Annotated[list[Path], typer.Argument(help="Files, folders or globs, as `firth prepare` reads them.")],
    alike: Annotated[
        float, typer.Option(min=0.5, max=1, help="Share of the words that short documents (up to 200 words) share.")
    ] = 0.8,
    within: Annotated[
        int, typer.Option(min=0, max=31, help="Bits of 64 in which the fingerprints of long documents may differ.")
    ] = 3,
    shingle: Annotated[int, typer.Option(min=1, help="Words of a run that a fingerprint hashes as one.")] = 3,
    documents: Annotated[str, typer.Option(help="What ends a document: line, blank-line, file or field.")] = "line",
    field: Annotated[str, typer.Option(help="The field with the text in jsonl and parquet files.")] = "text",
    engine: EngineName = "local",
    processes: Processes = 2,
    as_json: Json = False,
) -> None:
    """Find documents that are nearly the same, to remove them before training: copies, small edits.

    Short documents are compared word by word, long ones by fingerprint (SimHash). Shows both texts of each pair, the
    most similar pairs first.
    """
    from firth import words

    # An unknown kind of documents is refused where they are read.
    kind = cast("Documents", documents)
    pairs = words.duplicates(
        list(texts),
        alike=alike,
        within=within,
        shingle=shingle,
        documents=kind,
        field=field,
        engine=engine,
        processes=processes,
    )
    if as_json:
        show({"pairs": pairs}, as_json=True)
        return
    for pair in pairs:
        typer.echo(f"{pair['alike']:.0%} of the words are the same")
        for source, text in ((pair["first"], pair["first_text"]), (pair["second"], pair["second_text"])):
            typer.echo(f"  {source}  {_shortened(text)}")


def _shortened(text: str) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text.split())
    if len(line) <= SHOWN_CHARACTERS:
        return line
    return f"{line[:SHOWN_CHARACTERS]}…"


def show_tests(figures: dict[str, Any], *, as_json: bool) -> None:
    """Prints the figures of word pairs and analogies: a line for each file and section."""
    if as_json:
        show(figures, as_json=True)
        return
    for name, row in figures.items():
        _show_test(name, row)
        for section, values in row.get("sections", {}).items():
            _show_test(f"  {section}", values)


def _show_test(name: str, values: Mapping[str, float]) -> None:
    if "spearman" in values:
        metric = "spearman"
        num_asked = values["pairs"]
    else:
        metric = "accuracy"
        num_asked = values["questions"]
    # Where the model knows none of the words, there is no figure.
    figure = f"{values[metric]:.4f}" if values["coverage"] else "-"
    typer.echo(f"{name:<36} {metric} {figure:<6}   {values['coverage']:.1%} of {num_asked:,}")


def _show_ranking(ranking: list[tuple[str, float]], *, as_json: bool) -> None:
    if as_json:
        rows = [{"word": word, "score": score} for word, score in ranking]
        print(json.dumps({"words": rows}, ensure_ascii=False))
        return
    for word, score in ranking:
        typer.echo(f"{score:8.4f}  {word}")
