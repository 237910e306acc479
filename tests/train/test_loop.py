"""The loop: a step's gradient does not depend on how it is cut, losses fall, precision and limits are honoured."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from firth.checkpoint import make_objective
from firth.data.loader import BatchAddress, Packs, load, places
from firth.data.packing import finish, lay_out
from firth.data.settings import BatchConfig
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.encoders.bert import Bert
from firth.errors import BadConfig
from firth.objectives.masked_lm import MaskedLM
from firth.objectives.next_sentence import NextSentence
from firth.tensors import Batch
from firth.tokenizers.wordpiece import WordPiece
from firth.train.loop import Learner, Progress, rate_at, train
from firth.train.optim import make_optimizer
from firth.train.settings import OptimConfig, TrainConfig

STILL = TrainConfig(steps=1, precision="fp32", optim=OptimConfig(rate=0.0, weight_decay=0.0, clip=0.0))
LENGTH = 64


@pytest.fixture
def learner(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> Callable[..., Learner]:
    def make(**changes: object) -> Learner:
        encoder = small_bert(**changes)
        configs = {"next_sentence": NextSentence.Config(), "masked_lm": MaskedLM.Config()}
        goals = {n: make_objective(n, c, encoder, tokenizer, max_length=LENGTH, seed=1) for n, c in configs.items()}
        return Learner(encoder, goals)

    return make


def packs_of(learner: Learner, shards: Shards, tokenizer: WordPiece, tokens: int = 512) -> Packs:
    stream, config = CorpusView(shards, np.arange(shards.num_documents)), BatchConfig(max_length=LENGTH, tokens=tokens)
    return Packs(stream, list(learner.goals.values()), config, specials=tokenizer.vocab, seed=1)  # type: ignore[arg-type]


def gradient(learner: Learner, batches: list[Batch], config: TrainConfig = STILL) -> dict[str, Tensor]:
    """The gradient of one step over these micro-batches."""
    found: dict[str, Tensor] = {}

    def keep(optimizer: torch.optim.Optimizer, *_: object) -> None:
        found.update({name: p.grad.clone() for name, p in learner.named_parameters() if p.grad is not None})

    optimizer = make_optimizer(learner, config.optim)
    optimizer.register_step_pre_hook(keep)
    rows = ((BatchAddress(0, index), batch) for index, batch in enumerate(batches))
    config = replace(config, accumulate=len(batches))
    train(learner, rows, config, optimizer=optimizer, progress=Progress(1), on_step=lambda progress, norm: None)
    return found


@pytest.fixture
def cut(learner: Callable[..., Learner], shards: Shards, tokenizer: WordPiece) -> Callable[[int], list[Batch]]:
    """The same 32 corrupted sequences in this many micro-batches, of very unequal numbers of masks."""
    goals = list(learner().goals.values())
    plan = goals[0].sequences(CorpusView(shards, np.arange(shards.num_documents)), 0)  # type: ignore[operator]
    rows = np.argsort(plan.lengths_S, kind="stable")[:: len(plan) // 32][:32]

    def make(parts: int) -> list[Batch]:
        batches = []
        for share in np.array_split(rows, parts):
            size = int(plan.lengths_S[share].sum()) + 5
            pack = lay_out(shards, plan, share, specials=tokenizer.vocab, num_tokens=size, max_length=LENGTH)
            for goal in goals:
                goal.corrupt(pack, 0)  # type: ignore[operator]
            batches.append(finish(pack, specials=tokenizer.vocab))
        return batches

    return make


def test_one_steps_gradient_does_not_depend_on_micro_batches(
    learner: Callable[..., Learner], cut: Callable[[int], list[Batch]]
) -> None:
    counts = [learner().counts(batch) for batch in cut(32)]
    assert len({count["masked_lm"] for count in counts}) > 4
    whole = gradient(learner().double(), cut(1))
    assert len(whole) == len(list(learner().parameters()))
    for parts in (2, 32):
        found = gradient(learner().double(), cut(parts))
        for name, wanted in whole.items():
            assert (found[name] - wanted).norm() <= 1e-6 * wanted.norm() + 1e-12, name


def test_in_single_precision_it_is_as_close_as_rounding_allows(
    learner: Callable[..., Learner], cut: Callable[[int], list[Batch]]
) -> None:
    whole = gradient(learner(), cut(1))
    size = torch.stack([g.norm() for g in whole.values()]).norm()
    for parts in (2, 32):
        found = gradient(learner(), cut(parts))
        error = torch.stack([(found[name] - whole[name]).norm() for name in whole]).norm()
        assert error / size < 1e-6


def test_a_mean_of_means_would_be_another_gradient(
    learner: Callable[..., Learner], cut: Callable[[int], list[Batch]]
) -> None:
    """The trap the loop avoids: averaging the micro-batches' own means."""
    whole = gradient(learner(), cut(1))
    each = [gradient(learner(), [batch]) for batch in cut(32)]
    name = "encoder.blocks.0.ffn.up.weight"
    averaged = torch.stack([one[name] for one in each]).mean(0)
    assert (averaged - whole[name]).norm() > 0.01 * whole[name].norm()


