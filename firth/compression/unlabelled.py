"""Unlabelled texts for a student: a file and teachers in, rows with the labels that the teachers give them out.

A teacher is nearly sure of the rows that it learned from, so its scores say little more than their labels. Of texts
that it has not seen they say what it knows (Hinton et al. 2015; Turc et al. 2019).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from firth.compression.method import CompressionJob
from firth.errors import BadConfig, BadInput
from firth.finetuning.few.self_training import read_unlabelled
from firth.tasks.classify import ClassifyHead
from firth.types import Example

FIRST_ROW = 2_000_000_000
"""Unlabelled texts have row numbers of their own, above those of any file and of augmented rows."""


def check_unlabelled(job: CompressionJob, method: str) -> None:
    """Raises if the task does not choose one label for a single text."""
    head = job.head
    assert isinstance(head, ClassifyHead)
    chooses_one = head.config.kind == "one" and len(head.labels) == 1
    is_pair = any(len(example.texts) != 1 for example in job.examples.get("train", ()))
    if not chooses_one or is_pair:
        raise BadConfig(
            f"The setting unlabelled of `by='{method}'` is for models that choose one label for a single text; "
            f"{job.model} does not."
        )


def new_texts(path: str, known: Sequence[Example]) -> list[Example]:
    """The texts of the file that are not among the known rows."""
    known_texts = {example.texts for example in known}
    texts = [example for example in read_unlabelled(Path(path)) if example.texts not in known_texts]
    if not texts:
        raise BadInput(f"All texts of {path} are in the labelled files, too; give others, or leave out unlabelled.")
    return [replace(example, row=FIRST_ROW + number) for number, example in enumerate(texts)]


def is_unlabelled(example: Example) -> bool:
    return example.row >= FIRST_ROW


def with_labels(texts: Sequence[Example], scores_ERT: np.ndarray, names: Sequence[str]) -> list[Example]:
    """The texts with the label of the highest mean probability over R teachers."""
    probabilities_ERT = torch.from_numpy(np.array(scores_ERT)).softmax(-1)
    best_E = probabilities_ERT.mean(1).argmax(-1)
    labelled = []
    for example, best in zip(texts, best_E.tolist(), strict=True):
        labelled.append(replace(example, gold=names[best]))
    return labelled
