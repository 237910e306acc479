"""UniLM's models as writers: fine-tuning by hidden tokens, texts by the search that all writers share, and folders."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth import checkpoint as checkpoints
from firth import encoders
from firth.checkpoint import make_head, make_objective
from firth.encoders.bert import Bert
from firth.errors import Unsupported
from firth.files import read_json
from firth.nn.likelihood import IGNORE
from firth.objectives.masked_lm import MaskedLM
from firth.tasks.prefix_writer import HIDDEN, LABELS, POSITIONS, PrefixWriter
from firth.tasks.rewrite import RewriteConfig, RewriteHead
from firth.tensors import Batch
from firth.tokenizers.wordpiece import WordPiece
from firth.train.loop import Learner
from firth.types import Example

WORDS = ["the", "source", "of", "a", "module", "number", "first", "here"]
PAIRS = [(f"{a} {b} {c}", f"{c} {b} {a}") for a in WORDS for b in WORDS[:4] for c in WORDS[:3]]
TINY = ("encoder.bert.width=64", "encoder.bert.num_layers=2", "encoder.bert.num_heads=4", "encoder.bert.ffn_width=128")
SMALL = (
    *TINY,
    "encoder.bert.dropout=0.0",
    "encoder.bert.max_positions=64",
    "batches.max_length=64",
    "batches.tokens=512",
)


@pytest.fixture
def head(small_bert: Callable[..., Bert]) -> RewriteHead:
    torch.manual_seed(2)
    made = make_head("rewrite", RewriteConfig(way="prefix"), small_bert(), labels={})
    assert isinstance(made, RewriteHead)
    return made


def batch_of(head: RewriteHead, tokenizer: WordPiece, pairs: list[tuple[str, str]] = PAIRS) -> Batch:
    examples = [Example((source,), target) for source, target in pairs]
    return head.batch(head.encode(examples, tokenizer, max_length=64, training=True))


def test_sequences_are_source_and_target_with_their_special_tokens(head: RewriteHead, tokenizer: WordPiece) -> None:
    batch = batch_of(head, tokenizer, PAIRS[:5])
    for row, (source, target) in enumerate(PAIRS[:5]):
        inside = slice(int(batch.bounds_B1[row]), int(batch.bounds_B1[row + 1]))
        first, second = (np.array(ids) for ids in tokenizer.ids_batch([source, target]))
        wanted = tokenizer.vocab.frame.join(first, second)
        assert batch.ids_N[inside].tolist() == wanted.tolist()
        assert batch.segments_N[inside].tolist() == tokenizer.vocab.frame.segments(first, second).tolist()
        assert int(batch.prefix_B[row]) == len(first) + 2  # type: ignore[index]
    assert torch.equal(batch.ids_N[batch.targets[POSITIONS]], batch.targets[LABELS])


def test_only_hidden_tokens_are_learned_and_the_loss_is_that_of_all(head: RewriteHead, tokenizer: WordPiece) -> None:
    batch = batch_of(head, tokenizer)
    torch.manual_seed(5)
    read, _ = head.rewrite(batch)
    is_hidden_P = read.targets[HIDDEN] != IGNORE
    places_P = batch.targets[POSITIONS]
    assert (read.ids_N[places_P[is_hidden_P]] == tokenizer.vocab.mask).all()
    assert torch.equal(read.ids_N[places_P[~is_hidden_P]], batch.targets[LABELS][~is_hidden_P])
    others = torch.ones(batch.num_tokens, dtype=torch.bool).index_fill(0, places_P, False)
    assert torch.equal(read.ids_N[others], batch.ids_N[others])
    assert abs(float(is_hidden_P.float().mean()) - 0.7) < 0.06
    # A model that knows nothing has the same loss for each token, so the sum is that of all tokens.
    encoder = Bert(Bert.Config(vocab_size=1200, width=32, num_layers=1, num_heads=2, ffn_width=64, init_std=0.0))
    blank = make_head("rewrite", RewriteConfig(way="prefix", label_smoothing=0.0), encoder, labels={})
    losses = []
    for seed in range(20):
        torch.manual_seed(seed)
        losses.append(float(Learner(encoder, {"rewrite": blank})(batch).sums["rewrite"].detach()))
    assert np.mean(losses) / blank.counts(batch)["rewrite"] == pytest.approx(np.log(1200), rel=0.02)


def test_the_output_layer_begins_as_that_of_pre_training(
    head: RewriteHead, small_bert: Callable[..., Bert], tokenizer: WordPiece
) -> None:
    goal = make_objective("masked_lm", MaskedLM.Config(), small_bert(), tokenizer)
    assert isinstance(goal, MaskedLM)
    torch.nn.init.normal_(goal.head.bias)
    assert isinstance(head.writer, PrefixWriter)
    assert not torch.equal(head.writer.head.bias, goal.head.bias)
    head.start_from({"masked_lm": goal})
    for name, tensor in goal.head.state_dict().items():
        assert torch.equal(head.writer.head.state_dict()[name], tensor)


@pytest.mark.parametrize("name", encoders.TABLE)
def test_only_berts_write_like_this(name: str, shrink: Callable[[Any], Any]) -> None:
    cls = encoders.resolve(name)
    encoder = cls(shrink(cls.Config()))
    if name == "bert":
        assert make_head("rewrite", RewriteConfig(way="prefix"), encoder, labels={}).writer  # type: ignore[union-attr]
        return
    with pytest.raises(Unsupported, match="Only a BERT writes with way=prefix"):
        make_head("rewrite", RewriteConfig(way="prefix"), encoder, labels={})


@pytest.fixture(scope="module")
def unilm(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unilm") / "run"
    firth.pretrain(data, out=out, recipe="unilm", size="tiny", steps=5, changes=SMALL, device="cpu")
    return out


def rows(folder: Path) -> Path:
    path = folder / "pairs.tsv"
    path.write_text("source\ttarget\n" + "".join(f"{source}\t{target}\n" for source, target in PAIRS))
    return path


def test_a_unilm_learns_to_write(unilm: Path, tmp_path: Path) -> None:
    train, out = rows(tmp_path), tmp_path / "tuned"
    changes = ["epochs=40", "batch_size=16", "train.optim.rate=3e-3"]
    options = {"beams": 2, "label_smoothing": 0.0}
    figures = firth.finetune(unilm, task="rewrite", train=train, dev=train, out=out, changes=changes, **options)
    scores = figures["tasks"]["rewrite"]["figures"]["dev"]
    assert scores["bleu"]["mean"] > 0.5
    assert read_json(out / "config.json")["model_type"] == "bert"
    loaded = checkpoints.load(out)
    assert loaded.tasks["rewrite"].config.way == "prefix"  # type: ignore[attr-defined]
    model = firth.load(out)
    sources = [source for source, _ in PAIRS[:20]]
    together = model.rewrite(sources)
    assert [model.rewrite([source])[0].text for source in sources] == [text.text for text in together]
    right = sum(text.text == target for text, (_, target) in zip(together, PAIRS[:20], strict=True))
    assert right >= 8


def test_a_stopped_run_resumes_to_the_same_bytes(unilm: Path, tmp_path: Path) -> None:
    """What is hidden in a step does not depend on the steps before it."""
    train, numbers = rows(tmp_path), ["epochs=4", "batch_size=16", "train.checkpoint_every=3"]
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    firth.finetune(unilm, task="rewrite", train=train, dev=train, out=whole, changes=numbers, device="cpu")
    asked = [
        unilm,
        "--task",
        "rewrite",
        "--train",
        train,
        "--dev",
        train,
        "--out",
        stopped,
        "--device",
        "cpu",
        *numbers,
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-m", "firth", "finetune", *map(str, asked)]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list(stopped.glob("seed-*/checkpoints/step-3")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 128 + signal.SIGTERM
    firth.finetune(out=stopped, resume=True, device="cpu")
    for name in ("model.safetensors", "head.safetensors", "results.json"):
        assert (whole / name).read_bytes() == (stopped / name).read_bytes(), name


def test_a_unilm_writes_without_fine_tuning_a_bert_does_not(unilm: Path, run: Path) -> None:
    [text] = firth.load(unilm).rewrite(["the source of a module"], max_tokens=5)
    assert 0 < text.num_tokens <= 5
    with pytest.raises(Unsupported, match="reads but cannot write"):
        firth.load(run).rewrite(["the source of a module"])


def test_long_sources_and_targets_share_the_sequence(head: RewriteHead, tokenizer: WordPiece) -> None:
    long = " ".join(WORDS * 20)
    [item] = head.encode([Example((long,), "the source")], tokenizer, max_length=64, training=True)
    assert len(item.windows[0]) == 32
    [problem] = head.token_problems([replace(Example((long,), long), row=7)], tokenizer, max_length=64)
    assert problem.row == 7
    assert "the model writes at most 31" in problem.what
