"""Subcommands that ask a model: fill, embed, generate, rewrite, senses."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firth import models
from firth.commands.shown import (
    DEFAULT_MODEL,
    MODEL_HELP,
    EngineName,
    Json,
    ModelFolder,
    OptionalModel,
    Processes,
    check_inputs,
    check_model_first,
    show,
    split_model,
)
from firth.errors import BadConfig

if TYPE_CHECKING:
    from firth.inference.word_senses import Occurrence

CONTEXT = 40
"""Characters that `senses` shows on each side of an occurrence."""


def fill(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[MODEL] TEXT",
            help=f"A text with [MASK] where a word is missing, and before it the model. {MODEL_HELP} {DEFAULT_MODEL}",
        ),
    ],
    top: Annotated[int, typer.Option(min=1, help="Candidates for each mask.")] = 5,
    specials: Annotated[bool, typer.Option(help="Take every special token the text spells as special.")] = False,
    as_json: Json = False,
) -> None:
    """Fill the masks of a text."""
    from firth.inference.model import load

    model, [text] = split_model(arguments, rest=["TEXT"])
    if model is None and models.is_model(text):
        raise BadConfig(f"'{text}' is a model; write the text with its mask after it.")
    candidates = load(model or models.suiting(text)).fill(text, top=top, specials=specials)
    if as_json:
        show({"fills": candidates}, as_json=True)
        return
    for candidate in candidates:
        typer.echo(f"{candidate.probability:8.2%}  {candidate.token:<16}  {candidate.text}")


def embed(
    model: OptionalModel = None,
    file: Annotated[
        Path, typer.Option(help="A UTF-8 file: every line is a text; a blank one gets zeros; - is standard input.")
    ] = Path("-"),
    *,
    out: Annotated[Path, typer.Option(help="The .npy file to write.")],
    pooling: Annotated[
        str | None,
        typer.Option(
            help="mean, cls, last or max; tokens: a vector head without the encoder. [default: the folder's own, else "
            "mean]"
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="fp32, bf16, int8, or auto: the fastest here that keeps the cosine to fp32 above 0.999. "
            "[default: the folder's own, else fp32]"
        ),
    ] = None,
    engine: EngineName = "local",
    processes: Processes = 2,
    as_json: Json = False,
) -> None:
    """Turn each line of a file into a vector, in order."""
    from firth import model_files

    is_model = model is None or os.path.isdir(model) or models.is_model(model)
    if not is_model and str(file) == "-":
        # A text in the model's place; with a file, what opens models says what is wrong with the name.
        raise BadConfig(f"'{model}' is not a model; write texts to a file, one on each line, and name it with --file.")
    written = model_files.embed_file(
        model, file=file, out=out, pooling=pooling, precision=precision, engine=engine, processes=processes
    )
    show(written, as_json=as_json)


def generate(
    model: ModelFolder,
    text: Annotated[str, typer.Argument(help="The text to go on with; it may be empty.")],
    max_tokens: Annotated[int, typer.Option(min=1, help="New tokens at most.")] = 50,
    temperature: Annotated[
        float, typer.Option(help="Below 1 the likely gets likelier; 0 takes the likeliest tokens.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from so many of the likeliest tokens. [0: from all]")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Draw from the fewest likeliest tokens that together have this probability.")
    ] = 1.0,
    no_repeat_ngram: Annotated[int, typer.Option(help="No run of so many tokens occurs twice. [0: all may]")] = 0,
    seed: Annotated[int, typer.Option(help="Decides what is drawn.")] = 1,
    as_json: Json = False,
) -> None:
    """Let a causal language model (gpt, gpt-2, ulmfit) go on with a text."""
    from firth.inference.model import load

    check_model_first(model, [text])
    generated = load(model).generate(
        text,
        max_tokens=max_tokens,
        seed=seed,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        no_repeat_ngram=no_repeat_ngram,
    )
    if as_json:
        show({"generated": generated}, as_json=True)
    else:
        typer.echo(generated.text)


def rewrite(
    model: ModelFolder,
    texts: Annotated[list[str] | None, typer.Argument(help="Texts to translate, summarise ...")] = None,
    file: Annotated[Path | None, typer.Option(help="A UTF-8 file: every line is a text, blank ones too.")] = None,
    beams: Annotated[
        int | None, typer.Option(min=1, help="Texts that beam search keeps; 1 takes the likeliest tokens.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="A higher one prefers longer texts. [default: the model's own]")
    ] = None,
    no_repeat_ngram: Annotated[
        int | None, typer.Option(help="No run of so many tokens occurs twice. [0: all may]")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of a text at most.")] = None,
    temperature: Annotated[float, typer.Option(help="Above 0: draw tokens; below 1 the likely gets likelier.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Draw from so many of the likeliest tokens. [0: from all]")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Draw from the fewest likeliest tokens that together have this probability.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Decides what is drawn.")] = 1,
    task: Annotated[str, typer.Option(help="Which task, where the model has several that rewrite.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines: one object for each text.")] = False,
) -> None:
    """Let an encoder-decoder (transformer, t5, bart ...) write a text for each text, in order."""
    check_model_first(model, texts or ())
    check_inputs(texts, file)
    from firth.corpus.small_files import read_texts
    from firth.inference.model import load  # torch

    loaded = load(model)
    rewritten = loaded.rewrite(
        texts or read_texts(file),  # type: ignore[arg-type]
        beams=beams,
        length_penalty=length_penalty,
        no_repeat_ngram=no_repeat_ngram,
        max_tokens=max_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
        task=task,
    )
    for one in rewritten:
        typer.echo(json.dumps(asdict(one), ensure_ascii=False) if as_json else one.text)


def senses(
    model: OptionalModel = None,
    *,
    word: Annotated[str, typer.Option(help="The word to look at; its case does not matter.")],
    file: Annotated[Path, typer.Option(help="A UTF-8 file with one text on each line; - is standard input.")],
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
    from firth.corpus.small_files import read_lines
    from firth.inference.model import load

    lines = read_lines(file)
    found = load(model or models.suiting(lines)).senses(word, lines, groups=groups, layer=layer)
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
    if len(before) > CONTEXT:
        before = f"…{before[-CONTEXT:]}"
    if len(after) > CONTEXT:
        after = f"{after[:CONTEXT]}…"
    return f"{before}[{word}]{after}"
