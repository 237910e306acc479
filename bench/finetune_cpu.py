"""Speed of fine-tuning against a transformers training loop: the same model, rows, order, head and optimizer, one run.

    python -m bench.finetune_cpu MODEL FILE --preset mrpc --steps 20

Both train on the same batches in turn, step by step, so that a busy machine slows both. Theirs pads each batch to its
longest row; dropout is 0 in both and the losses are compared, so the work is the same. In bf16, theirs uses autocast.
"""

import argparse
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from bench.pretrain_cpu import precisions
from bench.table import Row
from bench.texts import minilm, unpacked
from firth import checkpoint as checkpoints
from firth.checkpoint import make_head
from firth.data.items import ItemBatches
from firth.data.loader import BatchAddress
from firth.finetuning import labelled
from firth.tasks.classify import ClassifyConfig
from firth.tensors import Batch
from firth.train.loop import Learner
from firth.train.optim import make_optimizer
from firth.train.parallel import Precision, in_precision
from firth.train.settings import OptimConfig

RATE = 1e-4


@dataclass
class Found:
    """What a number of steps took, in two halves."""

    ours: list[float]
    theirs: list[float]
    """Tokens a second in each half."""
    seconds: tuple[float, float]
    tokens: int
    cells: int
    """Tokens with padding."""
    apart: float
    """The greatest difference of the losses."""


def main() -> None:
    arguments = _arguments()
    parts = _make(arguments.model, arguments.file, arguments.preset, arguments.rows, arguments.batch_size)
    found = measured(*parts, steps=arguments.steps, precision=arguments.precision)
    print(f"{found.tokens:,} tokens; {1 - found.tokens / found.cells:.0%} of their cells are padding")
    print(f"losses at most {found.apart:.1e} apart")
    for name, rates, spent in zip(("firth", "transformers"), (found.ours, found.theirs), found.seconds, strict=True):
        print(f"{name:<14}{rates[0]:>10,.0f} and {rates[1]:,.0f} tokens/s  {spent / arguments.steps:.3f} s a step")
    halves = [mine / other for mine, other in zip(found.ours, found.theirs, strict=True)]
    print(f"ratio {found.seconds[1] / found.seconds[0]:.2f} ({halves[0]:.2f} and {halves[1]:.2f})")


def rows() -> list[Row]:
    """What `make bench` shows: MiniLM on pairs of very different lengths (RTE) and of more even ones (MRPC)."""
    made = []
    for name, inside in (("RTE", "RTE/train.tsv"), ("MRPC", "MRPC/msr_paraphrase_train.txt")):
        with TemporaryDirectory() as folder:
            file = unpacked("en/glue.tar.xz", inside, Path(folder))
            for precision in precisions():
                parts = _make(minilm(), file, name.lower(), 400, 32)
                found = measured(*parts, steps=8, precision=precision)
                what = f"fine-tune MiniLM on {name}, {precision}"
                note = f"{1 - found.tokens / found.cells:.0%} of theirs is padding"
                made.append(Row(what, "tokens/s", found.ours, "transformers", found.theirs, "≥ 1.5", note))
    return made


def measured(ours: Learner, theirs: Any, batches: ItemBatches, *, steps: int, precision: Precision) -> Found:
    """Both train on the same batches in turn; in bf16, transformers by autocast."""
    forward = in_precision(ours, precision)
    our_optimizer = make_optimizer(ours, OptimConfig(rate=RATE))
    their_optimizer = make_optimizer(theirs, OptimConfig(rate=RATE))
    clocks, apart, cells = [], 0.0, 0
    for step in range(-2, steps):  # the first ones warm up
        batch = batches[BatchAddress(0, step % batches.num_packs(0))]
        began = time.perf_counter()
        loss = forward(batch).sums["classify"] / len(batch.targets["gold_E"])
        _step(loss, our_optimizer)
        middle = time.perf_counter()
        inputs = _padded(batch)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            their_loss = theirs(**inputs, labels=batch.targets["gold_E"][:, 0]).loss
        _step(their_loss, their_optimizer)
        if step >= 0:
            clocks.append((batch.num_tokens, middle - began, time.perf_counter() - middle))
            cells += inputs["input_ids"].numel()
        apart = max(apart, abs(float(loss.detach() - their_loss.detach())))
    sums = [torch.tensor(part).sum(0).tolist() for part in (clocks[::2], clocks[1::2])]
    rates = [[tokens / part[who] for tokens, *part in sums] for who in (0, 1)]
    tokens, *spent = torch.tensor(clocks).sum(0).tolist()
    return Found(*rates, (spent[0], spent[1]), int(tokens), cells, apart)


def _make(model: Path, file: Path, preset: str, count: int, batch_size: int) -> tuple[Learner, Any, ItemBatches]:
    import transformers

    transformers.logging.set_verbosity_error()
    data = labelled.read("classify", ClassifyConfig(preset=preset, dropout=0.0, both_orders=False), {"train": file})
    start = checkpoints.load(model)
    for part in start.encoder.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    for block in start.encoder.blocks:
        block.attention.dropout = 0.0  # type: ignore[union-attr]
    task = make_head("classify", data.config, start.encoder, labels=data.labels)
    theirs = transformers.BertForSequenceClassification.from_pretrained(
        model, num_labels=len(data.labels["label"]), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    task.head.load_state_dict(theirs.classifier.state_dict())  # type: ignore[union-attr]
    items = task.encode(
        data.examples["train"][:count], start.tokenizer, max_length=start.encoder.config.max_positions, training=True
    )
    batches = ItemBatches({"classify": task}, {"classify": items}, batch_size, seed=1)
    return Learner(start.encoder, {"classify": task}).train(), theirs.train(), batches


def _padded(batch: Batch) -> dict[str, torch.Tensor]:
    rows = [slice(start, end) for start, end in pairwise(batch.bounds_B1.tolist())]
    return {
        "input_ids": pad_sequence([batch.ids_N[row] for row in rows], batch_first=True),
        "token_type_ids": pad_sequence([batch.segments_N[row] for row in rows], batch_first=True),
        "attention_mask": pad_sequence([torch.ones(row.stop - row.start).long() for row in rows], batch_first=True),
    }


def _step(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--preset", default="")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    return parser.parse_args()


if __name__ == "__main__":
    main()
