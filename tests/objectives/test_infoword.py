"""InfoWord: what is masked is what is appended, and the loss is that of finding it among the others of the pack."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from firth.checkpoint import make_objective
from firth.data.loader import BatchAddress, Packs
from firth.data.packing import Pack, lay_out
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.encoders.bert import Bert
from firth.encoders.gpt import GPT
from firth.errors import BadConfig
from firth.objectives.infoword import InfoWord
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.word_spans import span_hashes
from firth.tensors import Loss
from firth.tokenizers.vocab import Frame
from firth.tokenizers.wordpiece import WordPiece
from firth.train.loop import Learner

LENGTH = 64


@pytest.fixture
def goal(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> Callable[..., InfoWord]:
    def make(**changes: Any) -> InfoWord:
        made = make_objective(
            "infoword", InfoWord.Config(**changes), small_bert(), tokenizer, max_length=LENGTH, seed=2
        )
        assert isinstance(made, InfoWord)
        return made

    return make


def stream(shards: Shards) -> CorpusView:
    return CorpusView(shards, np.arange(shards.num_documents))


def corrupted(goal: InfoWord, shards: Shards, rows: np.ndarray, epoch: int = 0) -> tuple[Pack, Pack]:
    """A pack before and after."""
    plan = goal.sequences(stream(shards), epoch)
    packs = []
    for _ in range(2):
        packs.append(
            lay_out(
                shards,
                plan,
                rows,
                specials=goal.vocab,
                num_tokens=100 * len(rows),
                max_length=LENGTH,
                max_sequences=2 * len(rows),
            )
        )
    goal.corrupt(packs[1], epoch)
    return packs[0], packs[1]


def test_an_ngram_of_whole_words_is_masked_and_appended(goal: Callable[..., InfoWord], shards: Shards) -> None:
    made = goal()
    vocab = made.vocab
    plan = made.sequences(stream(shards), 0)
    word_counts = []
    for rows in np.array_split(np.arange(len(plan)), len(plan) // 40):
        before, after = corrupted(made, shards, rows)
        num_texts = len(before.rows_B)
        chosen = after.rows_B[num_texts:]
        assert len(chosen) > 0.97 * num_texts
        for number, row in enumerate(chosen, num_texts):
            ngram = after.ids_N[after.sequence_N == number]
            assert ngram[0] == vocab.cls
            assert ngram[-1] == vocab.sep
            of_text = before.sequence_N == np.flatnonzero(before.rows_B == row)[0]
            places = np.flatnonzero(of_text)
            masked = places[after.ids_N[places] != before.ids_N[places]]
            assert before.ids_N[masked].tolist() == ngram[1:-1].tolist()
            assert masked.tolist() == list(range(masked[0], masked[-1] + 1))
            assert before.ordinary_N[masked].all()
            assert not after.ordinary_N[masked].any()
            assert (after.ids_N[masked] == vocab.mask).all()
            is_first = before.word_starts_N[masked[0]] or not before.ordinary_N[masked[0] - 1]
            assert is_first
            assert before.word_starts_N[masked[-1] + 1]  # special tokens start words as well
            word_counts.append(1 + int(before.word_starts_N[masked[1:]].sum()))
        assert np.array_equal(after.positions_N[: len(before.ids_N)], before.positions_N)
        assert after.positions_N[after.bounds_B1[:-1]].tolist() == [0] * len(after.rows_B)
    assert set(word_counts) == {1, 2, 3, 4, 5}
    assert 2 < np.mean(word_counts) < 3.2


def test_ngrams_do_not_depend_on_the_pack(goal: Callable[..., InfoWord], shards: Shards) -> None:
    made = goal()
    found = []
    for rows in ([5, 9, 40], [77, 9, 3, 6]):
        _, after = corrupted(made, shards, np.array(rows), epoch=3)
        found.append(after.ids_N[after.sequence_N == rows.index(9)].tolist())
    assert found[0] == found[1]


def test_masked_lm_chooses_other_tokens(
    goal: Callable[..., InfoWord], small_bert: Callable[..., Bert], shards: Shards, tokenizer: WordPiece
) -> None:
    made = goal()
    masking = make_objective("masked_lm", MaskedLM.Config(), small_bert(), tokenizer, max_length=LENGTH, seed=2)
    before, after = corrupted(made, shards, np.arange(30))
    labels_of_ngrams = after.ids_N.copy()
    masking.corrupt(after, 0)
    labels = after.targets["masked_lm_labels"]
    positions = after.targets["masked_lm_positions"][labels >= 0]
    assert (positions < len(before.ids_N)).all()
    assert np.array_equal(before.ids_N[positions], labels[labels >= 0])
    assert np.array_equal(after.ids_N[len(before.ids_N) :], labels_of_ngrams[len(before.ids_N) :])


def batch_loss(
    encoder: Bert, goal: InfoWord, shards: Shards, tokens: int
) -> tuple[Loss, dict[str, torch.Tensor], torch.Tensor]:
    config = BatchConfig(max_length=LENGTH, tokens=tokens)
    batch = Packs(stream(shards), [goal], config, specials=goal.vocab, seed=2)[BatchAddress()]
    with torch.no_grad():
        return Learner(encoder, {"goal": goal})(batch), dict(batch.targets), encoder(batch).last_ND


def test_the_loss_is_that_of_finding_the_ngram(
    goal: Callable[..., InfoWord], small_bert: Callable[..., Bert], shards: Shards
) -> None:
    made = goal(temperature=0.2, max_words=1)  # single words repeat
    encoder = small_bert()
    loss, targets, states = batch_loss(encoder, made, shards, tokens=4096)
    real = targets["infoword_real"].nonzero().flatten().tolist()
    assert len(real) > 20
    kinds = targets["infoword_kinds"].tolist()
    texts = normalize(states[targets["infoword_texts"]], dim=-1)
    ngrams = normalize(states[targets["infoword_ngrams"]], dim=-1)
    total = 0.0
    for row in real:
        candidates = [other for other in real if other == row or kinds[other] != kinds[row]]
        scores = texts[row] @ ngrams[candidates].T / 0.2
        total -= float(scores.log_softmax(-1)[candidates.index(row)])
    assert float(loss.sums["infoword"]) == pytest.approx(total, rel=1e-4)
    repeated = len(real) - len({kinds[row] for row in real})
    assert repeated > 0


def test_the_vectors_are_those_of_cls_where_it_is_the_last_token(goal: Callable[..., InfoWord], shards: Shards) -> None:
    """As in XLNet's frame."""
    made = goal()
    vocab = made.vocab
    made.vocab = replace(vocab, own_frame=Frame((), (vocab.sep,), (vocab.sep, vocab.cls)))
    made.cls_last = True
    _, after = corrupted(made, shards, np.arange(20))
    is_real = after.targets["infoword_real"]
    assert is_real.sum() > 15
    for name in ("texts", "ngrams"):
        assert (after.ids_N[after.targets[f"infoword_{name}"][is_real]] == vocab.cls).all()


def test_an_encoder_that_reads_one_way_is_refused(tokenizer: WordPiece) -> None:
    encoder = GPT(GPT.Config(vocab_size=len(tokenizer.vocab), width=16, num_layers=1, num_heads=2, ffn_width=16))
    with pytest.raises(BadConfig, match="both directions"):
        make_objective("infoword", InfoWord.Config(), encoder, tokenizer, max_length=LENGTH, seed=2)


def test_hashes_tell_spans_apart() -> None:
    ids = np.array([3, 7, 3, 7, 7, 3, 0, 0])
    first, ends = np.array([0, 2, 4, 0, 6, 6]), np.array([2, 4, 6, 1, 7, 8])
    hashes = span_hashes(ids, first, ends)
    assert hashes[0] == hashes[1]
    assert len(set(hashes.tolist())) == 5


@pytest.mark.parametrize("changes", [{"max_words": 0}, {"temperature": 0.0}, {"weight": 0.0}])
def test_numbers_that_make_no_sense_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(BadConfig):
        InfoWord.Config(**changes)
