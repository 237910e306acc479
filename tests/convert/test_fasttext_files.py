"""fastText's own files, written in the test by the fasttext program."""

import re
from pathlib import Path

import fasttext
import numpy as np
import pytest

import firth
from firth import rng
from firth.convert.fasttext import is_fasttext, read_fasttext
from firth.errors import BadInput, Unsupported
from firth.inference.lexicon import open_lexicon

WORDS = ["the", "frog", "sat", "青蛙", "在", "池塘", "里", "dog", "cat", "ran", "naïve"]
# fastText 0.9.2 fills a tenth of its matrix for each thread; with fewer than ten threads the rest is what memory held.
SMALL = {"dim": 10, "bucket": 50, "epoch": 1, "thread": 10, "verbose": 0, "minCount": 1}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draws = rng.below(rng.key("fasttext"), len(WORDS), np.arange(200)[:, None], np.arange(12))
    labels = rng.below(rng.key("labels"), 3, np.arange(200))
    lines = [f"__label__{'abc'[i]} {' '.join(WORDS[j] for j in row)}" for i, row in zip(labels, draws, strict=True)]
    path = tmp_path_factory.mktemp("fasttext") / "text.txt"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.fixture(scope="module")
def model(text: Path) -> Path:
    path = text.parent / "model.bin"
    fasttext.train_unsupervised(str(text), model="skipgram", **SMALL).save_model(str(path))
    return path


def test_an_unsupervised_model(model: Path) -> None:
    theirs, ours = fasttext.load_model(str(model)), read_fasttext(model)
    assert is_fasttext(model)
    assert (ours.model, ours.loss, ours.width, ours.num_buckets) == ("skip-gram", "negative", 10, 50)
    assert (ours.min_ngram, ours.max_ngram, ours.word_ngrams) == (3, 6, 1)
    words, counts = theirs.get_words(include_freq=True)
    assert ours.words == words
    assert ours.word_counts.tolist() == counts.tolist()
    assert np.array_equal(ours.input_VD, theirs.get_input_matrix())
    assert np.array_equal(ours.output_TD, theirs.get_output_matrix())


@pytest.mark.parametrize("loss", ["softmax", "hs", "ova", "ns"])
def test_a_supervised_model(text: Path, loss: str) -> None:
    path = text.parent / f"{loss}.bin"
    fasttext.train_supervised(str(text), loss=loss, wordNgrams=2, **SMALL).save_model(str(path))
    theirs, ours = fasttext.load_model(str(path)), read_fasttext(path)
    names = {"softmax": "softmax", "hs": "hierarchical", "ova": "ova", "ns": "negative"}
    assert (ours.model, ours.loss, ours.word_ngrams, ours.max_ngram) == ("supervised", names[loss], 2, 0)
    labels, counts = theirs.get_labels(include_freq=True)
    assert ours.labels == labels
    assert ours.label_counts.tolist() == counts.tolist()
    assert np.array_equal(ours.input_VD, theirs.get_input_matrix())
    assert np.array_equal(ours.output_TD, theirs.get_output_matrix())


def test_a_quantised_model_is_refused(text: Path) -> None:
    path = text.parent / "quantised.ftz"
    trained = fasttext.train_supervised(str(text), wordNgrams=2, **{**SMALL, "bucket": 300})
    trained.quantize(input=str(text), dsub=2, verbose=0)
    trained.save_model(str(path))
    with pytest.raises(Unsupported, match=r"quantised\.ftz .*quantised"):
        read_fasttext(path)


def test_files_cut_short_and_changed(model: Path, tmp_path: Path) -> None:
    whole, path = model.read_bytes(), tmp_path / "cut.bin"
    for cut in [9, 50, 70, 120, 300, len(whole) - 500, len(whole) - 1]:
        path.write_bytes(whole[:cut])
        with pytest.raises(BadInput, match=f"ends at byte {cut:,}, within its"):
            read_fasttext(path)
    path.write_bytes(whole[:4] + (13).to_bytes(4, "little") + whole[8:])
    with pytest.raises(Unsupported, match="format 13"):
        read_fasttext(path)
    path.write_bytes(whole[:8] + (9).to_bytes(4, "little") + whole[12:])
    with pytest.raises(BadInput, match="settings a width of 9"):
        read_fasttext(path)
    assert not is_fasttext(Path(__file__))


