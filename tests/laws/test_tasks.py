"""Laws of every task in the table, on the embedded labelled sets."""

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from firth import checkpoint as checkpoints
from firth import encoders, samples, tasks
from firth.checkpoint import Checkpoint, make_head
from firth.config import from_dict, override, to_dict
from firth.data.items import Item, ItemBatches
from firth.data.loader import BatchAddress
from firth.encoders.bert import Bert
from firth.encoders.transformer import Transformer
from firth.errors import BadConfig, Unsupported
from firth.finetuning import labelled
from firth.finetuning.labelled import Labelled
from firth.tasks import scorer_of
from firth.tasks.predicting import predict
from firth.tasks.task import Head
from firth.tensors import Encoder
from firth.tokenizers.wordpiece import WordPiece
from firth.train.loop import Learner, Progress, train
from firth.train.optim import make_optimizer
from firth.train.parallel import reseed
from firth.train.settings import OptimConfig, TrainConfig
from firth.types import Prediction, Problem

CHOICES = [
    ("The kettle boiled, so she", ("made some tea.", "locked the piano.", "painted a ship."), 0),
    ("It began to rain and he", ("ate the map.", "opened his umbrella.", "sang to a stone."), 1),
    ("The bus was late, so they", ("waited at the stop.", "grew a beard.", "sold the moon."), 0),
    ("The dog saw the cat and", ("wrote a letter.", "cooked rice.", "began to bark."), 2),
]
SENTENCES = [
    ("the red cat sleeps", "die rote katze ruht"),
    ("the dog sees a house", "der hund sieht ein haus"),
    ("a man reads the book", "ein mann liest das buch"),
    ("she opens the window", "sie zeigt das fenster"),
    ("we drink cold water in summer", "wir trinken im sommer kaltes wasser"),
    ("the small bird sings in the tree", "der kleine vogel singt im baum"),
    ("he writes a long letter", "er schreibt einen langen brief"),
    ("they walk along the river", "sie gehen am fluss entlang"),
]
SETS = {"classify": "classify", "prompt": "classify", "tag": "entities", "answer": "answers", "compare": "pairs"}
STEPS = {"answer": 240}
"""Steps that 16 examples take to learn by heart, where it is not 120: an answer is two places among many windows."""
CONFIGS: dict[str, dict[str, Any]] = {"prompt": {"label_words": "positive=the,negative=of"}}
"""Settings a task needs to read its set; none where it reads it as it is."""


@dataclass
class Made:
    task: Head
    encoder: Encoder
    data: Labelled
    items: list[Item]


def labelled_file(name: str, folder: Path) -> Path:
    if name in SETS:
        return samples.labelled(SETS[name], "en")
    if name == "rewrite":
        path = folder / "rewrite.tsv"
        rows = ["source\ttarget", *("\t".join(pair) for pair in SENTENCES)]
        rows += [f"{source} {number}\t{number} {target}" for number in (7, 9) for source, target in SENTENCES[:4]]
        path.write_text("\n".join(rows), "utf-8")
        return path
    assert name == "choose", f"give tests/laws/test_tasks.py a small labelled file for the task '{name}'"
    path = folder / "choose.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["startphrase", "sent1", "sent2", "ending0", "ending1", "ending2", "label"])
        writer.writerows([prompt, prompt, "", *options, label] for prompt, options, label in CHOICES * 4)
    return path


@pytest.fixture(params=tasks.TABLE)
def make(
    request: pytest.FixtureRequest, small_bert: Callable[..., Bert], tokenizer: WordPiece, tmp_path: Path
) -> Callable[..., Made]:
    """A task over a small encoder with its first 16 examples, the same each time."""
    name = request.param

    def build(count: int = 16) -> Made:
        config = from_dict(tasks.resolve(name).Config, CONFIGS.get(name, {}))
        without = {k: 0.0 for k in ("dropout",) if hasattr(config, k)}
        data = labelled.read(name, replace(config, **without), {"train": labelled_file(name, tmp_path)})
        assert not [p for p in data.problems["train"] if p.bad]
        data = replace(data, examples={"train": data.examples["train"][:count]})
        encoder: Encoder = small_bert()
        if name == "rewrite":
            reseed("writer")
            vocab_size = len(tokenizer.vocab)
            sizes: dict[str, Any] = {"width": 32, "num_layers": 2, "num_heads": 2, "ffn_width": 64, "dropout": 0.0}
            encoder = Transformer(Transformer.Config(vocab_size=vocab_size, max_positions=64, norm="pre", **sizes))
        reseed("task")
        task = make_head(name, data.config, encoder, labels=data.labels)
        items = list(task.encode(data.examples["train"], tokenizer, max_length=64, training=True))
        return Made(task, encoder, data, items)

    return build


