"""Labels that are probably wrong: labelled rows in, the suspicious ones out, the most likely errors first.

Every row gets probabilities from a model that was trained without it (cross-validation), and `label_noise` turns them
into the chance that its label is wrong. The evidence for each row is that chance, the probabilities, and the labels of
the rows with the most similar vectors. If the predictions explain too little of the labels, no row is doubted.
"""

import logging
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np

from firth import models
from firth.console import counted
from firth.errors import BadConfig, Unsupported
from firth.finetuning import running
from firth.finetuning.checking import DeepFindings, LabelError
from firth.finetuning.few.table import table_options, write_table
from firth.finetuning.folds import fold_of_rows
from firth.finetuning.job_config import FinetuneRequest
from firth.finetuning.labelled import Labelled
from firth.finetuning.quiet import quiet
from firth.inference.model import Model, load
from firth.metrics.cosines import unit_vectors
from firth.run_folder import RunFolder
from firth.tasks import resolve
from firth.trust.held_out import held_out_probabilities, mean_log_likelihood
from firth.trust.label_noise import LabelNoise, estimate_noise
from firth.types import Example, Prediction

log = logging.getLogger(__name__)

Way = Literal["vectors", "finetune"]
WAYS = ("vectors", "finetune")
FOLDS = 5
NEIGHBOURS = 5
"""Rows with similar vectors whose labels are shown as evidence."""
FEWEST_ROWS = 20
LEAST_CHANCE = 0.2
"""A row is listed if its label is wrong with at least this chance."""
LEAST_KNOWN = 0.2
"""Predictions are reliable if they remove this share of the uncertainty about the labels."""


@dataclass(frozen=True)
class HeldOutRows:
    """The training rows of a task with the predictions of models that did not see them."""

    examples: list[Example]
    names: tuple[str, ...]
    """All labels, in the order of the columns."""
    labels_N: np.ndarray
    """The index of each row's label."""
    vectors_ND: np.ndarray
    probabilities_NT: np.ndarray


def held_out_rows(
    name: str,
    data: Labelled,
    *,
    model: Path | None = None,
    way: Way = "vectors",
    folds: int = FOLDS,
    seed: int = 1,
) -> HeldOutRows:
    """Cross-validates the training rows."""
    if way not in WAYS:
        raise BadConfig(f"There is no way '{way}' to look for label errors (known: {', '.join(WAYS)}).")
    examples = list(data.examples["train"])
    _check(name, data, examples)
    (names,) = data.labels.values()
    labels_N = np.array([names.index(example.gold) for example in examples], np.int64)
    reader = resolve(name).reader(data.config)
    fold_count = min(folds, len(examples))
    groups = [reader.group(example) for example in examples]
    folds_N = fold_of_rows(labels_N.tolist(), groups, count=fold_count, seed=seed)
    if not folds_N.any():
        raise Unsupported(
            "No label has two different texts, so there is nothing to learn from while others are judged; give more "
            "rows to find label errors."
        )
    all_texts = chain.from_iterable(example.texts for example in examples)
    loaded = load(model or models.suiting(all_texts))
    vectors_ND, probabilities_NT = _from_vectors(loaded, examples, labels_N, folds_N)
    if way == "finetune":
        probabilities_NT = _finetuned_probabilities(loaded, examples, names, folds_N)
    return HeldOutRows(examples, names, labels_N, vectors_ND, probabilities_NT)


