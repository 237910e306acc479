"""Passages with their places, an index on disk, questions to it, and another order by a cross-encoder."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth import models, samples
from firth.errors import BadConfig, BadInput, Unsupported
from firth.metrics.cosines import unit_vectors
from firth.models import languages_of_model
from firth.search import By
from firth.search import index as index_module
from firth.search.graph import GRAPH, Graph, GraphWriter
from firth.search.index import CANDIDATES, WORDS_SHARE, SearchIndex, build_index, to_codes, vector_width
from firth.search.passages import passage_spans, read_passages
from firth.search.ranking import rerank


@pytest.fixture(scope="module")
def prose_index(run: Path, tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    out = tmp_path_factory.mktemp("search") / "index"
    return build_index([samples.prose("en"), samples.prose("zh")], out, model=run)


def test_every_passage_is_where_it_says(prose_index: SearchIndex) -> None:
    for number in range(len(prose_index)):
        passage = prose_index.passage(number)
        line = Path(passage.file).read_text("utf-8").split("\n")[passage.line - 1]
        assert line[passage.start : passage.end] == passage.text


def test_passages_hold_all_sentences_and_end_at_their_ends() -> None:
    line = "  One is short. Two is a little longer.  Three ends here."
    spans = passage_spans(line, 40)
    assert [line[start:end] for start, end in spans] == ["One is short. Two is a little longer.", "Three ends here."]
    assert [line[start:end] for start, end in passage_spans(line, 5)] == [
        "One is short.",
        "Two is a little longer.",
        "Three ends here.",
    ]
    chinese = "今天下雨。明天不下雨。"
    assert [chinese[start:end] for start, end in passage_spans(chinese, 5)] == ["今天下雨。", "明天不下雨。"]


def test_blank_lines_have_no_passages(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("First.\n\n   \nSecond.\n")
    assert [(passage.text, passage.line) for passage in read_passages([text])] == [("First.", 1), ("Second.", 4)]


def test_a_passage_is_nearest_to_itself(prose_index: SearchIndex, run: Path) -> None:
    model = firth.load(run)
    for number in (0, 7, len(prose_index) - 1):
        text = prose_index.passage(number).text
        best = prose_index.ask(model, text, top=1, by=By.meaning)[0]
        assert best.passage.text == text
        assert best.score == pytest.approx(1.0, abs=1e-3)
        assert prose_index.ask(model, text, top=1)[0].passage.text == text


def test_the_search_equals_one_over_all_codes_at_once(
    prose_index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = prose_index.codes_ND * prose_index.scales_N[:, None] + prose_index.centre_D
    questions = unit_vectors(np.random.default_rng(1).normal(size=(5, rows.shape[1])).astype(np.float32))
    expected = np.argsort(-(questions @ rows.T), axis=1, kind="stable")[:, :7]
    monkeypatch.setattr(index_module, "BLOCK_ROWS", 10)
    numbers, scores = prose_index.nearest(questions, top=7)
    np.testing.assert_array_equal(numbers, expected)
    assert (np.diff(scores, axis=1) <= 0).all()


def test_codes_keep_cosines() -> None:
    vectors = unit_vectors(np.random.default_rng(2).normal(size=(50, 64)).astype(np.float32))
    codes, scales = to_codes(vectors)
    assert codes.dtype == np.int8
    np.testing.assert_allclose(codes * scales[:, None], vectors, atol=float(scales.max()) / 2 + 1e-7)
    zeros, _ = to_codes(np.zeros((1, 4), np.float32))
    assert not zeros.any()


def test_a_score_by_both_is_a_weighted_sum(prose_index: SearchIndex, run: Path) -> None:
    question = "Why does rain fall on the hills?"
    model = firth.load(run)
    by_words = prose_index.words.scores(question)
    [vector] = model.embed([question], normalise=True)
    cosines = prose_index.cosines(vector, np.arange(len(prose_index)))
    expected = WORDS_SHARE * by_words + (1 - WORDS_SHARE) * cosines
    with pytest.raises(BadConfig, match="at least 1"):
        prose_index.ask(model, question, top=0)
    hits = prose_index.ask(model, question, top=5)
    assert [hit.score for hit in hits] == pytest.approx(np.sort(expected)[::-1][:5], abs=1e-6)
    found_by_words = prose_index.ask(model, question, top=3, by=By.words)
    assert [hit.score for hit in found_by_words] == pytest.approx(np.sort(by_words)[::-1][:3], abs=1e-6)


@pytest.mark.parametrize("by", By)
def test_the_way_may_be_given_by_its_name(prose_index: SearchIndex, run: Path, by: By) -> None:
    """Messages say `by='meaning'`, which a caller may type."""
    model = firth.load(run)
    question = "Why does rain fall on the hills?"
    assert prose_index.ask(model, question, by=by.value) == prose_index.ask(model, question, by=by)  # type: ignore[arg-type]


def test_words_that_no_passage_has_find_nothing(
    prose_index: SearchIndex, run: Path, command: Callable[..., Any]
) -> None:
    model = firth.load(run)
    assert prose_index.ask(model, "qqq zzz", by=By.words) == []
    assert len(prose_index.ask(model, "qqq zzz", by=By.both)) == 5
    few = prose_index.ask(model, "bees", top=len(prose_index), by=By.words)
    assert 0 < len(few) < len(prose_index)
    assert all(hit.score > 0 for hit in few)
    shown = command("search", "ask", prose_index.folder, "qqq zzz", "--by", "words")
    assert (shown.code, shown.out) == (0, "")
    assert "No passage has a word of the question; ask with other words or with --by meaning." in shown.err


def test_a_large_index_has_a_graph_that_finds_what_the_exact_search_finds(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(index_module, "GRAPH_FROM", 50)
    index = build_index([samples.prose("en"), samples.prose("zh")], tmp_path / "index", model=run)
    assert index.graph is not None
    assert (tmp_path / "index" / GRAPH).exists()
    questions = firth.load(run).embed(["Why does it rain?", "Where do rivers end?", "谁养蜜蜂？"], normalise=True)
    numbers, cosines = index.nearest(questions, top=5)
    exact_numbers, exact_cosines = index.nearest(questions, top=5, exact=True)
    np.testing.assert_array_equal(numbers, exact_numbers)
    np.testing.assert_allclose(cosines, exact_cosines, atol=1e-6)


def made_vectors(seed: int, count: int) -> np.ndarray:
    """Vectors around 40 centres that are the same for every seed, as texts lie around topics."""
    centres = np.random.default_rng(0).normal(size=(40, 32))
    rng = np.random.default_rng(seed)
    near = centres[rng.integers(len(centres), size=count)]
    return unit_vectors((near + rng.normal(size=near.shape)).astype(np.float32))


def write_graph(vectors: np.ndarray, folder: Path) -> None:
    folder.mkdir()
    writer = GraphWriter(vectors.shape[1])
    for start in range(0, len(vectors), 1000):
        writer.add(vectors[start : start + 1000])
    writer.save(folder)


def test_the_candidates_of_a_graph_hold_nearly_all_of_the_nearest(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    vectors = made_vectors(1, 5000)
    questions = made_vectors(2, 100)
    write_graph(vectors, tmp_path / "graph")
    graph = Graph.open(tmp_path / "graph")
    assert graph is not None
    nearest = np.argsort(-(questions @ vectors.T), axis=1)[:, :10]
    candidates = graph.candidates(questions, CANDIDATES)
    found = [np.isin(ten, some).mean() for ten, some in zip(nearest, candidates, strict=True)]
    assert np.mean(found) > 0.97


def test_one_thread_builds_the_same_graph_again(tmp_path: Path) -> None:
    faiss = pytest.importorskip("faiss")
    vectors = made_vectors(1, 2500)
    num_threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        write_graph(vectors, tmp_path / "first")
        write_graph(vectors, tmp_path / "second")
    finally:
        faiss.omp_set_num_threads(num_threads)
    assert (tmp_path / "first" / GRAPH).read_bytes() == (tmp_path / "second" / GRAPH).read_bytes()


def test_a_question_that_the_graph_finds_too_little_for_is_searched_exactly(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("faiss")
    monkeypatch.setattr(index_module, "GRAPH_FROM", 50)
    index = build_index([samples.prose("en")], tmp_path / "index", model=run)
    questions = firth.load(run).embed(["Why does it rain?", "Where do rivers end?"], normalise=True)
    expected, _ = index.nearest(questions, top=5, exact=True)

    def almost_unconnected(questions_QD: np.ndarray, count: int) -> np.ndarray:
        numbers_QC = np.full((len(questions_QD), count), -1)
        numbers_QC[1, :5] = expected[1]
        return numbers_QC

    monkeypatch.setattr(index.graph, "candidates", almost_unconnected)
    numbers, _ = index.nearest(questions, top=5)
    np.testing.assert_array_equal(numbers, expected)


def test_without_faiss_a_large_index_is_searched_exactly(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(index_module, "GRAPH_FROM", 50)
    monkeypatch.setitem(sys.modules, "faiss", None)  # importing it fails
    index = build_index([samples.prose("en")], tmp_path / "index", model=run)
    assert index.graph is None
    assert "pip install '.[ann]'" in caplog.text
    model = firth.load(run)
    text = index.passage(3).text
    assert index.ask(model, text, top=1)[0].number == 3


def test_more_passages_than_there_are_gives_all(prose_index: SearchIndex, run: Path) -> None:
    hits = prose_index.ask(firth.load(run), "rain", top=10**6)
    assert sorted(hit.number for hit in hits) == list(range(len(prose_index)))


def test_a_cross_encoder_orders_the_hits(prose_index: SearchIndex, run: Path, tmp_path: Path) -> None:
    rows = tmp_path / "rows.tsv"
    lines = ["text_a\ttext_b\tlabel"]
    for i in range(16):
        lines.append(f"rain falls {i}\train falls {i}\t1")
        lines.append(f"rain falls {i}\tthe sun {i}\t0")
    rows.write_text("\n".join(lines) + "\n")
    changes = ("way=cross", "epochs=1")
    firth.finetune(run, task="compare", train=rows, out=tmp_path / "cross", changes=changes, device="cpu")
    cross = firth.load(tmp_path / "cross")
    question = "When does rain fall?"
    hits = prose_index.ask(firth.load(run), question, top=6)
    ordered = rerank(cross, question, hits)
    expected = [float(prediction.label) for prediction in cross.predict([[question, hit.passage.text] for hit in hits])]
    assert [hit.score for hit in ordered] == sorted(expected, reverse=True)
    assert {hit.number for hit in ordered} == {hit.number for hit in hits}


def test_a_model_that_does_not_compare_cannot_order(prose_index: SearchIndex, run: Path) -> None:
    model = firth.load(run)
    with pytest.raises(Unsupported, match="fine-tuned to compare"):
        rerank(model, "rain", prose_index.ask(model, "rain"))


def test_from_the_command_line(run: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    index = tmp_path / "index"
    built = command("search", "build", samples.prose("en"), "--model", run, "--out", index, "--json")
    assert built.code == 0, built.err
    assert json.loads(built.out)["passages"] == len(SearchIndex.open(index))
    answer = command("search", "ask", index, "When will it rain?", "--top", 3, "--json")
    hits = json.loads(answer.out)["hits"]
    assert len(hits) == 3
    assert set(hits[0]["passage"]) == {"text", "file", "line", "start", "end"}
    by_words = command("search", "ask", index, "rain", "--top", 1, "--by", "words").out
    assert "rain" in by_words.lower()
    assert "unknown to this model" in command("search", "ask", index, "ποιότητα ήταν").err
    assert "The question has no words" in command("search", "ask", index, " ").err
    shown = command("search", "ask", index, "When will it rain?", "--top", 1).out
    assert f"prose.en.txt:{hits[0]['passage']['line']}" in shown


def test_a_model_that_comes_with_firth_is_remembered_by_its_name(tmp_path: Path, with_models: Path) -> None:
    assert build_index([samples.prose("zh")], tmp_path / "index").model == "zh-small"
    named = build_index([samples.prose("en")], tmp_path / "named", model="en-small")
    assert named.model == "en-small"
    assert vector_width(named.load_model()) == named.codes_ND.shape[1]


def test_mistakes_are_one_sentence(run: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    (tmp_path / "blank.txt").write_text("\n\n")
    with pytest.raises(BadInput, match="no passages"):
        build_index([tmp_path / "blank.txt"], tmp_path / "index", model=run)
    assert not (tmp_path / "index").exists()
    with pytest.raises(BadInput, match="is not an index"):
        SearchIndex.open(tmp_path)
    assert "--out INDEX" in command("search", "build", samples.prose("en")).err
    assert "one question" in command("search", "ask", tmp_path, "two", "questions").err


def test_a_passage_whose_meaning_is_not_like_the_question_is_not_found(prose_index: SearchIndex, run: Path) -> None:
    model = firth.load(run)
    away = -prose_index.centre_D / np.linalg.norm(prose_index.centre_D)
    all_cosines = prose_index.cosines(away, np.arange(len(prose_index)))
    hits = prose_index.hits(model, "qqq zzz", away, top=len(prose_index), by=By.meaning)
    assert len(hits) == (all_cosines > 0).sum() < len(prose_index)
    hits = prose_index.hits(model, "bees", away, top=len(prose_index), by=By.both)
    by_words = prose_index.ask(model, "bees", top=len(prose_index), by=By.words)
    assert {hit.number for hit in by_words} <= {hit.number for hit in hits}
    assert len(hits) < len(prose_index)


@pytest.fixture(scope="module")
def chinese_index(tmp_path_factory: pytest.TempPathFactory) -> SearchIndex:
    if "zh-small" not in models.names():
        pytest.skip("needs zh-small")
    home = tmp_path_factory.mktemp("chinese")
    lines = ["我们用Python写程序，程序很短。", *samples.prose("zh").read_text("utf-8").splitlines()]
    (home / "text.txt").write_text("\n".join(lines), "utf-8")
    return build_index([home / "text.txt"], home / "index", model="zh-small")


def test_a_question_in_another_language_finds_only_what_has_its_words(
    chinese_index: SearchIndex, command: Callable[..., Any]
) -> None:
    model = chinese_index.load_model()
    assert chinese_index.ask(model, "Why does it rain?") == []
    assert chinese_index.ask(model, "Why does it rain?", by=By.meaning) == []
    [hit] = chinese_index.ask(model, "Who writes in Python?", top=3)
    assert "Python" in hit.passage.text
    assert len(chinese_index.ask(model, "为什么会下雨？", top=3)) == 3
    assert len(chinese_index.ask(model, "1984", top=3, by=By.meaning)) == 3  # of no language
    asked = command("search", "ask", chinese_index.folder, "Why does it rain?")
    assert (asked.code, asked.out) == (0, "")
    assert "The question is not in Chinese and the index holds Chinese text only, so nothing was found" in asked.err
    asked = command("search", "ask", chinese_index.folder, "Who writes in Python?")
    assert "Python" in asked.out
    assert "so passages are found by their words alone" in asked.err


def test_a_chinese_question_to_an_english_index_finds_nothing(tmp_path: Path, command: Callable[..., Any]) -> None:
    if "en-small" not in models.names():
        pytest.skip("needs en-small")
    built = command("search", "build", samples.prose("en"), "--out", tmp_path / "index")
    assert built.code == 0
    asked = command("search", "ask", tmp_path / "index", "为什么会下雨？")
    assert (asked.code, asked.out) == (0, "")
    assert "The question is in Chinese and the index holds no Chinese text, so nothing was found" in asked.err
    assert "Warning" not in asked.err
    asked = command("search", "ask", tmp_path / "index", "为什么会下雨？", "--json")
    assert json.loads(asked.out) == {"hits": []}


def test_a_model_of_several_languages_compares_all_of_them(run: Path, tmp_path: Path, prose_index: SearchIndex) -> None:
    model = firth.load(run)
    assert prose_index.languages == {"en", "zh"}
    english = build_index([samples.prose("en")], tmp_path / "index", model=run)
    assert english.languages == {"en"}
    assert languages_of_model({}, model.tokenizer.vocab.ids) == ["en", "zh"] == model.languages
    assert len(english.ask(model, "为什么会下雨？", top=3)) == 3
    assert model.languages is model.languages  # found once, not for every question


def test_answers_are_cut_unless_whole_ones_are_asked_for(
    prose_index: SearchIndex, run: Path, command: Callable[..., Any]
) -> None:
    question = "Why does rain fall on the hills?"
    hits = prose_index.ask(firth.load(run), question, top=3)
    asked = ("search", "ask", prose_index.folder, question, "--top", 3)
    cut = command(*asked).out.splitlines()
    whole = command(*asked, "--whole").out.splitlines()
    rows = json.loads(command(*asked, "--json").out)["hits"]
    assert [row["passage"]["text"] for row in rows] == [hit.passage.text for hit in hits]
    assert any(len(hit.passage.text) > 200 for hit in hits)
    for hit, line, long_line in zip(hits, cut, whole, strict=True):
        place = f"{hit.passage.file}:{hit.passage.line}"
        assert long_line == f"{hit.score:7.4f}  {place}  {hit.passage.text}"
        assert line.startswith(f"{hit.score:7.4f}  {place}  ")
        assert len(line) <= len(f"{hit.score:7.4f}  {place}  ") + 94


def test_a_word_that_no_passage_has_hides_no_other(prose_index: SearchIndex, command: Callable[..., Any]) -> None:
    """It would weigh most of all, and nothing else would be looked for."""
    weights = prose_index.words.weights("people xyzzy")
    assert 2 * weights["people"] < weights["xyzzy"]
    asked = ("search", "ask", prose_index.folder)
    options = ("--by", "words", "--top", 5)
    shown = [row.split(maxsplit=2)[2] for row in command(*asked, "people", *options).out.splitlines()]
    assert any(text.startswith("…") for text in shown)
    assert [row.split(maxsplit=2)[2] for row in command(*asked, "people xyzzy", *options).out.splitlines()] == shown


def test_options_of_other_actions_are_refused(prose_index: SearchIndex, command: Callable[..., Any]) -> None:
    refused = command("search", "ask", prose_index.folder, "Why?", "--out", "found.txt")
    assert (refused.code, "leave out --out and --model" in refused.err) == (2, True)
