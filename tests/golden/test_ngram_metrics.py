"""BLEU, chrF and ROUGE against figures that sacrebleu 2.6 and rouge-score 0.1.2 gave for 63 small sets of texts.

English, German, Chinese and odd texts, right, partly right and wrong. Where a text has Chinese characters, rouge-score
was given them one by one.
"""

import json
import math
from pathlib import Path

import pytest

from firth import metrics
from firth.errors import BadInput

CASES = json.loads(Path(__file__).with_name("ngram_metrics.json").read_text(encoding="utf-8"))


def test_equal_to_sacrebleu_and_rouge_score() -> None:
    assert len(CASES) == 63
    for case in CASES:
        gold = case["gold"]
        predicted = case["predicted"]
        found = metrics.rouge(gold, predicted)
        found["bleu"] = metrics.bleu(gold, predicted, tokens=case["tokens"])
        found["chrf"] = metrics.chrf(gold, predicted)
        assert found == pytest.approx({name: case[name] for name in found}, abs=1e-9), case


def test_one_text_and_no_text() -> None:
    assert metrics.bleu(["the cat sat on the mat"], ["the cat sat on the mat"]) == 1
    assert metrics.chrf([], []) == metrics.bleu([], []) == 0
    assert math.isnan(metrics.rouge([], [])["rougeL"])
    assert metrics.rouge_pair("模型", "模仿") == {"rouge1": 0.5, "rouge2": 0, "rougeL": 0.5}
    with pytest.raises(BadInput, match="1 predictions for 2 examples"):
        metrics.bleu(["a", "b"], ["a"])
