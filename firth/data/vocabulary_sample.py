"""Text to train a vocabulary on: files in, clean lines of randomly drawn documents out.

Where texts have languages, each language's share of the lines is in proportion to its bytes to the power of `ALPHA`
(Conneau & Lample 2019, section 3.1), so that small languages get pieces too: their text is read several times.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from firth import rng
from firth.corpus.cleaning import clean_documents, drop_duplicates
from firth.corpus.languages import TextSource, find_sources, language_names, read_sources
from firth.corpus.readers import Documents, Paths, no_text
from firth.data.pieces import Reading
from firth.types import Document

SAMPLE_BYTES = 64_000_000
"""Text that pieces of words are learned from at most; a list of words is counted over all of it."""
ALPHA = 0.5
"""The exponent of smoothing between languages."""
_DRAWS = 4096
"""Random numbers drawn at once."""


def sample_texts(
    paths: Paths,
    budget_bytes: int,
    *,
    seed: int = 0,
    documents: Documents = "blank-line",
    field: str = "text",
    repair: bool = False,
) -> Iterator[str]:
    """Clean lines of about `budget_bytes` of randomly drawn documents; all if that is less.

    The share to draw is estimated from file sizes. Where the estimate is far too low, drawing ends at twice the budget.
    """
    sources = find_sources(paths)
    languages = language_names(sources)
    reading = Reading(documents=documents, field=field, repair=repair)
    if len(languages) > 1:
        for language, budget, rate in _smoothed_budgets(sources, languages, budget_bytes):
            own = [source for source in sources if language in source.languages]
            lines = _repeated(own, rate, reading, seed=seed, language=language)
            yield from _up_to(lines, 2 * budget)
        return
    expected_bytes = sum(source.expected_bytes() for source in sources)
    rate = budget_bytes / max(expected_bytes, 1)
    lines = _lines(sources, rate, reading, seed=seed)
    yield from _up_to(lines, 2 * budget_bytes)


def smoothed_shares(sizes: Sequence[float], alpha: float) -> np.ndarray:
    """Shares in proportion to size^alpha: for alpha below 1, small sizes get more than their own share."""
    powers = np.asarray(sizes, float) ** alpha
    return np.asarray(powers / powers.sum())


def _smoothed_budgets(
    sources: Sequence[TextSource],
    languages: Sequence[str],
    budget_bytes: int,
) -> Iterator[tuple[str, int, float]]:
    """For each language: how many bytes to draw, and how often to read each document of it on average."""
    sizes = []
    for language in languages:
        sizes.append(sum(source.bytes_in(language) for source in sources))
    if not any(sizes):
        raise no_text(sources[0].files[0])
    total = min(budget_bytes, sum(sizes))
    for language, size, share in zip(languages, sizes, smoothed_shares(sizes, ALPHA), strict=True):
        budget = int(total * share)
        yield language, budget, budget / max(size, 1)


def _repeated(
    sources: Sequence[TextSource],
    rate: float,
    reading: Reading,
    *,
    seed: int,
    language: str,
) -> Iterator[str]:
    """The lines in one language, read as often as the rate says: all of them, and at last a part of them."""
    while rate > 0:
        yield from _lines(sources, rate, reading, seed=seed, language=language)
        rate -= 1


def _lines(
    sources: Sequence[TextSource],
    rate: float,
    reading: Reading,
    *,
    seed: int,
    language: str = "",
) -> Iterator[str]:
    """The clean lines of documents, each document drawn with probability `rate`; of pairs, those in the language."""
    found: Iterable[Document] = read_sources(sources, documents=reading.documents, field=reading.field)
    if rate < 1:
        found = _drawn(found, rate, seed=seed)
    for document in drop_duplicates(clean_documents(found, repair=reading.repair)):
        if document.is_pair:
            yield document.lines[document.languages.index(language)]
        else:
            yield from document.lines


def _up_to(lines: Iterable[str], limit_bytes: int) -> Iterator[str]:
    """The lines until more than `limit_bytes` were given."""
    for line in lines:
        yield line
        limit_bytes -= len(line.encode())
        if limit_bytes < 0:
            return


def _drawn(documents: Iterable[Document], rate: float, *, seed: int) -> Iterator[Document]:
    """Each document with probability `rate`."""
    # The random numbers have no end, so the lengths differ.
    for document, draw in zip(documents, _uniform_draws(seed), strict=False):
        if draw < rate:
            yield document


def _uniform_draws(seed: int) -> Iterator[float]:
    """Uniform random numbers from 0 to 1 without end; number i depends on the seed and i only."""
    key = rng.key(seed, "vocabulary sample")
    block = np.arange(_DRAWS)
    while True:
        yield from rng.uniform(key, block).tolist()
        block = block + _DRAWS
