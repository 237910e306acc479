"""A word and lines of text -> its senses: occurrences grouped by their contextual vectors.

An occurrence's vector is the mean of the states of its tokens. The mean over all occurrences is taken away, for it says
what the word has in common everywhere, and the rest is scaled to length one.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from firth.data.items import cut_window, pack_windows
from firth.errors import BadConfig, BadInput, Unsupported
from firth.inference.grouping import group
from firth.inference.model import BATCH_TOKENS, Model
from firth.tasks.predicting import token_batches
from firth.tokenizers.words import CHINESE, has_chinese

MOST = 6
"""Senses looked for at most."""
FAINT = 0.1
"""A silhouette below this is no grouping: the word has one sense here."""
_LETTER = f"[^\\W{CHINESE}]"


@dataclass(frozen=True)
class Occurrence:
    line: int
    """Counted from 1, as editors count."""
    start: int
    end: int
    text: str
    nearest: tuple[tuple[int, float], ...] = ()
    """Lines of the most similar other occurrences, with their cosines."""


@dataclass(frozen=True)
class Senses:
    word: str
    groups: tuple[tuple[Occurrence, ...], ...]
    """The largest first; in each the most typical occurrence first."""
    silhouette: float
    """How well the groups are apart: 1 at best, 0 for a word with one sense."""


def senses(
    model: Model, word: str, lines: Sequence[str], *, count: int | None = None, layer: int = -1, near: int = 3
) -> Senses:
    """The senses of `word` in `lines`; `count` fixes how many, `layer` chooses the states (0: before any context)."""
    if not word.strip():
        raise BadInput("An empty word has no senses; give a word.")
    if not model.encoder.num_layers:
        raise Unsupported("The model gives a word one vector whatever stands around it; take a BERT or an ELMo.")
    found = occurrences(word, lines)
    if len(found) < 3:
        raise BadInput(f"'{word}' occurs {len(found)} times in the text; grouping needs at least 3 occurrences.")
    if count is not None and not 1 <= count < len(found):
        raise BadConfig(f"{len(found)} occurrences can form 1 to {len(found) - 1} groups, not {count}.")
    vectors = _typical(occurrence_vectors(model, found, layer))
    labels, silhouette = group(vectors, most=MOST, count=count)
    if count is None and silhouette < FAINT:
        labels = np.zeros_like(labels)
    cosines = vectors @ vectors.T
    np.fill_diagonal(cosines, -np.inf)
    groups = []
    for k in range(labels.max() + 1):
        rows = np.flatnonzero(labels == k)
        order = rows[np.argsort(-(vectors[rows] @ vectors[rows].mean(0)), kind="stable")]
        groups.append(tuple(_with_nearest(found, int(row), cosines[row], near) for row in order))
    return Senses(word, tuple(groups), silhouette if len(groups) > 1 else 0.0)


def occurrences(word: str, lines: Sequence[str], *, most: int | None = None) -> list[Occurrence]:
    """The first places where the word stands: whole words, in any case; Chinese has no borders to look for."""
    pattern = re.escape(word) if has_chinese(word) else f"(?<!{_LETTER}){re.escape(word)}(?!{_LETTER})"
    places = re.compile(pattern, re.IGNORECASE)
    found = ((number, line, one.span()) for number, line in enumerate(lines, 1) for one in places.finditer(line))
    return [Occurrence(number, start, end, line) for number, line, (start, end) in islice(found, most)]


@torch.inference_mode()
def occurrence_vectors(model: Model, found: Sequence[Occurrence], layer: int) -> np.ndarray:
    """The mean state of each occurrence's tokens; of a long line the model reads what stands around them."""
    if not -1 <= layer <= model.encoder.num_layers:
        raise BadConfig(f"The model has the layers 0 to {model.encoder.num_layers}, not {layer}.")
    frame = model.tokenizer.vocab.frame
    size, sequences, spans = model.encoder.max_positions - frame.size(), [], []
    lines = list(dict.fromkeys(one.text for one in found))  # a long line may have the word many times
    encodings = dict(zip(lines, model.tokenizer.encode_batch(lines), strict=True))
    for one in found:
        encoding = encodings[one.text]
        inside = np.flatnonzero((encoding.offsets[:, 0] < one.end) & (encoding.offsets[:, 1] > one.start))
        if not len(inside):
            raise BadInput(f"Line {one.line}: the tokenizer leaves nothing of '{one.text[one.start : one.end]}'.")
        begin = max(0, min(int(inside[0]) - size // 2, len(encoding) - size))
        sequences.append(cut_window(model.tokenizer.vocab, (encoding, begin, begin + size)))
        spans.append(inside[inside < begin + size] - begin + len(frame.opening))
    vectors = np.empty((len(found), model.width), np.float32)
    for rows in token_batches([len(ids) for ids in sequences], BATCH_TOKENS):
        batch = pack_windows([sequences[row] for row in rows])
        states_ND = model.encoder(batch, layers=True).layers[layer].numpy()
        for row, start in zip(rows, batch.bounds_B1.tolist(), strict=False):
            vectors[row] = states_ND[spans[row] + start].mean(0)
    return vectors


def _typical(vectors: np.ndarray) -> np.ndarray:
    centred = vectors - vectors.mean(0)
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    # Vectors that are the same everywhere, as a word vector is, leave nothing but rounding.
    return np.asarray(
        np.where(lengths > 1e-4 * np.linalg.norm(vectors, axis=1).mean(), centred / np.maximum(lengths, 1e-12), 0)
    )


def _with_nearest(found: Sequence[Occurrence], row: int, cosines: np.ndarray, near: int) -> Occurrence:
    best = np.argsort(-cosines, kind="stable")[: min(near, len(found) - 1)]
    one = found[row]
    pairs = tuple((found[other].line, round(float(cosines[other]), 4)) for other in best)
    return Occurrence(one.line, one.start, one.end, one.text, pairs)
