"""Steps that look into a model and train nothing of it: what its layers know, and what its heads attend to.

A probe is a linear layer over the states of one layer, fitted by least squares with a penalty (ridge regression of the
labels as 0 and 1), so it has one solution and no settings to search. Shapes: K layers, W words, D width, T labels.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from firth.metrics.cosines import unit_vectors
from firth.study.sets import find_model, read_rows
from firth.study.states import read_layers

if TYPE_CHECKING:
    from firth.inference.model import Model

Figures = Mapping[str, float]
UNLABELLED = "-"
"""The label of a word that is not part of the probe."""
ALL_LAYERS = "all_layers"
"""The figure of a probe that reads all layers at once."""
PENALTY = 0.01
"""Of the squared weights, for each word; the states have a variance of 1."""


def probe(
    out: Path,
    *,
    model: Path | str,
    train: Sequence[Path],
    test: Sequence[Path],
    between: str = " ",
    weights: Sequence[Path] = (),
) -> Figures:
    """Labelled words -> the accuracy of a linear layer on the states of test words, by layer and for all together.

    A line of a file has the words and, after a tab, their labels. `between` separates two words.
    """
    del out, weights
    import firth

    loaded = firth.load(find_model(model))
    states_KWD, labels = _word_states(loaded, train[0], between)
    test_states_KWD, test_labels = _word_states(loaded, test[0], between)
    names = sorted(set(labels))
    gold_W = np.array([names.index(label) for label in labels])

    def accuracy(states_WD: np.ndarray, test_states_WD: np.ndarray) -> float:
        guessed_W = _ridge(states_WD, gold_W, test_states_WD, num_labels=len(names))
        right = [names[guess] == label for guess, label in zip(guessed_W, test_labels, strict=True)]
        return float(np.mean(right))

    figures = {ALL_LAYERS: accuracy(np.concatenate(states_KWD, 1), np.concatenate(test_states_KWD, 1))}
    for layer, (states_WD, test_states_WD) in enumerate(zip(states_KWD, test_states_KWD, strict=True)):
        figures[f"layer_{layer}"] = accuracy(states_WD, test_states_WD)
    return figures


def _word_states(model: "Model", path: Path, between: str) -> tuple[np.ndarray, list[str]]:
    """The states of the labelled words, K x W x D, each the mean over its tokens, and their labels."""
    sentences = []
    labels_of = []
    for line in read_rows(path):
        text, _, tags = line.partition("\t")
        sentences.append(text.split(" "))
        labels_of.append(tags.split(" "))
    texts = [between.join(words) for words in sentences]
    found = []
    kept = []
    for (encoding, layers_KLD), words, labels in zip(read_layers(model, texts), sentences, labels_of, strict=True):
        starts_L = encoding.offsets[: layers_KLD.shape[1], 0]
        ends_L = encoding.offsets[: layers_KLD.shape[1], 1]
        begin = 0
        for word, label in zip(words, labels, strict=True):
            end = begin + len(word)
            tokens = np.flatnonzero((starts_L < end) & (ends_L > begin))
            begin = end + len(between)
            if label != UNLABELLED and len(tokens):
                found.append(layers_KLD[:, tokens].mean(1))
                kept.append(label)
    return np.stack(found, axis=1), kept


def _ridge(states_WD: np.ndarray, gold_W: np.ndarray, test_states_WD: np.ndarray, *, num_labels: int) -> np.ndarray:
    """The labels that ridge regression gives the test states."""
    mean_D = states_WD.mean(0)
    scale_D = states_WD.std(0) + 1e-6
    x_WD = ((states_WD - mean_D) / scale_D).astype(np.float64)
    targets_WT = np.eye(num_labels)[gold_W]
    bias_T = targets_WT.mean(0)
    penalty_DD = PENALTY * len(x_WD) * np.eye(x_WD.shape[1])
    weight_DT = np.linalg.solve(x_WD.T @ x_WD + penalty_DD, x_WD.T @ (targets_WT - bias_T))
    scores_WT = (test_states_WD - mean_D) / scale_D @ weight_DT + bias_T
    return np.asarray(scores_WT.argmax(1))


PATTERNS = ("previous", "next", "same", "separator")
"""What a head may attend to: the token before, the one after, equal tokens elsewhere, the special tokens."""
ENOUGH = 0.5
"""A head that gives this share of its attention to one thing does that thing."""


def heads(
    out: Path, *, model: Path | str, chosen: Sequence[Path], texts: Sequence[Path], weights: Sequence[Path] = ()
) -> Figures:
    """Lines of text -> for each pattern the attention of the head that does it most, and the mean over all heads.

    The head is chosen on the lines of `chosen`; every file of `texts` has a figure of its own, such as
    `previous_best_1` and `previous_mean_1`. `previous_heads` is how many heads give it half of their attention.
    """
    del out, weights
    import firth

    loaded = firth.load(find_model(model))
    chosen_shares = _pattern_shares(loaded, chosen[0])
    measured_shares = [_pattern_shares(loaded, path) for path in texts]
    figures = {}
    for pattern in PATTERNS:
        shares_KH = chosen_shares[pattern]
        layer, head = np.unravel_index(shares_KH.argmax(), shares_KH.shape)
        figures[f"{pattern}_layer"] = float(layer + 1)
        figures[f"{pattern}_head"] = float(head + 1)
        figures[f"{pattern}_heads"] = float((shares_KH >= ENOUGH).sum())
        for fold, shares in enumerate(measured_shares, start=1):
            figures[f"{pattern}_best_{fold}"] = float(shares[pattern][layer, head])
            figures[f"{pattern}_mean_{fold}"] = float(shares[pattern].mean())
    return figures


def _pattern_shares(model: "Model", path: Path) -> dict[str, np.ndarray]:
    """For each pattern and head the mean share of attention, over the tokens for which the pattern exists."""
    sums: dict[str, np.ndarray] = {}
    counts = dict.fromkeys(PATTERNS, 0)
    for line in read_rows(path):
        tokens, weights_KHLL = model.attention(line)
        for pattern, mask_LL in _masks(tokens).items():
            rows = np.flatnonzero(mask_LL.any(1))
            given_KHL = (weights_KHLL * mask_LL).sum(-1)
            given_KH = given_KHL[:, :, rows].sum(-1)
            sums[pattern] = sums.get(pattern, 0) + given_KH
            counts[pattern] += len(rows)
    return {pattern: total / max(counts[pattern], 1) for pattern, total in sums.items()}


def _masks(tokens: Sequence[str]) -> dict[str, np.ndarray]:
    """Which token (column) fits a pattern for which token (row); the rows of special tokens are empty."""
    length = len(tokens)
    names = np.array(tokens)
    is_special = np.zeros(length, bool)
    is_special[[0, -1]] = True
    same = (names[:, None] == names[None, :]) & ~np.eye(length, dtype=bool)
    masks = {
        "previous": np.eye(length, k=-1, dtype=bool),
        "next": np.eye(length, k=1, dtype=bool),
        "same": same,
        "separator": np.broadcast_to(is_special[None, :], (length, length)).copy(),
    }
    for pattern, mask in masks.items():
        mask[is_special] = False
        if pattern != "separator":
            mask[:, is_special] = False
    return masks


def senses(
    out: Path, *, model: Path | str, words: tuple[str, ...], lines: Sequence[Path], weights: Sequence[Path] = ()
) -> Figures:
    """Lines with a word, the first half in one sense -> the share whose most similar other line has the same sense.

    Each word has a file of lines. Figures are `layer_K_1` for the first file, and `context_1` for the mean
    of the embeddings of the whole line in the place of the word's own states.
    """
    del out, weights
    import firth
    from firth.inference.word_senses import find_occurrences, occurrence_vectors

    loaded = firth.load(find_model(model))
    figures = {}
    for number, (word, path) in enumerate(zip(words, lines, strict=True), start=1):
        sentences = path.read_text("utf-8").splitlines()
        found = find_occurrences(word, sentences)
        is_second = np.array([occurrence.line > len(sentences) // 2 for occurrence in found])
        for layer in range(loaded.encoder.num_layers + 1):
            vectors = occurrence_vectors(loaded, found, layer=layer)
            figures[f"layer_{layer}_{number}"] = _same_sense(vectors, is_second)
        texts = [occurrence.text for occurrence in found]
        embedded = [layers_KLD[0].mean(0) for _, layers_KLD in read_layers(loaded, texts)]
        figures[f"context_{number}"] = _same_sense(np.stack(embedded), is_second)
    return figures


def _same_sense(vectors_OD: np.ndarray, is_second_O: np.ndarray) -> float:
    """The share of occurrences whose nearest other one has the same sense."""
    centred_OD = vectors_OD - vectors_OD.mean(0)
    units_OD = unit_vectors(centred_OD)
    cosines_OO = units_OD @ units_OD.T
    np.fill_diagonal(cosines_OO, -np.inf)
    nearest_O = cosines_OO.argmax(1)
    return float((is_second_O[nearest_O] == is_second_O).mean())
