"""Taggers: legal tag sequences from any weights, losses equal to pytorch-crf's, confidences that are marginals."""

import itertools

import pytest
import torch

from firth.errors import FirthError
from firth.metrics import entities
from firth.nn import chain
from firth.nn.schemes import Legal, guess_scheme, legal_transitions
from firth.nn.taggers import CRFTagger, HMMTagger, MEMMTagger, SoftmaxTagger, Tagger

BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
BIOES = ["O", *(f"{p}-{kind}" for kind in ("PER", "LOC") for p in "BIES")]
BMES = ["B", "M", "E", "S"]
SETS = {"BIO": BIO, "BIOES": BIOES, "BMES": BMES}
TAGGERS = [SoftmaxTagger, MEMMTagger, CRFTagger, HMMTagger]
LEARNERS = [SoftmaxTagger, MEMMTagger, CRFTagger]


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        (BIO, "BIO"),
        (["O", "B-X"], "BIO"),
        (BIOES, "BIOES"),
        (["O", "S-X"], "BIOES"),
        (BMES, "BMES"),
        (["B", "E", "S"], "BMES"),
        (["B-n", "M-n", "E-n", "S-n", "S-v", "O"], "BMES"),
        (["O", "I-PER", "I-LOC"], "IO"),
        (["NOUN", "VERB", "X"], "none"),
        (["a", "n", "S", "O"], "none"),
        (["O"], "none"),
    ],
)
def test_guesses_the_scheme(tags: list[str], scheme: str) -> None:
    assert guess_scheme(tags) == scheme


@pytest.mark.parametrize(
    ("tags", "scheme", "words"),
    [
        (["O", "B-PER", "I-PER", "MISC"], "guess", "'MISC' does not fit"),
        (["O", "B-PER", "I-PER", "M-PER"], "guess", "mix I- .* and M-"),
        (["O", "B-PER", "I-PER", "I-LOC"], "guess", "'I-LOC' can never be used in BIO without 'B-LOC'"),
        (["O", "B-PER", "I-PER", "S-PER"], "guess", "'B-PER' can never be used in BIOES without 'E-PER'"),
        (["B", "M", "S"], "guess", "without 'E'"),
        (["B", "M", "E"], "guess", "single token"),
        (BIOES, "BIO", "'E-PER' does not belong to BIO"),
        (["O", "B-", "I-"], "BIO", "'B-' does not belong"),
        (BIO, "IOBES", "no tag scheme 'IOBES'"),
    ],
)
def test_refuses_broken_sets_with_one_sentence(tags: list[str], scheme: str, words: str) -> None:
    with pytest.raises(FirthError, match=words):
        legal_transitions(tags, scheme)


def test_rules_of_bmes() -> None:
    legal = legal_transitions(BMES)
    follows = {a: {b for b in BMES if legal.transitions_TT[BMES.index(a), BMES.index(b)]} for a in BMES}
    assert follows == {"B": {"M", "E"}, "M": {"M", "E"}, "E": {"B", "S"}, "S": {"B", "S"}}
    assert [tag for tag, may in zip(BMES, legal.start_T, strict=True) if may] == ["B", "S"]
    assert [tag for tag, may in zip(BMES, legal.end_T, strict=True) if may] == ["E", "S"]


@pytest.mark.parametrize("scheme", SETS)
def test_legal_sequences_are_those_in_which_every_mark_belongs_to_an_entity(scheme: str) -> None:
    """The rules against the entity reader: all sequences of up to 4 tags."""
    tags = SETS[scheme][:5]
    legal = legal_transitions(tags, scheme)
    for length in range(1, 5):
        for path in itertools.product(range(len(tags)), repeat=length):
            names = [tags[i] for i in path]
            covered = sum(end - start for _, start, end in entities(names, scheme))
            whole = covered == sum(name != "O" for name in names)
            broken = legal.breaks(torch.tensor(path), torch.tensor([0, length])).any()
            assert whole == (not broken), names


@pytest.mark.parametrize("kind", TAGGERS)
@pytest.mark.parametrize("scheme", SETS)
@pytest.mark.parametrize("spread", [0.1, 1e6])
def test_untrained_weights_never_break_the_rules(kind: type[Tagger], scheme: str, spread: float) -> None:
    tags = SETS[scheme]
    torch.manual_seed(0)
    tagger = kind(3, legal_transitions(tags))
    for parameter in tagger.parameters():
        torch.nn.init.normal_(parameter, std=spread)
    bounds = torch.cat([torch.zeros(1, dtype=torch.long), torch.randint(0, 15, (10_000,)).cumsum(0)])
    decoded = tagger.decode(torch.randn(int(bounds[-1]), 3), bounds)
    names = [tags[i] for i in decoded.tags_N.tolist()]
    sentences = [names[a:b] for a, b in itertools.pairwise(bounds.tolist())]
    covered = sum(end - start for sentence in sentences for _, start, end in entities(sentence, scheme))
    assert covered == sum(name != "O" for name in names)
    assert len(set(names)) >= len(tags) - 1
    assert ((decoded.confidence_N >= 0) & (decoded.confidence_N <= 1 + 1e-5)).all()


