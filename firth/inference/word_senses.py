"""A word and lines of text in, its senses out: the word's occurrences, clustered by their contextual vectors.

An occurrence's vector is the mean state of its tokens. The mean over all occurrences is subtracted, because it is what
the word has in common everywhere, and the rest is scaled to length one. Shapes: O occurrences, D width.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch

from firth.console import counted
from firth.data.items import Window, cut_window, pack_windows
from firth.errors import BadConfig, BadInput, Unsupported
from firth.inference.clustering import cluster
from firth.inference.embedding import BATCH_TOKENS
from firth.inference.model import Model
from firth.tasks.predicting import token_batches
from firth.tokenizers.segmentation import CHINESE, has_chinese
from firth.types import Encoding

MAX_SENSES = 6
"""The most senses that are tried if their number is not given."""
MIN_SILHOUETTE = 0.1
"""With a lower silhouette the clusters are not real: the word has one sense here."""
_LETTER = f"[^\\W{CHINESE}]"


@dataclass(frozen=True)
class Occurrence:
    """One place of a word in some lines."""

    line: int
    """Counted from 1, as editors count."""
    start: int
    end: int
    text: str
    """The whole line."""
    nearest: tuple[tuple[int, float], ...] = ()
    """The lines of the most similar other occurrences, with their cosines."""


@dataclass(frozen=True)
class Senses:
    """The senses of a word."""

    word: str
    groups: tuple[tuple[Occurrence, ...], ...]
    """The largest first; in each the most typical occurrence first."""
    silhouette: float
    """How well the groups are separated: 1 at best, 0 for a word with one sense."""


def find_senses(
    model: Model,
    word: str,
    lines: Sequence[str],
    *,
    count: int | None = None,
    layer: int = -1,
    near: int = 3,
) -> Senses:
    """The senses of `word` in `lines`, each occurrence with the `near` most similar ones.

    `count` fixes the number of senses; `layer` chooses the states, where 0 is before any context.
    """
    if not word.strip():
        raise BadInput("An empty word has no senses; give a word.")
    if not model.encoder.num_layers:
        raise Unsupported("The model gives a word one vector in every context; take a BERT or an ELMo.")
    found = find_occurrences(word, lines)
    if len(found) < 3:
        times = counted(len(found), "time")
        raise BadInput(f"'{word}' occurs {times} in the text; grouping needs at least 3 occurrences.")
    if count is not None and not 1 <= count < len(found):
        raise BadConfig(f"{len(found)} occurrences can form 1 to {len(found) - 1} groups, not {count}.")

    contextual_OD = occurrence_vectors(model, found, layer=layer)
    vectors_OD = _centred_units(contextual_OD)
    labels_O, silhouette = cluster(vectors_OD, max_clusters=MAX_SENSES, count=count)
    if count is None and silhouette < MIN_SILHOUETTE:
        labels_O = np.zeros_like(labels_O)
    groups = _groups(found, vectors_OD, labels_O, near=near)
    if len(groups) == 1:
        silhouette = 0.0
    return Senses(word, groups, silhouette)


def _groups(
    found: Sequence[Occurrence],
    vectors_OD: np.ndarray,
    labels_O: np.ndarray,
    *,
    near: int,
) -> tuple[tuple[Occurrence, ...], ...]:
    """The occurrences of each cluster, those nearest to its mean first, each with its nearest other occurrences."""
    cosines_OO = vectors_OD @ vectors_OD.T
    np.fill_diagonal(cosines_OO, -np.inf)
    groups = []
    for k in range(labels_O.max() + 1):
        rows = np.flatnonzero(labels_O == k)
        members = vectors_OD[rows]
        typicality = members @ members.mean(0)
        order = np.argsort(-typicality, kind="stable")
        group = []
        for row in rows[order]:
            group.append(_with_nearest(found, int(row), cosines_OO[row], near=near))
        groups.append(tuple(group))
    return tuple(groups)


def find_occurrences(word: str, lines: Sequence[str], *, limit: int | None = None) -> list[Occurrence]:
    """The first `limit` occurrences of the word: whole words, in upper or lower case.

    Chinese does not separate words, so there every occurrence of the characters counts.
    """
    pattern = re.escape(word)
    if not has_chinese(word):
        pattern = f"(?<!{_LETTER}){pattern}(?!{_LETTER})"
    regex = re.compile(pattern, re.IGNORECASE)
    # A long text is searched only until there are enough.
    return list(islice(_matches(regex, lines), limit))


def _matches(regex: re.Pattern[str], lines: Sequence[str]) -> Iterator[Occurrence]:
    for number, line in enumerate(lines, 1):
        for match in regex.finditer(line):
            yield Occurrence(number, match.start(), match.end(), line)


@torch.inference_mode()
def occurrence_vectors(model: Model, found: Sequence[Occurrence], *, layer: int) -> np.ndarray:
    """The mean state of each occurrence's tokens. If a line is too long, the model reads the part around them."""
    num_layers = model.encoder.num_layers
    if not -1 <= layer <= num_layers:
        raise BadConfig(f"The model has the layers 0 to {num_layers}, not {layer}.")
    encodings = _encode_lines(model, found)
    windows: list[Window] = []
    positions: list[np.ndarray] = []
    for occurrence in found:
        window, inside = _window_around(model, occurrence, encodings[occurrence.text])
        windows.append(window)
        positions.append(inside)

    vectors_OD = np.empty((len(found), model.encoder.width), np.float32)
    lengths = [len(window) for window in windows]
    for rows in token_batches(lengths, BATCH_TOKENS):
        batch = pack_windows([windows[row] for row in rows])
        states = model.encoder(batch, layers=True)
        states_ND = states.layers[layer].numpy()
        # The last bound is the end of the batch, which begins no window.
        starts = batch.bounds_B1[:-1].tolist()
        for row, start in zip(rows, starts, strict=True):
            token_states = states_ND[positions[row] + start]
            vectors_OD[row] = token_states.mean(0)
    return vectors_OD


