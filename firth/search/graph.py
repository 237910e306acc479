"""A graph over the vectors of a large index, so that a search looks at few of them: HNSW (Malkov & Yashunin 2018).

The graph comes from faiss, which the extra `ann` installs. It finds candidates; their cosines are computed from the
vectors of the index, as in the exact search. Without faiss an index is searched exactly, whatever its size.

With one thread the same vectors in the same blocks give the same file. With several, faiss links passages at the same
time, and the links can differ from one build to the next.
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np

from firth.errors import install

log = logging.getLogger(__name__)

GRAPH = "graph.faiss"
"""The name of the file."""
NEIGHBOURS = 16
"""Links of a passage to others; twice as many in the lowest layer."""
BUILD_BREADTH = 80
"""Candidates for the links of a passage while the graph is built."""
SEARCH_BREADTH = 256
"""Candidates that a search keeps: the more, the fewer passages it misses, and the longer it takes."""


def _faiss() -> Any:
    """The library, which has no types; None where it is not installed."""
    try:
        import faiss
    except ImportError:
        return None
    return faiss


class GraphWriter:
    """Takes vectors block by block; `save` writes the graph."""

    def __init__(self, width: int) -> None:
        self._graph: Any = None
        faiss = _faiss()
        if faiss is None:
            log.warning(
                "faiss is not installed, so this index is searched exactly, which takes longer the larger it is; for a "
                f"graph, run {install('ann')} and build the index again."
            )
            return
        # One byte for each number of a vector. For vectors of length 1 the nearest has the highest cosine.
        self._graph = faiss.IndexHNSWSQ(width, faiss.ScalarQuantizer.QT_8bit, NEIGHBOURS)
        self._graph.hnsw.efConstruction = BUILD_BREADTH

    def add(self, vectors_BD: np.ndarray) -> None:
        """Adds the next vectors, which have length 1."""
        if self._graph is None:
            return
        if not self._graph.is_trained:
            # The range of each number, from the first block.
            self._graph.train(vectors_BD)
        self._graph.add(vectors_BD)

    def save(self, folder: Path) -> None:
        """Writes the graph into the folder of an index."""
        if self._graph is not None:
            _faiss().write_index(self._graph, str(folder / GRAPH))


class Graph:
    """A graph that is open."""

    def __init__(self, index: Any, search_settings: Any) -> None:
        self._index = index
        self._search_settings = search_settings

    @classmethod
    def open(cls, folder: Path) -> "Graph | None":
        """The graph of an index; None if it has none, or faiss is not installed."""
        path = folder / GRAPH
        if not path.exists():
            return None
        faiss = _faiss()
        if faiss is None:
            log.warning(f"faiss is not installed, so {folder} is searched exactly; to be faster, run {install('ann')}.")
            return None
        # Memory-mapped, not loaded.
        index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC)
        return cls(index, faiss.SearchParametersHNSW(efSearch=SEARCH_BREADTH))

    def candidates(self, questions_QD: np.ndarray, count: int) -> np.ndarray:
        """The numbers of about `count` passages near each question, Q x count; -1 where there are fewer."""
        _, numbers_QC = self._index.search(np.ascontiguousarray(questions_QD), count, params=self._search_settings)
        return np.asarray(numbers_QC)
