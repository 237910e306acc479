"""Whether new texts are like those a model was trained on: two sets of texts in, how they differ out.

A classifier is trained to tell old texts from new ones by a model's vectors, and measured on texts that it did not see
(a classifier two-sample test, Lopez-Paz & Oquab 2017). An AUC of 0.5 means that it cannot, so nothing has drifted. The
words that have become more or less frequent (log-odds with a prior, Monroe et al. 2008, equation 22), lengths, unknown
tokens and the predicted labels say what has changed.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TypedDict

import numpy as np

from firth import models, rng
from firth.console import counted
from firth.corpus.readers import ROWS, TABLES, read_texts
from firth.data.spoken import words_of
from firth.errors import BadInput
from firth.files import ending
from firth.finetuning.figures import readable
from firth.finetuning.folds import fold_of_rows
from firth.inference.model import Model, load
from firth.metrics import roc_auc
from firth.metrics.cosines import unit_vectors
from firth.tasks.classify_reader import ClassifyConfig
from firth.tasks.columns import find_columns
from firth.tasks.table_files import read_rows
from firth.tokenizers.unknown import unknown_share, warn_about_unknown
from firth.trust.held_out import held_out_probabilities
from firth.types import Prediction, TaskInput

MOST_TEXTS = 2000
"""Texts of each side that are compared; more are drawn from."""
FOLDS = 5
FEWEST_TEXTS = 2 * FOLDS
SHOWN_WORDS = 10
SHOWN_TEXTS = 5
SURE_DEVIATIONS = 3.0
"""The AUC must be this many standard errors above 0.5 to count as drift."""
Row = tuple[str, ...]
"""One text, or the two texts of a pair."""
WordScore = tuple[str, float]
"""A word and its z-score."""


class Side(TypedDict):
    """What one of the two sets of texts is like."""

    texts: int
    mean_words: float
    unknown_share: float
    labels: dict[str, float]
    """The share of each predicted label, if the model is a classifier."""
    confidence: float | None


class DriftFindings(TypedDict):
    auc: float
    """How well old and new texts can be told apart: 0.5 not at all, 1 always."""
    standard_error: float
    drifted: bool
    old: Side
    new: Side
    more_frequent: list[WordScore]
    """Words that are more frequent in the new texts ..."""
    less_frequent: list[WordScore]
    """... and less frequent ones."""
    most_unlike: list[str]
    """The new texts that are least like the old ones."""


def find_drift(
    old: str | Path,
    new: str | Path,
    *,
    model: str | Path | None = None,
    columns: Mapping[str, object] | None = None,
    seed: int = 1,
) -> DriftFindings:
    """How texts of the file `new` differ from those of the file `old`; a table's texts are those of its text columns.

    `model` gives the vectors, and the labels if it was fine-tuned to classify; without it, the model that comes with
    firth for the language of the old texts.
    """
    old_rows = _sample(_read_rows(Path(old), columns), rng.key(seed, "old texts"))
    new_rows = _sample(_read_rows(Path(new), columns), rng.key(seed, "new texts"))
    _check_enough(old, old_rows)
    _check_enough(new, new_rows)
    old_texts = [" ".join(row) for row in old_rows]
    new_texts = [" ".join(row) for row in new_rows]
    loaded = load(model or models.suiting(old_texts))
    texts = [*old_texts, *new_texts]
    is_new_N = np.repeat([0, 1], [len(old_texts), len(new_texts)])
    vectors_ND = unit_vectors(loaded.embed(texts))
    # A text that is in both files is in one fold, so that it cannot be memorised.
    folds_N = fold_of_rows(is_new_N.tolist(), texts, count=FOLDS, seed=seed)
    newness_N = held_out_probabilities(vectors_ND, is_new_N, folds_N)[:, 1]
    auc = roc_auc(is_new_N, newness_N)
    error = _auc_error(auc, len(old_texts), len(new_texts))
    risen, fallen = _changed_words(old_texts, new_texts)
    order = np.argsort(-newness_N[len(old_texts) :], kind="stable")
    most_unlike = [new_texts[place] for place in order[:SHOWN_TEXTS]]
    old_side = _side(loaded, old_rows)
    new_side = _side(loaded, new_rows)
    warn_about_unknown(str(old), loaded.tokenizer, old_side["unknown_share"])
    warn_about_unknown(str(new), loaded.tokenizer, new_side["unknown_share"])
    return DriftFindings(
        auc=auc,
        standard_error=error,
        drifted=auc - 0.5 > SURE_DEVIATIONS * error,
        old=old_side,
        new=new_side,
        more_frequent=risen,
        less_frequent=fallen,
        most_unlike=most_unlike,
    )


def _check_enough(path: str | Path, rows: Sequence[Row]) -> None:
    # Copies of a text are in one fold, so they count once.
    num_different = len(set(rows))
    if num_different < FEWEST_TEXTS:
        raise BadInput(
            f"{path} has {counted(num_different, 'different text')}; it takes at least {FEWEST_TEXTS} to see drift."
        )


def _read_rows(path: Path, columns: Mapping[str, object] | None) -> list[Row]:
    """The texts of a table's text columns, or the lines of a text file that are not blank."""
    if ending(path) not in (*TABLES, *ROWS):
        return [(line,) for line in read_texts(path) if line.strip()]
    table = read_rows(path)
    named, _ = find_columns(table, ClassifyConfig(**(columns or {})), labelled=False)  # type: ignore[arg-type]
    found = []
    for _, values in table.take(named, []):
        found.append(tuple(str(values[name]) for name in named))
    return found


