"""Subcommand `search`: an index of passages, questions to it, and hard negatives for training."""

import logging
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firth.commands.shown import DEFAULT_MODEL, MODEL_HELP, Json, show
from firth.errors import BadConfig, BadInput
from firth.search import By

if TYPE_CHECKING:
    from firth.inference.model import Model
    from firth.search.index import Hit, SearchIndex

log = logging.getLogger(__name__)


class SearchAction(StrEnum):
    build = "build"
    ask = "ask"
    mine = "mine"


@dataclass(frozen=True)
class AskOptions:
    """How passages are found, and how much of them is shown."""

    top: Annotated[int, typer.Option(min=1, help="With ask, passages to show.")] = 5
    by: Annotated[By, typer.Option(help="With ask, what a passage is found by: its meaning, its words, or both.")] = (
        By.both
    )
    reranker: Annotated[
        Path | None,
        typer.Option("--rerank", help="With ask, a model fine-tuned to compare two texts, which orders the best 50."),
    ] = None
    whole: Annotated[bool, typer.Option("--whole", help="With ask, print whole passages.")] = False


@dataclass(frozen=True)
class MiningOptions:
    """Which pairs belong together, and which negatives they get."""

    negatives: Annotated[int, typer.Option(min=1, help="With mine, negatives for each pair.")] = 1
    margin: Annotated[
        float, typer.Option(min=0, help="With mine, how much less similar than the partner a negative must be.")
    ] = 0.05
    text_column: Annotated[
        str, typer.Option(help="With mine, column of the first text; a number counts columns without a header.")
    ] = ""
    second_column: Annotated[str, typer.Option(help="With mine, column of the second text.")] = ""
    score_column: Annotated[str, typer.Option(help="With mine, column of the pairs' label or score.")] = ""
    min_score: Annotated[
        float | None, typer.Option(help="With mine, the score from which on two texts belong together.")
    ] = None


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
    *,
    out: Annotated[Path | None, typer.Option(help="With build and mine, what to write; must not exist.")] = None,
    model: Annotated[Path | None, typer.Option(help=f"With build and mine. {MODEL_HELP} {DEFAULT_MODEL}")] = None,
    asking: AskOptions,
    mining: MiningOptions,
    as_json: Json = False,
) -> None:
    """Find the passages of texts that fit a question best, by their meaning and their words."""
    if action is SearchAction.ask:
        if out is not None or model is not None:
            raise BadConfig(
                "`search ask` prints what it finds, with the model of the index; leave out --out and --model."
            )
        folder, question = _index_and_question(arguments)
        _ask(folder, question, asking, as_json=as_json)
    elif action is SearchAction.build:
        if out is None:
            raise BadConfig("`search build` needs the folder to write; add `--out INDEX`.")
        _build([Path(text) for text in arguments], out, model, as_json=as_json)
    else:
        if out is None or len(arguments) != 1:
            raise BadConfig(
                "`search mine` needs one file of pairs and the file to write: PAIRS.tsv --out TRIPLETS.tsv; a model is "
                "named with --model."
            )
        _mine(Path(arguments[0]), out, model, mining, as_json=as_json)


def _index_and_question(arguments: list[str]) -> tuple[Path, str]:
    """The folder of the index and the question; raises if they were not given like this."""
    if len(arguments) != 2:
        raise BadConfig("`search ask` takes an index and one question; put the question into quotes.")
    index, question = arguments
    if not any(character.isalnum() for character in question):
        raise BadConfig("The question has no words; write what to look for.")
    if Path(question).is_dir() and not Path(index).exists():
        raise BadConfig(f"The index comes first: '{question}' is a folder, and '{index}' is not; swap the two.")
    return Path(index), question


def _build(texts: list[Path], out: Path, model: Path | None, *, as_json: bool) -> None:
    from firth.search.index import build_index

    index = build_index(texts, out, model=model)
    width = index.codes_ND.shape[1]
    show({"passages": len(index), "width": width, "model": index.model, "out": str(out)}, as_json=as_json)


def _ask(folder: Path, question: str, options: AskOptions, *, as_json: bool) -> None:
    from firth.search.excerpts import excerpt
    from firth.search.index import SearchIndex

    index = SearchIndex.open(folder)
    model = index.load_model()
    if options.reranker is None:
        hits = index.ask(model, question, top=options.top, by=options.by)
    else:
        from firth.inference.model import load
        from firth.search.ranking import CANDIDATES, rerank

        candidates = index.ask(model, question, top=max(options.top, CANDIDATES), by=options.by)
        hits = rerank(load(options.reranker), question, candidates)[: options.top]
    _tell_of_question(index, model, question, hits, by=options.by)
    if as_json:
        show({"hits": [asdict(hit) for hit in hits]}, as_json=True)
        return
    weights = index.words.weights_of_held(question)
    for hit in hits:
        passage = hit.passage
        text = passage.text if options.whole else excerpt(passage.text, weights)
        typer.echo(f"{hit.score:7.4f}  {passage.file}:{passage.line}  {text}")


def _tell_of_question(index: "SearchIndex", model: "Model", question: str, hits: "list[Hit]", *, by: By) -> None:
    """Says why nothing was found, or why less than there may be."""
    from firth.search.languages import other_language, reads
    from firth.tokenizers.unknown import unknown_share, warn_about_unknown

    other = other_language(question, index.languages)
    if other and not hits:
        log.info(f"{other}, so nothing was found; ask in the language of the texts.")
    elif other and by is By.both and not reads(model, question, index.languages):
        log.info(f"{other}, so passages are found by their words alone.")
    elif not hits and by is By.words:
        log.info("No passage has a word of the question; ask with other words or with `by='meaning'`.")
    elif not hits:
        log.info("No passage fits the question; ask with other words.")
    if not other:
        unknown = unknown_share(model.tokenizer, [model.tokenizer.encode(question).ids])
        warn_about_unknown("The question", model.tokenizer, unknown)


def _mine(path: Path, out: Path, model: Path | None, options: MiningOptions, *, as_json: bool) -> None:
    from firth import models
    from firth.files import check_can_be_made, write_bytes
    from firth.inference.model import load
    from firth.search.mining import mine_triplets
    from firth.search.pairs import read_pairs

    check_can_be_made(out)
    pairs = read_pairs(
        path,
        text_column=options.text_column,
        second_column=options.second_column,
        score_column=options.score_column,
        min_score=options.min_score,
    )
    loaded = load(model or models.suiting(first for first, _ in pairs))
    triplets = mine_triplets(loaded, pairs, negatives=options.negatives, margin=options.margin)
    if not triplets and (not options.margin or len({second for _, second in pairs}) == 1):
        raise BadInput(f"{path} gives no triplets: no text is less similar; add pairs with other second texts.")
    if not triplets:
        raise BadInput(f"{path} gives no triplets: no text is less similar by {options.margin:g}; lower --margin.")
    lines = ["anchor\tpositive\tnegative"]
    for triplet in triplets:
        texts = (triplet.text, triplet.positive, triplet.negative)
        lines.append("\t".join(" ".join(text.split()) for text in texts))
    write_bytes(out, ("\n".join(lines) + "\n").encode())
    show({"pairs": len(pairs), "triplets": len(triplets), "out": str(out)}, as_json=as_json)
