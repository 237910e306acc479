"""Subcommands about whole models: import, extend, export, package, info, and the demo that makes some."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from firth.commands.shown import Json, ModelFolder, show

SHOWN_TOKENS = 20
"""New tokens that `extend` shows."""


def import_model(
    source: Annotated[
        Path, typer.Argument(help="A folder with other people's weights, config and tokenizer; a file of word vectors.")
    ],
    out: Annotated[Path, typer.Option(help="Model folder to write; must not exist.")],
    unsafe_pickle: Annotated[
        bool, typer.Option(help="Read a .bin file of a source you trust: the format can carry programs.")
    ] = False,
    cased: Annotated[
        bool | None, typer.Option("--cased/--uncased", help="Whether a bare vocab.txt keeps capitals and accents.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option(help="Leave out rows of vectors that cannot be used, and count them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Turn other people's model files into a model folder."""
    from firth import model_files

    imported = model_files.import_model(source, out=out, unsafe_pickle=unsafe_pickle, cased=cased, skip_bad=skip_bad)
    show(imported, as_json=as_json)


def extend(
    model: ModelFolder,
    text: Annotated[list[Path], typer.Option(help="The domain's text, read as `firth prepare` reads it.")],
    add: Annotated[int, typer.Option(min=1, help="How many new tokens.")],
    out: Annotated[Path, typer.Option(help="Model folder to write; must not exist.")],
    min_count: Annotated[int, typer.Option(min=1, help="How often a word must occur to become a token.")] = 5,
    as_json: Json = False,
) -> None:
    """Give a model tokens for the words of a domain; new vectors are means of their pieces' vectors."""
    from firth import model_files

    figures = model_files.extend(model, text=text, add=add, out=out, min_count=min_count)
    shown: dict[str, object] = dict(figures)
    if not as_json:
        tokens = figures["new"]
        ending = " ..." if len(tokens) > SHOWN_TOKENS else ""
        shown["new"] = ", ".join(tokens[:SHOWN_TOKENS]) + ending
    show(shown, as_json=as_json)


def vectors(
    model: ModelFolder,
    changes: Annotated[list[str] | None, typer.Argument(help="Settings, such as steps=3000.")] = None,
    *,
    text: Annotated[list[Path], typer.Option(help="Text without labels; repeat for more files.")],
    out: Annotated[Path, typer.Option(help="The model with the head: a new folder.")],
    as_json: Json = False,
) -> None:
    """Learn from text without labels how a model's token embeddings become one vector for a text."""
    from firth import model_files

    show(model_files.vector_head(model, text=text, out=out, changes=changes or ()), as_json=as_json)


def export(
    model: ModelFolder,
    out: Annotated[Path, typer.Option(help="The file or folder to write; must not exist.")],
    kind: Annotated[
        str,
        typer.Option(
            "--to",
            "--format",
            help="Word vectors: word2vec (text), word2vec-binary or vec. A whole model: huggingface (plain weights, "
            "which transformers opens), quantised (weights of few bits, for firth), sentence-transformers, or onnx.",
        ),
    ] = "word2vec",
    bits: Annotated[
        int | None, typer.Option(min=2, max=8, help="With --to quantised, bits of each weight. [default: 8]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Write a model, or its word vectors, for other programs."""
    from firth import model_files

    show(model_files.export(model, out=out, kind=kind, bits=bits), as_json=as_json)


def package(
    model: ModelFolder,
    out: Annotated[Path, typer.Option(help="Folder for the wheel.")] = Path(),
    name: Annotated[str, typer.Option(help="Name of the package. [default: the folder's]")] = "",
    version: Annotated[str, typer.Option(help="Version of the package.")] = "1.0",
    as_json: Json = False,
) -> None:
    """Make a wheel of a model, which pip installs and which then answers offline."""
    from firth import model_files

    show(model_files.package(model, out=out, name=name, version=version), as_json=as_json)


def info(model: ModelFolder, as_json: Json = False) -> None:
    """Show what a model folder holds."""
    from firth.inference.model import load

    show(asdict(load(model).info()), as_json=as_json)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes; run again, it continues.")] = Path(
        "demo"
    ),
    minutes: Annotated[float | None, typer.Option(help="Minutes of pre-training. [default: 0.75]")] = None,
    serve: Annotated[bool, typer.Option(help="Open the models on a web page at the end.")] = False,
) -> None:
    """What the models that come with firth can do, and a small BERT from the text on this machine, in some minutes."""
    from firth import tour

    tour.demo(out=out, minutes=minutes)
    if serve:
        tour.serve(tour.served_models(out), runs=out)
