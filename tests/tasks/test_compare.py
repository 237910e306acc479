"""Comparing: kinds of rows, siamese, cross and pooled ways, their losses, whitening, rankings, the served vectors."""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth import checkpoint as checkpoints
from firth import samples
from firth.checkpoint import Checkpoint, make_head
from firth.encoders.bert import Bert
from firth.errors import BadConfig, BadInput, Unsupported
from firth.finetuning import labelled
from firth.finetuning.labelled import Labelled
from firth.inference.model import load
from firth.nn import similarity
from firth.tasks import scorer_of
from firth.tasks.compare import CompareConfig, CompareHead, CompareReader, text_vectors
from firth.tasks.compare_scores import fit_whitening, with_vectors
from firth.tasks.negatives import ignored_negatives
from firth.tasks.predicting import predict
from firth.tokenizers.wordpiece import WordPiece
from firth.types import Example, Prediction

LABELS = "text_a\ttext_b\tlabel\nA cat sat.\tThe cat sat.\t1\nA cat sat.\tIt rained.\t0\nDogs ran.\tA dog ran.\t1\n"
TRIPLETS = "anchor\tpositive\tnegative\nA cat sat.\tThe cat sat.\tIt rained.\nDogs ran.\tA dog ran.\tThe cat sat.\n"
POSITIVES = "anchor\tpositive\nA cat sat.\tThe cat sat.\nDogs ran.\tA dog ran.\nIt rained.\tRain fell.\n"
SCORES = "first\tsecond\tscore\nA cat sat.\tThe cat sat.\t4.5\nA cat sat.\tIt rained.\t0.5\nDogs ran.\tA dog ran.\t5\n"
Made = tuple[CompareHead, Bert, Labelled]
Make = Callable[..., Made]


@pytest.fixture
def make(small_bert: Callable[..., Bert], tmp_path: Path) -> Make:
    def build(text: str = SCORES, *, name: str = "rows.tsv", **config: Any) -> Made:
        path = tmp_path / name
        path.write_text(text, "utf-8")
        data = labelled.read("compare", CompareConfig(**{"dropout": 0.0, **config}), {"train": path})
        encoder = small_bert()
        task = make_head("compare", data.config, encoder, labels=data.labels)
        assert isinstance(task, CompareHead)
        return task, encoder, data

    return build


def test_scores_of_0_and_1_are_scores_where_the_training_file_has_scores(tmp_path: Path) -> None:
    train = tmp_path / "train.tsv"
    train.write_text(SCORES)
    dev = tmp_path / "dev.tsv"
    dev.write_text("first\tsecond\tscore\nA cat sat.\tThe cat sat.\t1\nA cat sat.\tIt rained.\t0\n")
    data = labelled.read("compare", CompareConfig(), {"train": train, "dev": dev})
    assert [example.gold for example in data.examples["dev"]] == [1.0, 0.0]
    assert not data.problems["dev"]
    assert labelled.read("compare", CompareConfig(), {"train": dev}).config.kind == "one"


def parts(made: Made, tokenizer: WordPiece) -> tuple[float, np.ndarray, list[Prediction]]:
    """The loss, every text's unit vector by row and place, and the predictions."""
    task, encoder, data = made
    rows = data.examples["train"]
    items = task.encode(rows, tokenizer, max_length=64, training=True)
    found = predict(encoder, task, items)
    batch = task.batch(items)
    loss = float(task.loss(encoder(batch), batch).sums["compare"].detach())
    vectors = np.array([getattr(p, "vectors", ()) for p in found])
    return loss, vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9), found


def test_the_file_tells_what_kind_of_rows_it_has(make: Make) -> None:
    kinds = {text: make(text)[2] for text in (SCORES, LABELS, TRIPLETS, POSITIVES)}
    settled = [(data.config.kind, data.config.loss) for data in kinds.values()]
    assert settled == [
        ("number", "regression"),
        ("one", "contrastive"),
        ("triplets", "ranking"),
        ("positives", "ranking"),
    ]
    assert kinds[SCORES].config.highest == 5.0
    assert kinds[LABELS].labels == {"label": ("0", "1")}
    assert kinds[TRIPLETS].examples["train"][1].texts == ("Dogs ran.", "A dog ran.", "The cat sat.")
    assert [e.row for e in kinds[SCORES].examples["train"]] == [2, 3, 4]
    chinese = labelled.read("compare", CompareConfig(), {"train": samples.labelled("pairs", "zh")})
    assert chinese.config.kind == "number"


