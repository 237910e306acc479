"""The subcommand that lets a causal language model continue a text."""

from typing import Annotated

import typer

from firth.commands.shown import Json, ModelFolder, show


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
    no_repeat: Annotated[int, typer.Option(help="No run of so many tokens occurs twice. [0: all may]")] = 0,
    seed: Annotated[int, typer.Option(help="Decides what is drawn.")] = 1,
    as_json: Json = False,
) -> None:
    """Let a causal language model (gpt, gpt-2, ulmfit) go on with a text."""
    from firth.inference.model import load

    generated = load(model).generate(
        text,
        max_tokens=max_tokens,
        seed=seed,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        no_repeat=no_repeat,
    )
    if as_json:
        show({"generated": generated}, as_json=True)
    else:
        typer.echo(generated.text)