def test_an_item_for_each_example_in_order_and_none_too_long(make: Callable[..., Made]) -> None:
    made = make()
    assert [item.example for item in made.items] == list(made.data.examples["train"])
    assert all(item.windows for item in made.items)
    assert max(len(w.ids) for item in made.items for w in item.windows) <= 64


def test_sixteen_examples_can_be_memorised(make: Callable[..., Made], tokenizer: WordPiece) -> None:
    made = make()
    learner = Learner(made.encoder, {made.task.name: made.task})
    batches = ItemBatches({made.task.name: made.task}, {made.task.name: made.items}, 16, seed=1)
    config = TrainConfig(steps=STEPS.get(made.task.name, 120), optim=OptimConfig(rate=3e-3, warmup_rate=0.1))

    def stream() -> Any:
        for epoch in range(config.steps):
            yield BatchAddress(epoch, 0), batches[BatchAddress(epoch, 0)]

    optimizer = make_optimizer(learner, config.optim)
    progress = Progress(config.steps)
    train(learner, stream(), config, optimizer=optimizer, progress=progress, on_step=lambda *_: None)
    items = made.task.encode(made.data.examples["train"], tokenizer, max_length=64, training=False)
    rows = made.data.examples["train"]
    predictions = made.task.tune(predict(made.encoder, made.task, items), rows)
    scorer = scorer_of(made.task)
    assert scorer.score(predictions, rows)[scorer.main_metric] > 0.95


def test_predictions_come_in_order_whatever_the_batches(
    make: Callable[..., Made], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = make()
    together = predict(made.encoder, made.task, made.items)
    alone = [predict(made.encoder, made.task, [item])[0] for item in made.items]
    assert len(together) == len(made.items)
    for one, other in zip(together, alone, strict=True):
        assert one.probability == pytest.approx(other.probability, abs=1e-4)
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-4)
    backwards = predict(made.encoder, made.task, made.items[::-1])[::-1]
    assert [p.label for p in backwards] == [
        pytest.approx(p.label, abs=1e-4) if isinstance(p.label, float) else p.label for p in together
    ]


def test_a_prediction_that_fails_leaves_the_mode_of_training(make: Callable[..., Made]) -> None:
    made = make()
    made.encoder.train()
    made.task.train()

    def stop(done: float, note: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict(made.encoder, made.task, made.items, advance=stop)
    assert made.encoder.training
    assert made.task.training


def test_gold_scores_one_and_has_no_error(make: Callable[..., Made]) -> None:
    made = make()
    rows = made.data.examples["train"]
    scorer = scorer_of(made.task)
    perfect = [scorer.perfect(row) for row in rows]
    assert scorer.score(perfect, rows)[scorer.main_metric] == pytest.approx(1.0)
    assert [scorer.error(p, row) for p, row in zip(perfect, rows, strict=True)] == [0.0] * len(rows)


def test_the_baseline_answers_every_row_and_is_not_perfect(make: Callable[..., Made]) -> None:
    made = make()
    rows = made.data.examples["train"]
    scorer = tasks.resolve(made.task.name).scorer(made.data.config, made.data.labels)
    answers = scorer.baseline(rows, rows)
    assert len(answers) == len(rows)
    assert all(isinstance(answer, Prediction) for answer in answers)
    assert not scorer.score(answers, rows)[scorer.main_metric] > 0.99


def test_the_gradient_reaches_head_and_encoder_and_the_count_is_right(make: Callable[..., Made]) -> None:
    made = make()
    batch = made.task.batch(made.items)
    loss = made.task.loss(made.encoder(batch), batch)
    assert loss.sums.keys() == made.task.counts(batch).keys() == {made.task.name}
    assert made.task.counts(batch)[made.task.name] > 0
    loss.sums[made.task.name].backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and p.grad.isfinite().all() for p in made.task.parameters())
    reader = made.encoder.encoder if made.encoder.reads_source else made.encoder
    first = reader.blocks[0].attention.qkv.weight  # type: ignore[union-attr,index]
    assert first.grad is not None  # type: ignore[union-attr]
    assert float(first.grad.abs().sum()) > 0  # type: ignore[union-attr,operator]


