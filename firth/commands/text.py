"""Subcommands from text to a pre-trained model: prepare, pretrain."""

from pathlib import Path
from typing import Annotated

import typer

from firth import lineage, tokenizers
from firth.commands.shown import Device, EngineName, Json, show
from firth.errors import BadConfig

VOCABULARIES = [name for name in tokenizers.TABLE if name != "templates"]
"""The tokenizers that are trained on text; templates are the features of a tagger."""


def prepare(
    texts: Annotated[
        list[str],
        typer.Argument(
            help="Files, folders, globs or URLs (s3://...): txt, jsonl, parquet; also .gz .xz .zst. With languages: "
            "en=FILE de=FILE; translations: en+de=FILE.en,FILE.de, or one file of two columns."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder to write; must not exist.")],
    tokenizer: Annotated[
        str,
        typer.Option(
            help=f"Trains a vocabulary: {', '.join(VOCABULARIES)}; a model folder or name: its tokenizer is used."
        ),
    ] = "wordpiece",
    vocab_size: Annotated[int | None, typer.Option(help="Pieces of a new vocabulary. [default: up to 30000]")] = None,
    min_count: Annotated[
        int | None,
        typer.Option(help="How often a word must occur to be in a new vocabulary. [default: the tokenizer's own]"),
    ] = None,
    cased: Annotated[bool, typer.Option(help="Keep capitals and accents in a new vocabulary.")] = False,
    documents: Annotated[
        str, typer.Option(help="What ends a document: blank-line, file, line or field.")
    ] = "blank-line",
    field: Annotated[str, typer.Option(help="The field with the text in jsonl and parquet files.")] = "text",
    repair: Annotated[bool, typer.Option(help="Repair mojibake (needs ftfy).")] = False,
    near_duplicates: Annotated[
        int | None, typer.Option(help="Also drop documents whose 64-bit SimHash differs in at most so many bits.")
    ] = None,
    segmenter: Annotated[
        Path | None, typer.Option(help="A model fine-tuned on segmented text, for Chinese words. [default: rjieba]")
    ] = None,
    processes: Annotated[int, typer.Option(help="Worker processes.")] = 2,
    engine: EngineName = "local",
    seed: Annotated[
        int, typer.Option(help="Decides which documents a vocabulary is trained on when there are many.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Turn text into a vocabulary and shards, and report the text's health."""
    from firth import preparing

    if processes < 1:
        raise BadConfig(f"--processes must be at least 1; it is {processes}.")
    health = preparing.prepare(
        texts,
        out=out,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        min_count=min_count,
        cased=cased,
        documents=documents,  # type: ignore[arg-type]
        field=field,
        repair=repair,
        near_duplicates=near_duplicates,
        segmenter=segmenter,
        processes=processes,
        engine=engine,
        seed=seed,
    )
    if as_json:
        show(health, as_json=True)
        return
    from firth.data.health import describe

    typer.echo("\n".join(describe(health)))


def pretrain(
    data: Annotated[Path, typer.Argument(help="A folder made by `firth prepare`; for word vectors also plain text.")],
    changes: Annotated[list[str] | None, typer.Argument(help="Config changes such as train.optim.rate=1e-3.")] = None,
    *,
    out: Annotated[Path, typer.Option(help="Run folder to write; refused if it exists, unless --resume.")],
    recipe: Annotated[str | None, typer.Option(help=f"One of {', '.join(lineage.TABLE)}. [default: bert]")] = None,
    size: Annotated[
        str | None,
        typer.Option(help=f"One of {', '.join(lineage.SIZES)}; of word vectors only the width. [default: tiny]"),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Optimizer steps. [default: the recipe's own, most often 1000]")
    ] = None,
    epochs: Annotated[float | None, typer.Option(help="Passes over the text instead of steps.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Time limit instead of steps; evaluations count.")] = None,
    resume: Annotated[bool, typer.Option(help="Continue the run in --out where it stopped.")] = False,
    start_from: Annotated[
        Path | None, typer.Option("--from", help="A model folder or name whose weights to start from.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A run.toml to take every number from.")] = None,
    device: Device = None,
    width: Annotated[int | None, typer.Option(help="Width of word vectors. [default: the recipe's own]")] = None,
    window: Annotated[
        int | None, typer.Option(help="Words on either side that word vectors look at. [default: the recipe's own]")
    ] = None,
    min_count: Annotated[
        int | None, typer.Option(help="How often a word must occur to get a vector. [default: the recipe's own]")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of recipes solved without gradients. [default: 2]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Pre-train a model on prepared text."""
    from firth import pipeline

    figures = pipeline.pretrain(
        data,
        out=out,
        recipe=recipe,
        size=size,
        steps=steps,
        epochs=epochs,
        minutes=minutes,
        resume=resume,
        start_from=start_from,
        config=config,
        changes=changes or (),
        device=device,
        width=width,
        window=window,
        min_count=min_count,
        threads=threads,
    )
    show(figures, as_json=as_json)
