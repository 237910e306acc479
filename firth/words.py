"""Words: a map of word vectors, co-occurrence ratios, keywords, near-duplicate texts.

In: a model folder, prepared text or text files. Out: files, or rows. Used as `from firth.words import keywords`. As in
`pipeline.py`, each function imports only what it needs.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from firth import models
from firth.arguments import checked
from firth.errors import BadConfig, BadInput
from firth.files import check_can_be_made

if TYPE_CHECKING:
    from firth.corpus.readers import Documents
    from firth.inference.lexicon import Lexicon
    from firth.tokenizers import Tokenizer

log = logging.getLogger(__name__)


class NearPair(TypedDict):
    """Two documents that are nearly the same."""

    alike: float
    """The share of their words that is the same and in the same order, from 0 to 1."""
    first: str
    """Where the document is: file and position."""
    second: str
    first_text: str
    second_text: str


@checked
def map_words(model: str | Path, words: Sequence[str], *, out: str | Path) -> None:
    """Draws words on the plane in which their vectors differ most, as a new .svg or .png file."""
    import numpy as np

    from firth.inference.lexicon import open_lexicon
    from firth.report.scatter import write_map

    path = Path(out)
    check_can_be_made(path)
    lexicon = open_lexicon(models.find(model))
    vectors = [lexicon.vector(word) for word in words]
    write_map(path, words, np.array(vectors))


@checked
def ratios(
    data: str | Path,
    first: str,
    second: str,
    *,
    words: Sequence[str],
    window: int = 10,
) -> dict[str, dict[str, float]]:
    """How often each of `words` occurs near `first` and near `second`, and the ratio: what GloVe learns from.

    `data` is prepared text, or a run made from it. Returns by word: {first: share, second: share, "ratio": ratio}.
    """
    from firth import tokenizers
    from firth.data.ratios import shares
    from firth.data.shards import Shards

    named = (first, second, *words)
    if window < 1 or not words or not all(word.strip() for word in named):
        raise BadConfig("Ratios need a window of at least 1 and some words to look for, none of them empty.")
    shards = Shards.open(_prepared_text(Path(data)))
    tokenizer = tokenizers.load(shards.tokenizer_folder)
    ids = _ids_of(named, _vocabulary(tokenizer), data)

    specials = tokenizer.vocab.specials
    word_ids = [ids[word] for word in words]
    near_first = shares(shards, ids[first], word_ids, window=window, without=specials)
    near_second = shares(shards, ids[second], word_ids, window=window, without=specials)
    table = {}
    for word, share, other in zip(words, map(float, near_first), map(float, near_second), strict=True):
        table[word] = {first: share, second: other, "ratio": _ratio(share, other)}
    return table


def _vocabulary(tokenizer: "Tokenizer") -> "Lexicon":
    """The words of a tokenizer without vectors, for looking them up as a model would."""
    import numpy as np

    from firth.inference.lexicon import Lexicon

    vocab = tokenizer.vocab
    no_vectors = np.empty((len(vocab), 0), np.float32)
    return Lexicon(vocab.ids, no_vectors, lowercase=tokenizer.lowercases, hidden=vocab.specials)


def _ids_of(words: Sequence[str], vocabulary: "Lexicon", data: str | Path) -> Mapping[str, int]:
    ids = {}
    for word in words:
        place = vocabulary.row_of(word)
        if place is None:
            raise BadInput(f"{data}: '{word}' is not in the vocabulary{vocabulary.spelling_hint(word)}")
        ids[word] = place
    return ids


def _ratio(share: float, other: float) -> float:
    if other:
        return share / other
    return float("inf") if share else float("nan")


def _prepared_text(folder: Path) -> Path:
    """The folder of prepared text: `folder` itself, or the text that the run in it was made from."""
    from firth.run_source import DATA, SOURCE, PretrainingSource, SolvingSource, read_source

    found = folder
    if (folder / SOURCE).exists():
        source = read_source(folder)
        if (folder / DATA).exists():
            found = folder / DATA
        elif isinstance(source, PretrainingSource | SolvingSource):
            found = Path(source.data)
    if found == folder and (folder / "config.json").exists():
        raise BadInput(f"{folder} is a model that has no text; name the folder that `firth prepare` made.")
    return found


@checked
def keywords(file: str | Path, *, top: int = 10, window: int = 4) -> list[tuple[str, float]]:
    """The most central words of a text by TextRank, with their scores; words within `window` are linked."""
    from firth.corpus.small_files import read_lines, tell_of_table
    from firth.data.keywords import keywords as rank_words

    lines = read_lines(Path(file), remedy="give it the text whose keywords to find")
    tell_of_table(Path(file))
    return rank_words(lines, top=top, window=window)


@checked
def duplicates(
    texts: str | Path | Sequence[str | Path],
    *,
    alike: float = 0.8,
    within: int = 3,
    shingle: int = 3,
    documents: "Documents" = "line",
    field: str = "text",
    engine: str = "local",
    processes: int = 2,
) -> list[NearPair]:
    """Pairs of documents that are nearly the same, the most similar first, with their texts.

    Short documents (up to `near_texts.SHORT_WORDS` words) are compared word by word: at least `alike` of their words
    are the same. Long ones are found by SimHash fingerprints that differ in at most `within` bits. With the `engine`
    "ray", the fingerprints are computed by `processes` workers of a cluster.
    """
    from firth.corpus.readers import read_documents
    from firth.data.distributed import fingerprints_of
    from firth.data.near_texts import near_texts
    from firth.data.pieces import Reading
    from firth.engines import open_engine

    paths = [texts] if isinstance(texts, str | Path) else list(texts)
    sources: list[str] = []
    contents: list[str] = []
    for document in read_documents(paths, documents=documents, field=field):
        sources.append(document.source)
        contents.append("\n".join(document.lines))
    fingerprints = None
    with open_engine(engine, workers=processes) as opened:
        if opened is not None:
            reading = Reading(documents=documents, field=field)
            _, fingerprints = fingerprints_of(opened, paths, reading, shingle=shingle)
    found = near_texts(contents, alike=alike, within=within, shingle=shingle, fingerprints=fingerprints)
    pairs = sorted(found, key=lambda pair: (-pair.alike, pair.second, pair.first))
    log.info(f"{len(sources):,} documents, of which {len(pairs):,} pairs are nearly the same.")
    rows: list[NearPair] = []
    for pair in pairs:
        row = NearPair(
            alike=pair.alike,
            first=sources[pair.first],
            second=sources[pair.second],
            first_text=contents[pair.first],
            second_text=contents[pair.second],
        )
        rows.append(row)
    return rows