def test_columns_may_be_counted_and_labels_named(make: Make) -> None:
    text = "猫坐着。\t那只猫坐着。\t2\n猫坐着。\t下雨了。\t0\n狗跑了。\t一只狗跑了。\t5\n"
    named = {"text_column": "1", "second_column": "2"}
    assert make(text, label_columns=("3",), **named)[2].config.kind == "number"
    assert make(text, kind="one", positive="5", label_columns=("3",), **named)[2].labels["label"] == ("0", "2", "5")
    assert len(make(text, kind="positives", **named)[2].examples["train"]) == 3
    assert make(text, third_column="3", **named)[2].config.kind == "triplets"
    rows = [{"sentence1": "a b", "sentence2": "c", "label": "yes"}, {"sentence1": "a", "sentence2": "b", "label": "no"}]
    data = make("\n".join(map(json.dumps, rows)), name="rows.jsonl", positive="yes")[2]
    assert [e.gold for e in data.examples["train"]] == ["yes", "no"]


def test_wrong_rows_and_settings_are_refused(make: Make) -> None:
    with pytest.raises(BadInput, match=r"No row has the label '1'.*labels are no, yes"):
        make("text_a\ttext_b\tlabel\na\tb\tyes\nc\td\tno\n")
    with pytest.raises(BadConfig, match="do not go with loss=contrastive"):
        make(SCORES, loss="contrastive")
    with pytest.raises(BadConfig, match="cannot teach a cross-encoder"):
        make(POSITIVES, way="cross")
    with pytest.raises(BadConfig, match="way=pooled"):
        CompareConfig(whiten=True)
    with pytest.raises(BadInput, match=r"name all three, .* tasks\.compare\.third_column=NAME"):
        make(LABELS, kind="triplets")
    data = make(SCORES + "x\t \t3\ny\tz\tmany\n", kind="number")[2]
    assert [p.row for p in data.problems["train"]] == [5, 6]
    unseen = list(CompareReader(make(LABELS)[0].config).problems([Example(("a", "b"), "2", 7)], {"label": ("0", "1")}))
    assert [p.row for p in unseen] == [7]
    assert len(list(CompareReader(make(SCORES)[0].config).problems([Example(("a", "b"), "2", 7)], {}))) == 1


def test_regression_is_the_squared_distance_of_cosine_and_score(make: Make, tokenizer: WordPiece) -> None:
    loss, unit, found = parts(make(SCORES), tokenizer)
    cosines = (unit[:, 0] * unit[:, 1]).sum(1)
    assert [p.label for p in found] == pytest.approx(cosines.tolist(), abs=1e-5)
    assert loss == pytest.approx(float(((cosines - np.array([0.9, 0.1, 1.0])) ** 2).sum()), abs=1e-4)
    assert set(asdict(found[0])) == {"label", "probability", "probabilities", "spans", "text"}


def test_contrastive_leaves_unlike_texts_alone_beyond_the_margin(make: Make, tokenizer: WordPiece) -> None:
    for margin in (0.01, 1.5):
        loss, unit, _ = parts(make(LABELS, margin=margin), tokenizer)
        distance = 1 - (unit[:, 0] * unit[:, 1]).sum(1)
        expected = distance[0] ** 2 + max(0, margin - distance[1]) ** 2 + distance[2] ** 2
        assert loss == pytest.approx(float(expected), abs=1e-4)


