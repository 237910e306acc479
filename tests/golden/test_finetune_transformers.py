"""Fine-tuning against a plain transformers training loop from the same start: the same losses, step by step."""

import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from firth import checkpoint as checkpoints
from firth import samples
from firth.checkpoint import make_head
from firth.data.items import ItemBatches
from firth.data.loader import BatchAddress
from firth.finetuning import labelled
from firth.tasks.classify import ClassifyConfig, ClassifyHead
from firth.tasks.tag import TagConfig
from firth.tensors import Batch
from firth.tokenizers.wordpiece import WordPiece
from firth.train.loop import Learner, Progress, train
from firth.train.optim import make_optimizer, scheduled_rate
from firth.train.settings import OptimConfig, TrainConfig

transformers = pytest.importorskip("transformers")
STEPS = 50
OPTIM = OptimConfig(rate=3e-3, warmup_rate=0.1)


@pytest.fixture
def shape(tokenizer: WordPiece) -> Any:
    return transformers.BertConfig(
        vocab_size=len(tokenizer.vocab),
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def padded(batch: Batch) -> dict[str, torch.Tensor]:
    """The batch as transformers wants it."""
    bounds = batch.bounds_B1.tolist()
    rows = [slice(start, end) for start, end in pairwise(bounds)]
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad([batch.ids_N[row] for row in rows], batch_first=True),
        "token_type_ids": pad([batch.segments_N[row] for row in rows], batch_first=True),
        "attention_mask": pad([torch.ones(row.stop - row.start, dtype=torch.long) for row in rows], batch_first=True),
    }


def their_losses(model: Any, batches: list[Batch], labels: Any) -> list[float]:
    """A training loop as their examples write it."""
    model.train()
    decay = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decay, "weight_decay": OPTIM.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=OPTIM.rate, betas=(OPTIM.beta1, OPTIM.beta2), eps=OPTIM.eps)
    losses = []
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = scheduled_rate(step, STEPS, OPTIM)
        loss = model(**padded(batch), labels=labels(batch)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), OPTIM.clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def our_losses(learner: Learner, places: list[tuple[BatchAddress, Batch]], name: str) -> list[float]:
    config = TrainConfig(steps=STEPS, precision="fp32", optim=OPTIM)
    losses = []

    def note(progress: Progress, norm: torch.Tensor) -> None:
        losses.append(float(progress.sums[name]) / progress.counts[name])
        progress.sums, progress.counts = {}, {}

    optimizer = make_optimizer(learner, OPTIM)
    train(learner, iter(places), config, optimizer=optimizer, progress=Progress(STEPS), on_step=note)
    return losses


@pytest.mark.parametrize("name", ["classify", "tag"])
def test_losses_equal_transformers_for_fifty_steps(name: str, shape: Any, tokenizer: WordPiece, tmp_path: Path) -> None:
    source = samples.labelled({"classify": "classify", "tag": "entities"}[name], "en")
    config = {"classify": ClassifyConfig, "tag": TagConfig}[name](dropout=0.0)
    data = labelled.read(name, config, {"train": source})
    (names,) = data.labels.values()
    shape.num_labels = len(names)
    torch.manual_seed(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = "BertForSequenceClassification" if name == "classify" else "BertForTokenClassification"
        theirs = getattr(transformers, kind)(shape)
        theirs.bert.save_pretrained(tmp_path)
    tokenizer.save(tmp_path, max_length=64)
    encoder = checkpoints.load(tmp_path).encoder
    encoder.config = replace(encoder.config, dropout=0.0)
    task = make_head(name, data.config, encoder, labels=data.labels)
    head = task.head if isinstance(task, ClassifyHead) else task.tagger.head  # type: ignore[union-attr]
    head.load_state_dict(theirs.classifier.state_dict())  # type: ignore[union-attr]
    items = task.encode(data.examples["train"][:40], tokenizer, max_length=64, training=True)
    source_of = ItemBatches({name: task}, {name: items}, 16, seed=1)
    per_epoch = source_of.num_packs(0)
    places = [BatchAddress(step // per_epoch, step % per_epoch) for step in range(STEPS)]
    batches = [source_of[place] for place in places]

    def labels(batch: Batch) -> torch.Tensor:
        if name == "classify":
            return batch.targets["gold_E"][:, 0]
        marks_N = torch.full((batch.num_tokens,), -100)
        marks_N[batch.targets["rows_W"]] = batch.targets["tags_W"]
        rows = marks_N.split(batch.bounds_B1.diff().tolist())
        return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True, padding_value=-100)

    ours = our_losses(Learner(encoder, {name: task}), list(zip(places, batches, strict=True)), name)
    reference = their_losses(theirs, batches, labels)
    assert ours == pytest.approx(reference, abs=1e-4)
    assert ours[-1] < 0.8 * ours[0]