def test_two_micro_batches_give_the_loss_of_one(make: Callable[..., Made]) -> None:
    made = make()
    if getattr(made.task, "compares_within_batch", False):
        pytest.skip("its loss is about the batch as a whole")
    with torch.no_grad():
        batches = [made.task.batch(items) for items in (made.items, made.items[:7], made.items[7:])]
        whole, *parts = (float(made.task.loss(made.encoder(batch), batch).sums[made.task.name]) for batch in batches)
    assert sum(parts) == pytest.approx(whole, rel=1e-4)


def test_a_saved_task_predicts_the_same(make: Callable[..., Made], tokenizer: WordPiece, tmp_path: Path) -> None:
    made = make()
    before = predict(made.encoder, made.task, made.items)
    folder = tmp_path / "model"
    checkpoints.save(folder, Checkpoint(made.encoder, {}, tokenizer, tasks={made.task.name: made.task}))
    loaded = checkpoints.load(folder)
    task = loaded.tasks[made.task.name]
    assert task.config == made.task.config
    assert task.labels == made.task.labels
    items = task.encode(made.data.examples["train"], loaded.tokenizer, max_length=64, training=True)
    after = predict(loaded.encoder, task, items)
    assert after == before


def test_a_config_survives_json(make: Callable[..., Made]) -> None:
    task = make().task
    assert from_dict(type(task.config), to_dict(task.config)) == task.config


def test_random_weights_do_not_depend_on_what_was_drawn_before(make: Callable[..., Made]) -> None:
    one = make()
    torch.rand(7)
    other = make()
    pairs = zip(one.task.parameters(), other.task.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert all(np.array_equal(a.windows[0].ids, b.windows[0].ids) for a, b in zip(one.items, other.items, strict=True))


@pytest.mark.parametrize("name", tasks.TABLE)
def test_the_parts_of_a_task_belong_together(name: str, tmp_path: Path) -> None:
    task = tasks.resolve(name)
    assert tasks.resolve(f"{name}-2") is task
    assert task.head.name == name
    reader = task.reader(task.Config())
    problems: list[Problem] = []
    rows = reader.read(labelled_file(name, tmp_path), problems)
    assert rows
    assert not problems
    config = reader.learn(rows)
    assert isinstance(config, task.Config)
    scorer = task.scorer(config, task.reader(config).labels_of(rows))
    assert scorer.main_metric in scorer.score(scorer.baseline(rows, rows), rows)


@pytest.mark.parametrize("encoder_name", encoders.TABLE)
@pytest.mark.parametrize("name", tasks.TABLE)
def test_every_encoder_takes_every_head(
    name: str, encoder_name: str, shrink: Callable[[Any], Any], tmp_path: Path
) -> None:
    cls = encoders.resolve(encoder_name)
    encoder = cls(shrink(cls.Config()))
    ways: dict[str, Any] = {"way": "cross"} if name == "compare" else {"head": "linear"} if name == "tag" else {}
    config = from_dict(tasks.resolve(name).Config, {**CONFIGS.get(name, {}), **ways})
    data = labelled.read(name, config, {"train": labelled_file(name, tmp_path)})
    if name == "rewrite" and not encoder.reads_source:
        with pytest.raises(Unsupported, match="reads but cannot write"):
            make_head(name, data.config, encoder, labels=data.labels)
        return
    task = make_head(name, data.config, encoder, labels=data.labels)
    if name == "rewrite":
        return  # the output layer belongs to the model
    assert sum(p.numel() for p in task.parameters()) >= encoder.width


@pytest.mark.parametrize("name", tasks.TABLE)
@pytest.mark.parametrize("change", ["dropout=1.5", "dropout=NaN", "max_windows=0", "label_smoothing=2", "threshold=1"])
def test_numbers_out_of_bounds_are_refused(name: str, change: str) -> None:
    config = from_dict(tasks.resolve(name).Config, CONFIGS.get(name, {}))
    key = change.partition("=")[0]
    if not hasattr(config, key) or (key == "threshold" and name != "classify"):
        pytest.skip(f"{name} has no such bound")
    with pytest.raises(BadConfig, match=key):
        override(config, [change])
