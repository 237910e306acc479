"""Text files -> shards, in parallel and in little memory.

One process reads, cleans and drops duplicates, in order. Chunks of clean text go to worker processes that split
sentences and encode. Their arrays are appended in order, so the bytes written do not depend on the number of workers.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from firth.corpus.cleaning import clean_documents, drop_duplicates
from firth.corpus.languages import TextSource, find_sources, language_names, read_sources
from firth.corpus.readers import TABLES, Documents, Paths
from firth.data import encoding
from firth.data.encoding import Chunk, chunks_of
from firth.data.encoding_workers import encode_all
from firth.data.health import Health, Measures, health
from firth.data.shards import TOKENIZER, ShardWriter, write_shards
from firth.data.simhash import drop_near_duplicates
from firth.errors import BadConfig, BadInput
from firth.files import ending
from firth.tokenizers import Tokenizer

Progress = Callable[[int, int, int], None]
"""Called with bytes read, bytes expected (a guess for compressed files) and tokens written."""


def prepare(
    paths: Paths,
    out: Path,
    *,
    tokenizer: Tokenizer,
    documents: Documents = "blank-line",
    field: str = "text",
    repair: bool = False,
    processes: int = 2,
    replace: bool = False,
    near: int | None = None,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Health:
    """Writes shards of the text in `paths` to the folder `out`, and returns its health as plain JSON values.

    With `near`, documents whose fingerprints differ from an earlier one's in at most that many bits are dropped too.
    `fresh` says that the vocabulary was trained on this very text.
    """
    if processes < 0:
        raise BadConfig(f"processes must be 0 (no workers) or more; it is {processes}.")
    # Counts of what was read and dropped; every stage below adds its own.
    tally: Counter[str] = Counter()
    sources = find_sources(paths, tally=tally)
    languages = language_names(sources)
    # Generators: the text is never in memory as a whole.
    read = read_sources(sources, documents=documents, field=field, tally=tally)
    kept = drop_duplicates(clean_documents(read, repair=repair), tally=tally)
    if near is not None:
        kept = drop_near_duplicates(kept, within=near, tally=tally)
    # Starting a worker is not worth it for less than a chunk.
    expected = sum(source.expected_bytes() for source in sources)
    num_workers = min(processes, expected // encoding.CHUNK)

    def encoded(tokenizer_folder: Path) -> Iterator[Chunk]:
        chunks = chunks_of(kept, languages)
        return encode_all(chunks, tokenizer, folder=tokenizer_folder, num_workers=num_workers)

    return write_text(
        encoded,
        sources,
        Path(out),
        tokenizer=tokenizer,
        tally=tally,
        info={"documents_by": documents, "repair": repair},
        replace=replace,
        fresh=fresh,
        progress=progress,
    )


def write_text(
    encoded: Callable[[Path], Iterable[Chunk]],
    sources: Sequence[TextSource],
    out: Path,
    *,
    tokenizer: Tokenizer,
    tally: Counter[str],
    info: Mapping[str, object],
    replace: bool,
    fresh: bool,
    progress: Progress | None,
) -> Health:
    """Writes encoded text in order; returns its health. `encoded` is called with the folder of the saved tokenizer.

    `tally` counts what was read and dropped while chunks are made, and `info` is added to `shards.json`.
    """
    languages = language_names(sources)
    expected = sum(source.expected_bytes() for source in sources)
    measures = Measures()
    with write_shards(out, tokenizer, replace=replace, languages=languages) as writer:
        for chunk in encoded(writer.folder / TOKENIZER):
            _append(writer, measures, chunk)
            if progress:
                progress(tally["bytes"], expected, writer.num_tokens)
        if not writer.num_tokens:
            raise BadInput(f"Nothing is left of {sources[0].files[0]} after cleaning; check that it holds text.")
        report = health(measures, writer.counts, unknown=tokenizer.vocab.unk, tally=tally, fresh=fresh)
        if languages:
            report["language_tokens"] = dict(zip(languages, writer.language_tokens.tolist(), strict=True))
        # Two columns of a parallel file are no mistake.
        single_files: list[Path] = []
        for source in sources:
            if not source.is_parallel:
                single_files += source.files
        _warn_of_tables(report, single_files)
        writer.info |= {**info, "health": report}
    return report


def _append(writer: ShardWriter, measures: Measures, chunk: Chunk) -> None:
    ended_documents = writer.append(
        chunk.ids, chunk.starts, lengths=chunk.lengths, ends=chunk.ends, languages=chunk.languages
    )
    measures.add(chunk.lengths, ended_documents, characters=chunk.characters)


def _warn_of_tables(report: Health, files: list[Path]) -> None:
    """Adds a warning where files have the suffix of a table."""
    tables = [path for path in files if ending(path) in TABLES]
    if not tables:
        return
    others = ""
    if len(tables) > 1:
        others = f" and {len(tables) - 1:,} more"
    report["warnings"].append(
        f"{tables[0]}{others}: the rows of a table were read as prose, with all their columns; write the one of "
        "the text to a .txt file first (such as cut -f 2 ROWS.tsv > TEXT.txt), or JSON lines, which have `field=`."
    )