@pytest.mark.parametrize("kind", LEARNERS)
def test_learns_and_is_sure_of_it(kind: type[Tagger]) -> None:
    torch.manual_seed(0)
    states, bounds = torch.randn(12, 16), torch.tensor([0, 5, 5, 6, 12])
    tags = torch.tensor([0, 1, 2, 2, 0, 3, 3, 4, 4, 1, 2, 0])
    tagger = kind(16, legal_transitions(BIO))
    optimiser = torch.optim.Adam(tagger.parameters(), lr=0.1)
    for _ in range(80):
        optimiser.zero_grad()
        loss = tagger.loss(states, tags, bounds_B1=bounds)
        loss.backward()
        optimiser.step()
    decoded = tagger.decode(states, bounds)
    assert loss < 0.5
    assert torch.equal(decoded.tags_N, tags)
    assert decoded.confidence_N.min() > 0.8


@pytest.mark.parametrize("kind", TAGGERS)
def test_loss_is_a_sum_over_sequences(kind: type[Tagger]) -> None:
    torch.manual_seed(0)
    tagger = kind(4, legal_transitions(BIO)).double()
    states, tags = torch.randn(5, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0])
    whole = tagger.loss(states, tags, bounds_B1=torch.tensor([0, 3, 5]))
    first = tagger.loss(states[:3], tags[:3], bounds_B1=torch.tensor([0, 3]))
    second = tagger.loss(states[3:], tags[3:], bounds_B1=torch.tensor([0, 2]))
    torch.testing.assert_close(whole, first + second)


def test_crf_is_normalised_over_legal_paths_only() -> None:
    torch.manual_seed(0)
    tagger = CRFTagger(4, legal_transitions(BIO)).double()
    for parameter in tagger.parameters():
        torch.nn.init.normal_(parameter)
    states, bounds = torch.randn(3, 4, dtype=torch.float64), torch.tensor([0, 3])
    total = torch.zeros((), dtype=torch.float64)
    for path in itertools.product(range(5), repeat=3):
        tags = torch.tensor(path)
        likelihood = (-tagger.loss(states, tags, bounds_B1=bounds)).exp()
        illegal = tagger.legal.breaks(tags, bounds).any()
        assert likelihood == 0 if illegal else likelihood > 0
        total = total + likelihood
    torch.testing.assert_close(total, torch.ones((), dtype=torch.float64))


def test_crf_gradients_with_rules() -> None:
    tagger = CRFTagger(2, legal_transitions(["B", "E", "S"])).double()
    tags, bounds = torch.tensor([0, 1, 2, 2]), torch.tensor([0, 3, 4, 4])
    states = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: tagger.loss(x, tags, bounds_B1=bounds), (states,))
    tagger.loss(states, tags, bounds_B1=bounds).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in tagger.parameters())


def test_softmax_without_rules_is_the_plain_softmax() -> None:
    torch.manual_seed(0)
    tagger = SoftmaxTagger(4, legal_transitions(["NOUN", "VERB", "ADJ"]))
    states = torch.randn(6, 4)
    decoded = tagger.decode(states, torch.tensor([0, 2, 6]))
    probabilities = tagger.head(states).softmax(1)
    assert torch.equal(decoded.tags_N, probabilities.argmax(1))
    torch.testing.assert_close(decoded.confidence_N, probabilities.max(1).values)


def test_half_precision_states_are_scored_in_single() -> None:
    tagger = CRFTagger(4, legal_transitions(BIO)).bfloat16()
    scores = tagger.scores(torch.randn(3, 4).bfloat16(), torch.tensor([0, 3]))
    assert scores.unary_NT.dtype == scores.transitions.dtype == torch.float32


def test_rules_that_allow_nothing_are_named() -> None:
    none = torch.zeros(2, dtype=torch.bool)
    tagger = SoftmaxTagger(2, Legal(none, torch.zeros(2, 2, dtype=torch.bool), none))
    with pytest.raises(FirthError, match="no legal tags"):
        tagger.decode(torch.zeros(2, 2), torch.tensor([0, 2]))


