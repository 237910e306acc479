"""Words and their vectors: nearest words, analogies, likeness. Opens a model folder without torch.

In: a folder whose model has a table of words (word vectors; a BERT's input embeddings). Out: answers by cosine. The
table stays memory-mapped, so the first question costs one pass over it.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from firth import tokenizers
from firth.convert.mapped import WORD_ROWS, map_tensor, tensor_places, word_rows
from firth.errors import BadInput, Unsupported
from firth.files import MANIFEST, check_manifest, without_model
from firth.tokenizers import Tokenizer
from firth.tokenizers.subwords import Subwords
from firth.tokenizers.words import has_chinese

TABLES = ("encoder.table.weight", "bert.embeddings.word_embeddings.weight", "embeddings.word_embeddings.weight")
"""What a table of words may be called in `model.safetensors`."""
_BLOCK = 1 << 15
SEARCHED = 100_000
"""Words among which near spellings are looked for: the first, which are the most frequent where a file is sorted so."""


class Lexicon:
    """The words of a model and a vector for each; `hidden` are the places of special tokens, which are no words."""

    def __init__(
        self,
        places: Mapping[str, int],
        rows_VD: np.ndarray,
        *,
        lowercase: bool = False,
        hidden: Collection[int] = (),
        compose: Callable[[str], np.ndarray | None] | None = None,
        searched: int = SEARCHED,
    ) -> None:
        self.places, self.rows_VD, self.lowercase = places, rows_VD[: len(places)], lowercase
        self.hidden, self.compose, self.searched = sorted(hidden), compose, searched

    @cached_property
    def words(self) -> tuple[str, ...]:
        return tuple(self.places)

    def __len__(self) -> int:
        return len(self.places) - len(self.hidden)

    def blocks(self) -> Iterator[tuple[list[str], np.ndarray]]:
        """All words and their vectors, some at a time."""
        kept = np.setdiff1d(np.arange(len(self.words)), self.hidden)
        for some in np.array_split(kept, -(-len(kept) // _BLOCK)):
            yield [self.words[i] for i in some], self.rows_VD[some]

    @cached_property
    def norms_V(self) -> np.ndarray:
        blocks = [self.rows_VD[i : i + _BLOCK] for i in range(0, len(self.rows_VD), _BLOCK)]
        squares = [np.einsum("vd,vd->v", block, block) for block in blocks]
        return np.asarray(np.maximum(np.sqrt(np.concatenate(squares)), 1e-12))

    def place(self, word: str) -> int | None:
        """Where a word stands in the list, lower-cased if that is how the model reads."""
        for form in (word, word.lower()) if self.lowercase else (word,):
            place = self.places.get(form)
            if place is not None and place not in self.hidden:
                return place
        return None

    def knows(self, word: str) -> bool:
        return self._unit(word) is not None

    def vector(self, word: str) -> np.ndarray:
        """The unit vector of a word; one that is not listed may have parts that are."""
        if not word.strip():
            raise BadInput("An empty word has no vector; give a word.")
        vector = self._unit(word)
        if vector is None:
            raise BadInput(f"The model does not know the word '{word}'{self.near(word)}")
        return vector

    def near(self, word: str) -> str:
        """The end of a sentence that offers words spelled almost so."""
        wanted = word.lower() if self.lowercase else word
        alike = [w for w in self.words[: self.searched] if abs(len(w) - len(wanted)) < 3 and {*w} & {*wanted}]
        short = len(wanted) < 4 or has_chinese(wanted)  # a character more or less is a great part of such a word
        close = get_close_matches(wanted, alike, n=3, cutoff=0.5 if short else 0.7)
        return f"; near spellings: {', '.join(close)}." if close else ", and no word is spelled like it."

    def neighbours(self, word: str, *, top: int = 10) -> list[tuple[str, float]]:
        """The words whose vectors point most nearly the same way, with their cosines."""
        return self._nearest(self.vector(word), top, without=[word])

    def analogy(self, first: str, second: str, third: str, *, top: int = 10) -> list[tuple[str, float]]:
        """What is to `third` as `first` is to `second`: 3CosAdd (Mikolov et al. 2013), never one of the three."""
        direction = self.vector(first) - self.vector(second) + self.vector(third)
        length = max(float(np.linalg.norm(direction)), 1e-12)
        return self._nearest(direction / length, top, without=[first, second, third])

    def nearest_of(self, vectors_QD: np.ndarray, without: Sequence[Sequence[str]]) -> list[int]:
        """For each vector the place of the nearest word, leaving out the words named beside it."""
        banned = [(query, place) for query, words in enumerate(without) for place in self._listed(words)]
        banned += [(query, place) for query in range(len(without)) for place in self.hidden]
        queries_X, places_X = np.array(banned, np.int64).reshape(-1, 2).T
        best_Q, highest_Q = np.zeros(len(without), np.int64), np.full(len(without), -np.inf)
        for start in range(0, len(self.rows_VD), _BLOCK):  # all cosines at once would need room for every pair
            rows_WD, norms_W = self.rows_VD[start : start + _BLOCK], self.norms_V[start : start + _BLOCK]
            cosines_QW = vectors_QD @ rows_WD.T / norms_W
            inside = (places_X >= start) & (places_X < start + len(rows_WD))
            cosines_QW[queries_X[inside], places_X[inside] - start] = -np.inf
            nearest_Q = cosines_QW.argmax(1)
            found_Q = cosines_QW[np.arange(len(nearest_Q)), nearest_Q]
            best_Q = np.where(found_Q > highest_Q, nearest_Q + start, best_Q)
            highest_Q = np.maximum(found_Q, highest_Q)
        return [int(place) for place in best_Q]

    def likeness(self, first: str, second: str) -> float:
        return float(self.vector(first) @ self.vector(second))

    def _unit(self, word: str) -> np.ndarray | None:
        place = self.place(word)
        if place is not None:
            return np.asarray(self.rows_VD[place] / self.norms_V[place])
        row = self.compose(word) if self.compose else None
        return None if row is None else np.asarray(row / max(float(np.linalg.norm(row)), 1e-12))

    def _listed(self, words: Iterable[str]) -> list[int]:
        return [place for word in words if (place := self.place(word)) is not None]

    def _nearest(self, vector: np.ndarray, top: int, *, without: Iterable[str]) -> list[tuple[str, float]]:
        cosines_V = self.rows_VD @ vector / self.norms_V
        cosines_V[[*self.hidden, *self._listed(without)]] = -np.inf
        count = min(top, int(np.isfinite(cosines_V).sum()))
        best = np.argpartition(-cosines_V, max(count - 1, 0))[:count]
        best = best[np.lexsort((best, -cosines_V[best]))]
        return [(self.words[i], float(cosines_V[i])) for i in best]


def open_lexicon(folder: Path, *, searched: int = SEARCHED) -> Lexicon:
    """The words of a model folder; raises where its model has no table of words."""
    weights = folder / "model.safetensors"
    if not folder.exists():
        raise BadInput(f"{folder} does not exist; name a model's folder.")
    if why := without_model(folder):
        raise BadInput(f"{folder} {why}.")
    if not weights.is_file():
        raise BadInput(
            f"{folder} does not hold a model with word vectors; make one with `firth pretrain` or `firth import`."
        )
    if (folder / MANIFEST).exists():
        check_manifest(folder, hashes=False)  # reading it all to hash it would take longer than the answer
    name = next((name for name in TABLES if name in tensor_places(weights)), None)
    if name is None:
        raise Unsupported(
            f"{folder} is a model without a table of words; take word vectors (pre-train them with "
            "`recipe='word2vec-sg-ns'`, or import some) or a BERT, or compare whole texts by their embeddings."
        )
    tokenizer = tokenizers.load(folder)
    vocab, rows = tokenizer.vocab, map_tensor(weights, name)
    if len(vocab) > len(rows):
        raise BadInput(f"{folder}: the tokenizer has {len(vocab)} tokens, the model {len(rows)}.")
    how: dict[str, Any] = {"lowercase": reads_lowercase(tokenizer), "hidden": vocab.specials, "searched": searched}
    if isinstance(tokenizer, Subwords) and len(rows) >= tokenizer.num_rows:  # not where only whole words have rows
        made = folder / WORD_ROWS
        means = map_tensor(made, name) if made.exists() else np.concatenate([*word_rows(tokenizer, rows)])
        return Lexicon(vocab.ids, means, compose=_composed(tokenizer, rows), **how)
    return Lexicon(vocab.ids, rows, **how)


def reads_lowercase(tokenizer: Tokenizer) -> bool:
    settings = getattr(tokenizer, "config", None) or getattr(tokenizer, "rules", None)
    return bool(getattr(settings, "lowercase", False))


def _composed(tokenizer: Subwords, rows: np.ndarray) -> Callable[[str], np.ndarray | None]:
    """A function that gives the mean of a word's parts, listed or not."""

    def compose(word: str) -> np.ndarray | None:
        parts = tokenizer.word_parts(word.lower() if tokenizer.config.lowercase else word)
        return np.asarray(rows[parts].mean(0)) if parts else None

    return compose
