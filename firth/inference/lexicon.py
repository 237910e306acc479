"""Words and their vectors: nearest words, analogies, similarity. Opens a model folder without torch.

In: a folder whose model has a table of words (word vectors; a BERT's input embeddings). Out: answers by cosine. The
table stays memory-mapped, so the first question costs one pass over it; a quantised one is read into memory.

Shapes: V words, W words of a block, D width, Q queries, X excluded (query, word) pairs.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path

import numpy as np

from firth import tokenizers
from firth.convert.mapped import WORD_ROWS, map_tensor, tensor_places, word_rows
from firth.convert.row_quantised import QUANTISED, load_matrix, matrix_facts
from firth.errors import BadConfig, BadInput, Unsupported
from firth.files import MANIFEST, check_manifest, without_model
from firth.tokenizers.segmentation import has_chinese
from firth.tokenizers.subwords import Subwords

TABLES = (
    "encoder.table.weight",
    "bert.embeddings.word_embeddings.weight",
    "electra.embeddings.word_embeddings.weight",
    "embeddings.word_embeddings.weight",
)
"""What a table of words may be called in the file of weights."""
SPELLING_CANDIDATES = 100_000
"""Words that are searched for similar spellings: the first ones, which are the most frequent in a sorted file."""
_BLOCK_ROWS = 1 << 15


class Lexicon:
    """The words of a model and a vector for each.

    `row_by_word` maps each word to its row of `rows_VD`, in order. `hidden` are the rows of special tokens, which are
    not words. `compose` makes the vector of a word that has no row (fastText).
    """

    def __init__(
        self,
        row_by_word: Mapping[str, int],
        rows_VD: np.ndarray,
        *,
        lowercase: bool = False,
        hidden: Collection[int] = (),
        compose: Callable[[str], np.ndarray | None] | None = None,
        spelling_candidates: int = SPELLING_CANDIDATES,
    ) -> None:
        self.row_by_word = row_by_word
        self.rows_VD = rows_VD[: len(row_by_word)]
        self.lowercase = lowercase
        self.hidden = sorted(hidden)
        self.compose = compose
        self.spelling_candidates = spelling_candidates

    @cached_property
    def words(self) -> tuple[str, ...]:
        """All words in order of their rows, including hidden ones."""
        return tuple(self.row_by_word)

    def __len__(self) -> int:
        return len(self.row_by_word) - len(self.hidden)

    def blocks(self) -> Iterator[tuple[list[str], np.ndarray]]:
        """All words that are not hidden and their vectors, a block at a time."""
        kept = np.setdiff1d(np.arange(len(self.words)), self.hidden)
        num_blocks = -(-len(kept) // _BLOCK_ROWS)
        for block in np.array_split(kept, num_blocks):
            yield [self.words[row] for row in block], self.rows_VD[block]

    @cached_property
    def norms_V(self) -> np.ndarray:
        """The length of each vector."""
        squares = []
        for start in range(0, len(self.rows_VD), _BLOCK_ROWS):
            block_WD = self.rows_VD[start : start + _BLOCK_ROWS]
            squares.append(np.einsum("vd,vd->v", block_WD, block_WD))
        lengths_V = np.sqrt(np.concatenate(squares))
        return np.asarray(np.maximum(lengths_V, 1e-12))

    def row_of(self, word: str) -> int | None:
        """The row of a word, or of its lower-cased form if that is how the model reads; None for an unknown word."""
        forms = [word]
        if self.lowercase:
            forms.append(word.lower())
        for form in forms:
            row = self.row_by_word.get(form)
            # A special token spelled in a text is not a word.
            if row is not None and row not in self.hidden:
                return row
        return None

    def knows(self, word: str) -> bool:
        """Whether the word has a vector."""
        return self._unit_vector(word) is not None

    def vector(self, word: str) -> np.ndarray:
        """The vector of a word, of length 1; a word without a row may be composed of its parts."""
        if not word.strip():
            raise BadInput("An empty word has no vector; give a word.")
        vector = self._unit_vector(word)
        if vector is None:
            raise BadInput(f"The model does not know the word '{word}'{self.spelling_hint(word)}")
        return vector

    def spelling_hint(self, word: str) -> str:
        """The end of an error message about an unknown word: words with a similar spelling."""
        wanted = word
        if self.lowercase:
            wanted = word.lower()
        letters = set(wanted)
        # A cheap filter first: similar length and a letter in common.
        candidates = []
        for known in self.words[: self.spelling_candidates]:
            has_similar_length = abs(len(known) - len(wanted)) < 3
            if has_similar_length and letters & set(known):
                candidates.append(known)
        cutoff = 0.7
        # One character more or less is a large part of a short word.
        if len(wanted) < 4 or has_chinese(wanted):
            cutoff = 0.5
        close = get_close_matches(wanted, candidates, n=3, cutoff=cutoff)
        if not close:
            return ", and no word is spelled like it."
        return f"; near spellings: {', '.join(close)}."

    def neighbours(self, word: str, *, top: int = 10) -> list[tuple[str, float]]:
        """The words with the highest cosine to a word, and these cosines."""
        return self._nearest(self.vector(word), top, without=[word])

    def analogy(self, first: str, second: str, third: str, *, top: int = 10) -> list[tuple[str, float]]:
        """The words that relate to `third` as `first` relates to `second`: 3CosAdd (Mikolov et al. 2013).

        None of the three is an answer.
        """
        first_D = self.vector(first)
        second_D = self.vector(second)
        third_D = self.vector(third)
        direction = first_D - second_D + third_D
        length = max(float(np.linalg.norm(direction)), 1e-12)
        return self._nearest(direction / length, top, without=[first, second, third])

    def nearest_rows(self, vectors_QD: np.ndarray, without: Sequence[Sequence[str]]) -> list[int]:
        """For each query vector the row of the nearest word; `without` has the words each query must not give."""
        queries_X, rows_X = self._excluded_pairs(without)
        num_queries = len(without)
        best_Q = np.zeros(num_queries, np.int64)
        highest_Q = np.full(num_queries, -np.inf)
        # Block by block, because the cosines of all queries and words at once would take too much memory.
        for start in range(0, len(self.rows_VD), _BLOCK_ROWS):
            end = start + _BLOCK_ROWS
            rows_WD = self.rows_VD[start:end]
            norms_W = self.norms_V[start:end]
            cosines_QW = vectors_QD @ rows_WD.T / norms_W
            inside = np.flatnonzero((rows_X >= start) & (rows_X < end))
            cosines_QW[queries_X[inside], rows_X[inside] - start] = -np.inf
            nearest_Q = cosines_QW.argmax(1)
            found_Q = cosines_QW[np.arange(num_queries), nearest_Q]
            # An earlier block keeps its word if the cosines are equal.
            best_Q = np.where(found_Q > highest_Q, nearest_Q + start, best_Q)
            highest_Q = np.maximum(found_Q, highest_Q)
        return [int(row) for row in best_Q]

    def _excluded_pairs(self, without: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray]:
        """Which rows each query must not give: the numbers of the queries, and the rows."""
        pairs = []
        for query, words in enumerate(without):
            for row in (*self._known_rows(words), *self.hidden):
                pairs.append((query, row))
        pairs_X2 = np.array(pairs, np.int64).reshape(-1, 2)
        return pairs_X2[:, 0], pairs_X2[:, 1]

    def similarity(self, first: str, second: str) -> float:
        """The cosine of two words."""
        return float(self.vector(first) @ self.vector(second))

    def _unit_vector(self, word: str) -> np.ndarray | None:
        row = self.row_of(word)
        if row is not None:
            return np.asarray(self.rows_VD[row] / self.norms_V[row])
        if self.compose is None:
            return None
        composed = self.compose(word)
        if composed is None:
            return None
        length = float(np.linalg.norm(composed))
        return np.asarray(composed / max(length, 1e-12))

    def _known_rows(self, words: Iterable[str]) -> list[int]:
        """The rows of those words that have one."""
        rows = [self.row_of(word) for word in words]
        return [row for row in rows if row is not None]

    def _nearest(self, vector_D: np.ndarray, top: int, *, without: Iterable[str]) -> list[tuple[str, float]]:
        """The `top` words with the highest cosine to a vector of length 1."""
        if top < 1:
            raise BadConfig(f"top must be at least 1; it is {top}.")
        cosines_V = self.rows_VD @ vector_D / self.norms_V
        excluded = [*self.hidden, *self._known_rows(without)]
        cosines_V[excluded] = -np.inf
        num_allowed = int(np.isfinite(cosines_V).sum())
        count = min(top, num_allowed)
        # A partition finds the best without sorting all words.
        partition = np.argpartition(-cosines_V, max(count - 1, 0))
        best = partition[:count]
        # Sorted by cosine; the last key comes first, and equal cosines are sorted by row.
        order = np.lexsort((best, -cosines_V[best]))
        nearest = []
        for row in best[order]:
            nearest.append((self.words[row], float(cosines_V[row])))
        return nearest


def open_lexicon(folder: Path, *, spelling_candidates: int = SPELLING_CANDIDATES) -> Lexicon:
    """The words of a model folder; raises if its model has no table of words."""
    weights = _weights_file(folder)
    table_name = _table_name(folder, weights)
    tokenizer = tokenizers.load(folder)
    vocab = tokenizer.vocab
    read_table = load_matrix if weights.name == QUANTISED else map_tensor
    rows_VD = read_table(weights, table_name)
    if len(vocab) > len(rows_VD):
        raise BadInput(f"{folder}: the tokenizer has {len(vocab)} tokens, the model {len(rows_VD)}.")
    compose = None
    # Some models with subwords have rows for whole words only; these cannot compose vectors.
    if isinstance(tokenizer, Subwords) and len(rows_VD) >= tokenizer.num_rows:
        compose = _composer(tokenizer, rows_VD)
        composed = folder / WORD_ROWS
        if composed.exists():
            rows_VD = map_tensor(composed, table_name)
        else:
            rows_VD = np.concatenate([*word_rows(tokenizer, rows_VD)])
    return Lexicon(
        vocab.ids,
        rows_VD,
        lowercase=tokenizer.lowercases,
        hidden=vocab.specials,
        compose=compose,
        spelling_candidates=spelling_candidates,
    )


def _weights_file(folder: Path) -> Path:
    """The folder's file of weights; raises if the folder has none or is damaged."""
    if not folder.exists():
        raise BadInput(f"{folder} does not exist; name a model's folder.")
    reason = without_model(folder)
    if reason:
        raise BadInput(f"{folder} {reason}.")
    found = [folder / name for name in ("model.safetensors", QUANTISED) if (folder / name).is_file()]
    if not found:
        raise BadInput(
            f"{folder} does not hold a model with word vectors; make one with `firth pretrain` or `firth import`."
        )
    if (folder / MANIFEST).exists():
        # Hashes are not checked: reading the whole file would take longer than the answer.
        check_manifest(folder, hashes=False)
    return found[0]


def _table_name(folder: Path, weights: Path) -> str:
    """The name of the folder's table of words; raises if its model has no such table."""
    tensors: Collection[str] = matrix_facts(weights) if weights.name == QUANTISED else tensor_places(weights)
    for name in TABLES:
        if name in tensors:
            return name
    raise Unsupported(
        f"{folder} is a model without a table of words; take word vectors (pre-train them with "
        "`recipe='word2vec-sg-ns'`, or import some) or a BERT, or compare whole texts by their embeddings."
    )


def _composer(tokenizer: Subwords, rows_VD: np.ndarray) -> Callable[[str], np.ndarray | None]:
    """A function that gives the mean vector of a word's parts; None for a word without parts."""

    def compose(word: str) -> np.ndarray | None:
        if tokenizer.config.lowercase:
            word = word.lower()
        parts = tokenizer.word_parts(word)
        if not parts:
            return None
        return np.asarray(rows_VD[parts].mean(0))

    return compose