def test_loss_falls_and_progress_is_kept(learner: Callable[..., Learner], shards: Shards, tokenizer: WordPiece) -> None:
    model = learner()
    packs = packs_of(model, shards, tokenizer)
    config = TrainConfig(steps=60, accumulate=2, optim=OptimConfig(rate=5e-3, warmup_rate=0.1))
    losses, seen = [], []

    def watch(progress: Progress, norm: Tensor) -> None:
        losses.append(float(progress.sums["masked_lm"]) / progress.counts["masked_lm"])
        seen.append((progress.step, progress.place))
        progress.sums, progress.counts = {}, {}
        assert norm > 0

    batches = load(packs, places(packs, BatchAddress()), workers=0)
    progress = Progress(60)
    train(model, batches, config, optimizer=make_optimizer(model, config.optim), progress=progress, on_step=watch)
    assert np.mean(losses[-10:]) < np.mean(losses[:5]) - 0.5
    assert [step for step, _ in seen] == list(range(1, 61))
    addresses = list(islice(places(packs, BatchAddress()), 121))
    assert progress.place in (addresses[120], BatchAddress(addresses[119].epoch, addresses[119].index + 1))


def test_the_number_of_steps_may_change_on_the_way(
    learner: Callable[..., Learner], shards: Shards, tokenizer: WordPiece
) -> None:
    model = learner()
    packs = packs_of(model, shards, tokenizer)

    def shorten(progress: Progress, norm: Tensor) -> None:
        progress.steps = 3

    progress = Progress(10)
    optimizer = make_optimizer(model, STILL.optim)
    batches = load(packs, places(packs, BatchAddress()), workers=0)
    train(model, batches, STILL, optimizer=optimizer, progress=progress, on_step=shorten)
    assert progress.step == 3


def test_dropout_is_drawn_from_the_step_and_micro_batch(
    learner: Callable[..., Learner], cut: Callable[[int], list[Batch]]
) -> None:
    torch.manual_seed(5)
    one = gradient(learner(dropout=0.3), cut(2))
    torch.rand(100)  # chance drawn elsewhere does not matter
    two = gradient(learner(dropout=0.3), cut(2))
    other = gradient(learner(dropout=0.3), cut(2), replace(STILL, seed=9))
    name = "encoder.blocks.0.ffn.up.weight"
    assert torch.equal(one[name], two[name])
    assert not torch.equal(one[name], other[name])


def test_clipping_and_its_absence(learner: Callable[..., Learner], cut: Callable[[int], list[Batch]]) -> None:
    free = gradient(learner(), cut(1))
    clipped = gradient(learner(), cut(1), replace(STILL, optim=replace(STILL.optim, clip=0.01)))
    norms = [float(torch.stack([g.norm() for g in grads.values()]).norm()) for grads in (free, clipped)]
    assert norms[0] > 0.1
    assert norms[1] == pytest.approx(0.01, rel=1e-4)


