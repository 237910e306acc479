"""Documents as counts: against counting by hand and against scikit-learn's idf."""

from collections import Counter

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfTransformer

from firth.data import documents
from firth.data.documents import Counts, count_words, idf
from firth.data.shards import Shards
from firth.data.stream import CorpusView

WITHOUT = frozenset({0, 1, 2, 3, 4})


@pytest.fixture
def stream(shards: Shards) -> CorpusView:
    return CorpusView(shards, np.arange(0, shards.num_documents, 2))


def as_matrix(counts: Counts, size: int) -> np.ndarray:
    matrix = np.zeros((len(counts), size))
    np.add.at(matrix, (counts.owners_M, counts.words_M), counts.counts_M)
    return matrix


def test_counts_are_those_of_the_documents(stream: CorpusView, shards: Shards, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "_BLOCK_TOKENS", 1000)  # several blocks
    counts = count_words(stream, 1200, without=WITHOUT)
    assert len(counts) == len(stream.documents_D)
    for row, document in enumerate(stream.documents_D):
        first, last = (shards.sentences[shards.documents[document + i]] for i in (0, 1))
        wanted = Counter(i for i in shards.ids[first:last].tolist() if i not in WITHOUT)
        places = slice(counts.bounds_D1[row], counts.bounds_D1[row + 1])
        assert dict(zip(counts.words_M[places].tolist(), counts.counts_M[places].tolist(), strict=True)) == wanted


def test_rows_come_in_the_order_asked_for(stream: CorpusView) -> None:
    counts = count_words(stream, 1200, without=WITHOUT)
    index = np.array([3, 0, 3])
    assert np.array_equal(as_matrix(counts.rows(index), 1200), as_matrix(counts, 1200)[index])


@pytest.mark.parametrize("kind", ["smooth", "plain", "none"])
def test_idf_is_scikit_learns(stream: CorpusView, kind: str) -> None:
    counts = count_words(stream, 1200, without=WITHOUT)
    matrix, found = as_matrix(counts, 1200), idf(counts, 1200, kind)
    occurs = matrix.any(0)
    if kind == "none":
        assert (found == 1).all()
        return
    theirs = TfidfTransformer(smooth_idf=kind == "smooth").fit(matrix[:, occurs]).idf_
    assert np.allclose(found[occurs], theirs - (kind == "plain"))
    assert (found[~occurs] == 0).all() == (kind == "plain")
