"""1,000 random cases of every score against scikit-learn, scipy and seqeval; SIGHAN's own figures on its own data."""

import os
import tarfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from firth import metrics

sklearn_metrics = pytest.importorskip("sklearn.metrics")
stats = pytest.importorskip("scipy.stats")

CASES = 1000
NAMES = np.array(["cat", "dog", "Dog", "ox"])
DATA = Path(os.environ.get("FIRTH_DATA", Path(__file__).parents[2] / "../shared/data"))


@pytest.fixture(autouse=True)
def _quiet_oracles() -> Iterator[None]:
    import sklearn

    with warnings.catch_warnings(), sklearn.config_context(skip_parameter_validation=True):
        warnings.simplefilter("ignore")  # undefined cases are part of the test
        yield


def labels(case: int) -> tuple[list[str], list[str], np.random.Generator]:
    rng = np.random.default_rng(case)
    names = NAMES[: rng.integers(1, 5)]
    gold, predicted = rng.choice(names, (2, rng.integers(1, 30)))
    predicted = np.where(rng.random(len(gold)) < 0.4, gold, predicted)
    return gold.tolist(), predicted.tolist(), rng


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def same_rows(table: metrics.Table, expected: Any) -> None:
    rows = [(r.precision, r.recall, r.f1, r.support) for r in table.rows.values()]
    close(np.array(rows).T, expected)
    close((table.macro.precision, table.macro.recall, table.macro.f1), np.mean(expected[:3], 1))


def test_labels_equal_sklearn() -> None:
    for case in range(CASES):
        gold, predicted, _ = labels(case)
        table = metrics.f1(gold, predicted)
        same_rows(table, sklearn_metrics.precision_recall_fscore_support(gold, predicted, zero_division=0))
        expected = sklearn_metrics.confusion_matrix(gold, predicted)
        accuracy = expected.trace() / len(gold)
        close((metrics.accuracy(gold, predicted), table.micro.f1), (accuracy, accuracy))
        close(metrics.matthews(gold, predicted), sklearn_metrics.matthews_corrcoef(gold, predicted))
        names, counts = metrics.confusion(gold, predicted)
        assert names == sorted({*gold, *predicted})
        assert counts.tolist() == expected.tolist()


def test_multilabel_equals_sklearn() -> None:
    for case in range(CASES):
        rng = np.random.default_rng(case)
        gold, predicted = rng.random((2, rng.integers(1, 15), 4)) < rng.choice([0.05, 0.4])
        sets = [[{*NAMES[row].tolist()} for row in side] for side in (gold, predicted)]
        order = np.argsort(NAMES)
        table = metrics.multilabel_f1(*sets, labels=NAMES.tolist())
        expected = sklearn_metrics.precision_recall_fscore_support(gold[:, order], predicted[:, order], zero_division=0)
        same_rows(table, expected)
        micro = sklearn_metrics.f1_score(gold, predicted, average="micro", zero_division=0)
        close((table.micro.f1, metrics.exact_match(*sets)), (micro, sklearn_metrics.accuracy_score(gold, predicted)))


def test_correlations_and_auc_equal_scipy_and_sklearn() -> None:
    for case in range(CASES):
        rng = np.random.default_rng(case)
        x, y = rng.normal(size=(2, rng.integers(2, 40))) * rng.choice([1e-3, 1, 1e6]) + rng.choice([0, 5])
        if case % 2:
            x, y = x.round(), rng.integers(0, 3, len(x))  # ties, and constants among the short ones
        close(metrics.pearson(x, y), stats.pearsonr(x, y)[0])
        close(metrics.spearman(x, y), stats.spearmanr(x, y)[0])
        positive = rng.random(len(x)) < 0.5
        close(metrics.roc_auc(positive, x), sklearn_metrics.roc_auc_score(positive, x))


def test_best_thresholds_equal_a_search_through_all() -> None:
    for case in range(CASES):
        rng = np.random.default_rng(case)
        scores = rng.normal(size=rng.integers(1, 20)).round(int(rng.integers(0, 4)))
        positive = rng.random(len(scores)) < rng.random()
        guesses = np.array([scores >= threshold for threshold in [*scores, np.inf]])
        accuracies = (guesses == positive).mean(1)
        accuracy, threshold = metrics.best_accuracy(positive, scores)
        close((accuracy, ((scores >= threshold) == positive).mean()), (accuracies.max(), accuracies.max()))
        precision, recall, _ = sklearn_metrics.precision_recall_curve(positive, scores)
        best = np.max(2 * precision * recall / np.maximum(precision + recall, 1e-300)) if positive.any() else 0
        found, threshold = metrics.best_f1(positive, scores)
        close(found, best)
        chosen = scores >= threshold
        close(2 * (positive & chosen).sum() / max(positive.sum() + chosen.sum(), 1), best)


def test_rankings_equal_sklearn() -> None:
    for case in range(CASES):
        rng = np.random.default_rng(case)
        queries, items = rng.integers(2, 8), 6
        scores, gold = rng.permuted(np.tile(np.arange(items), (queries, 1)), axis=1), rng.integers(0, items, queries)
        ranked, k = np.argsort(-scores, 1), int(rng.integers(1, items))
        relevant = [{int(item)} for item in gold]
        expected = sklearn_metrics.top_k_accuracy_score(gold, scores, k=k, labels=np.arange(items))
        close(metrics.recall_at(ranked, relevant, k=k), expected)
        reciprocal = sklearn_metrics.label_ranking_average_precision_score(np.eye(items)[gold], scores)
        close(metrics.mean_reciprocal_rank(ranked, relevant), reciprocal)
        several = rng.random((queries, items)) < 0.5
        several[:, 0] = True
        wanted = [set(np.flatnonzero(row).tolist()) for row in several]
        close(metrics.ndcg(ranked, wanted, k=k), sklearn_metrics.ndcg_score(several, scores, k=k))