def test_bf16_keeps_weights_in_fp32(learner: Callable[..., Learner], cut: Callable[[int], list[Batch]]) -> None:
    model = learner()
    half, full = gradient(model, cut(1), replace(STILL, precision="bf16")), gradient(learner(), cut(1))
    assert all(g.dtype == torch.float32 for g in half.values())
    assert all(p.dtype == torch.float32 for p in model.parameters())
    name = "encoder.blocks.1.ffn.down.weight"
    difference = (half[name] - full[name]).norm() / full[name].norm()
    assert 0 < difference < 0.1


def test_compiling_needs_a_gpu(learner: Callable[..., Learner]) -> None:
    config = replace(STILL, compile="yes")

    def nothing() -> Iterator[tuple[BatchAddress, Batch]]:
        yield from ()

    model = learner()
    with pytest.raises(BadConfig, match="needs a GPU"):
        train(
            model,
            nothing(),
            config,
            optimizer=make_optimizer(model, config.optim),
            progress=Progress(1),
            on_step=lambda progress, norm: None,
        )


@pytest.mark.parametrize("name", ["steps", "accumulate", "log_every", "evaluate_every", "checkpoint_every", "keep"])
def test_numbers_below_one_are_refused(name: str) -> None:
    with pytest.raises(BadConfig, match=rf"train\.{name} must be at least 1"):
        TrainConfig(**{name: 0})  # type: ignore[arg-type]


def test_a_time_limit_schedules_by_the_share_of_time_used() -> None:
    """The rate never jumps when the number of steps becomes known, however far that is from the first guess."""
    config = TrainConfig(minutes=1.0, optim=OptimConfig(rate=1.0, warmup_rate=0.05))
    for steps in (400, 70_000):
        shares = [200 / steps * step / 200 for step in range(201)]
        progress = Progress(steps, planned_at=200, shares=shares)
        found = [rate_at(step, progress, config) for step in range(steps)]
        largest_change = max(abs(after - before) for before, after in pairwise(found))
        assert largest_change <= 1.1 / (0.05 * steps)
        assert max(found) == pytest.approx(1.0, abs=0.01)
        assert found[-1] < 0.01
    unplanned = Progress(5_000, shares=[0.0, 0.01])
    assert rate_at(9, unplanned, config) == rate_at(1, unplanned, config)


def test_heads_learn_before_the_encoder(learner: Callable[..., Learner], shards: Shards, tokenizer: WordPiece) -> None:
    model = learner()
    optim = OptimConfig(rate=1e-3, weight_decay=0.1, heads_first=0.5)
    config = TrainConfig(steps=4, precision="fp32", optim=optim)
    seen: list[dict[str, Tensor]] = []

    def look(progress: Progress, norm: Tensor) -> None:
        seen.append({name: parameter.detach().clone() for name, parameter in model.named_parameters()})

    look(Progress(4), torch.zeros(()))
    packs = packs_of(model, shards, tokenizer)
    rows = load(packs, places(packs, BatchAddress()), workers=0)
    optimizer = make_optimizer(model, optim)
    train(model, rows, config, optimizer=optimizer, progress=Progress(4), on_step=look)
    inner = [name for name in seen[0] if "blocks." in name and name.endswith("weight")]
    heads = [name for name in seen[0] if name.startswith("goals.masked_lm") and name.endswith("dense.weight")]
    for before, after in pairwise(seen[:3]):
        assert all(torch.equal(before[name], after[name]) for name in inner)
        assert not any(torch.equal(before[name], after[name]) for name in heads)
    for before, after in pairwise(seen[2:]):
        assert not any(torch.equal(before[name], after[name]) for name in [*inner, *heads])
    assert all(parameter.requires_grad for parameter in model.parameters())
