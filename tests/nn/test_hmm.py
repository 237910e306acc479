"""Hidden Markov models against hmmlearn and against counting by hand."""

import itertools
import math

import numpy as np
import pytest
import torch

from firth import rng
from firth.errors import FirthError
from firth.nn import hmm

LENGTHS = [7, 1, 30, 12]
BOUNDS = torch.tensor([0, *np.cumsum(LENGTHS)])


def random_model(tags: int = 3, symbols: int = 5, seed: int = 0) -> hmm.HMM:
    draw = np.random.default_rng(seed)
    start, transitions, emissions = (
        torch.from_numpy(draw.dirichlet(np.ones(width), size)).log()
        for width, size in ((tags, None), (tags, tags), (symbols, tags))
    )
    return hmm.HMM(start, transitions, emissions.T.contiguous())


@pytest.fixture
def symbols() -> torch.Tensor:
    return torch.from_numpy(rng.below(rng.key("symbols"), 5, np.arange(sum(LENGTHS))))


def test_equal_to_hmmlearn(symbols: torch.Tensor) -> None:
    hmmlearn = pytest.importorskip("hmmlearn.hmm")
    ours = random_model()
    theirs = hmmlearn.CategoricalHMM(3, init_params="", params="ste", n_iter=4, tol=0)
    theirs.startprob_, theirs.transmat_ = ours.start_T.exp().numpy(), ours.transitions_TT.exp().numpy()
    theirs.emissionprob_ = ours.emissions_VT.T.exp().numpy()
    column = symbols.numpy()[:, None]

    assert float(ours.log_likelihood(symbols, BOUNDS).sum()) == pytest.approx(theirs.score(column, LENGTHS), abs=1e-6)
    joint, path = theirs.decode(column, LENGTHS)
    assert ours.viterbi(symbols, BOUNDS).tolist() == path.tolist()
    posteriors = theirs.predict_proba(column, LENGTHS)
    tags, likely = ours.posterior(symbols, BOUNDS)
    assert tags.tolist() == posteriors.argmax(1).tolist()
    torch.testing.assert_close(likely.numpy(), posteriors.max(1), rtol=0, atol=1e-6)

    theirs.fit(column, LENGTHS)
    learned, history = hmm.climb(ours, symbols, bounds_B1=BOUNDS, iterations=4, tolerance=-math.inf)
    np.testing.assert_allclose(learned.start_T.exp().numpy(), theirs.startprob_, atol=1e-6)
    np.testing.assert_allclose(learned.transitions_TT.exp().numpy(), theirs.transmat_, atol=1e-6)
    np.testing.assert_allclose(learned.emissions_VT.T.exp().numpy(), theirs.emissionprob_, atol=1e-6)
    np.testing.assert_allclose(history[:4], list(theirs.monitor_.history), atol=1e-6)
    assert joint <= history[0]


def test_baum_welch_never_falls_and_restarts_help(symbols: torch.Tensor) -> None:
    model, history = hmm.baum_welch(symbols, BOUNDS, num_tags=3, num_symbols=5, restarts=4, iterations=30)
    assert all(later >= before - 1e-9 for before, later in itertools.pairwise(history))
    assert history[-1] > history[0] + 1
    assert history[-1] == pytest.approx(float(model.log_likelihood(symbols, BOUNDS).sum()), abs=1e-3)
    _, alone = hmm.baum_welch(symbols, BOUNDS, num_tags=3, num_symbols=5, restarts=1, iterations=30)
    assert history[-1] >= alone[-1]
    _, again = hmm.baum_welch(symbols, BOUNDS, num_tags=3, num_symbols=5, restarts=4, iterations=30)
    assert again == history


def test_baum_welch_finds_the_model_that_made_the_text() -> None:
    made = hmm.HMM(
        torch.tensor([0.9, 0.1]).double().log(),
        torch.tensor([[0.9, 0.1], [0.2, 0.8]]).double().log(),
        torch.tensor([[0.7, 0.05], [0.25, 0.05], [0.05, 0.9]]).double().log(),
    )
    tags, symbols = made.sample(50, rng.key("text"), num=200)
    bounds = torch.arange(0, 200 * 50 + 1, 50)
    found, history = hmm.baum_welch(symbols.flatten(), bounds, num_tags=2, num_symbols=3, iterations=200)
    assert history[-1] >= float(made.log_likelihood(symbols.flatten(), bounds).sum())
    share = (found.viterbi(symbols.flatten(), bounds) == tags.flatten()).double().mean()
    assert max(share, 1 - share) > 0.9


def test_counting_with_smoothing_by_hand() -> None:
    tags, bounds = torch.tensor([0, 1, 1, 0]), torch.tensor([0, 3, 4])
    counts = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    allowed = (torch.tensor([True, False]), torch.tensor([[False, True], [True, True]]))
    model = hmm.count(counts, tags, bounds_B1=bounds, allowed=allowed, smoothing=0.5)
    torch.testing.assert_close(model.start_T.exp(), torch.tensor([1.0, 0.0]).double())
    torch.testing.assert_close(model.transitions_TT.exp(), torch.tensor([[0, 1], [0.5 / 2, 1.5 / 2]]).double())
    torch.testing.assert_close(model.emissions_VT.exp(), torch.tensor([[2.5, 0.5], [0.5, 2.5]]).double() / 3)


def test_samples_have_the_model_s_shares() -> None:
    model = random_model(2, 3)
    tags, symbols = model.sample(2, rng.key("draws"), num=20_000)
    for tag in range(2):
        assert float((tags[:, 0] == tag).double().mean()) == pytest.approx(float(model.start_T[tag].exp()), abs=0.02)
        drawn = symbols[:, 0][tags[:, 0] == tag]
        for symbol in range(3):
            wanted = float(model.emissions_VT[symbol, tag].exp())
            assert float((drawn == symbol).double().mean()) == pytest.approx(wanted, abs=0.02)
    assert torch.equal(model.sample(2, rng.key("draws"), num=5)[0], tags[:5])


def test_nothing_to_learn_from() -> None:
    with pytest.raises(FirthError, match="needs symbols"):
        hmm.baum_welch(torch.empty(0, dtype=torch.long), torch.tensor([0]), num_tags=2, num_symbols=2)
