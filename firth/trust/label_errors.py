"""Labels that are probably wrong: labelled rows in, the suspicious ones out, the most suspicious first.

Every row gets probabilities from a model that was trained without it (cross-validation). A label is suspicious if
another label is confidently predicted instead: its probability is at least the mean probability that rows of that label
get for it (confident learning, Northcutt et al. 2021, equation 2). The evidence for each row are these probabilities
and the labels of the rows with the most similar vectors.
"""

import json
import logging
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from firth import models
from firth.errors import BadConfig, Unsupported
from firth.files import write_bytes
from firth.finetuning.checking import DeepFindings, LabelError
from firth.finetuning.labelled import Labelled
from firth.inference.embedding import unit_vectors
from firth.inference.model import Model, load
from firth.tasks import resolve
from firth.trust.linear import folds_of, held_out_probabilities
from firth.types import Example

log = logging.getLogger(__name__)

Way = Literal["vectors", "finetune"]
WAYS = ("vectors", "finetune")
FOLDS = 5
NEIGHBOURS = 5
"""Rows with similar vectors whose labels are shown as evidence."""
FEWEST_ROWS = 20


@dataclass(frozen=True)
class HeldOutRows:
    """The training rows of a task with what models say that did not see them."""

    examples: list[Example]
    names: tuple[str, ...]
    """All labels, in the order of the columns."""
    labels_N: np.ndarray
    """The index of each row's label."""
    vectors_ND: np.ndarray
    probabilities_NT: np.ndarray


