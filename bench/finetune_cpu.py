"""Speed of fine-tuning against a transformers training loop: the same model, rows, order, head and optimizer, one run.

    python bench/finetune_cpu.py MODEL FILE --preset mrpc --steps 20

Both train on the same batches in turn, step by step, so that a busy machine slows both. Theirs pads each batch to its
longest row; dropout is 0 in both and the losses are compared, so the work is the same.
"""

import argparse
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from firth import checkpoint as checkpoints  # noqa: E402
from firth.checkpoint import make_task  # noqa: E402
from firth.data.items import ItemBatches  # noqa: E402
from firth.data.loader import Place  # noqa: E402
from firth.recipes import labelled  # noqa: E402
from firth.tasks.classify import Classify  # noqa: E402
from firth.tensors import Batch  # noqa: E402
from firth.train.loop import Learner  # noqa: E402
from firth.train.optim import OptimConfig, make_optimizer  # noqa: E402

RATE = 1e-4


def main() -> None:
    arguments = _arguments()
    ours, theirs, batches, rows = _make(arguments)
    seconds = {"firth": 0.0, "transformers": 0.0}
    worst = 0.0
    tokens = cells = 0
    our_optimizer = make_optimizer(ours, OptimConfig(rate=RATE))
    their_optimizer = make_optimizer(theirs, OptimConfig(rate=RATE))
    for step in range(arguments.steps + 2):
        batch = batches[Place(0, step % batches.num_packs(0))]
        began = time.perf_counter()
        loss = ours(batch).sums["classify"] / len(batch.targets["gold_E"])
        _step(loss, our_optimizer)
        middle = time.perf_counter()
        inputs = _padded(batch)
        theirs_loss = theirs(**inputs, labels=batch.targets["gold_E"][:, 0]).loss
        _step(theirs_loss, their_optimizer)
        if step >= 2:  # the first ones warm up
            seconds["firth"] += middle - began
            seconds["transformers"] += time.perf_counter() - middle
            tokens, cells = tokens + batch.num_tokens, cells + inputs["input_ids"].numel()
        worst = max(worst, abs(float(loss.detach() - theirs_loss.detach())))
    print(f"{rows} rows, {tokens:,} tokens; {1 - tokens / cells:.0%} of their cells are padding")
    print(f"losses at most {worst:.1e} apart")
    for name, spent in seconds.items():
        print(f"{name:<14}{tokens / spent:>10,.0f} tokens/s  {spent / arguments.steps:.3f} s a step")
    print(f"ratio {seconds['transformers'] / seconds['firth']:.2f}")


def _make(arguments: argparse.Namespace) -> tuple[Learner, Any, ItemBatches, int]:
    import transformers

    data = labelled.read("classify", Classify.Config(preset=arguments.preset, dropout=0.0), {"train": arguments.file})
    start = checkpoints.load(arguments.model)
    for part in start.encoder.modules():
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    for block in start.encoder.blocks:
        block.attention.dropout = 0.0  # type: ignore[union-attr]
    task = make_task("classify", data.config, start.encoder, labels=data.labels)
    theirs = transformers.BertForSequenceClassification.from_pretrained(
        arguments.model, num_labels=len(data.labels["label"]), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
    )
    task.head.load_state_dict(theirs.classifier.state_dict())  # type: ignore[union-attr]
    rows = data.examples["train"][: arguments.rows]
    items = task.encode(rows, start.tokenizer, max_length=start.encoder.config.max_positions, training=True)
    batches = ItemBatches({"classify": task}, {"classify": items}, arguments.batch_size, seed=1)
    return Learner(start.encoder, {"classify": task}).train(), theirs.train(), batches, len(rows)


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
    return parser.parse_args()


if __name__ == "__main__":
    main()
