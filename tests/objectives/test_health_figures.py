"""Figures that show whether an objective learns, and what a pre-trained folder says about dropout."""

import json
import math
from pathlib import Path

import pytest
import torch
from sklearn.metrics import roc_auc_score

import firth
from firth.objectives.next_sentence import NextSentence
from firth.objectives.replaced_token import ReplacedToken, _auc, binary_entropy


def test_the_area_under_the_curve_is_scikit_learns() -> None:
    torch.manual_seed(1)
    scores = torch.randn(500)
    positive = torch.rand(500) < 0.2
    expected = roc_auc_score(positive.numpy(), scores.numpy())
    assert float(_auc(scores, positive)) == pytest.approx(expected, abs=1e-6)


def test_a_dead_discriminator_is_found() -> None:
    base_rate = {"replaced_token_share": 0.1}
    floor = binary_entropy(0.1)
    assert floor == pytest.approx(-0.1 * math.log(0.1) - 0.9 * math.log(0.9))
    dead = ReplacedToken.nothing_learned(None, base_rate | {"replaced_token": floor})  # type: ignore[arg-type]
    assert "entropy 0.325 of its base rate" in dead
    assert ReplacedToken.nothing_learned(None, base_rate | {"replaced_token": 0.9 * floor}) == ""  # type: ignore[arg-type]


def test_sentence_pairs_that_teach_nothing_are_found() -> None:
    class Named(NextSentence):
        def __init__(self) -> None:
            """Only the name of the objective is needed."""

    assert "that of a coin" in Named().nothing_learned({"next_sentence": 0.693})
    assert Named().nothing_learned({"next_sentence": 0.5}) == ""


def test_pretraining_without_dropout_saves_that_of_finetuning(
    data: Path, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    changes = [*tiny, "encoder.bert.dropout=0.0", "finetune_dropout=0.1"]
    firth.pretrain(data, out=tmp_path / "run", steps=2, changes=changes, device="cpu")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["hidden_dropout_prob"] == 0.1
    assert "dropout = 0.0" in (tmp_path / "run" / "run.toml").read_text()
