"""Chains of labels against enumeration of all paths, against pytorch-crf, and on sequences too long to underflow."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from firth import rng
from firth.nn import chain

SHAPES = [(length, tags) for length in range(1, 6) for tags in range(1, 5)]


def random_scores(lengths: list[int], tags: int, *, own: bool = False, seed: int = 0) -> chain.Scores:
    generator = torch.Generator().manual_seed(seed)
    num = sum(lengths)
    shape = (num, tags, tags) if own else (tags, tags)
    return chain.Scores(
        torch.randn(num, tags, generator=generator, dtype=torch.float64) * 2,
        torch.randn(*shape, generator=generator, dtype=torch.float64) * 2,
        torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32),
    )


def every_path(scores: chain.Scores, start: int, end: int) -> tuple[Tensor, Tensor]:
    """All paths through the tokens from start to end, and their scores added up one by one."""
    paths = list(itertools.product(range(scores.unary_NT.shape[1]), repeat=end - start))
    sums = []
    for path in paths:
        total = sum(scores.unary_NT[start + i, tag] for i, tag in enumerate(path))
        for i, (a, b) in enumerate(itertools.pairwise(path), start + 1):
            total = total + (scores.transitions[a, b] if scores.transitions.ndim == 2 else scores.transitions[i, a, b])
        sums.append(total)
    return torch.tensor(paths), torch.stack(sums)


@pytest.mark.parametrize(("length", "tags"), SHAPES)
@pytest.mark.parametrize("own", [False, True])
def test_equal_to_enumeration(length: int, tags: int, own: bool) -> None:
    scores = random_scores([length], tags, own=own, seed=length * 10 + tags)
    paths, sums = every_path(scores, 0, length)
    weights = sums.softmax(0)

    torch.testing.assert_close(chain.log_partition(scores)[0], sums.logsumexp(0))
    torch.testing.assert_close(chain.viterbi(scores)[0], paths[sums.argmax()])
    torch.testing.assert_close(chain.viterbi(scores)[1][0], sums.max())
    torch.testing.assert_close(chain.path_score(scores, paths[-1])[0], sums[-1])
    expected = torch.stack([weights @ (paths == tag).double() for tag in range(tags)], 1)
    torch.testing.assert_close(chain.marginals(scores), expected)

    k = min(len(paths) + 2, 12)
    found, found_scores = chain.k_best(scores, k)
    order = sums.argsort(descending=True)[:k]
    torch.testing.assert_close(found_scores[0, : len(order)], sums[order])
    assert found[: len(order)].tolist() == paths[order].tolist()
    assert (found[len(order) :] == -1).all()
    assert (found_scores[0, len(order) :] == -torch.inf).all()


@pytest.mark.parametrize("own", [False, True])
def test_expected_transitions_equal_enumeration(own: bool) -> None:
    scores = random_scores([4, 2], 3, own=own)
    counts = torch.zeros(6, 3, 3, dtype=torch.float64)
    for start, end in [(0, 4), (4, 6)]:
        paths, sums = every_path(scores, start, end)
        for path, weight in zip(paths.tolist(), sums.softmax(0), strict=True):
            for i, (a, b) in enumerate(itertools.pairwise(path), start + 1):
                counts[i, a, b] += weight
    torch.testing.assert_close(chain.expected_transitions(scores), counts if own else counts.sum(0))


@pytest.mark.parametrize("own", [False, True])
def test_ragged_batch_equals_one_by_one(own: bool) -> None:
    lengths = [3, 1, 7, 0, 3, 12, 0]
    scores = random_scores(lengths, 4, own=own)
    starts = scores.bounds_B1.tolist()
    together = (chain.log_partition(scores), chain.viterbi(scores), chain.marginals(scores), chain.k_best(scores, 3))
    for b, (start, end) in enumerate(itertools.pairwise(starts)):
        own_part = scores.transitions[start:end] if own else scores.transitions
        alone = chain.Scores(scores.unary_NT[start:end], own_part, torch.tensor([0, end - start]))
        torch.testing.assert_close(together[0][b], chain.log_partition(alone)[0])
        assert together[1][0][start:end].tolist() == chain.viterbi(alone)[0].tolist()
        torch.testing.assert_close(together[2][start:end], chain.marginals(alone))
        torch.testing.assert_close(together[3][1][b], chain.k_best(alone, 3)[1][0])
        assert together[3][0][:, start:end].tolist() == chain.k_best(alone, 3)[0].tolist()


def test_a_batch_without_tokens() -> None:
    scores = random_scores([0, 0], 3)
    assert chain.log_partition(scores).tolist() == [0, 0]
    assert chain.viterbi(scores)[0].shape == (0,)
    assert chain.marginals(scores).shape == (0, 3)
    assert chain.sample(scores, rng.key("empty")).shape == (1, 0)


@pytest.mark.parametrize("own", [False, True])
def test_gradients(own: bool, way: str) -> None:
    scores = random_scores([4, 1, 3, 0], 3, own=own)
    tags = torch.tensor([0, 2, 1, 1, 2, 0, 0, 1])

    def loss(unary: Tensor, transitions: Tensor) -> Tensor:
        given = chain.Scores(unary, transitions, scores.bounds_B1)
        return chain.log_partition(given) - chain.path_score(given, tags)

    assert torch.autograd.gradcheck(loss, (scores.unary_NT.requires_grad_(), scores.transitions.requires_grad_()))


def test_forbidden_transitions_give_finite_gradients() -> None:
    unary = torch.zeros(5, 2, requires_grad=True)
    transitions = torch.tensor([[0.0, chain.ILLEGAL], [chain.ILLEGAL, 0.0]], requires_grad=True)
    total = chain.log_partition(chain.Scores(unary, transitions, torch.tensor([0, 5])))
    torch.testing.assert_close(total[0], torch.tensor(2.0).log())  # all 0 or all 1
    total.sum().backward()
    assert unary.grad is not None
    assert transitions.grad is not None
    torch.testing.assert_close(unary.grad, torch.full((5, 2), 0.5))
    torch.testing.assert_close(transitions.grad, torch.eye(2) * 2)


def test_100k_symbols_neither_underflow_nor_drift() -> None:
    """A chain of independent tokens, whose answer is known: the sum of each token's logsumexp."""
    unary = torch.randn(100_000, 2, generator=torch.Generator().manual_seed(1)) - 500
    unary.requires_grad_()
    scores = chain.Scores(unary, torch.zeros(2, 2), torch.tensor([0, 100_000]))
    total = chain.log_partition(scores)
    torch.testing.assert_close(total.double()[0], unary.double().logsumexp(1).sum(), rtol=1e-7, atol=0)
    total.sum().backward()
    torch.testing.assert_close(unary.grad, unary.detach().softmax(1), rtol=1e-3, atol=1e-4)
    part = chain.Scores(unary[:10_000], torch.zeros(2, 2), torch.tensor([0, 10_000]))
    assert chain.viterbi(part)[0].tolist() == unary[:10_000].argmax(1).tolist()


