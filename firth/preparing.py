"""Text files -> prepared text, with a new vocabulary or a folder's tokenizer. `firth.prepare` is this function.

Nothing here loads torch, so that the workers of preparation stay small.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from firth import models
from firth.arguments import checked
from firth.config import check_whole
from firth.console import Advance, bar
from firth.errors import BadConfig, BadInput
from firth.files import check_can_be_made, ending

if TYPE_CHECKING:
    from firth.corpus.readers import Documents
    from firth.data.health import Health
    from firth.data.prepare import Progress
    from firth.engines.engine import Engine
    from firth.tokenizers import Tokenizer

log = logging.getLogger(__name__)


@checked
def prepare(
    texts: str | Path | Sequence[str | Path],
    *,
    out: str | Path,
    tokenizer: str | Path = "wordpiece",
    vocab_size: int | None = None,
    min_count: int | None = None,
    cased: bool = False,
    documents: "Documents" = "blank-line",
    field: str = "text",
    repair: bool = False,
    near_duplicates: int | None = None,
    segmenter: str | Path | None = None,
    processes: int = 2,
    engine: str = "local",
    seed: int = 1,
) -> "Health":
    """Turns text files into shards in `out`, with a new vocabulary or a folder's tokenizer; returns their health.

    Chinese words are those of rjieba, or of a `segmenter` made by `finetune`, which works in this one process.
    `engine` says where the work is done: in `processes` of this machine, or by "ray" on a cluster. The bytes written
    are the same. Texts and `out` may be URLs such as s3://bucket/key.
    """
    from firth.engines import open_engine

    folder = Path(out)
    check_can_be_made(folder)
    check_whole(vocab_size=vocab_size, min_count=min_count)
    if near_duplicates is not None:
        _check_distance(near_duplicates)
    if segmenter and engine != "local":
        raise BadConfig("A segmenter works in one process; leave out `engine=` or `segmenter=`.")
    segmentation = _segmentation(segmenter)
    with open_engine(engine, workers=processes) as opened:
        paths = [texts] if isinstance(texts, str | Path) else list(texts)
        _check_reading(paths, documents, field)
        job = _PrepareJob(paths, folder, opened, documents=documents, field=field, repair=repair)
        is_new = str(tokenizer) in _trainable_tokenizers()
        if is_new:
            encoder = job.train(str(tokenizer), vocab_size=vocab_size, min_count=min_count, cased=cased, seed=seed)
        else:
            encoder = _load_tokenizer(Path(tokenizer), has_sizes=vocab_size is not None or min_count is not None)
        if segmenter:
            _refuse_words(encoder)
            processes = 0  # a worker does not have the segmenter
        with segmentation:
            health = job.write(encoder, processes=processes, near=near_duplicates, fresh=is_new)
    for text in health["warnings"]:
        log.warning(text)
    return health


class _PrepareJob:
    """The text to prepare, and where the work is done."""

    def __init__(
        self,
        paths: list[str | Path],
        out: Path,
        engine: "Engine | None",
        *,
        documents: "Documents",
        field: str,
        repair: bool,
    ) -> None:
        self.paths = paths
        self.out = out
        self.engine = engine
        self.documents = documents
        self.field = field
        self.repair = repair

    def train(self, name: str, *, vocab_size: int | None, min_count: int | None, cased: bool, seed: int) -> "Tokenizer":
        """A new tokenizer from the text."""
        from firth.data.vocabulary import train_tokenizer

        return train_tokenizer(
            name,
            self.paths,
            vocab_size=vocab_size,
            min_count=min_count,
            cased=cased,
            seed=seed,
            documents=self.documents,
            field=self.field,
            repair=self.repair,
            engine=self.engine,
        )

    def write(self, tokenizer: "Tokenizer", *, processes: int, near: int | None, fresh: bool) -> "Health":
        """Writes the shards."""
        from firth.data import distributed
        from firth.data import prepare as preparation
        from firth.data.pieces import Reading

        with bar("preparing", None, unit="MB") as advance:
            if self.engine is not None:
                return distributed.prepare(
                    self.engine,
                    self.paths,
                    self.out,
                    tokenizer=tokenizer,
                    reading=Reading(documents=self.documents, field=self.field, repair=self.repair),
                    near=near,
                    fresh=fresh,
                    progress=_megabytes(advance),
                )
            return preparation.prepare(
                self.paths,
                self.out,
                tokenizer=tokenizer,
                processes=processes,
                near=near,
                fresh=fresh,
                progress=_megabytes(advance),
                documents=self.documents,
                field=self.field,
                repair=self.repair,
            )


def _check_reading(paths: Sequence[str | Path], documents: "Documents", field: str) -> None:
    """Raises for an unknown end of documents, and if no file, or not every file, has the fields that are asked for."""
    from firth.corpus.finding import ROWS
    from firth.corpus.languages import find_sources
    from firth.corpus.readers import check_documents, no_field

    check_documents(documents)
    if field == "text" and documents != "field":
        return
    files: list[Path] = []
    for source in find_sources(paths):
        files += source.files
    plain = [file for file in files if ending(file) not in (*ROWS, ".parquet")]
    if plain and documents == "field":
        raise no_field(plain[0], field)
    if len(plain) == len(files):
        raise BadConfig(f"`field='{field}'` is for JSON lines and Parquet, and {files[0]} is neither; leave it out.")


def _check_distance(near_duplicates: int) -> None:
    """Raises for a distance that fingerprints cannot have."""
    from firth.data.simhash import drop_near_duplicates

    # Without documents this does nothing but check the distance.
    next(drop_near_duplicates((), within=near_duplicates, tally=Counter()), None)


def _refuse_words(tokenizer: "Tokenizer") -> None:
    """Raises for a tokenizer of whole words, which a segmenter cannot serve."""
    from firth.tokenizers.word_list import Words

    if isinstance(tokenizer, Words):
        raise BadConfig(
            "A segmenter gives the words of whole-word masks; word vectors cut Chinese text by rjieba wherever they "
            "are used, so leave out `segmenter=`."
        )


def _trainable_tokenizers() -> list[str]:
    from firth import tokenizers

    # Templates are the features of a tagger, learned from labelled rows.
    return [name for name in tokenizers.TABLE if name != "templates"]


def _load_tokenizer(folder: Path, *, has_sizes: bool) -> "Tokenizer":
    """The tokenizer in a folder. `has_sizes`: the user asked for a size or a minimum count, which it cannot change."""
    from firth import tokenizers

    if not folder.is_dir() and str(folder) in models.names():
        folder = models.find(folder)
    if not folder.is_dir():
        known = _trainable_tokenizers()
        nearest = get_close_matches(str(folder), [*known, *models.names()], n=1)
        hint = f"; did you mean {nearest[0]}?" if nearest else f" ({', '.join(known)})."
        raise BadInput(f"{folder} is neither a folder nor a tokenizer that can be trained{hint}")
    if has_sizes:
        raise BadConfig(
            f"`vocab_size=` and `min_count=` are for a new vocabulary; the tokenizer in {folder} has its own."
        )
    return tokenizers.load(folder)


def _segmentation(segmenter: str | Path | None) -> AbstractContextManager[None]:
    """While it is entered, Chinese words are those of the segmenter."""
    if segmenter is None:
        return nullcontext()
    from firth.inference.model import load
    from firth.tokenizers.segmentation import segmented_by

    model = load(segmenter)
    model.segment([])  # raises now for a model that cannot segment
    return segmented_by(model.segment)


def _megabytes(advance: Advance) -> "Progress":
    """A progress function that takes bytes and moves a bar of megabytes."""

    def progress(bytes_read: int, bytes_expected: int, num_tokens: int) -> None:
        expected = bytes_expected / 1e6
        advance(bytes_read / 1e6, f"of about {expected:,.0f} MB", expected)

    return progress
