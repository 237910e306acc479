"""The walk among words: neighbours, analogies, maps, ratios; keywords and near-duplicates of texts.

One short function each; `firth.neighbours` etc. are these. As in `pipeline.py`, each brings in only what it needs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firth.console import say
from firth.errors import BadConfig, BadInput

if TYPE_CHECKING:
    from firth.corpus.readers import Documents


def neighbours(model: str | Path, word: str, *, top: int = 10) -> list[tuple[str, float]]:
    """The words of a model nearest to a word, with their cosines."""
    from firth.inference.lexicon import open_lexicon

    found = open_lexicon(Path(model)).neighbours(word, top=top)
    if not found:
        say(f"{model} has no word besides '{word}', so '{word}' has no neighbours.")
    return found


def analogy(model: str | Path, first: str, second: str, third: str, *, top: int = 10) -> list[tuple[str, float]]:
    """The words nearest to first - second + third: king, man, woman should give queen."""
    from firth.inference.lexicon import open_lexicon

    found = open_lexicon(Path(model)).analogy(first, second, third, top=top)
    if not found:
        say(f"{model} has no words besides '{first}', '{second}' and '{third}', so none can be the answer.")
    return found


def evaluate_words(model: str | Path, files: Sequence[str | Path]) -> dict[str, Any]:
    """A model's figures on files of word pairs or analogies, by file."""
    from firth.inference.lexicon import open_lexicon
    from firth.inference.word_tests import judge

    lexicon, stems = open_lexicon(Path(model)), [Path(file).stem for file in files]
    names = [stem if stems.count(stem) == 1 else str(file) for stem, file in zip(stems, files, strict=True)]
    return {name: judge(lexicon, Path(file)) for name, file in zip(names, files, strict=True)}


def map_words(model: str | Path, words: Sequence[str], *, out: str | Path) -> None:
    """Words drawn where their vectors lie, as .svg or .png in a new file."""
    import numpy as np

    from firth.inference.lexicon import open_lexicon
    from firth.report.scatter import write_map

    if Path(out).exists():
        raise BadInput(f"{out} already exists; choose another --out or remove it.")
    lexicon = open_lexicon(Path(model))
    write_map(Path(out), words, np.stack([lexicon.vector(word) for word in words]))


def export(model: str | Path, *, out: str | Path, kind: str = "word2vec") -> dict[str, Any]:
    """A model's word vectors as a file that other programs read; gives their number and width."""
    from firth.convert.vectors import write_vectors
    from firth.inference.lexicon import open_lexicon

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
    import numpy as np

    from firth import tokenizers
    from firth.data.ratios import shares
    from firth.data.shards import Shards
    from firth.inference.lexicon import Lexicon, reads_lowercase

    asked = (first, second, *words)
    if window < 1 or not words or not all(word.strip() for word in asked):
        raise BadConfig("Ratios need a window of at least 1 and some words to look for, none of them empty.")
    shards = Shards.open(_text_of(Path(data)))
    tokenizer = tokenizers.load(shards.tokenizer_folder)
    vocab = tokenizer.vocab
    no_rows = np.empty((len(vocab), 0), np.float32)
    lexicon = Lexicon(vocab.ids, no_rows, lowercase=reads_lowercase(tokenizer), hidden=vocab.specials)
    places = {word: place for word in asked if (place := lexicon.place(word)) is not None}
    if strange := [word for word in asked if word not in places]:
        raise BadInput(f"{data}: '{strange[0]}' is not in the vocabulary{lexicon.near(strange[0])}")
    ids = [places[word] for word in words]
    ours, theirs = (
        shares(shards, places[word], ids, window=window, without=vocab.specials) for word in (first, second)
    )
    return {
        word: {first: float(a), second: float(b), "ratio": float(a / b) if b else float("inf" if a else "nan")}
        for word, a, b in zip(words, ours, theirs, strict=True)
    }


def _text_of(folder: Path) -> Path:
    """The prepared text of a folder: itself, or that of a run, which has its own or says where it lay."""
    from firth.run_folder import DATA, SOURCE, FinetuningSource, read_source

    found = folder
    if (folder / SOURCE).exists():
        source = read_source(folder)
        if (folder / DATA).exists():
            found = folder / DATA
        elif not isinstance(source, FinetuningSource):
            found = Path(source.data)
    if found == folder and (folder / "config.json").exists():
        raise BadInput(f"{folder} is a model that has no text; name the folder that `firth prepare` made.")
    return found


def keywords(file: str | Path, *, top: int = 10, window: int = 4) -> list[tuple[str, float]]:
    """The words of a text that many of its others stand beside (TextRank)."""
    from firth.corpus.readers import read_lines, tell_of_table
    from firth.data.keywords import keywords as rank_words

    lines = read_lines(Path(file), remedy="give it the text whose keywords to find")
    tell_of_table(Path(file))
    return rank_words(lines, top=top, window=window)


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
    say(f"{len(sources):,} documents, of which {len(pairs):,} pairs differ in at most {within} bits.")
    return [{"bits": bits, "first": sources[a], "second": sources[b]} for a, b, bits in pairs]