def _sample(rows: Sequence[Row], key: np.uint64) -> list[Row]:
    if len(rows) <= MOST_TEXTS:
        return list(rows)
    order = rng.permutation(key, len(rows))[:MOST_TEXTS]
    return [rows[place] for place in sorted(order.tolist())]


def _auc_error(auc: float, num_old: int, num_new: int) -> float:
    """The standard error of an AUC (Hanley & McNeil 1982, equation 1)."""
    q1 = auc / (2 - auc)
    q2 = 2 * auc * auc / (1 + auc)
    of_one_pair = auc * (1 - auc)
    of_shared_new = (num_new - 1) * (q1 - auc * auc)
    of_shared_old = (num_old - 1) * (q2 - auc * auc)
    variance = of_one_pair + of_shared_new + of_shared_old
    return math.sqrt(max(variance, 0.0) / (num_old * num_new))


def _side(model: Model, rows: Sequence[Row]) -> Side:
    texts = [" ".join(row) for row in rows]
    lengths = [len(words_of(text)) for text in texts]
    labels: dict[str, float] = {}
    confidence = None
    predictions = _predictions(model, rows)
    if predictions:
        counts = Counter(readable(prediction.label) for prediction in predictions)
        labels = {name: count / len(texts) for name, count in sorted(counts.items())}
        confidence = float(np.mean([prediction.probability for prediction in predictions]))
    return Side(
        texts=len(texts),
        mean_words=float(np.mean(lengths)),
        unknown_share=unknown_share(model.tokenizer, model.tokenizer.ids_batch(texts)),
        labels=labels,
        confidence=confidence,
    )


def _predictions(model: Model, rows: Sequence[Row]) -> list[Prediction]:
    """What a classifier says about the rows; nothing from a model that does not give names."""
    for name, head in model.checkpoint.tasks.items():
        config = head.config
        if isinstance(config, ClassifyConfig) and name.startswith("classify") and config.kind != "number":
            inputs: list[TaskInput] = list(rows)
            if config.num_texts != 2:
                inputs = [" ".join(row) for row in rows]
            return model.predict(inputs, task=name)
    return []


def _changed_words(old: Sequence[str], new: Sequence[str]) -> tuple[list[WordScore], list[WordScore]]:
    """Words that have become more frequent and less frequent, with the z-scores of their log-odds."""
    old_counts = Counter(chain.from_iterable(map(words_of, old)))
    new_counts = Counter(chain.from_iterable(map(words_of, new)))
    prior = old_counts + new_counts
    if len(prior) < 2:
        # Odds are those of a word against all others.
        return [], []
    num_old = old_counts.total()
    num_new = new_counts.total()
    num_prior = prior.total()
    scores: dict[str, float] = {}
    for word, weight in prior.items():
        in_old = old_counts[word] + weight
        in_new = new_counts[word] + weight
        odds_old = math.log(in_old / (num_old + num_prior - in_old))
        odds_new = math.log(in_new / (num_new + num_prior - in_new))
        deviation = math.sqrt(1 / in_old + 1 / in_new)
        scores[word] = (odds_new - odds_old) / deviation
    # The highest score first, equal ones in alphabetical order.
    ranked = sorted(scores.items(), key=lambda item: (-item[1], item[0]))
    risen = [(word, score) for word, score in ranked[:SHOWN_WORDS] if score > 0]
    lowest_first = ranked[: -SHOWN_WORDS - 1 : -1]
    fallen = [(word, score) for word, score in lowest_first if score < 0]
    return risen, fallen