def held_out_rows(
    name: str, data: Labelled, *, model: Path | None = None, way: Way = "vectors", folds: int = FOLDS, seed: int = 1
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
    folds_N = folds_of([reader.group(example) for example in examples], count=fold_count, seed=seed)
    loaded = load(model or models.suiting(text for example in examples for text in example.texts))
    vectors_ND = unit_vectors(text_vectors(loaded, examples))
    if way == "vectors":
        probabilities_NT = held_out_probabilities(vectors_ND, labels_N, folds_N)
    else:
        probabilities_NT = _finetuned_probabilities(loaded, examples, names, folds_N)
    return HeldOutRows(examples, names, labels_N, vectors_ND, probabilities_NT)


def find_label_errors(
    name: str, data: Labelled, *, model: Path | None = None, way: Way = "vectors", folds: int = FOLDS, seed: int = 1
) -> DeepFindings:
    """The training rows that are probably mislabelled.

    `vectors` trains logistic regressions on the model's vectors (seconds), `finetune` fine-tunes the model once for
    each fold (slower, and surer).
    """
    rows = held_out_rows(name, data, model=model, way=way, folds=folds, seed=seed)
    errors: list[LabelError] = []
    for place, other in suspicious(rows.probabilities_NT, rows.labels_N):
        label = int(rows.labels_N[place])
        neighbours = [rows.names[rows.labels_N[near]] for near in _nearest(rows.vectors_ND, place)]
        error = LabelError(
            row=rows.examples[place].row,
            text=" | ".join(rows.examples[place].texts),
            label=rows.names[label],
            suggested=rows.names[other],
            probability=float(rows.probabilities_NT[place, label]),
            suggested_probability=float(rows.probabilities_NT[place, other]),
            neighbours=neighbours,
        )
        errors.append(error)
    accuracy = float((rows.probabilities_NT.argmax(1) == rows.labels_N).mean())
    return DeepFindings(accuracy=accuracy, errors=errors)


def _check(name: str, data: Labelled, examples: Sequence[Example]) -> None:
    if len(data.labels) != 1 or not all(isinstance(example.gold, str) for example in examples):
        raise Unsupported(f"Label errors are found in rows with one name as label; {name} has none here.")
    if len(examples) < FEWEST_ROWS:
        raise Unsupported(f"{len(examples)} rows are too few to find label errors; it takes {FEWEST_ROWS}.")


def text_vectors(model: Model, examples: Sequence[Example]) -> np.ndarray:
    """One vector for each row; the vectors of a pair's texts, their product and distance side by side."""
    columns = list(zip(*(example.texts for example in examples), strict=True))
    parts = [model.embed(list(column)) for column in columns]
    if len(parts) == 2:
        parts += [parts[0] * parts[1], np.abs(parts[0] - parts[1])]
    return np.hstack(parts)


def suspicious(probabilities_NT: np.ndarray, labels_N: np.ndarray) -> list[tuple[int, int]]:
    """(row, better label) of rows whose label is probably wrong, the most suspicious first."""
    num_labels = probabilities_NT.shape[1]
    thresholds_T = np.full(num_labels, np.inf)
    for label in range(num_labels):
        has_label_N = labels_N == label
        if has_label_N.any():
            thresholds_T[label] = probabilities_NT[has_label_N, label].mean()
    confident_NT = np.where(probabilities_NT >= thresholds_T, probabilities_NT, -1.0)
    best_N = confident_NT.argmax(1)
    rows_N = np.arange(len(labels_N))
    is_confident_N = confident_NT[rows_N, best_N] > 0
    # A label is doubted only if the model also prefers the other one.
    margin_N = probabilities_NT[rows_N, best_N] - probabilities_NT[rows_N, labels_N]
    doubted = np.flatnonzero(is_confident_N & (best_N != labels_N) & (margin_N > 0))
    order = doubted[np.argsort(-margin_N[doubted], kind="stable")]
    return [(int(place), int(best_N[place])) for place in order]


def _nearest(vectors_ND: np.ndarray, place: int) -> list[int]:
    """The rows with the most similar vectors, without the row itself."""
    similarity_N = vectors_ND @ vectors_ND[place]
    similarity_N[place] = -np.inf
    return np.argsort(-similarity_N, kind="stable")[:NEIGHBOURS].tolist()  # type: ignore[no-any-return]


def _finetuned_probabilities(
    model: Model, examples: Sequence[Example], names: Sequence[str], folds_N: np.ndarray
) -> np.ndarray:
    """The probabilities of each row by a model that was fine-tuned on the other folds."""
    from firth.finetuning import running
    from firth.finetuning.jobs import FinetuneRequest
    from firth.run_folder import RunFolder

    probabilities_NT = np.zeros((len(examples), len(names)))
    with tempfile.TemporaryDirectory(prefix="firth-") as home:
        for fold in range(int(folds_N.max()) + 1):
            rows_path = Path(home) / f"rows-{fold}.jsonl"
            training = [example for example, own in zip(examples, folds_N, strict=True) if own != fold]
            _write_rows(rows_path, training)
            request = FinetuneRequest(
                model=str(model.folder),
                tasks=("classify",),
                files={"train": [str(rows_path)]},
                options=_columns(training),
            )
            with RunFolder(Path(home) / f"run-{fold}", command="finetune", resume=False) as folder:
                running.finetune(folder, request)
            tuned = load(Path(home) / f"run-{fold}")
            places = np.flatnonzero(folds_N == fold).tolist()
            predictions = tuned.predict_examples([examples[place] for place in places])
            for place, prediction in zip(places, predictions, strict=True):
                # A rare name may be in this fold alone.
                probabilities_NT[place] = [prediction.probabilities.get(name, 0.0) for name in names]
    return probabilities_NT


def _write_rows(path: Path, examples: Sequence[Example]) -> None:
    lines = []
    for example in examples:
        row = {"text": example.texts[0], "label": example.gold}
        if len(example.texts) > 1:
            row["second"] = example.texts[1]
        lines.append(json.dumps(row, ensure_ascii=False))
    write_bytes(path, "\n".join(lines).encode())


def _columns(examples: Sequence[Example]) -> dict[str, object]:
    columns: dict[str, object] = {"text_column": "text", "label_columns": ["label"]}
    if len(examples[0].texts) > 1:
        columns["second_column"] = "second"
    return columns


def describe(findings: DeepFindings, *, most: int = 20) -> list[str]:
    """The findings as lines, the most suspicious rows first, each with its evidence."""
    lines = [
        f"Held-out predictions give the label of {findings['accuracy']:.1%} of the rows; "
        f"{len(findings['errors']):,} labels are probably wrong."
    ]
    for error in findings["errors"][:most]:
        votes = Counter(error["neighbours"])[error["suggested"]]
        text = " ".join(error["text"].split())[:100]
        lines.append(
            f"  row {error['row']}: {error['label']} ({error['probability']:.0%}), rather {error['suggested']} "
            f"({error['suggested_probability']:.0%}; {votes} of its {len(error['neighbours'])} nearest rows): {text}"
        )
    if len(findings["errors"]) > most:
        lines.append(f"  and {len(findings['errors']) - most:,} more; the JSON findings list them all.")
    return lines
