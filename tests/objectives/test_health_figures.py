"""Figures that show whether an objective learns, and what a pre-trained folder says about dropout."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import firth
from firth.data.packing import pack_tokens
from firth.encoders.bert import Bert
from firth.nn.likelihood import IGNORE
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.next_sentence import NextSentence
from firth.objectives.replaced_token import Generator, ReplacedToken, _auc, binary_entropy
from firth.tokenizers.wordpiece import WordPiece


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


def test_the_judge_starts_by_glorots_rule(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> None:
    """Weights of the encoder's deviation would be a third of the size that the authors' program starts with."""
    encoder = small_bert(width=128, init_std=0.02)
    goal = ReplacedToken(
        ReplacedToken.Config(generator=Generator(width=0)), encoder, vocab=tokenizer.vocab, max_length=64, seed=1
    )
    assert goal.dense.weight.std().item() == pytest.approx((2 / 256) ** 0.5, rel=0.05)
    assert goal.judge.weight.abs().max().item() <= (6 / 129) ** 0.5
    assert not goal.judge.bias.any()


def test_the_hidden_loss_leaves_out_tokens_that_can_be_copied(
    small_bert: Callable[..., Bert], tokenizer: WordPiece
) -> None:
    encoder = small_bert(vocab_size=len(tokenizer.vocab))
    goal = MaskedLM(MaskedLM.Config(), encoder, vocab=tokenizer.vocab, max_length=64, seed=1)
    # Two chosen tokens: the first is masked, the second was left in place.
    batch = replace(
        pack_tokens([np.array([tokenizer.vocab.cls, tokenizer.vocab.mask, 9, tokenizer.vocab.sep])]),
        targets={"masked_lm_positions": torch.tensor([1, 2, 0]), "masked_lm_labels": torch.tensor([8, 9, IGNORE])},
    )
    scores_PV = torch.zeros(3, len(tokenizer.vocab))
    scores_PV[1, 9] = 50.0  # the copied token is certain, the hidden one is not known at all
    tallies = goal.hidden_tallies(scores_PV, batch)
    assert int(tallies["masked_lm_hidden_loss_of"]) == 1
    assert float(tallies["masked_lm_hidden_loss"]) == pytest.approx(math.log(len(tokenizer.vocab)), rel=1e-5)
    assert int(tallies["masked_lm_hidden_accuracy"]) == 0
