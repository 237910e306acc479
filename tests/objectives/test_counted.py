"""tf-idf, LSA and LDA through `pretrain` and `embed`, against scikit-learn on the same words."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.decomposition import LatentDirichletAllocation, TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

import firth
from firth import objectives, rng, samples
from firth.data.documents import count_words
from firth.data.shards import Shards
from firth.data.stream import CorpusView
from firth.encoders.tables import StaticConfig, TopicsConfig
from firth.encoders.topics import Topics
from firth.errors import BadConfig, BadInput
from firth.objectives.lda import Lda, expected, tallies
from firth.objectives.lsa import Lsa
from firth.tokenizers.wordpiece import WordPiece


@pytest.fixture(scope="module")
def lines() -> list[str]:
    """English and Chinese lines, each a document."""
    found = [line for name in ("en", "zh") for line in samples.prose(name).read_text("utf-8").splitlines()]
    return list(dict.fromkeys(line.strip() for line in found if len(line.strip()) > 20))


@pytest.fixture(scope="module")
def text(lines: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lines") / "text.txt"
    path.write_text("\n\n".join(lines), "utf-8")
    return path


@pytest.fixture(scope="module")
def tf_idf(text: Path) -> Path:
    firth.pretrain(text, out=text.parent / "tf-idf", recipe="tf-idf", min_count=1, threads=1)
    return text.parent / "tf-idf"


def counts_of(model: firth.Model, lines: list[str]) -> np.ndarray:
    words = model.tokenizer.vocab.tokens[5:]
    counter = CountVectorizer(
        vocabulary=list(words), tokenizer=model.tokenizer.words, token_pattern=None, lowercase=False
    )
    return counter.fit_transform(lines)


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_tf_idf_is_scikit_learns(tf_idf: Path, lines: list[str]) -> None:
    model = firth.load(tf_idf)
    theirs = TfidfTransformer().fit_transform(counts_of(model, lines)).toarray()
    ours = model.embed([*lines, "never met words 青"], pooling="mean")
    assert np.allclose(unit(ours[:-1])[:, 5 : 5 + theirs.shape[1]], theirs, atol=1e-5)


def test_bag_of_words_and_one_hot_are_plain_settings(text: Path, lines: list[str], tmp_path: Path) -> None:
    firth.pretrain(text, out=tmp_path / "run", recipe="tf-idf", min_count=1, changes=["objectives.tf_idf.idf=none"])
    model = firth.load(tmp_path / "run")
    counts = counts_of(model, lines).toarray()
    lengths = np.array([[len(model.tokenizer.words(line))] for line in lines])
    columns = slice(5, 5 + counts.shape[1])
    assert np.allclose(model.embed(lines)[:, columns] * lengths, counts, atol=1e-4)
    assert np.array_equal(model.embed(lines, pooling="max")[:, columns], counts > 0)


def test_a_long_text_in_windows_is_the_same_bag(tf_idf: Path, lines: list[str]) -> None:
    model = firth.load(tf_idf)
    long = " ".join(lines)
    assert len(model.tokenizer.words(long)) > 3 * model.encoder.max_positions
    counts = counts_of(model, [long]).toarray()
    wanted = unit(counts * model.encoder.weight_V.detach().numpy()[5 : 5 + counts.shape[1]])
    assert np.allclose(unit(model.embed([long]))[:, 5 : 5 + counts.shape[1]], wanted, atol=1e-5)


def test_lsa_is_scikit_learns(text: Path, lines: list[str], tmp_path: Path) -> None:
    figures = firth.pretrain(
        text,
        out=tmp_path / "run",
        recipe="lsa",
        min_count=1,
        width=20,
        threads=1,
        changes=["objectives.lsa.num_iterations=60"],
    )
    model = firth.load(tmp_path / "run")
    matrix = TfidfTransformer().fit_transform(counts_of(model, lines))
    svd = TruncatedSVD(20, algorithm="arpack").fit(matrix)
    theirs, ours = unit(svd.transform(matrix)), unit(model.embed(lines))
    signs = np.sign((theirs * ours).sum(0))
    assert np.allclose(theirs * signs, ours, atol=1e-2)
    assert figures["share_of_variation"] == pytest.approx(
        (svd.singular_values_**2).sum() / matrix.power(2).sum(), rel=1e-4
    )


def stream_of(shards: Shards) -> CorpusView:
    return CorpusView(shards, np.arange(shards.num_documents))


def test_lda_steps_are_scikit_learns(shards: Shards, tokenizer: WordPiece) -> None:
    """One pass over all documents at once from the same start: the same topics, the same mixtures."""
    torch.manual_seed(1)
    counts = count_words(stream_of(shards), 1200, without=tokenizer.vocab.specials)
    encoder = Topics(Topics.Config(vocab_size=1200, width=6, num_iterations=300, init_std=0.3))
    matrix = np.zeros((len(counts), 1200))
    matrix[counts.owners_M, counts.words_M] = counts.counts_M
    start = 0.05 + 10 * rng.uniform(rng.key("lambda"), np.arange(6)[:, None], np.arange(1200)) ** 8
    theirs = LatentDirichletAllocation(6, max_doc_update_iter=2000, mean_change_tol=1e-7, random_state=0)
    theirs.fit(matrix)  # only to have all its attributes; its topics are then set
    theirs.components_ = start
    theirs.exp_dirichlet_component_ = expected(torch.from_numpy(start.T)).numpy().T
    with torch.no_grad():
        encoder.table.weight.copy_(expected(torch.from_numpy(start.T).float()))
        _, gamma = encoder.posterior(
            encoder.table(torch.from_numpy(counts.words_M).long()),
            torch.from_numpy(counts.owners_M),
            len(counts),
            torch.from_numpy(counts.counts_M).float(),
        )
        said = tallies(encoder, counts).numpy().T
    mixtures, wanted_said = theirs._e_step(matrix, cal_sstats=True, random_init=False)
    assert np.allclose(unit(gamma.numpy()), unit(mixtures), atol=5e-3)
    assert np.allclose(said, wanted_said, rtol=0.05, atol=0.02)


def test_lda_finds_topics_that_made_the_text(tmp_path: Path) -> None:
    """Documents that speak of one of two things; the mixtures tell which."""
    key = rng.key("topics")
    sides = ("frog pond water reed lily dragonfly", "bond market rate bank share broker")
    draws = rng.below(key, 6, np.arange(80)[:, None], np.arange(30))
    rows = [" ".join(sides[i % 2].split()[j] for j in row) for i, row in enumerate(draws)]
    (tmp_path / "text.txt").write_text("\n\n".join(rows))
    firth.pretrain(
        tmp_path / "text.txt", out=tmp_path / "run", recipe="lda", width=2, epochs=20, min_count=1, threads=1,
        changes=["objectives.lda.documents=16"],
    )  # fmt: skip
    mixtures = firth.load(tmp_path / "run").embed(["frog water lily", "bank rate", "pond reed broker share"])
    assert np.allclose(mixtures.sum(1), 1, atol=1e-4)
    assert mixtures[0].argmax() != mixtures[1].argmax()
    assert mixtures[:2].max(1).min() > 0.9
    assert mixtures[2].max() < 0.9


def test_objectives_refuse_what_they_cannot_fill(shards: Shards, tokenizer: WordPiece) -> None:
    static, topics = StaticConfig(vocab_size=1200, width=500), TopicsConfig(vocab_size=1200, width=3)
    for name, shape in (("tf_idf", static), ("lsa", topics), ("lda", static), ("glove", topics), ("skip_gram", topics)):
        with pytest.raises(BadConfig, match="its encoder must be"):
            objectives.resolve(name)(None, shape, tokenizer=tokenizer, seed=1)
    with pytest.raises(BadInput, match="too few for 500 dimensions"):
        Lsa(Lsa.Config(), static, tokenizer=tokenizer, seed=1).solve(stream_of(shards), report=print)
    with pytest.raises(BadConfig, match="decay"):
        Lda.Config(decay=0.5)
