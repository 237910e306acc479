"""Subcommand `search`: an index of passages, and questions to it."""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from firth.commands.shown import DEFAULT_MODEL, MODEL_HELP, Json, show
from firth.errors import BadConfig


class SearchAction(StrEnum):
    build = "build"
    ask = "ask"


def search(
    action: Annotated[SearchAction, typer.Argument(help="`build` an index of texts, or `ask` one.")],
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT... | INDEX QUESTION", help="Files or folders to index; or an index and a question."
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="With build, the folder to write; must not exist.")] = None,
    model: Annotated[Path | None, typer.Option(help=f"With build. {MODEL_HELP} {DEFAULT_MODEL}")] = None,
    top: Annotated[int, typer.Option(min=1, help="With ask, passages to show.")] = 5,
    reranker: Annotated[
        Path | None,
        typer.Option("--rerank", help="With ask, a model fine-tuned to compare two texts, which orders the best 50."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Find the passages of texts that are nearest to a question in meaning."""
    if action is SearchAction.build:
        if out is None:
            raise BadConfig("`search build` needs the folder to write; add `--out INDEX`.")
        _build([Path(text) for text in arguments], out, model, as_json=as_json)
        return
    if len(arguments) != 2:
        raise BadConfig("`search ask` takes an index and one question; put the question into quotes.")
    index, question = arguments
    _ask(Path(index), question, top, reranker, as_json=as_json)


def _build(texts: list[Path], out: Path, model: Path | None, *, as_json: bool) -> None:
    from firth.search.index import build_index

    index = build_index(texts, out, model=model)
    width = index.codes_ND.shape[1]
    show({"passages": len(index), "width": width, "model": index.model, "out": str(out)}, as_json=as_json)


def _ask(folder: Path, question: str, top: int, reranker: Path | None, *, as_json: bool) -> None:
    from firth.search.index import SearchIndex

    index = SearchIndex.open(folder)
    model = index.load_model()
    if reranker is None:
        hits = index.ask(model, question, top=top)
    else:
        from firth.inference.model import load
        from firth.search.ranking import CANDIDATES, rerank

        candidates = index.ask(model, question, top=max(top, CANDIDATES))
        hits = rerank(load(reranker), question, candidates)[:top]
    if as_json:
        show({"hits": [asdict(hit) for hit in hits]}, as_json=True)
        return
    for hit in hits:
        typer.echo(f"{hit.score:7.4f}  {hit.passage.file}:{hit.passage.line}  {hit.passage.text}")