def test_an_imported_model_gives_the_programs_vectors(model: Path, tmp_path: Path) -> None:
    theirs = fasttext.load_model(str(model))
    firth.import_model(model, out=tmp_path / "ours")
    loaded, lexicon = firth.load(tmp_path / "ours"), open_lexicon(tmp_path / "ours")
    for word in ("frog", "青蛙", "naïve", "unseen", "青蛙池", "x"):
        wanted = theirs.get_word_vector(word)
        if len(loaded.tokenizer.words(word)) == 1:
            assert np.allclose(loaded.embed([word])[0], wanted, atol=1e-6)
        assert np.allclose(lexicon.vector(word), wanted / np.linalg.norm(wanted), atol=1e-5)
    wanted = [(word, score) for score, word in theirs.get_nearest_neighbors("frog", 3)]
    found = firth.load(tmp_path / "ours").neighbours("frog", top=3)
    assert [word for word, _ in found] == [word for word, _ in wanted]
    assert np.allclose([score for _, score in found], [score for _, score in wanted], atol=1e-5)


@pytest.mark.parametrize("loss", ["softmax", "hs", "ova", "ns"])
def test_an_imported_classifier_gives_the_programs_probabilities(text: Path, loss: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    settings = {**SMALL, "epoch": 20, "lr": 1.0}
    fasttext.train_supervised(str(text), loss=loss, wordNgrams=3, minn=2, maxn=3, **settings).save_model(str(path))
    theirs = fasttext.load_model(str(path))
    firth.import_model(path, out=tmp_path / "ours")
    texts = ["frog cat ran", "青蛙 在 unseen frog", "", "the the the 池塘", "nothing known here"]
    for given, said in zip(texts, firth.load(tmp_path / "ours").predict(texts), strict=True):
        wanted = {name.removeprefix("__label__"): p for p, name in theirs.f.predict(given + "\n", 3, 0.0, "strict")}
        # The program adds 1e-5 to a softmax and looks a sigmoid up in a table of 512 steps.
        assert said.probabilities == pytest.approx(wanted, abs=0.01 if loss in ("ova", "ns") else 2e-5)
    if loss in ("softmax", "hs"):
        assert said.label == max(wanted, key=wanted.__getitem__)


@pytest.mark.parametrize(("matrix", "row", "name"), [("input", 2, "word"), ("input", 30, ""), ("output", 1, "label")])
def test_a_matrix_with_nan_is_refused(text: Path, matrix: str, row: int, name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    fasttext.train_supervised(str(text), minn=2, maxn=3, **SMALL).save_model(str(path))
    read = read_fasttext(path)
    ends = {"output": read.output_TD.nbytes, "input": read.output_TD.nbytes + 17 + read.input_VD.nbytes}
    data = bytearray(path.read_bytes())
    place = len(data) - ends[matrix] + 4 * (10 * row + 3)
    data[place : place + 4] = np.float32(np.nan).tobytes()
    path.write_bytes(data)
    named = {"word": read.words, "label": read.labels}
    shown = f" ({named[name][row]!r})" if name else ""
    says = f"row {row + 1} of its {matrix} matrix{shown} holds NaN or infinity, and no row of a .bin file can be left"
    with pytest.raises(BadInput, match=re.escape(says)):
        firth.import_model(path, out=tmp_path / "ours", skip_bad=True)
    assert not (tmp_path / "ours").exists()


def test_the_program_takes_our_vec_as_pretrained(text: Path, model: Path, tmp_path: Path) -> None:
    firth.import_model(model, out=tmp_path / "ours")
    firth.export(tmp_path / "ours", out=tmp_path / "ours.vec", kind="vec")
    # With a rate of zero nothing moves, so what comes back is what was taken.
    settings = {**SMALL, "lr": 0.0, "bucket": 0, "pretrainedVectors": str(tmp_path / "ours.vec")}
    taken = fasttext.train_supervised(str(text), **settings)
    ours = firth.load(tmp_path / "ours").embed(WORDS)
    found = np.stack([taken.get_word_vector(word) for word in WORDS])
    assert np.allclose(found, ours, atol=1e-6)
    assert np.abs(found).max() > 1e-3
