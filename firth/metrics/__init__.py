"""Scores as pure functions: names, numbers and texts in; figures from 0 to 1 (correlations from -1 to 1) out.

Labels are compared by name. What is undefined follows the reference implementations: a precision, recall, F1 or
Matthews coefficient with nothing to divide by is 0; a correlation with a constant, an AUC without both classes and a
mean over nothing are nan.
"""

from firth.metrics.calibration import abstain_threshold, best_temperature, calibration_error, reliability
from firth.metrics.classification import (
    Row,
    Table,
    accuracy,
    as_rows,
    confusion,
    exact_match,
    f1,
    matthews,
    multilabel_f1,
)
from firth.metrics.ngrams import BleuTokens, bleu, chrf, rouge, rouge_pair
from firth.metrics.numbers import best_accuracy, best_f1, pearson, roc_auc, spearman
from firth.metrics.question_answering import CMRC_PUNCTUATION, cmrc, null_threshold, squad, squad_each, squad_text
from firth.metrics.rankings import mean_reciprocal_rank, ndcg, recall_at
from firth.metrics.spans import PREFIXES, Segmentation, entities, entity_f1, segmentation, split_tag, token_accuracy

__all__ = [
    "CMRC_PUNCTUATION",
    "PREFIXES",
    "BleuTokens",
    "Row",
    "Segmentation",
    "Table",
    "abstain_threshold",
    "accuracy",
    "as_rows",
    "best_accuracy",
    "best_f1",
    "best_temperature",
    "bleu",
    "calibration_error",
    "chrf",
    "cmrc",
    "confusion",
    "entities",
    "entity_f1",
    "exact_match",
    "f1",
    "matthews",
    "mean_reciprocal_rank",
    "multilabel_f1",
    "ndcg",
    "null_threshold",
    "pearson",
    "recall_at",
    "reliability",
    "roc_auc",
    "rouge",
    "rouge_pair",
    "segmentation",
    "spearman",
    "split_tag",
    "squad",
    "squad_each",
    "squad_text",
    "token_accuracy",
]