def test_cosent_compares_the_order_of_all_pairs(make: Make, tokenizer: WordPiece) -> None:
    loss, unit, _ = parts(make(SCORES, loss="cosent", scale=5.0), tokenizer)
    cosine = (unit[:, 0] * unit[:, 1]).sum(1)
    # Gold scores are 4.5, 0.5 and 5.
    too_high = [cosine[1] - cosine[0], cosine[1] - cosine[2], cosine[0] - cosine[2]]
    expected = 3 * np.log(1 + np.exp(5.0 * np.array(too_high)).sum())
    assert loss == pytest.approx(float(expected), abs=1e-3)


def test_cosent_of_equal_scores_has_a_loss_of_zero_and_a_finite_gradient() -> None:
    cosines = torch.tensor([0.1, 0.9], requires_grad=True)
    loss = similarity.cosent(cosines, torch.tensor([1.0, 1.0]), scale=20.0)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0.0
    assert cosines.grad is not None
    assert cosines.grad.tolist() == [0.0, 0.0]


def test_matryoshka_averages_the_losses_of_cut_vectors(make: Make, tokenizer: WordPiece) -> None:
    made = make(SCORES)
    whole, _, found = parts(made, tokenizer)
    vectors = np.array([getattr(prediction, "vectors", ()) for prediction in found])
    gold = np.array([0.9, 0.1, 1.0])
    losses = [whole]
    for width in (8, 16):
        cut = vectors[..., :width]
        cut = cut / np.linalg.norm(cut, axis=-1, keepdims=True)
        losses.append(float((((cut[:, 0] * cut[:, 1]).sum(1) - gold) ** 2).sum()))
    loss, _, _ = parts(make(SCORES, matryoshka=(8, 16)), tokenizer)
    assert loss == pytest.approx(float(np.mean(losses)), abs=1e-3)
    with pytest.raises(BadConfig, match="goes with way=siamese"):
        CompareConfig(matryoshka=(8,), way="cross")


def test_ranking_takes_the_other_texts_of_the_batch_but_never_a_like_one(make: Make, tokenizer: WordPiece) -> None:
    made = make(TRIPLETS)
    loss, unit, found = parts(made, tokenizer)
    scores = 20 * unit[:, 0] @ np.concatenate([unit[:, 1], unit[:, 2]]).T
    scores[0, 3] = -np.inf  # the third text of row 2 is the second of row 1
    expected = sum(np.logaddexp.reduce(row) - row[i] for i, row in enumerate(scores))
    assert loss == pytest.approx(float(expected), abs=1e-3)
    assert [p.label for p in found] == pytest.approx([float(v[0] @ v[1] - v[0] @ v[2]) for v in unit], abs=1e-5)
    rows = [Example(("a", "b")), Example(("a", "c")), Example(("d", "b")), Example(("e", "a"))]
    assert ignored_negatives(rows, np.array([True, False, True, True])).astype(int).tolist() == [
        [0, 0, 1, 1],
        [1, 0, 0, 1],
        [1, 0, 0, 0],
        [0, 0, 0, 0],
    ]


def test_labelled_pairs_can_be_ranked_and_count_only_the_like_ones(make: Make, tokenizer: WordPiece) -> None:
    task, encoder, data = make(LABELS, loss="ranking")
    batch = task.batch(task.encode(data.examples["train"], tokenizer, max_length=64, training=True))
    assert task.counts(batch) == {"compare": 2}
    assert task.compares_within_batch
    assert task.loss(encoder(batch), batch).sums["compare"].isfinite()


@pytest.mark.parametrize("kind", ["number", "one", "triplets"])
def test_a_cross_encoder_reads_both_texts_at_once(make: Make, tokenizer: WordPiece, kind: str) -> None:
    made = make({"number": SCORES, "one": LABELS, "triplets": TRIPLETS}[kind], way="cross")
    task, _, data = made
    item = task.encode(data.examples["train"], tokenizer, max_length=64, training=True)[0]
    assert len(item.windows) == (2 if kind == "triplets" else 1)
    assert (item.windows[0].ids == tokenizer.vocab.sep).sum() == 2
    loss, _, found = parts(made, tokenizer)
    values = np.array([p.label for p in found])
    expected = {
        "number": lambda: ((values - [0.9, 0.1, 1.0]) / np.std([0.9, 0.1, 1.0])) ** 2,
        "one": lambda: -np.log([values[0], 1 - values[1], values[2]]),
        "triplets": lambda: np.log1p(np.exp(-values)),
    }
    assert loss == pytest.approx(float(expected[kind]().sum()), abs=1e-4)
    assert not task.embeds


