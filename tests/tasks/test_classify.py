"""Classification: kinds of labels, losses, long texts, figures."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth.checkpoint import make_head
from firth.data.items import ItemBatches
from firth.data.loader import BatchAddress
from firth.encoders.bert import Bert
from firth.errors import BadConfig, BadInput
from firth.tasks import scorer_of
from firth.tasks.classify import ClassifyConfig, ClassifyHead, ClassifyReader
from firth.tasks.predicting import predict
from firth.tokenizers.wordpiece import WordPiece
from firth.types import Example, Prediction

LONG = "the river carried the boats down to the sea " * 40
Make = Callable[..., tuple[ClassifyHead, Bert]]


@pytest.fixture
def make(small_bert: Callable[..., Bert]) -> Make:
    def build(examples: list[Example], **config: Any) -> tuple[ClassifyHead, Bert]:
        settings = ClassifyConfig(**{"dropout": 0.0, **config})
        encoder = small_bert()
        task = make_head("classify", settings, encoder, labels=ClassifyReader(settings).labels_of(examples))
        assert isinstance(task, ClassifyHead)
        return task, encoder

    return build


ROWS = [Example(("good",), "b", 1), Example(("bad and long",), "a", 2), Example(("so so",), "b", 3)]


def loss_of(task: ClassifyHead, encoder: Bert, rows: list[Example], tokenizer: WordPiece) -> torch.Tensor:
    items = task.encode(rows, tokenizer, max_length=64, training=True)
    batch = task.batch(items)
    return task.loss(encoder(batch), batch).sums["classify"].detach()


def test_labels_are_sorted_by_name_and_one_alone_is_refused(make: Make) -> None:
    assert ClassifyReader(ClassifyConfig()).labels_of(ROWS) == {"label": ("a", "b")}
    named = ClassifyConfig(label_names=("b", "a"))
    assert ClassifyReader(named).labels_of(ROWS) == {"label": ("b", "a")}
    with pytest.raises(BadInput, match="nothing to learn"):
        ClassifyReader(ClassifyConfig()).labels_of(ROWS[:1])


def test_a_label_that_training_never_saw_is_a_bad_row() -> None:
    found = list(ClassifyReader(ClassifyConfig()).problems([Example(("x",), "c", 9)], {"label": ("a", "b")}))
    assert [(p.row, p.bad) for p in found] == [(9, True)]
    assert "'c' never occurs in training" in found[0].what


def test_a_long_text_is_read_whole_and_counts_once(make: Make, tokenizer: WordPiece) -> None:
    task, encoder = make(ROWS)
    rows = [Example((LONG,), "a"), Example(("short",), "b")]
    items = task.encode(rows, tokenizer, max_length=64, training=False)
    tokens = tokenizer.encode(LONG).ids
    assert len(items[0].windows) > 4
    assert items[0].cut == 0
    covered = {w.start + i: t for w in items[0].windows for i, t in enumerate(w.ids[1:-1])}
    assert [covered[i] for i in range(len(tokens))] == tokens.tolist()
    training = task.encode(rows, tokenizer, max_length=64, training=True)
    assert len(training[0].windows) == task.config.max_windows
    assert training[0].cut > 0
    batch = task.batch(training)
    assert task.counts(batch) == {"classify": 2}
    assert len(predict(encoder, task, items)) == 2


def test_windows_are_merged_by_the_mean_of_their_scores(make: Make, tokenizer: WordPiece) -> None:
    task, encoder = make(ROWS)
    (item,) = task.encode([Example((LONG,), "a")], tokenizer, max_length=64, training=False)
    each = [predict(encoder, task, [replace(item, windows=(window,))])[0] for window in item.windows]
    logs = np.mean([[np.log(p.probabilities[name]) for name in ("a", "b")] for p in each], 0)
    together = predict(encoder, task, [item])[0]
    expected = np.exp(logs) / np.exp(logs).sum()
    assert [together.probabilities[n] for n in ("a", "b")] == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_pair_is_cut_longer_first_and_the_cut_is_counted(make: Make, tokenizer: WordPiece) -> None:
    task, _ = make(ROWS)
    (item,) = task.encode([Example((LONG, "a short one"), "a")], tokenizer, max_length=64, training=True)
    (window,) = item.windows
    assert len(window.ids) == 64
    second = tokenizer.encode("a short one").ids
    assert window.ids[-1 - len(second) : -1].tolist() == second.tolist()
    assert item.cut == item.tokens - 61
    assert window.segments.tolist() == [0] * (64 - len(second) - 1) + [1] * (len(second) + 1)


def test_smoothing_and_weights_change_the_loss_as_their_formulas_say(make: Make, tokenizer: WordPiece) -> None:
    task, encoder = make(ROWS)
    plain = loss_of(task, encoder, ROWS, tokenizer)
    items = task.encode(ROWS, tokenizer, max_length=64, training=False)
    shares = [p.probabilities for p in predict(encoder, task, items)]
    each = [-np.log(p[row.gold]) for p, row in zip(shares, ROWS, strict=True)]
    assert float(plain) == pytest.approx(sum(each), abs=1e-5)
    smooth, _ = make(ROWS, label_smoothing=0.2)
    smooth.head.load_state_dict(task.head.state_dict())
    expected = [0.8 * e - 0.1 * sum(map(np.log, p.values())) for e, p in zip(each, shares, strict=True)]
    assert float(loss_of(smooth, encoder, ROWS, tokenizer)) == pytest.approx(sum(expected), abs=1e-5)
    balanced, _ = make(ROWS, class_weights="balanced")
    balanced.head.load_state_dict(task.head.state_dict())
    balanced.before_training(ROWS)
    weights = {"a": 3 / 2, "b": 3 / 4}
    expected = [weights[row.gold] * e for row, e in zip(ROWS, each, strict=True)]
    assert float(loss_of(balanced, encoder, ROWS, tokenizer)) == pytest.approx(sum(expected), abs=1e-5)


def test_many_names_use_a_sigmoid_each(make: Make, tokenizer: WordPiece) -> None:
    rows = [Example(("x",), ("a", "c"), 1), Example(("y",), (), 2), Example(("z",), ("b",), 3)]
    task, encoder = make(rows, kind="many")
    assert task.labels == {"label": ("a", "b", "c")}
    items = task.encode(rows, tokenizer, max_length=64, training=False)
    predictions = predict(encoder, task, items)
    for prediction in predictions:
        assert prediction.label == tuple(n for n, p in prediction.probabilities.items() if p > 0.5)
    total = 0.0
    for row, prediction in zip(rows, predictions, strict=True):
        parts = [-np.log(p if n in row.gold else 1 - p) for n, p in prediction.probabilities.items()]
        total += float(np.mean(parts))
    assert float(loss_of(task, encoder, rows, tokenizer)) == pytest.approx(total, abs=1e-5)
    assert scorer_of(task).score([Prediction(row.gold) for row in rows], rows)["micro_f1"] == 1.0


def test_any_name_is_given_above_a_threshold_of_0(make: Make, tokenizer: WordPiece) -> None:
    rows = [Example(("x",), ("a", "c"), 1), Example(("y",), ("b",), 2)]
    task, encoder = make(rows, kind="many", threshold=0.0)
    items = task.encode(rows, tokenizer, max_length=64, training=False)
    assert {prediction.label for prediction in predict(encoder, task, items)} == {("a", "b", "c")}
    batch = task.batch(items)
    loss = task.loss(encoder(batch), batch)
    # Two of the three names are right in the first row, one in the second.
    assert float(loss.tallies["classify_correct"]) == pytest.approx(1.0)


def test_each_label_column_has_its_own_softmax_and_losses_add_up(make: Make, tokenizer: WordPiece) -> None:
    golds = [("sport", "glad"), ("art", "sad"), ("art", "glad")]
    rows = [Example((text,), gold) for text, gold in zip("xyz", golds, strict=True)]
    task, encoder = make(rows, label_columns=("topic", "tone"))
    items = task.encode(rows, tokenizer, max_length=64, training=False)
    predictions = predict(encoder, task, items)
    total = 0.0
    for row, prediction in zip(rows, predictions, strict=True):
        assert sum(p for n, p in prediction.probabilities.items() if n.startswith("topic=")) == pytest.approx(1)
        assert len(prediction.label) == 2
        share = prediction.probabilities
        total -= np.log(share[f"topic={row.gold[0]}"] * share[f"tone={row.gold[1]}"])
    assert float(loss_of(task, encoder, rows, tokenizer)) == pytest.approx(total, abs=1e-5)
    figures = scorer_of(task).score([Prediction(row.gold) for row in rows], rows)
    assert figures["accuracy"] == figures["topic_accuracy"] == figures["tone_macro_f1"] == 1.0
    assert scorer_of(task).baseline(rows, rows)[0].label == ("art", "glad")


def test_numbers_are_learned_by_squared_error(make: Make, tokenizer: WordPiece) -> None:
    rows = [Example(("x",), 0.5, 1), Example(("y",), 4.0, 2), Example(("z",), 2.5, 3)]
    task, encoder = make(rows, kind="number")
    items = task.encode(rows, tokenizer, max_length=64, training=False)
    guesses = [p.label for p in predict(encoder, task, items)]
    assert all(isinstance(guess, float) for guess in guesses)
    expected = sum((guess - row.gold) ** 2 for guess, row in zip(guesses, rows, strict=True))
    assert float(loss_of(task, encoder, rows, tokenizer)) == pytest.approx(expected, rel=1e-5)
    perfect = scorer_of(task).score([Prediction(row.gold) for row in rows], rows)
    assert perfect == pytest.approx({"pearson": 1, "spearman": 1, "mean_error": 0})
    assert scorer_of(task).baseline(rows, rows)[0].label == pytest.approx(7 / 3)


def test_mean_and_first_token_pooling_differ(make: Make, tokenizer: WordPiece) -> None:
    one, encoder = make(ROWS)
    other, _ = make(ROWS, pooling="mean")
    other.head.load_state_dict(one.head.state_dict())
    items = one.encode(ROWS, tokenizer, max_length=64, training=False)
    assert predict(encoder, one, items)[0].probability != predict(encoder, other, items)[0].probability


def test_figures_follow_the_names_not_their_order(make: Make) -> None:
    task, _ = make(ROWS, positive="a")
    rows = [Example(("",), gold) for gold in "aabb"]
    figures = scorer_of(task).score([Prediction(label) for label in "abbb"], rows)
    assert figures["accuracy"] == 0.75
    assert figures["f1"] == pytest.approx(2 / 3)
    assert figures["matthews"] == pytest.approx(1 / 3**0.5)
    details = scorer_of(task).details([Prediction(label) for label in "abbb"], rows)
    assert details["confusion"] == {"labels": ["a", "b"], "counts": [[1, 1], [0, 2]]}


def test_inputs_may_be_texts_pairs_or_rows(make: Make) -> None:
    assert ClassifyReader(ClassifyConfig()).example("a text").texts == ("a text",)
    assert ClassifyReader(ClassifyConfig()).example(["one", "two"]).texts == ("one", "two")
    assert ClassifyReader(ClassifyConfig()).example({"text": "x", "id": 3}).texts == ("x",)
    for wrong in (3, ["a", "b", "c"], ["a", 2]):
        with pytest.raises(BadInput, match="a text or a pair"):
            ClassifyReader(ClassifyConfig()).example(wrong)
    with pytest.raises(BadConfig, match="kind=one"):
        ClassifyConfig(kind="number", label_columns=("a", "b"))


def test_a_model_of_single_texts_refuses_pairs_and_the_other_way_round(tmp_path: Path) -> None:
    single = ClassifyReader(ClassifyReader(ClassifyConfig()).learn(ROWS))
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("first\tsecond\tscore\nA cat.\tA mouse.\t3\n")
    with pytest.raises(BadInput, match="have 2 texts, but the model was trained on rows with one text; name the col"):
        single.read(pairs, [], labelled=False)
    named = replace(single.config, text_column="first")
    assert ClassifyReader(named).read(pairs, [], labelled=False)[0].texts == ("A cat.",)
    with pytest.raises(BadInput, match="An input has 2 texts"):
        single.example(["A cat.", "A mouse."])
    pair = ClassifyReader(ClassifyReader(ClassifyConfig()).learn([Example(("a", "b"), "x", 1)]))
    with pytest.raises(BadInput, match="An input has one text, but the model was trained on rows with 2 texts"):
        pair.example("A cat.")


def test_numbers_of_any_scale_are_learned(run: Path, tmp_path: Path) -> None:
    rows = [(f"{'long ' * 8 if i % 2 else 'short '}{i}", 1000.0 + 30 * (i % 2) + i % 3) for i in range(60)]
    path = tmp_path / "rows.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{text}\t{value}\n" for text, value in rows))
    numbers = ("tasks.classify.kind=number", "tasks.classify.pooling=mean")
    changes = ("epochs=10", "batch_size=8", "train.optim.rate=3e-3", *numbers)
    firth.finetune(run, task="classify", train=path, dev=path, out=tmp_path / "tuned", changes=changes, device="cpu")
    model = firth.load(tmp_path / "tuned")
    assert model.checkpoint.tasks["classify"].config.spread > 10
    short, long = (prediction.label for prediction in model.predict(["short 9", "long " * 8 + "8"]))
    assert 990 < short < 1016 < long < 1042


SCORED = [Example(("a dog runs", "the boats"), 4.0, 1), Example(("the sea", "a river"), 1.0, 2)]


def test_scores_of_a_preset_are_standardised_and_come_back_in_their_own_units(make: Make, tokenizer: WordPiece) -> None:
    config = ClassifyReader(ClassifyConfig(preset="stsb").with_preset()).learn(SCORED)
    assert (config.centre, config.spread) == (2.5, 1.5)
    task, _ = make(SCORED, **vars(config))
    items = task.encode(SCORED, tokenizer, max_length=64, training=True)
    assert task.batch(items).targets["gold_E"].tolist() == [1.0, -1.0]
    assert task.decide(items[0], [np.array([1.0]), np.array([1.0])]).label == 4.0


def test_a_folder_from_before_keeps_its_raw_scores_and_its_one_order(make: Make, tokenizer: WordPiece) -> None:
    old = ClassifyConfig(preset="stsb", kind="number", centre=0.0, spread=1.0, both_orders=False)
    assert ClassifyReader(old.with_preset()).learn(SCORED) == replace(old, metric="spearman", num_texts=2)
    task, _ = make(SCORED, **vars(old))
    (item, _) = task.encode(SCORED, tokenizer, max_length=64, training=False)
    assert len(item.windows) == 1
    assert task.decide(item, [np.array([3.25])]).label == 3.25


@pytest.mark.parametrize(("preset", "both"), [("mrpc", True), ("stsb", True), ("qqp", True), ("rte", False)])
def test_presets_know_whether_the_order_of_a_pair_says_anything(preset: str, both: bool) -> None:
    assert ClassifyConfig(preset=preset).with_preset().both_orders is both
    for wanted in (True, False):
        assert ClassifyConfig(preset=preset, both_orders=wanted).with_preset().both_orders is wanted


def test_an_epoch_has_each_order_of_a_pair_once_and_each_row_once(make: Make, tokenizer: WordPiece) -> None:
    rows = [Example((f"a dog runs {i}", f"the boats {i}"), float(i), i) for i in range(7)]
    config = ClassifyReader(ClassifyConfig(preset="stsb", dropout=0.0).with_preset()).learn(rows)
    task, encoder = make(rows, **vars(config))
    items = task.encode(rows, tokenizer, max_length=64, training=True)
    batches = ItemBatches({"classify": task}, {"classify": items}, 3, seed=1)
    seen: list[list[int]] = []
    num_rows = 0
    for index in range(batches.num_packs(0)):
        batch = batches[BatchAddress(0, index)]
        num_rows += task.counts(batch)["classify"]
        seen += [ids.tolist() for ids in torch.split(batch.ids_N, batch.bounds_B1.diff().tolist())]
    one_way = tokenizer.vocab.frame.join
    wanted = [
        one_way(*(tokenizer.encode(text).ids for text in texts)).tolist()
        for row in rows
        for texts in (row.texts, row.texts[::-1])
    ]
    assert sorted(seen) == sorted(wanted)
    assert num_rows == len(rows)
    found = predict(encoder, task, task.encode(rows, tokenizer, max_length=64, training=False))
    turned = [replace(row, texts=row.texts[::-1]) for row in rows]
    other = predict(encoder, task, task.encode(turned, tokenizer, max_length=64, training=False))
    assert len(found) == len(rows)
    assert [p.label for p in found] == pytest.approx([p.label for p in other], abs=1e-4)
    assert scorer_of(task).score(found, rows).keys() == {"pearson", "spearman", "mean_error"}
