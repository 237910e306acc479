"""Words and their vectors, and what can be told of texts by their words alone."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from firth.commands.shown import Json, ModelFolder, show

Top = Annotated[int, typer.Option(min=1, help="How many words to show.")]


def neighbours(
    model: ModelFolder,
    word: Annotated[str, typer.Argument(help="The word whose neighbours to find.")],
    top: Top = 10,
    as_json: Json = False,
) -> None:
    """Find the words nearest to a word by the cosine of their vectors."""
    from firth import words

    _ranked(words.neighbours(model, word, top=top), as_json=as_json)


def analogy(
    model: ModelFolder,
    first: Annotated[str, typer.Argument(help="king, in: king - man + woman.")],
    second: Annotated[str, typer.Argument(help="man, which is taken away.")],
    third: Annotated[str, typer.Argument(help="woman, which is added.")],
    top: Top = 10,
    as_json: Json = False,
) -> None:
    """Find the words nearest to FIRST - SECOND + THIRD: king man woman should give queen."""
    from firth import words

    _ranked(words.analogy(model, first, second, third, top=top), as_json=as_json)


def map_words(
    model: ModelFolder,
    words: Annotated[list[str], typer.Argument(help="The words to draw.")],
    out: Annotated[Path, typer.Option(help="The .svg or .png file to write; must not exist.")] = Path("map.svg"),
    as_json: Json = False,
) -> None:
    """Draw words on the plane in which their vectors differ most."""
    from firth import words as walk

    walk.map_words(model, words, out=out)
    show({"words": len(words), "out": str(out)}, as_json=as_json)


def export(
    model: ModelFolder,
    out: Annotated[Path, typer.Option(help="The file to write; must not exist.")],
    kind: Annotated[str, typer.Option("--format", help="word2vec (text), word2vec-binary or vec.")] = "word2vec",
    as_json: Json = False,
) -> None:
    """Write a model's word vectors as a file that other programs read."""
    from firth import words

    show(words.export(model, out=out, kind=kind), as_json=as_json)


def ratios(
    data: Annotated[
        Path, typer.Argument(help="A folder made by `firth prepare --tokenizer words`, or a run made from words.")
    ],
    first: Annotated[str, typer.Argument(help="A word, such as ice.")],
    second: Annotated[str, typer.Argument(help="Another, such as steam.")],
    words: Annotated[list[str], typer.Argument(help="Words to look for around both: solid gas water fashion.")],
    window: Annotated[int, typer.Option(min=1, help="How far a neighbour may stand.")] = 10,
    as_json: Json = False,
) -> None:
    """Show how much oftener words stand beside one word than beside another: what GloVe learns from."""
    from firth import words as walk

    table = walk.ratios(data, first, second, words=words, window=window)
    if as_json:
        show(table, as_json=True)
        return
    typer.echo(f"{'':<16} {'P(. | ' + first + ')':>20} {'P(. | ' + second + ')':>20} {'ratio':>10}")
    for word, row in table.items():
        typer.echo(f"{word:<16} {row[first]:>20.2e} {row[second]:>20.2e} {row['ratio']:>10.3g}")


def keywords(
    file: Annotated[Path, typer.Argument(help="A UTF-8 text file.")],
    top: Top = 10,
    window: Annotated[int, typer.Option(min=2, help="Words that stand within so many are linked.")] = 4,
    as_json: Json = False,
) -> None:
    """Find the words of a text that many of its others stand beside (TextRank)."""
    from firth import words

    _ranked(words.keywords(file, top=top, window=window), as_json=as_json)


def duplicates(
    texts: Annotated[list[Path], typer.Argument(help="Files, folders or globs, as `firth prepare` reads them.")],
    within: Annotated[int, typer.Option(min=0, max=31, help="Bits of 64 in which two fingerprints may differ.")] = 3,
    shingle: Annotated[int, typer.Option(min=1, help="Words of a run that is hashed as one.")] = 3,
    documents: Annotated[str, typer.Option(help="What ends a document: line, blank-line, file or field.")] = "line",
    field: Annotated[str, typer.Option(help="The field with the text in jsonl and parquet files.")] = "text",
    as_json: Json = False,
) -> None:
    """Find documents that are nearly the same (SimHash): one line for each pair, nearest first."""
    from firth import words

    how: dict[str, Any] = {"within": within, "shingle": shingle, "documents": documents, "field": field}
    pairs = words.duplicates(list(texts), **how)
    if as_json:
        show({"pairs": pairs}, as_json=True)
    for row in () if as_json else pairs:
        typer.echo(f"{row['bits']:>2} bits  {row['first']}  {row['second']}")


COMMANDS = (neighbours, analogy, export, ratios, keywords, duplicates)


def show_tests(figures: dict[str, Any], *, as_json: bool) -> None:
    """Figures of word pairs and analogies: a line for each file and section."""
    if as_json:
        show(figures, as_json=True)
        return
    for name, row in figures.items():
        for part, values in ({name: row} | {f"  {s}": v for s, v in row.get("sections", {}).items()}).items():
            kind = "spearman" if "spearman" in values else "accuracy"
            asked = values.get("pairs", values.get("questions"))
            figure = f"{values[kind]:.4f}" if values["coverage"] else "-"  # nothing could be asked
            typer.echo(f"{part:<36} {kind} {figure:<6}   {values['coverage']:.1%} of {asked:,}")


def _ranked(rows: list[tuple[str, float]], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"words": [{"word": word, "score": score} for word, score in rows]}, ensure_ascii=False))
    for word, score in () if as_json else rows:
        typer.echo(f"{score:8.4f}  {word}")