@pytest.mark.parametrize("scheme", ["BIO", "BIOES", "BMES"])
def test_entities_equal_seqeval_strict(scheme: str) -> None:
    """Random tags, most of them broken sequences; BMES is BIOES with another letter."""
    v1 = pytest.importorskip("seqeval.metrics.v1")
    schemes = pytest.importorskip("seqeval.scheme")
    theirs = schemes.IOB2 if scheme == "BIO" else schemes.IOBES
    tags = np.array(["O", *(f"{prefix}-{kind}" for prefix in scheme.replace("O", "") for kind in ("PER", "a-b"))])
    for case in range(CASES):
        rng = np.random.default_rng(case)
        lengths = rng.integers(1, 9, rng.integers(1, 5))
        gold = [rng.choice(tags, n).tolist() for n in lengths]
        predicted = [[t if rng.random() < 0.7 else str(rng.choice(tags)) for t in row] for row in gold]
        table = metrics.entity_f1(gold, predicted, scheme=scheme)
        sides = [[[t.replace("M-", "I-") for t in row] for row in side] for side in (gold, predicted)]
        score: Callable[..., Any] = v1.precision_recall_fscore_support
        if not table.rows:
            assert table.micro.f1 == 0
            continue
        close(_columns(table.rows.values()), score(*sides, average=None, scheme=theirs, zero_division=0))
        micro = score(*sides, average="micro", scheme=theirs, zero_division=0)
        close(_columns([table.micro])[:, 0], micro)


def _columns(rows: Any) -> np.ndarray:
    return np.array([(r.precision, r.recall, r.f1, r.support) for r in rows]).T


TRICKY = (
    "the",
    "A",
    "an",
    "The cat",
    "cat",
    "Cat.",
    "U.S.",
    "us",
    "3.5%",
    "35",
    "—",
    "o'clock",
    "oclock",
    "the-a",
    "dog",
)


def test_squad_equals_torchmetrics() -> None:
    oracle = pytest.importorskip("torchmetrics.functional.text").squad
    for case in range(CASES):
        rng = np.random.default_rng(case)
        golds = [[" ".join(rng.choice(TRICKY[3:], rng.integers(1, 5))) for _ in range(rng.integers(1, 4))]]
        predicted = [" ".join(rng.choice(TRICKY, rng.integers(1, 5)))]
        if not all(metrics.squad_text(text) for text in (*golds[0], *predicted)):
            continue  # versions 1.1 and 2.0 differ where nothing is left of an answer
        rows = [{"answers": {"answer_start": [0] * len(golds[0]), "text": golds[0]}, "id": "0"}]
        found = oracle([{"prediction_text": predicted[0], "id": "0"}], rows)
        expected = {"em": float(found["exact_match"]) / 100, "f1": float(found["f1"]) / 100}
        assert metrics.squad(golds, predicted) == pytest.approx(expected, abs=1e-6)


def test_cmrc_equals_a_search_through_all_runs() -> None:
    letters = list("天气好，今年。年的")
    for case in range(CASES):
        rng = np.random.default_rng(case)
        gold, predicted = ("".join(rng.choice(letters, rng.integers(1, 9))) for _ in range(2))
        bare, guess = ("".join(c for c in text if c not in metrics.CMRC_PUNCTUATION) for text in (gold, predicted))
        runs = {guess[i:j] for i in range(len(guess)) for j in range(i + 1, len(guess) + 1)}
        longest = max((len(run) for run in runs if run in bare), default=0)
        f1 = 2 * longest / (len(bare) + len(guess)) if longest else 0.0
        assert metrics.cmrc([[gold]], [predicted]) == pytest.approx({"em": float(bare == guess), "f1": f1})


def test_segmentation_equals_sighans_own_script() -> None:
    """Longest match with PKU's word list, the bakeoff's baseline: the figures that its `score` script printed."""
    archive = DATA / "zh/icwb2.tar.xz"
    if not archive.exists():
        pytest.skip("needs zh/icwb2.tar.xz under FIRTH_DATA")
    with tarfile.open(archive) as files:
        texts = [
            files.extractfile(f"icwb2/gold/{name}.utf8").read().decode("utf-8-sig")
            for name in ("pku_training_words", "pku_test_gold")
        ]
    words, gold = {*texts[0].split()}, [line.split() for line in texts[1].splitlines() if line.strip()]
    found = metrics.segmentation(gold, [_longest_match("".join(line), words) for line in gold], vocabulary=words)
    assert found.words.support == 104372
    figures = (found.words.recall, found.words.precision, found.words.f1)
    rates = (found.oov_rate, found.oov_recall, found.iv_recall)
    assert [round(x, 3) for x in (*figures, *rates)] == [0.907, 0.843, 0.874, 0.058, 0.069, 0.958]


def _longest_match(text: str, words: set[str]) -> list[str]:
    found, start = [], 0
    while start < len(text):
        end = next(end for end in range(start + 12, start, -1) if end == start + 1 or text[start:end] in words)
        found.append(text[start:end])
        start = end
    return found