def _encode_lines(model: Model, found: Sequence[Occurrence]) -> dict[str, Encoding]:
    """The encoding of each line; a line is encoded once, however often it has the word."""
    lines = list(dict.fromkeys(occurrence.text for occurrence in found))
    encodings = model.tokenizer.encode_batch(lines)
    return dict(zip(lines, encodings, strict=True))


def _window_around(model: Model, occurrence: Occurrence, encoding: Encoding) -> tuple[Window, np.ndarray]:
    """What the model reads of an occurrence's line, and the positions of the occurrence's tokens in it."""
    frame = model.tokenizer.vocab.frame
    size = model.encoder.max_positions - frame.size()
    starts = encoding.offsets[:, 0]
    ends = encoding.offsets[:, 1]
    # The tokens that overlap the occurrence's characters.
    tokens = np.flatnonzero((starts < occurrence.end) & (ends > occurrence.start))
    if not len(tokens):
        spelling = occurrence.text[occurrence.start : occurrence.end]
        raise BadInput(f"Line {occurrence.line}: the tokenizer leaves nothing of '{spelling}'.")
    # The window has the occurrence in its middle, but does not go beyond the ends of the line.
    begin = int(tokens[0]) - size // 2
    last_begin = len(encoding) - size
    begin = max(0, min(begin, last_begin))
    end = begin + size
    window = cut_window(model.tokenizer.vocab, (encoding, begin, end))
    inside = tokens[tokens < end]
    return window, inside - begin + len(frame.opening)


def _centred_units(vectors_OD: np.ndarray) -> np.ndarray:
    """The vectors minus their mean, scaled to length one."""
    centred_OD = vectors_OD - vectors_OD.mean(0)
    lengths_O1 = np.linalg.norm(centred_OD, axis=1, keepdims=True)
    # Vectors that are the same everywhere, as a word vector is, leave only rounding errors; these become zeros.
    mean_length = np.linalg.norm(vectors_OD, axis=1).mean()
    threshold = 1e-4 * mean_length
    units_OD = centred_OD / np.maximum(lengths_O1, 1e-12)
    return np.asarray(np.where(lengths_O1 > threshold, units_OD, 0))


def _with_nearest(found: Sequence[Occurrence], row: int, cosines_O: np.ndarray, *, near: int) -> Occurrence:
    """The occurrence at `row` with its `near` most similar others."""
    count = min(near, len(found) - 1)
    order = np.argsort(-cosines_O, kind="stable")
    nearest = []
    for other in order[:count]:
        cosine = round(float(cosines_O[other]), 4)
        nearest.append((found[other].line, cosine))
    return replace(found[row], nearest=tuple(nearest))