@pytest.mark.parametrize("pooling", ["mean", "cls", "last", "max", "first-last"])
def test_pooled_vectors_need_no_training(make: Make, tokenizer: WordPiece, pooling: str) -> None:
    task, encoder, data = make(SCORES, way="pooled", pooling=pooling)
    rows = data.examples["train"]
    items = task.encode(rows, tokenizer, max_length=64, training=False)
    first = predict(encoder, task, items)[0]
    states = encoder(task.batch(items[:1]), layers=True)
    length = len(items[0].windows[0].ids)
    x = states.last_ND[:length].detach()
    both = (states.layers[1][:length].detach() + x) / 2
    expected = {"mean": x.mean(0), "cls": x[0], "last": x[-1], "max": x.amax(0), "first-last": both.mean(0)}[pooling]
    assert np.allclose(first.vectors[0], expected.numpy(), atol=1e-5)  # type: ignore[attr-defined]
    with pytest.raises(BadConfig, match="needs no training"):
        task.before_training(rows)


def test_whitening_makes_the_covariance_the_unit_matrix(
    make: Make, tokenizer: WordPiece, caplog: pytest.LogCaptureFixture
) -> None:
    vectors = np.random.default_rng(1).normal(size=(400, 6)) @ np.random.default_rng(2).normal(size=(6, 6)) + 3
    mean, turn = fit_whitening(vectors)
    assert np.allclose(np.cov(((vectors - mean) @ turn).T), np.eye(6), atol=1e-8)
    with caplog.at_level("WARNING"):
        assert fit_whitening(vectors, 2)[1].shape == (6, 2)
        assert not caplog.messages
        assert fit_whitening(vectors[:4])[1].shape == (6, 3)
    assert "learned from 4 texts and keeps 3 directions, so all texts come out equally unlike" in caplog.text
    task, encoder, data = make(SCORES, way="pooled", whiten=True)
    rows = data.examples["train"]
    found = predict(encoder, task, task.encode(rows, tokenizer, max_length=64, training=False))
    tuned = task.tune(found, rows)
    assert [p.label for p in tuned] != [p.label for p in found]
    again = predict(encoder, task, task.encode(rows, tokenizer, max_length=64, training=False))
    assert [p.label for p in again] == pytest.approx([p.label for p in tuned], abs=1e-4)


def test_long_texts_are_read_in_windows_as_embed_reads_them(make: Make, tokenizer: WordPiece, tmp_path: Path) -> None:
    task, encoder, _ = make(SCORES)
    long = "the boats went down to the sea and came back again " * 20
    pairs = [Example((long, "the sea"), 1.0), Example(("the sea", "a boat"), 2.0)]
    items = task.encode(pairs, tokenizer, max_length=64, training=False)
    assert items[0].facts[0] > 3
    assert items[0].cut == 0
    assert task.encode(pairs, tokenizer, max_length=64, training=True)[0].facts == (4, 1)
    embedding = checkpoints.Embedding(task.embeds, normalise=True)
    checkpoints.save(tmp_path / "model", Checkpoint(encoder, {}, tokenizer, embedding, tasks={"compare": task}))
    model = load(tmp_path / "model")
    vectors = model.embed([text for pair in pairs for text in pair.texts]).reshape(2, 2, -1)
    cosines = (vectors[:, 0] * vectors[:, 1]).sum(1)
    assert [p.label for p in model.predict([pair.texts for pair in pairs])] == pytest.approx(cosines.tolist(), abs=1e-5)
    batch = task.batch(items)
    with torch.no_grad():
        unit = torch.nn.functional.normalize(text_vectors(task._pooled(encoder(batch), batch), batch), dim=1)
    assert np.allclose(unit.numpy(), vectors.reshape(4, -1), atol=1e-5)


