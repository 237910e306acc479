"""Taggers over features, from a file to predictions: segmentation, tagging, entities; what goes wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import firth
from firth.data.shards import Shards
from firth.errors import FirthError

pytest.importorskip("numba")

WORDS = [
    "我们 在 图书馆 看 书 。", "他们 在 家 看 电视 。", "我 在 图书馆 。", "他 的 书 在 家 。", "我们 的 家 在 上海 。",
    "她 在 上海 看 书 。", "电视 在 家 。", "他们 的 图书馆 在 上海 。", "我 看 他 的 书 。", "她 的 电视 在 图书馆 。",
]  # fmt: skip
TAGGED = [
    "I/PRO see/V the/D old/A house/N ./.", "She/PRO sees/V a/D red/A car/N ./.", "We/PRO saw/V the/D car/N ./.",
    "He/PRO has/V a/D house/N ./.", "They/PRO have/V red/A houses/N ./.", "I/PRO have/V the/D old/A car/N ./.",
]  # fmt: skip
ENTITIES = "John B-PER\nSmith I-PER\nlives O\nin O\nParis B-LOC\n. O\n\nMary B-PER\nsaw O\nLondon B-LOC\n. O\n\n" * 5


@pytest.fixture
def tune(tmp_path: Path) -> Callable[..., Path]:
    def call(text: str, name: str = "run", *, changes: tuple[str, ...] = (), **options: Any) -> Path:
        train = tmp_path / f"{name}.txt"
        train.write_text(text, "utf-8")
        out = tmp_path / name
        firth.finetune(
            task="tag", train=train, dev=train, test=train, out=out, encoder="bag", changes=changes, **options
        )
        return out

    return call


@pytest.mark.parametrize("tagger", ["hmm", "memm", "crf", "softmax"])
def test_a_segmenter_gives_lines_back_as_words(tune: Callable[..., Path], command: Any, tagger: str) -> None:
    run = tune("\n".join(WORDS * 3), tagger=tagger, format="words")
    figures = json.loads((run / "results.json").read_text())["tasks"]["tag"]["figures"]["test"]
    least = 0.7 if tagger == "hmm" else 0.95
    assert figures["f1"]["mean"] > least
    assert figures["iv_recall"]["mean"] > least
    lines = run.parent / "lines.txt"
    lines.write_text("我们在上海看电视。\n\n他 在家。\n", "utf-8")
    answer = command("predict", run, "--file", lines)
    assert answer.code == 0
    shown = answer.out.split("\n")
    assert [line.replace(" ", "") for line in shown[:3]] == ["我们在上海看电视。", "", "他在家。"]
    assert shown[2].startswith("他 ")
    if tagger == "crf":
        assert shown[0] == "我们 在 上海 看 电视 。"
    loaded = firth.load(run)
    assert [" ".join(words) for words in loaded.segment(["我们在上海看电视。", "", "他 在家。"])] == shown[:3]
    row = json.loads(command("predict", run, "我们在家", "--json").out)
    assert "".join(span["text"] for span in row["spans"]) == "我们在家"
    assert all(0 < span["probability"] <= 1 for span in row["spans"])


def test_a_segmenter_without_rules_for_its_tags_loses_no_text(tune: Callable[..., Path]) -> None:
    changes = ("tasks.tag.scheme=none", "tasks.tag.iterations=20")
    model = firth.load(tune("\n".join(WORDS * 2), tagger="softmax", format="words", changes=changes))
    # Texts that end inside a word, at their end or at a space.
    texts = ["我们在图", "我", "他们 在图 书馆", "上 海电"]
    words = model.segment(texts)
    assert ["".join(row) for row in words] == [text.replace(" ", "") for text in texts]
    predictions = model.predict(texts)
    assert [prediction.text for prediction in predictions] == [" ".join(row) for row in words]
    assert not any(" " in span.text for prediction in predictions for span in prediction.spans)


def test_a_line_of_50_000_characters(tune: Callable[..., Path], command: Any, tmp_path: Path) -> None:
    run = tune("\n".join(WORDS * 2), tagger="crf", format="words", changes=("tasks.tag.iterations=20",))
    text = "我们在图书馆看书。" * 5556
    (tmp_path / "long.txt").write_text(text + "\n", "utf-8")
    answer = command("predict", run, "--file", tmp_path / "long.txt")
    assert len(text) > 50_000
    assert answer.out.replace(" ", "") == text + "\n"
    assert answer.out.startswith("我们 在 图书馆 看 书 。 我们")
    assert answer.out.endswith("图书馆 看 书 。\n")


def test_a_crf_over_vectors_sees_the_neighbours(tmp_path: Path, command: Any) -> None:
    train = tmp_path / "train.txt"
    train.write_text("\n".join(WORDS * 3), "utf-8")
    options = ("--task", "tag", "--tagger", "crf", "--encoder", "static", "--format", "words", "--dev", train)
    sizes = ("tasks.tag.lstm_width=8", "static.width=8", "tasks.tag.dropout=0")
    changes = (*sizes, "epochs=6", "batch_size=2", "train.optim.rate=0.02")
    done = command("finetune", *options, "--train", train, "--out", tmp_path / "run", *changes)
    assert done.code == 0, done.err
    figures = json.loads((tmp_path / "run" / "results.json").read_text())["tasks"]["tag"]["figures"]["dev"]
    assert figures["f1"]["mean"] > 0.95  # 在 and 书 are words or parts of words: no vector alone can tell
    assert command("predict", tmp_path / "run", "我们在上海看电视。").out == "我们 在 上海 看 电视 。\n"
    model = firth.load(tmp_path / "run")
    assert model.segment([]) == []
    assert model.segment(["我们在家", ""]) == [["我们", "在", "家"], []]
    (tmp_path / "long.txt").write_text("我们在图书馆看书。" * 5556 + "\n\n他在家。\n", "utf-8")
    long, empty, short, _ = command("predict", tmp_path / "run", "--file", tmp_path / "long.txt").out.split("\n")
    assert (long.replace(" ", ""), empty, short) == ("我们在图书馆看书。" * 5556, "", "他 在 家 。")


@pytest.mark.parametrize(("mode", "head"), [("full", "lstm"), ("features", "linear")])
def test_trained_vectors_tag_words(tmp_path: Path, mode: str, head: str) -> None:
    lines = [" ".join(word.rpartition("/")[0] for word in line.split()) for line in TAGGED]
    (tmp_path / "text.txt").write_text("\n".join(lines * 8))
    (tmp_path / "tagged.txt").write_text("\n".join(TAGGED * 4))
    vectors = tmp_path / "vectors"
    firth.pretrain(tmp_path / "text.txt", out=vectors, recipe="word2vec-sg-ns", epochs=2, min_count=1, threads=1)
    frozen = ("transfer.mode=features", "transfer.features.layers=[0]", "transfer.features.lstm_width=8")
    run, train = tmp_path / "run", tmp_path / "tagged.txt"
    changes = ("epochs=9", "batch_size=2", "train.optim.rate=0.02", *(frozen if mode == "features" else ()))
    firth.finetune(vectors, task="tag", tagger="crf", format="tagged", train=train, dev=train, out=run, changes=changes)
    assert f'head = "{head}"' in (run / "run.toml").read_text()
    prediction = firth.load(run).predict(["We have a red house ."])[0]
    assert prediction.label == ("PRO", "V", "D", "A", "N", ".")


@pytest.mark.parametrize("tagger", ["hmm", "crf"])
def test_words_are_given_back_with_their_tags(tune: Callable[..., Path], command: Any, tagger: str) -> None:
    run = tune("\n".join(TAGGED * 4), tagger=tagger, format="tagged")
    answer = command("predict", run, "We have a red house .")
    assert answer.out == "We/PRO have/V a/D red/A house/N ./.\n"
    assert command("evaluate", run, "--data", run.parent / "run.txt", "--json").out.startswith('{"rows": 24')


def test_entities_by_features_and_in_the_usual_loop(tune: Callable[..., Path], command: Any) -> None:
    solved = tune(ENTITIES, "solved", tagger="crf")
    assert "Mary [PER 0-4" in command("predict", solved, "Mary lives in Paris .").out
    assert command("predict", solved, "lives in").out == "(none)\n"
    looped = tune(
        ENTITIES, "looped", tagger="crf", changes=("tasks.tag.solver=loop", "epochs=30", "train.optim.rate=0.1")
    )
    assert "Mary [PER 0-4" in command("predict", looped, "Mary lives in Paris .").out


def test_the_likeliest_sequences_with_their_probabilities(tune: Callable[..., Path], command: Any) -> None:
    run = tune("\n".join(WORDS * 3), tagger="crf", format="words", changes=("tasks.tag.l2=1",))
    rows = [
        line.split("\t") for line in command("predict", run, "我们在家", "他 在家", "", "--best", "5").out.splitlines()
    ]
    by_input = {number: [(float(p), text) for n, p, text in rows if n == number] for number in "123"}
    assert by_input["1"][0][1] == "我们 在 家"
    assert len({text for _, text in by_input["1"]}) == 5
    assert [p for p, _ in by_input["1"]] == sorted((p for p, _ in by_input["1"]), reverse=True)
    assert [text for _, text in by_input["2"]] == ["他 在 家", "他 在家"]  # a space is a border on every path
    assert sum(p for p, _ in by_input["2"]) == pytest.approx(1, abs=1e-3)
    assert by_input["3"] == [(1.0, "")]
    row = json.loads(command("predict", run, "我们在家", "--best", "2", "--json").out.splitlines()[1])
    assert (row["input"], row["text"]) == (1, by_input["1"][1][1])
    refused = command("predict", run, "我们在家", "--best", "0")
    assert (refused.code, "1 to 100 best sequences" in refused.err) == (2, True)


def test_l1_leaves_few_weights(tune: Callable[..., Path]) -> None:
    dense = firth.load(tune("\n".join(WORDS * 3), "dense", tagger="crf", format="words"))
    sparse = firth.load(
        tune("\n".join(WORDS * 3), "sparse", tagger="crf", format="words", changes=("tasks.tag.l1=0.5",))
    )
    share = [float((model.encoder.table.weight != 0).float().mean()) for model in (dense, sparse)]
    assert share[1] < 0.3 < share[0]
    assert sparse.segment(["我们在家。"]) == [["我们", "在", "家", "。"]]


def test_templates_and_rules_of_one_s_own(tune: Callable[..., Path]) -> None:
    changes = ('templates.templates=["%x[0,unit]/%x[1,unit]"]', 'tasks.tag.forbidden=["S S"]')
    model = firth.load(
        tune("\n".join(["我们 在 图书馆", "他们 看 电视"] * 5), tagger="crf", format="words", changes=changes)
    )
    assert model.tokenizer.templates == ("%x[0,unit]/%x[1,unit]",)  # type: ignore[attr-defined]
    assert "SS" not in "".join(model.predict(["我在看书他来了"])[0].label)


@pytest.mark.parametrize(
    ("text", "options", "says"),
    [
        ("a O\nb X-PER\nc B-PER\n", {}, "'X-PER' does not fit with 'B-PER'"),
        ("a O\nb B-PER\n\nc I-PER\nd O\n" * 3, {}, r"run\.txt, row 4: word 1: I-PER after the start is illegal in BIO"),
        ("a O\nb B-PER\n\nc\nd\n" * 3, {}, r"run\.txt, row 4: a word without its columns"),
        ("a x O\nb y B-PER\n\nc z O\nd O\n" * 3, {"tag_column": 3}, r"run\.txt, row 5: 2 columns where 3 are needed"),
        ("a x O\nb y B-PER\n\nc z O\nd O\n" * 3, {}, r"run\.txt, row 5: 2 columns where the file's first row has 3"),
        ("I/P see/V\nno tags here\n", {"format": "tagged"}, r"run\.txt, row 2: word 1 \(no\) has no tag"),
        (
            "我们 在\n" + "很" * 100_001 + "\n",
            {"format": "words"},
            r"run\.txt, row 2: a sentence of 100,001 characters",
        ),
        ("\n\n", {"format": "words"}, r"run\.txt has no row that can be used"),
    ],
)
def test_bad_input_is_told_with_its_line(
    tune: Callable[..., Path], text: str, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(FirthError, match=says):
        tune(text, tagger="crf", **options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"encoder": "bag", "task": "classify"}, "use it with `task='tag'`"),
        ({"encoder": "static", "task": "classify"}, "use it with `task='tag'`"),
        ({"encoder": "static", "tagger": "hmm"}, "add `encoder='bag'`"),
        ({"tagger": "hmm"}, "add `encoder='bag'`"),
        ({"encoder": "bag", "tagger": "hmm", "changes": ["tasks.tag.solver=lbfgs"]}, "go together"),
        ({"encoder": "bag", "model": "somewhere"}, "leave one out"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    (tmp_path / "train.txt").write_text("\n".join(WORDS), "utf-8")
    (tmp_path / "train.tsv").write_text("text\tlabel\ngood\ta\nbad\tb\n" * 5)
    asked = {"task": "tag", "format": "words", **options}
    if asked["task"] == "classify":
        del asked["format"]
    train = tmp_path / ("train.tsv" if asked["task"] == "classify" else "train.txt")
    model = asked.pop("model", None)
    with pytest.raises(FirthError, match=says):
        firth.finetune(model, train=train, out=tmp_path / "run", **asked)


def test_word_borders_of_prepared_text_from_our_own_segmenter(tune: Callable[..., Path], tmp_path: Path) -> None:
    run = tune("\n".join(["图书 馆里 看书", "图书 馆里 来人"] * 10), tagger="crf", format="words")
    text = tmp_path / "text.txt"
    text.write_text("图书馆里看书。\n\n图书馆里来人 A cat.\n", "utf-8")
    firth.prepare(text, out=tmp_path / "usual", vocab_size=11, processes=0)
    firth.prepare(text, out=tmp_path / "own", tokenizer=tmp_path / "usual" / "tokenizer", segmenter=run)
    usual, own = (Shards.open(tmp_path / name) for name in ("usual", "own"))
    assert own.ids[:].tolist() == usual.ids[:].tolist()
    starts = own.word_starts(np.arange(len(own.ids))).tolist()
    assert starts[:6] == [True, False, True, False, True, False]
    assert usual.word_starts(np.arange(len(usual.ids))).tolist()[:3] == [True, False, False]
    tagger = tune("\n".join(TAGGED), "pos", tagger="hmm", format="tagged")
    with pytest.raises(FirthError, match="not fine-tuned on segmented text"):
        firth.prepare(text, out=tmp_path / "none", vocab_size=11, segmenter=tagger)


@pytest.mark.parametrize(("pairs", "most", "sparse"), [("all", 0, False), ("auto", 0, True), ("auto", 1 << 24, False)])
def test_pairs_that_never_occur_have_no_weight_where_there_would_be_too_many(
    tune: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, pairs: str, most: int, sparse: bool
) -> None:
    monkeypatch.setattr("firth.finetuning.chains.MOST_PAIRS", most)
    run = tune("\n".join(TAGGED * 4), tagger="memm", format="tagged", changes=(f"tasks.tag.pairs={pairs}",))
    model = firth.load(run)
    table = model.checkpoint.encoder.table.weight.detach().numpy()
    share_of_zeros = float((table[table.any(axis=1)] == 0).mean())
    assert (share_of_zeros > 0.5) is sparse
    prediction = model.predict(["We have a red house ."])[0]
    assert prediction.label == ("PRO", "V", "D", "A", "N", ".")


def test_features_are_joined_without_a_copy_where_they_lie_in_a_row() -> None:
    from firth.finetuning.chains import _end_to_end

    whole = np.arange(20, dtype=np.int32)
    neighbours = [whole[:5], whole[5:5], whole[5:12]]
    joined = _end_to_end(neighbours)
    assert joined.tolist() == list(range(12))
    assert np.shares_memory(joined, whole)
    for apart in ([whole[5:12], whole[:5]], [whole[:5], whole[6:12]], [whole[:5], np.arange(5, 12)]):
        found = _end_to_end(apart)
        assert found.tolist() == [number for piece in apart for number in piece.tolist()]
        assert not np.shares_memory(found, whole)