def _from_vectors(
    model: Model,
    examples: Sequence[Example],
    labels_N: np.ndarray,
    folds_N: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """The vectors that know more about the labels, with the held-out probabilities that come from them.

    The vector head of a model knows what texts are about, which may be less than the states of its encoder know.
    """
    best_vectors_ND = np.empty(0)
    best_NT = np.empty(0)
    best_likelihood = -np.inf
    # None is the model's own way: its vector head, if it has one.
    poolings: list[str | None] = [None]
    if model.embedder.head is not None:
        poolings.append("mean")
    for pooling in poolings:
        vectors_ND = unit_vectors(text_vectors(model, examples, pooling=pooling))
        probabilities_NT = held_out_probabilities(vectors_ND, labels_N, folds_N)
        likelihood = mean_log_likelihood(probabilities_NT, labels_N)
        if likelihood > best_likelihood:
            best_likelihood = likelihood
            best_vectors_ND = vectors_ND
            best_NT = probabilities_NT
    return best_vectors_ND, best_NT


def find_label_errors(
    name: str,
    data: Labelled,
    *,
    model: Path | None = None,
    way: Way = "vectors",
) -> DeepFindings:
    """The training rows that are probably mislabelled.

    `vectors` trains logistic regressions on the model's vectors (seconds), `finetune` fine-tunes the model once for
    each fold (slower, and more accurate).
    """
    rows = held_out_rows(name, data, model=model, way=way)
    accuracy = float((rows.probabilities_NT.argmax(1) == rows.labels_N).mean())
    baseline = float(np.bincount(rows.labels_N).max() / len(rows.labels_N))
    noise = estimate_noise(rows.probabilities_NT, rows.labels_N)
    is_reliable = known_share(rows.probabilities_NT, rows.labels_N) >= LEAST_KNOWN
    errors: list[LabelError] = []
    if is_reliable:
        errors = [_label_error(rows, place, noise) for place in suspicious(noise)]
    return DeepFindings(
        accuracy=accuracy, baseline=baseline, reliable=is_reliable, noise_rate=noise.rate, errors=errors
    )


def known_share(probabilities_NT: np.ndarray, labels_N: np.ndarray) -> float:
    """How much of the labels' entropy the predictions explain (McFadden 1974): 1 all of it, 0 or less nothing."""
    shares_T = np.bincount(labels_N) / len(labels_N)
    log_shares_T = np.log(np.maximum(shares_T, 1e-12))
    entropy = -float((shares_T * log_shares_T).sum())
    if not entropy:
        return 0.0
    return 1 + mean_log_likelihood(probabilities_NT, labels_N) / entropy


def suspicious(noise: LabelNoise) -> list[int]:
    """The rows whose labels are wrong with a fair chance, the most likely errors first."""
    order = np.argsort(-noise.chances_N, kind="stable")
    is_listed = noise.chances_N[order] >= LEAST_CHANCE
    return [int(place) for place in order[is_listed]]


def _label_error(rows: HeldOutRows, place: int, noise: LabelNoise) -> LabelError:
    """A row with the evidence against its label."""
    label = int(rows.labels_N[place])
    probabilities_T = rows.probabilities_NT[place]
    others_T = probabilities_T.copy()
    others_T[label] = -1.0
    other = int(others_T.argmax())
    neighbour_labels = rows.labels_N[_nearest(rows.vectors_ND, place)]
    return LabelError(
        row=rows.examples[place].row,
        text=" | ".join(rows.examples[place].texts),
        label=rows.names[label],
        suggested=rows.names[other],
        chance=float(noise.chances_N[place]),
        probability=float(probabilities_T[label]),
        suggested_probability=float(probabilities_T[other]),
        neighbours=[rows.names[neighbour] for neighbour in neighbour_labels],
    )


def _check(name: str, data: Labelled, examples: Sequence[Example]) -> None:
    if len(data.labels) != 1 or not all(isinstance(example.gold, str) for example in examples):
        raise Unsupported(f"Label errors are found in rows with one name as label; {name} has none here.")
    if len(examples) < FEWEST_ROWS:
        raise Unsupported(f"{len(examples)} rows are too few to find label errors; it takes {FEWEST_ROWS}.")


def text_vectors(model: Model, examples: Sequence[Example], *, pooling: str | None = None) -> np.ndarray:
    """One vector for each row; the vectors of a pair's texts, their product and distance side by side."""
    columns = list(zip(*(example.texts for example in examples), strict=True))
    parts = [model.embed(list(column), pooling=pooling) for column in columns]
    if len(parts) == 2:
        first, second = parts
        parts += [first * second, np.abs(first - second)]
    return np.hstack(parts)


def _nearest(vectors_ND: np.ndarray, place: int) -> np.ndarray:
    """The rows with the most similar vectors, without the row itself."""
    similarity_N = vectors_ND @ vectors_ND[place]
    similarity_N[place] = -np.inf
    return np.argsort(-similarity_N, kind="stable")[:NEIGHBOURS]


def _finetuned_probabilities(
    model: Model,
    examples: Sequence[Example],
    names: Sequence[str],
    folds_N: np.ndarray,
) -> np.ndarray:
    """The probabilities of each row by a model that was fine-tuned on the other folds."""
    probabilities_NT = np.zeros((len(examples), len(names)))
    num_folds = int(folds_N.max()) + 1
    for fold in range(num_folds):
        held_out = np.flatnonzero(folds_N == fold).tolist()
        others = np.flatnonzero(folds_N != fold).tolist()
        training = [examples[place] for place in others]
        predictions = _finetuned_predictions(model, training, [examples[place] for place in held_out])
        for place, prediction in zip(held_out, predictions, strict=True):
            # A rare name may be in this fold alone.
            probabilities_NT[place] = [prediction.probabilities.get(name, 0.0) for name in names]
        log.info(f"Label errors: {fold + 1} of {num_folds} folds are done.")
    return probabilities_NT


def _finetuned_predictions(
    model: Model, training: Sequence[Example], held_out: Sequence[Example]
) -> Sequence[Prediction]:
    """What a model says about some rows after fine-tuning on others. Its run is deleted."""
    with tempfile.TemporaryDirectory(prefix="firth-") as home:
        rows_path = Path(home) / "rows.jsonl"
        write_table(rows_path, training)
        request = FinetuneRequest(
            model=str(model.folder),
            tasks=("classify",),
            files={"train": [str(rows_path)]},
            options=table_options(training),
        )
        run = Path(home) / "run"
        with quiet(), RunFolder(run, command="finetune", resume=False) as folder:
            running.finetune(folder, request)
        return load(run).predict_examples(held_out)


def describe(findings: DeepFindings, *, most: int = 20) -> list[str]:
    """The findings as lines, the most suspicious rows first, each with its evidence."""
    right = f"Held-out predictions give the label of {findings['accuracy']:.1%} of the rows"
    if not findings["reliable"]:
        return [
            f"{right}, the most frequent label alone {findings['baseline']:.1%}: they know too little about these "
            "labels to doubt any. Give `model=` a model that knows more, or learn from the rows with "
            "`deep_by='finetune'`."
        ]
    if not findings["errors"]:
        return [f"{right}; no label seems wrong."]
    lines = [f"{right}; {counted(len(findings['errors']), 'label')} may be wrong, the most likely first."]
    for error in findings["errors"][:most]:
        votes = Counter(error["neighbours"])[error["suggested"]]
        text = " ".join(error["text"].split())[:100]
        lines.append(
            f"  row {error['row']}: {error['label']}, rather {error['suggested']} (wrong with a chance of "
            f"{error['chance']:.0%}; {votes} of its {len(error['neighbours'])} nearest rows): {text}"
        )
    if len(findings["errors"]) > most:
        lines.append(f"  and {len(findings['errors']) - most:,} more; the JSON findings list them all.")
    return lines