def test_figures_of_labels_and_the_threshold_found_on_dev(make: Make) -> None:
    task, _, data = make(LABELS)
    rows = data.examples["train"]
    found = [Prediction(value) for value in (0.9, 0.7, 0.8)]
    before = scorer_of(task).score(found, rows)
    assert before == pytest.approx({"auc": 1.0, "best_accuracy": 1.0, "accuracy": 2 / 3, "f1": 0.8})
    assert scorer_of(task).error(found[1], rows[1]) == pytest.approx(0.7)
    tuned = task.tune(found, rows)
    assert scorer_of(task).score(tuned, rows)["accuracy"] == 1.0
    assert task.config.threshold == pytest.approx(0.75)
    assert scorer_of(task).error(found[1], rows[1]) == 0
    assert scorer_of(task).score(scorer_of(task).baseline(rows, rows), rows) == pytest.approx(
        {"auc": 0.5, "best_accuracy": 2 / 3, "accuracy": 2 / 3, "f1": 0.8}
    )


def test_rankings_look_for_the_like_text_among_all_others(make: Make) -> None:
    task, _, data = make(POSITIVES)
    rows = data.examples["train"]
    scorer = scorer_of(task)
    perfect = [scorer.perfect(row) for row in rows]
    assert scorer.score(perfect, rows) == {"mrr": 1.0, "recall@1": 1.0, "recall@10": 1.0}
    e = np.eye(3)
    vectors = [(e[0], e[0]), (e[0], e[1]), (e[2], e[2])]
    found = [with_vectors(0.0, pair) for pair in vectors]
    figures = scorer_of(task).score(found, rows)
    assert figures["mrr"] == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert figures["recall@1"] == pytest.approx(2 / 3)
    assert figures["recall@10"] == 1.0
    triple, _, data = make(TRIPLETS)
    assert scorer_of(triple).score([Prediction(0.3), Prediction(0.0)], data.examples["train"]) == {"accuracy": 0.75}


def test_inputs_are_pairs_triplets_or_rows(make: Make) -> None:
    config = make(TRIPLETS)[0].config
    assert CompareReader(config).example(["a", "b"]).texts == ("a", "b")
    assert CompareReader(config).example({"anchor": "a", "positive": "b", "negative": "c"}).texts == ("a", "b", "c")
    assert CompareReader(config).example({"sentence1": "a", "sentence2": "b"}).texts == ("a", "b")
    assert CompareReader(make(SCORES)[0].config).example({"first": "a", "second": "b"}).texts == ("a", "b")
    for wrong in ("a", ["a"], ["a", 3], 7):
        with pytest.raises(BadInput, match=r"two texts to compare.* by `file=` with the columns first and second\."):
            CompareReader(config).example(wrong)
    named = replace(config, text_column="query", second_column="title")
    with pytest.raises(BadInput, match="columns query and title"):
        CompareReader(named).example("a")


