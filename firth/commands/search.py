"""Subcommand `search`: an index of passages, questions to it, and hard negatives for training."""

import logging
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from firth.commands.shown import DEFAULT_MODEL, MODEL_HELP, Json, show
from firth.errors import BadConfig
from firth.search import By

log = logging.getLogger(__name__)


class SearchAction(StrEnum):
    build = "build"
    ask = "ask"
    mine = "mine"


def search(
    action: Annotated[
        SearchAction, typer.Argument(help="`build` an index of texts, `ask` one, or `mine` hard negatives.")
    ],
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT... | INDEX QUESTION | PAIRS",
            help="Files or folders to index; an index and a question; or a file of pairs that belong together.",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="With build and mine, what to write; must not exist.")] = None,
    model: Annotated[Path | None, typer.Option(help=f"With build and mine. {MODEL_HELP} {DEFAULT_MODEL}")] = None,
    top: Annotated[int, typer.Option(min=1, help="With ask, passages to show.")] = 5,
    by: Annotated[
        By, typer.Option(help="With ask, what a passage is found by: its meaning, its words, or both.")
    ] = By.both,
    reranker: Annotated[
        Path | None,
        typer.Option("--rerank", help="With ask, a model fine-tuned to compare two texts, which orders the best 50."),
    ] = None,
    negatives: Annotated[int, typer.Option(min=1, help="With mine, negatives for each pair.")] = 1,
    margin: Annotated[
        float, typer.Option(min=0, help="With mine, how much less similar than the partner a negative must be.")
    ] = 0.05,
    as_json: Json = False,
) -> None:
    """Find the passages of texts that fit a question best, by their meaning and their words."""
    if action is SearchAction.mine:
        if out is None or len(arguments) != 1:
            raise BadConfig(
                "`search mine` needs one file of pairs and the file to write: PAIRS.tsv --out TRIPLETS.tsv."
            )
        _mine(Path(arguments[0]), out, model, negatives, margin, as_json=as_json)
        return
    if action is SearchAction.build:
        if out is None:
            raise BadConfig("`search build` needs the folder to write; add `--out INDEX`.")
        _build([Path(text) for text in arguments], out, model, as_json=as_json)
        return
    if len(arguments) != 2:
        raise BadConfig("`search ask` takes an index and one question; put the question into quotes.")
    index, question = arguments
    if not question.strip():
        raise BadConfig("The question is empty; write what to look for.")
    if Path(question).is_dir() and not Path(index).exists():
        raise BadConfig(f"The index comes first: '{question}' is a folder, and '{index}' is not; swap the two.")
    _ask(Path(index), question, top, by, reranker, as_json=as_json)


def _build(texts: list[Path], out: Path, model: Path | None, *, as_json: bool) -> None:
    from firth.search.index import build_index

    index = build_index(texts, out, model=model)
    width = index.codes_ND.shape[1]
    show({"passages": len(index), "width": width, "model": index.model, "out": str(out)}, as_json=as_json)


def _ask(folder: Path, question: str, top: int, by: By, reranker: Path | None, *, as_json: bool) -> None:
    from firth.search.index import SearchIndex
    from firth.tokenizers.unknown import unknown_share, warn_about_unknown

    index = SearchIndex.open(folder)
    model = index.load_model()
    unknown = unknown_share(model.tokenizer, [model.tokenizer.encode(question).ids])
    warn_about_unknown("The question", model.tokenizer, unknown)
    if reranker is None:
        hits = index.ask(model, question, top=top, by=by)
    else:
        from firth.inference.model import load
        from firth.search.ranking import CANDIDATES, rerank

        candidates = index.ask(model, question, top=max(top, CANDIDATES), by=by)
        hits = rerank(load(reranker), question, candidates)[:top]
    if not hits:
        log.info("No passage has a word of the question; ask with other words or with `by='meaning'`.")
    if as_json:
        show({"hits": [asdict(hit) for hit in hits]}, as_json=True)
        return
    for hit in hits:
        typer.echo(f"{hit.score:7.4f}  {hit.passage.file}:{hit.passage.line}  {hit.passage.text}")


def _mine(path: Path, out: Path, model: Path | None, negatives: int, margin: float, *, as_json: bool) -> None:
    from firth import models
    from firth.files import check_is_new, write_bytes
    from firth.finetuning import labelled
    from firth.inference.model import load
    from firth.search.mining import mine_triplets
    from firth.tasks.compare import CompareConfig

    check_is_new(out)
    rows = labelled.read("compare", CompareConfig(kind="positives"), {"train": path}).examples["train"]
    pairs = [(row.texts[0], row.texts[1]) for row in rows]
    loaded = load(model or models.suiting(first for first, _ in pairs))
    triplets = mine_triplets(loaded, pairs, negatives=negatives, margin=margin)
    lines = ["anchor\tpositive\tnegative"]
    for triplet in triplets:
        texts = (triplet.text, triplet.positive, triplet.negative)
        lines.append("\t".join(" ".join(text.split()) for text in texts))
    write_bytes(out, ("\n".join(lines) + "\n").encode())
    show({"pairs": len(pairs), "triplets": len(triplets), "out": str(out)}, as_json=as_json)
