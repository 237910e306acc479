"""The walk among words: neighbours, analogies, maps, ratios; keywords and near-duplicates of texts.

One short function each; `firth.neighbours` etc. are these. As in `pipeline.py`, each brings in only what it needs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firth.errors import BadConfig, BadInput

if TYPE_CHECKING:
    from firth.corpus.readers import Documents


def neighbours(model: str | Path, word: str, *, top: int = 10) -> list[tuple[str, float]]:
    """The words of a model nearest to a word, with their cosines."""
    from firth.serve.lexicon import open_lexicon

    return open_lexicon(Path(model)).neighbours(word, top=top)


def analogy(model: str | Path, first: str, second: str, third: str, *, top: int = 10) -> list[tuple[str, float]]:
    """The words nearest to first - second + third: king, man, woman should give queen."""
    from firth.serve.lexicon import open_lexicon

    return open_lexicon(Path(model)).analogy(first, second, third, top=top)


def evaluate_words(model: str | Path, files: Sequence[str | Path]) -> dict[str, Any]:
    """A model's figures on files of word pairs or analogies, by file."""
    from firth.serve.lexicon import open_lexicon
    from firth.serve.word_tests import judge

    lexicon = open_lexicon(Path(model))
    return {Path(file).stem: judge(lexicon, Path(file)) for file in files}


def map_words(model: str | Path, words: Sequence[str], *, out: str | Path) -> None:
    """Words drawn where their vectors lie, as .svg or .png."""
    import numpy as np

    from firth.report.scatter import write_map
    from firth.serve.lexicon import open_lexicon

    lexicon = open_lexicon(Path(model))
    write_map(Path(out), words, np.stack([lexicon.vector(word) for word in words]))


def export(model: str | Path, *, out: str | Path, kind: str = "word2vec") -> dict[str, Any]:
    """A model's word vectors as a file that other programs read; gives their number and width."""
    from firth.convert.vectors import write_vectors
    from firth.serve.lexicon import open_lexicon

    if Path(out).exists():
        raise BadInput(f"{out} already exists; choose another --out or remove it.")
    lexicon = open_lexicon(Path(model))
    count, width = len(lexicon), lexicon.rows_VD.shape[1]
    write_vectors(Path(out), lexicon.blocks(), count=count, width=width, kind=kind)
    return {"words": count, "width": width, "out": str(out)}


def ratios(
    data: str | Path, first: str, second: str, *, words: Sequence[str], window: int = 10
) -> dict[str, dict[str, float]]:
    """For each of `words` its share among the neighbours of two others, and the ratio of these.

    `data` is prepared text, or a run that was made from it.
    """
    from firth import tokenizers
    from firth.data.ratios import shares
    from firth.data.shards import Shards
    from firth.files import read_json

    if window < 1 or not words:
        raise BadConfig("Ratios need a window of at least 1 and some words to look for.")
    folder = Path(data)
    if (folder / "source.json").exists():  # a run, which has its own shards or says where they lay
        made_from = read_json(folder / "source.json").get("data", data)
        folder = folder / "data" if (folder / "data").exists() else Path(made_from)
    shards = Shards.open(folder)
    known = tokenizers.load(shards.tokenizer_folder).vocab.ids
    if strange := [word for word in (first, second, *words) if word not in known]:
        raise BadInput(f"{data}: '{strange[0]}' is not in the vocabulary.")
    ids = [known[word] for word in words]
    ours, theirs = (shares(shards, known[word], ids, window=window) for word in (first, second))
    return {
        word: {first: float(a), second: float(b), "ratio": float(a / b) if b else float("inf" if a else "nan")}
        for word, a, b in zip(words, ours, theirs, strict=True)
    }


def keywords(file: str | Path, *, top: int = 10, window: int = 4) -> list[tuple[str, float]]:
    """The words of a text that many of its others stand beside (TextRank)."""
    from firth.corpus.readers import read_lines
    from firth.data.keywords import keywords as rank_words

    return rank_words(read_lines(Path(file)), top=top, window=window)


def duplicates(
    texts: str | Path | Sequence[str | Path],
    *,
    within: int = 3,
    shingle: int = 3,
    documents: "Documents" = "line",
    field: str = "text",
) -> list[dict[str, Any]]:
    """Pairs of documents whose SimHash fingerprints differ in at most `within` bits, nearest first."""
    from firth.corpus.readers import read_documents
    from firth.data.simhash import fingerprint, near_pairs

    paths = [texts] if isinstance(texts, str | Path) else list(texts)
    sources, marks = list[str](), list[int]()
    for document in read_documents(paths, documents=documents, field=field):
        sources.append(document.source)
        marks.append(fingerprint("\n".join(document.lines), shingle=shingle))
    pairs = sorted(near_pairs(marks, within=within), key=lambda pair: (pair[2], pair[1], pair[0]))
    return [{"bits": bits, "first": sources[a], "second": sources[b]} for a, b, bits in pairs]