def test_pairs_that_belong_together_are_learned_and_ranked(run: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.tsv"
    lines = [f"day {number}\tnight {number}" for number in range(12)]
    pairs.write_text("\n".join(["anchor\tpositive", *lines]) + "\n", "utf-8")
    summary = firth.finetune(
        run, task="compare", train=pairs, dev=pairs, out=tmp_path / "out", changes=["epochs=1"], device="cpu"
    )
    task = summary["tasks"]["compare"]
    assert task["main"] == "mrr"
    # Without reading the texts, partners are found by chance.
    assert 0 < task["baseline"]["dev"]["mrr"] < 0.8


def test_a_range_of_scores_needs_two_ends() -> None:
    with pytest.raises(BadConfig, match="lowest and highest must differ; both are 5"):
        CompareConfig(lowest=5.0, highest=5.0)


def test_any_model_is_measured_without_training_and_a_siamese_one_serves_vectors(
    run: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    pairs = samples.labelled("pairs", "en")
    plain = firth.evaluate(run, data=pairs, task="compare", pooling="mean")
    white = firth.evaluate(run, data=pairs, task="compare", pooling="first-last", whiten=True)
    assert plain["rows"] == white["rows"] >= 60
    assert plain["spearman"] != white["spearman"]
    code, out, _ = command("evaluate", run, "pooling=max", "--data", pairs, "--task", "compare", "--json")
    assert code == 0
    assert -1 <= json.loads(out)["spearman"] <= 1
    with pytest.raises(Unsupported, match="classify needs a model"):
        firth.evaluate(run, data=pairs, task="classify")
    out_run = tmp_path / "siamese"
    firth.finetune(run, task="compare", train=pairs, out=out_run, changes=["epochs=1"], device="cpu")
    model = load(out_run)
    assert (model.checkpoint.embedding.pooling, model.checkpoint.embedding.normalise) == ("mean", True)
    first, second = model.embed(["A cat sat down.", "It rained."])
    (prediction,) = model.predict([["A cat sat down.", "It rained."]])
    assert prediction.label == pytest.approx(float(first @ second), abs=1e-5)
    with pytest.raises(BadConfig, match="remembers its task's settings"):
        firth.evaluate(out_run, data=pairs, task="compare", pooling="cls")


def test_a_cross_encoder_learns_standardised_scores_and_answers_similarities(make: Make, tokenizer: WordPiece) -> None:
    task, _, data = make(way="cross")
    rows = data.examples["train"]
    similarities = np.array([0.9, 0.1, 1.0])
    assert task.config.centre == pytest.approx(similarities.mean())
    assert task.config.spread == pytest.approx(similarities.std())
    items = task.encode(rows, tokenizer, max_length=64, training=True)
    gold_E = task.batch(items).targets["gold_E"].numpy()
    np.testing.assert_allclose(gold_E, (similarities - similarities.mean()) / similarities.std(), rtol=1e-5)
    answers = [task.decide(item, [gold]).label for item, gold in zip(items, gold_E, strict=True)]
    np.testing.assert_allclose(answers, similarities, rtol=1e-5)
    siamese, _, _ = make(way="siamese")
    assert (siamese.config.centre, siamese.config.spread) == (0.0, 0.0)
    task.config = CompareConfig(way="cross", kind="number", highest=5.0)  # of a folder from before
    assert task.batch(items).targets["gold_E"].tolist() == pytest.approx([0.9, 0.1, 1.0])
    assert task.decide(items[0], [np.float32(0.75)]).label == 0.75


@pytest.mark.parametrize("text", [LABELS, TRIPLETS])
def test_a_cross_encoder_reads_both_orders_and_takes_their_mean(make: Make, tokenizer: WordPiece, text: str) -> None:
    both, encoder, data = make(text, way="cross", both_orders=True)
    rows = data.examples["train"]
    items = both.encode(rows, tokenizer, max_length=64, training=True)
    num_others = len(rows[0].texts) - 1
    for row, item in zip(rows, items, strict=True):
        orders = [texts for other in row.texts[1:] for texts in ((row.texts[0], other), (other, row.texts[0]))]
        read = [tokenizer.vocab.frame.join(*(tokenizer.encode(t).ids for t in texts)).tolist() for texts in orders]
        assert [window.ids.tolist() for window in item.windows] == read
        assert item.facts == (2,) * num_others
    batch = both.batch(items)
    assert both.counts(batch) == {"compare": len(rows)}
    scores = both.decide(items[0], [np.float32(score) for score in (1.0, 3.0, 0.0, 1.0)[: 2 * num_others]]).label
    assert scores == pytest.approx(1 / (1 + np.exp(-2.0)) if num_others == 1 else 1.5)
    assert len(predict(encoder, both, items)) == len(rows)
    assert both.loss(encoder(batch), batch).sums["compare"] > 0
    assert CompareConfig(preset="mrpc", way="cross").with_preset().both_orders is True
    assert CompareConfig(preset="mrpc", way="cross", both_orders=False).with_preset().both_orders is False