def test_samples_follow_the_marginals_and_the_key() -> None:
    scores = random_scores([3, 2], 3)
    drawn = chain.sample(scores, rng.key("draw"), num=20_000)
    shares = torch.nn.functional.one_hot(drawn, 3).double().mean(0)
    torch.testing.assert_close(shares, chain.marginals(scores), rtol=0, atol=0.015)
    pairs = torch.nn.functional.one_hot(drawn[:, [0, 1, 3]] * 3 + drawn[:, [1, 2, 4]], 9).double().mean(0).sum(0)
    torch.testing.assert_close(pairs.view(3, 3), chain.expected_transitions(scores), rtol=0, atol=0.03)
    assert torch.equal(drawn[:5], chain.sample(scores, rng.key("draw"), num=5))
    assert not torch.equal(drawn, chain.sample(scores, rng.key("other"), num=20_000))


@pytest.mark.parametrize("own", [False, True])
def test_samples_with_own_transitions_of_one_allowed_path(own: bool) -> None:
    allowed = torch.tensor([[-torch.inf, 0.0], [0.0, -torch.inf]])
    transitions = allowed.expand(6, 2, 2) if own else allowed
    drawn = chain.sample(chain.Scores(torch.zeros(6, 2), transitions, torch.tensor([0, 6])), rng.key("p"), num=50)
    assert (drawn[:, 1:] != drawn[:, :-1]).all()
    assert 5 < drawn[:, 0].sum() < 45


@pytest.fixture(params=["compiled", "walked"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both forms of the recursions: numba's, and torch's for machines without numba."""
    if request.param == "compiled":
        pytest.importorskip("numba")
    else:
        monkeypatch.setattr(chain, "_compiles", lambda scores: False)
    return str(request.param)


@pytest.mark.parametrize(("length", "tags"), SHAPES)
def test_both_forms_equal_enumeration(way: str, length: int, tags: int) -> None:
    scores = random_scores([length], tags, seed=length * 10 + tags)
    paths, sums = every_path(scores, 0, length)
    log_z, marginals, pairs = chain.counted(scores)
    weights = sums.softmax(0)
    torch.testing.assert_close(log_z[0], sums.logsumexp(0))
    expected = torch.stack([weights @ (paths == tag).double() for tag in range(tags)], 1)
    torch.testing.assert_close(marginals, expected)
    for a, b in itertools.product(range(tags), repeat=2):
        steps = ((paths[:, :-1] == a) & (paths[:, 1:] == b)).sum(1).double()
        torch.testing.assert_close(pairs[a, b], weights @ steps)
    assert chain.best_path(scores).tolist() == paths[sums.argmax()].tolist()


@pytest.mark.parametrize("spread", [1.0, 1e3, 1e6])
def test_the_compiled_form_equals_the_walk_whatever_the_scores(spread: float, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    scores = random_scores([9, 0, 1, 300, 2], 5)
    transitions = scores.transitions * spread
    transitions[1, 2] = -torch.inf
    scores = chain.Scores(scores.unary_NT * spread, transitions, scores.bounds_B1)
    compiled = (*chain.counted(scores), chain.best_path(scores))
    monkeypatch.setattr(chain, "_compiles", lambda scores: False)
    walked = (*chain.counted(scores), chain.best_path(scores))
    for one, other in zip(compiled, walked, strict=True):
        # The exponents are as large as log Z, and the compiled form does not take off each step's maximum.
        torch.testing.assert_close(one, other, rtol=1e-9, atol=max(1e-9, 1e-10 * spread))


def test_100k_symbols_in_the_compiled_form() -> None:
    pytest.importorskip("numba")
    unary = torch.randn(100_000, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64) - 500
    scores = chain.Scores(unary, torch.zeros(3, 3, dtype=torch.float64), torch.tensor([0, 100_000]))
    log_z, marginals, pairs = chain.counted(scores)
    torch.testing.assert_close(log_z[0], unary.logsumexp(1).sum(), rtol=1e-12, atol=0)
    torch.testing.assert_close(marginals, unary.softmax(1), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(pairs.sum(), torch.tensor(99_999.0, dtype=torch.float64), rtol=1e-6, atol=0)
    assert torch.equal(chain.best_path(scores), unary.argmax(1))
