"""Sentence order, span boundary and replaced tokens: each does what its paper says."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from firth import lineage
from firth.checkpoint import make_objective
from firth.data.loader import BatchAddress, Packs
from firth.data.packing import lay_out
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.encoders.bert import Bert
from firth.errors import BadConfig
from firth.nn.likelihood import IGNORE
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.replaced_token import Generator, ReplacedToken, _auc
from firth.objectives.sentence_order import IN_ORDER, SWAPPED, SentenceOrder
from firth.objectives.span_boundary import SpanBoundary
from firth.tensors import Batch
from firth.tokenizers.wordpiece import WordPiece
from firth.train.loop import Learner
from firth.train.parallel import in_precision

LENGTH = 64
Judge = tuple[Bert, ReplacedToken, Batch]


def whole(shards: Shards) -> CorpusView:
    return CorpusView(shards, np.arange(shards.num_documents))


def test_order_pairs_are_consecutive_and_half_are_swapped(
    small_bert: Callable[..., Bert], long_shards: Shards, tokenizer: WordPiece
) -> None:
    goal = make_objective("sentence_order", SentenceOrder.Config(), small_bert(), tokenizer, max_length=LENGTH, seed=2)
    stream, labels, neighbours = whole(long_shards), [], 0
    borders = long_shards.sentences[long_shards.documents]
    for epoch in range(3):
        plan = goal.sequences(stream, epoch)
        assert plan.lengths_S.max() <= LENGTH
        label = plan.labels["sentence_order"]
        inner = np.where((label == SWAPPED)[:, None, None], plan.pieces_SP2[:, ::-1], plan.pieces_SP2)
        assert (inner[:, 0, 1] <= inner[:, 1, 0]).all()  # the first part stands before the second
        documents = np.searchsorted(borders, inner[:, :, 0], side="right")
        assert (documents[:, 0] == documents[:, 1]).all()
        assert (np.searchsorted(borders, inner[:, :, 1] - 1, side="right") == documents).all()
        neighbours += int((inner[:, 0, 1] == inner[:, 1, 0]).sum())
        labels.append(label)
    assert len(np.concatenate(labels)) > 5000
    assert abs(np.concatenate(labels).mean() - 0.5) < 0.02
    assert neighbours > 1000
    assert set(labels[0].tolist()) == {IN_ORDER, SWAPPED}


def test_order_pairs_need_one_document_only(
    small_bert: Callable[..., Bert], long_shards: Shards, tokenizer: WordPiece
) -> None:
    goal = make_objective("sentence_order", SentenceOrder.Config(), small_bert(), tokenizer, max_length=LENGTH, seed=2)
    assert len(goal.sequences(CorpusView(long_shards, np.array([3])), 0)) > 10


def test_a_spans_tokens_are_predicted_from_the_tokens_around_it(
    small_bert: Callable[..., Bert], shards: Shards, tokenizer: WordPiece
) -> None:
    encoder = small_bert()
    masked = make_objective("masked_lm", MaskedLM.Config(unit="span"), encoder, tokenizer, max_length=LENGTH, seed=2)
    goal = make_objective(
        "span_boundary", SpanBoundary.Config(max_targets=6), encoder, tokenizer, max_length=LENGTH, seed=2
    )
    plan = masked.sequences(whole(shards), 0)
    cut = 0
    for rows in np.array_split(np.arange(len(plan)), 8):
        size = int(plan.lengths_S[rows].sum())
        pack = lay_out(shards, plan, rows, specials=tokenizer.vocab, num_tokens=size, max_length=LENGTH)
        original = pack.ids_N.copy()
        for one in (masked, goal):
            one.corrupt(pack, 0)
        real = pack.targets["masked_lm_labels"] != IGNORE
        names = ("left", "right", "place", "labels")
        left, right, place, labels = (pack.targets[f"span_boundary_{name}"][real] for name in names)
        chosen = pack.targets["masked_lm_positions"][real]
        hidden = np.zeros(size, bool)
        hidden[chosen] = True
        assert not hidden[left].any()
        assert not hidden[right].any()
        assert (pack.sequence_N[left] == pack.sequence_N[chosen]).all()
        assert (pack.sequence_N[right] == pack.sequence_N[chosen]).all()
        between = [hidden[a + 1 : b].all() and a < c < b for a, b, c in zip(left, right, chosen, strict=True)]
        assert all(between)
        near = chosen - left - 1 < 6
        assert np.array_equal(place[near], (chosen - left - 1)[near])
        assert np.array_equal(labels[near], original[chosen[near]])
        assert (labels[~near] == IGNORE).all()
        cut += int((~near).sum())
    assert cut > 0


@pytest.fixture
def judge(small_bert: Callable[..., Bert], shards: Shards, tokenizer: WordPiece) -> Judge:
    encoder = small_bert()
    shape = Generator(width=16, num_layers=1, num_heads=2, ffn_width=32)
    config = ReplacedToken.Config(generator=shape)
    goal = make_objective("replaced_token", config, encoder, tokenizer, max_length=LENGTH, seed=2)
    assert isinstance(goal, ReplacedToken)
    batches = BatchConfig(max_length=LENGTH, tokens=1024)
    return encoder, goal, Packs(whole(shards), [goal], batches, specials=tokenizer.vocab, seed=2)[BatchAddress()]


def certain(ids_P: torch.Tensor, size: int) -> torch.Tensor:
    return 1000 * torch.nn.functional.one_hot(ids_P.clamp(min=0), size).float()


def test_a_sample_equal_to_the_original_counts_as_original(judge: Judge) -> None:
    encoder, goal, batch = judge
    labels_P, positions_P = batch.targets["masked_lm_labels"], batch.targets["masked_lm_positions"]
    real = labels_P != IGNORE
    same_N, replaced_N = goal._fill(certain(labels_P, encoder.vocab_size), batch)
    assert not replaced_N.any()
    assert torch.equal(same_N[positions_P[real]], labels_P[real])
    other_P = (labels_P + 1) % goal.num_tokens
    filled_N, replaced_N = goal._fill(certain(other_P, encoder.vocab_size), batch)
    assert sorted(replaced_N.nonzero().flatten().tolist()) == sorted(positions_P[real].tolist())
    assert torch.equal(filled_N[~replaced_N], batch.ids_N[~replaced_N])


def test_samples_follow_the_generators_scores(judge: Judge) -> None:
    encoder, goal, batch = judge
    torch.manual_seed(0)
    wanted = torch.tensor([0.5, 0.3, 0.15, 0.05])
    scores = torch.full((len(batch.targets["masked_lm_labels"]), encoder.vocab_size), -1000.0)
    scores[:, 10:14] = wanted.log()
    real = batch.targets["masked_lm_labels"] != IGNORE
    places = batch.targets["masked_lm_positions"][real]
    drawn = torch.cat([goal._fill(scores, batch)[0][places] for _ in range(60)])
    shares = torch.bincount(drawn, minlength=14)[10:14] / len(drawn)
    assert (shares - wanted).abs().max() < 0.02
    scores[:, goal.num_tokens :] = 1000.0  # rows of the table behind the vocabulary are never drawn
    assert int(goal._fill(scores, batch)[0].max()) < goal.num_tokens


def test_no_gradient_goes_through_the_sampling_and_the_weight_weighs(judge: Judge) -> None:
    encoder, goal, batch = judge
    gradients, figures = [], []
    for weight in (50.0, 5.0):
        goal.config = ReplacedToken.Config(weight=weight, generator=goal.config.generator)
        torch.manual_seed(1)
        encoder.zero_grad()
        goal.zero_grad()
        loss = Learner(encoder, {"goal": goal})(batch).sums["replaced_token"]
        loss.backward()
        assert all(p.grad is None or not p.grad.any() for p in goal.generator.blocks.parameters())  # type: ignore[union-attr]
        gradients.append(encoder.blocks[0].ffn.up.weight.grad.clone())
        figures.append(float(loss.detach()))
    assert figures[0] == figures[1]
    assert torch.allclose(gradients[0], 10 * gradients[1], rtol=1e-3, atol=1e-3)
    assert gradients[0].abs().max() > 0


def test_every_real_token_is_judged_and_no_filler(judge: Judge) -> None:
    _, goal, batch = judge
    real = int(batch.targets["replaced_token_real"].sum())
    assert goal.counts(batch)["replaced_token"] == real < batch.num_tokens
    zeros = torch.zeros(batch.num_tokens)
    judged = replace(batch, targets={**batch.targets, "replaced_token_replaced": zeros.bool()})
    loss = goal._discriminator_loss(zeros, judged)
    assert float(loss.sums["replaced_token"]) == pytest.approx(real * np.log(2), rel=1e-5)
    assert int(loss.tallies["replaced_token_correct"]) == real


def test_shared_weights_survive_a_step_in_half_precision(judge: Judge) -> None:
    encoder, goal, batch = judge
    learner = Learner(encoder, {"replaced_token": goal})
    before = dict(learner.named_parameters())
    loss = in_precision(learner, "bf16")(batch)
    torch.stack(list(loss.sums.values())).sum().backward()
    assert all(dict(learner.named_parameters())[name] is parameter for name, parameter in before.items())
    table = encoder.embeddings.tokens.weight
    assert goal.generator.embeddings.tokens.weight is table  # type: ignore[union-attr]
    assert table.grad is not None
    assert table.grad.abs().max() > 0


def test_a_narrow_generator_begins_with_weights_as_large_as_its_width_asks_for(tokenizer: WordPiece) -> None:
    shape = lineage.make("electra", "base")
    encoder = Bert(replace(shape.encoder["bert"], vocab_size=len(tokenizer.vocab)))
    goal = make_objective(
        "replaced_token", shape.objectives["replaced_token"], encoder, tokenizer, max_length=64, seed=1
    )
    assert goal.generator.width == 256
    wide, narrow = (bert.blocks[0].ffn.up.weight.std().item() * bert.width**0.5 for bert in (encoder, goal.generator))
    assert wide == pytest.approx(0.02 * 768**0.5, rel=0.05)
    assert narrow == pytest.approx(wide, rel=0.05)
    assert goal.generator.embeddings.tokens.weight is encoder.embeddings.tokens.weight


def test_some_chosen_tokens_of_the_generator_stay_as_they_are() -> None:
    masking = lineage.make("electra", "tiny").objectives["replaced_token"].masking
    assert (masking.mask_share, masking.random_share, masking.rate) == (0.85, 0.0, 0.15)


def test_an_encoder_that_fills_masks_reads_some_of_them(
    small_bert: Callable[..., Bert], shards: Shards, tokenizer: WordPiece
) -> None:
    encoder = small_bert()
    shape = Generator(width=16, num_layers=1, num_heads=2, ffn_width=32)
    config = ReplacedToken.Config(generator=shape, corrective_weight=1.0, kept_masks=0.4)
    goal = make_objective("replaced_token", config, encoder, tokenizer, max_length=LENGTH, seed=2)
    assert isinstance(goal, ReplacedToken)
    batches = BatchConfig(max_length=LENGTH, tokens=1024)
    batch = Packs(whole(shards), [goal], batches, specials=tokenizer.vocab, seed=2)[BatchAddress()]
    rewritten, _ = goal.rewrite(batch)

    masks_before = batch.ids_N == tokenizer.vocab.mask
    masks_after = rewritten.ids_N == tokenizer.vocab.mask
    assert (masks_before | ~masks_after).all()
    share = float(masks_after.sum() / masks_before.sum())
    assert 0.25 < share < 0.55
    # A mask is neither judged nor called replaced, and all real tokens besides it are judged.
    assert not batch.targets["replaced_token_real"][masks_after].any()
    assert not rewritten.targets["replaced_token_replaced"][masks_after].any()
    num_real = int((batch.ids_N != tokenizer.vocab.pad).sum())
    assert goal.counts(batch)["replaced_token"] == num_real - int(masks_after.sum())

    # The encoder's own loss is the cross-entropy of the original tokens at all chosen positions.
    states = encoder(rewritten)
    labels_P = batch.targets["masked_lm_labels"]
    scores_PV = goal.corrective.scores(states, batch.targets["masked_lm_positions"])  # type: ignore[union-attr]
    expected = torch.nn.functional.cross_entropy(scores_PV, labels_P, ignore_index=IGNORE, reduction="sum")
    loss = goal.loss(states, rewritten)
    assert float(loss.sums["corrective_lm"].detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    assert goal.counts(batch)["corrective_lm"] == int((labels_P != IGNORE).sum())


@pytest.mark.parametrize(
    "fields", [{"kept_masks": 0.3}, {"kept_masks": 1.0, "corrective_weight": 1.0}, {"corrective_weight": -1.0}]
)
def test_settings_of_the_encoders_own_head_are_checked(fields: dict[str, float]) -> None:
    with pytest.raises(BadConfig, match=r"kept_masks|corrective_weight"):
        ReplacedToken.Config(**fields)  # type: ignore[arg-type]


def test_equal_scores_count_half_in_the_auc() -> None:
    positive = torch.tensor([True, False, False, True, False, True])
    for values in ([0.0] * 6, [2.0, 1.0, 2.0, 2.0, 0.0, 1.0], [5.0, 1.0, 2.0, 4.0, 3.0, 6.0]):
        scores = torch.tensor(values)
        differences = scores[positive][:, None] - scores[~positive]
        expected = (differences.sign() + 1).mean() / 2
        assert float(_auc(scores, positive)) == pytest.approx(float(expected))
