"""What dropout costs in fine-tuning on a CPU: none, as torch computes it, and as firth does, in turns in one run.

    OMP_NUM_THREADS=1 python -m bench.dropout_cpu [MODEL] [--rate 0.1] [--precision bf16]

The model is fine-tuned on the embedded topics (firth/samples/topics.en.tsv). The three kinds take turns batch by batch
on the same rows, so that a busy machine slows all of them, and only the CPU time of this process counts.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from firth import checkpoint as checkpoints
from firth import models, samples
from firth.checkpoint import make_head
from firth.cpu import this_cpu
from firth.data.items import ItemBatches
from firth.data.loader import BatchAddress
from firth.finetuning import labelled
from firth.nn import attention
from firth.nn.dropout import Dropout
from firth.tasks.classify import ClassifyConfig
from firth.train.loop import Learner
from firth.train.optim import make_optimizer
from firth.train.parallel import in_precision
from firth.train.settings import OptimConfig

KINDS = ("none", "torch", "firth")
WARM = 2


def main() -> None:
    arguments = _arguments()
    learner, batches = _make(arguments.model, arguments.batch_size)
    forward = in_precision(learner, arguments.precision)
    optimizer = make_optimizer(learner, OptimConfig(rate=1e-4))
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for step in range(-WARM, arguments.steps):
        batch = batches[BatchAddress(0, step % batches.num_packs(0))]
        for kind in KINDS:
            _set_rate(learner, 0.0 if kind == "none" else arguments.rate)
            began = time.process_time()
            with _torch_dropout() if kind == "torch" else nullcontext():
                loss = forward(batch).sums["classify"] / len(batch.targets["gold_E"])
                loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if step >= 0:
                seconds[kind].append(time.process_time() - began)
    for kind, spent in seconds.items():
        median = statistics.median(spent) * 1000
        ratios = [sum(spent[half::2]) / sum(seconds["firth"][half::2]) for half in (0, 1)]
        print(
            f"{kind:<8}{sum(spent):8.2f} CPU s for {len(spent)} steps, median {median:.1f} ms; "
            f"{ratios[0]:.2f} and {ratios[1]:.2f} times firth's"
        )


@contextmanager
def _torch_dropout() -> Iterator[None]:
    """Dropout and attention as torch computes them."""

    def torch_attention(
        q: Tensor, k: Tensor, v: Tensor, added: Tensor | None, rate: float, *, scale: float | None
    ) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, added, rate, scale=scale)

    with (
        patch.object(Dropout, "forward", nn.Dropout.forward),
        patch.object(attention, "dropped_attention", torch_attention),
    ):
        yield


def _set_rate(learner: Learner, rate: float) -> None:
    for part in learner.modules():
        if isinstance(part, Dropout):
            part.p = rate
        elif isinstance(part, nn.Module) and isinstance(getattr(part, "dropout", None), float):
            part.dropout = rate  # type: ignore[assignment]


def _make(model: str, batch_size: int) -> tuple[Learner, ItemBatches]:
    data = labelled.read("classify", ClassifyConfig(), {"train": samples.labelled("topics", "en")})
    start = checkpoints.load(Path(models.find(model)))
    task = make_head("classify", data.config, start.encoder, labels=data.labels)
    items = task.encode(data.examples["train"], start.tokenizer, max_length=128, training=True)
    batches = ItemBatches({"classify": task}, {"classify": items}, batch_size, seed=1)
    return Learner(start.encoder, {"classify": task}).train(), batches


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="en-small")
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument(
        "--precision", choices=("fp32", "bf16"), default="bf16" if this_cpu().trains_in_bf16 else "fp32"
    )
    return parser.parse_args()


if __name__ == "__main__":
    torch.manual_seed(0)
    main()