def test_equal_to_pytorch_crf() -> None:
    torchcrf = pytest.importorskip("torchcrf")
    torch.manual_seed(0)
    theirs = torchcrf.CRF(5, batch_first=True).double()
    legal = legal_transitions([f"T{i}" for i in range(5)])
    ours = CRFTagger(5, legal).double()
    with torch.no_grad():
        ours.head.weight.copy_(torch.eye(5))
        ours.start_T.copy_(theirs.start_transitions)
        ours.end_T.copy_(theirs.end_transitions)
        ours.transitions_TT.copy_(theirs.transitions)
    lengths = torch.randint(1, 30, (20,))
    padded = torch.randn(20, 29, 5, dtype=torch.float64, requires_grad=True)
    tags, mask = torch.randint(0, 5, (20, 29)), torch.arange(29) < lengths[:, None]
    bounds = torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)])
    expected, found = -theirs(padded, tags, mask=mask), ours.loss(padded[mask], tags[mask], bounds_B1=bounds)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    for a, b in [(padded, padded), (theirs.transitions, ours.transitions_TT), (theirs.end_transitions, ours.end_T)]:
        (expected_grad,) = torch.autograd.grad(expected, a, retain_graph=True)
        (found_grad,) = torch.autograd.grad(found, b, retain_graph=True)
        torch.testing.assert_close(found_grad, expected_grad, rtol=1e-6, atol=1e-9)
    best = [tag for row in theirs.decode(padded, mask=mask) for tag in row]
    assert ours.decode(padded[mask], bounds).tags_N.tolist() == best
    assert chain.viterbi(ours.scores(padded[mask], bounds))[0].tolist() == best


@torch.no_grad()
def test_memm_is_a_product_of_local_choices() -> None:
    """All legal paths sum to one, and each is the product of softmaxes over the legal tags after the one before."""
    torch.manual_seed(0)
    legal = legal_transitions(["A", "B", "C"], "none", forbidden=["A B", "^ C"])
    tagger = MEMMTagger(2, legal).double()
    for parameter in tagger.parameters():
        torch.nn.init.normal_(parameter)
    states, bounds = torch.randn(4, 2, dtype=torch.float64), torch.tensor([0, 4])
    unary = tagger.unary(states)
    scores = tagger.legal_scores(states, bounds)
    total = 0.0
    for path in itertools.product(range(3), repeat=4):
        tags = torch.tensor(path)
        likely, before = 1.0, None
        for n, tag in enumerate(path):
            allowed = legal.start_T if before is None else legal.transitions_TT[before]
            given = tagger.start_T if before is None else tagger.transitions_TT[before]
            likely *= float((unary[n] + given).masked_fill(~allowed, -torch.inf).softmax(0)[tag])
            before = tag
        assert float(chain.path_score(scores, tags).exp()) == pytest.approx(likely, rel=1e-9)
        assert float((-tagger.loss(states, tags, bounds_B1=bounds)).exp()) == pytest.approx(likely, rel=1e-9)
        total += likely
    assert total == pytest.approx(1)
    assert float(chain.log_partition(scores)) == pytest.approx(0, abs=1e-9)


def test_forbidden_pairs_hold_in_training_and_decoding() -> None:
    legal = legal_transitions(["A", "B"], "none", forbidden=["A A", "B $"])
    torch.manual_seed(0)
    tagger = CRFTagger(2, legal)
    decoded = tagger.decode(torch.randn(50, 2), torch.tensor([0, 25, 50])).tags_N.tolist()
    assert decoded[24] == decoded[49] == 0
    assert (0, 0) not in itertools.pairwise(decoded[:25])
    assert tagger.loss(torch.randn(2, 2), torch.tensor([0, 0]), bounds_B1=torch.tensor([0, 2])) > 1e4
    for wrong in ("A", "A X", "^ $", "A B C"):
        with pytest.raises(FirthError, match="does not forbid"):
            legal_transitions(["A", "B"], "none", forbidden=[wrong])


@pytest.mark.parametrize("kind", TAGGERS)
def test_the_best_paths_are_the_likeliest(kind: type[Tagger]) -> None:
    torch.manual_seed(0)
    tagger = kind(5, legal_transitions(BIO), linear=False)
    states, bounds = torch.randn(7, 5), torch.tensor([0, 3, 7])
    tags_KN, likely_BK = tagger.best_unary(tagger.unary(states), bounds, k=200)
    torch.testing.assert_close(likely_BK.sum(1)[:1], torch.ones(1))
    assert (likely_BK.diff(dim=1) <= 1e-6).all()
    assert torch.equal(tags_KN[0], tagger.decode(states, bounds).tags_N)
    assert len({tuple(row) for row in tags_KN[:, :3].tolist() if -1 not in row}) == (likely_BK[0] > 0).sum()


def test_states_that_are_scores_must_be_as_wide_as_there_are_tags() -> None:
    with pytest.raises(FirthError, match="width 3 cannot be the scores of 5 tags"):
        CRFTagger(3, legal_transitions(BIO), linear=False)
