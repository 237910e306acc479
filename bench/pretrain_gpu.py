"""Pre-training speed on one GPU, firth against transformers, real shards through the real loader and loop, in one run.

    python bench/pretrain_gpu.py --pairs DIR --ragged DIR [--parts ceiling,parity,firth,transformers,small,memory]

DIR are folders made by `firth prepare`: documents by blank line for sentence pairs, `--documents line` for one
paragraph a sequence. Useful tokens are tokens of real sequences with their [CLS] and [SEP]; filler and padding do not
count. FLOP of a token, forward and backward: 6 x (weights of the blocks) + 12 x layers x width x length (attention,
at the mean length) + 6 x share predicted x (transform + vocabulary x width).
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from firth.config import override
from firth.data.loader import Place, load, places
from firth.data.shards import Shards
from firth.encoders.bert import Bert
from firth.objectives.masked_lm import MaskedLM
from firth.recipes import lineage
from firth.recipes.lineage import Recipe
from firth.recipes.pretraining import Parts, build
from firth.train.loop import Progress, train
from firth.train.optim import make_optimizer

WARM, STEPS = 12, 40
"""Steps before the clock starts, and steps timed, in two windows whose difference is the spread."""
OUT: Path | None = None


def record(**row: Any) -> None:
    print(json.dumps(row), flush=True)
    if OUT:
        with OUT.open("a") as file:
            file.write(json.dumps(row) + "\n")


def ceiling() -> float:
    """TFLOP/s of an 8192^3 bf16 product on random data, the median of 30."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    times = []
    for _ in range(35):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        a @ b
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    rate = 2 * 8192**3 / float(np.median(times[5:])) / 1e12
    record(part="ceiling", tflops=rate)
    return rate


def flops(shape: Bert.Config, mean_length: float, rate: float = 0.15) -> float:
    blocks = shape.num_layers * (4 * shape.width**2 + 2 * shape.width * shape.ffn_width)
    attention = 12 * shape.num_layers * shape.width * mean_length
    head = 6 * rate * (shape.width**2 + shape.vocab_size * shape.width)
    return 6 * blocks + attention + head


def plan_for(ragged: bool, *, tokens: int, dropout: float, shape: tuple[int, int, int] | None, workers: int) -> Recipe:
    plan = lineage.make("bert", "base")
    encoder = replace(plan.encoder["bert"], dropout=dropout)
    if shape:
        layers, width, heads = shape
        encoder = replace(encoder, num_layers=layers, width=width, num_heads=heads, ffn_width=4 * width)
    objectives = {"masked_lm": MaskedLM.Config()} if ragged else plan.objectives
    plan = replace(plan, encoder={"bert": replace(encoder, pooler=not ragged)}, objectives=objectives)
    return override(plan, [f"batches.tokens={tokens}", f"batches.workers={workers}", "train.optim.rate=1e-4"])


def lengths_of(parts: Parts, steps: int) -> np.ndarray:
    """Lengths of the real sequences of the first packs."""
    plan, packs = parts.packs._plan(0)
    return np.concatenate([plan.lengths_S[rows] for rows in packs[:steps]])


def run_firth(name: str, data: Shards, top: float, *, ragged: bool, steps: int = STEPS, **options: Any) -> list[float]:
    """Times the real loop; the losses of all steps come back."""
    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    checkpointing = options.pop("checkpointing", False)
    profile = options.pop("profile", False)
    plan = plan_for(ragged, **{"tokens": 65536, "dropout": 0.0, "shape": None, "workers": 8, **options})
    if checkpointing:
        plan = override(plan, ["train.recompute=true"])
    parts = build(plan, data, device="cuda")
    optimizer = make_optimizer(parts.learner, plan.train.optim)
    progress = Progress(WARM + steps)
    losses: list[torch.Tensor] = []
    clock: dict[str, float] = {}

    def on_step(progress: Progress, norm: torch.Tensor) -> None:
        losses.append(progress.sums["masked_lm"] / progress.counts["masked_lm"])
        progress.sums, progress.counts = {}, {}
        if progress.step == WARM:
            torch.cuda.synchronize()
            torch._dynamo.config.error_on_recompile = True
            clock["start"], progress.waited = time.perf_counter(), 0.0
        if progress.step == WARM + steps // 2:
            torch.cuda.synchronize()
            clock["middle"] = time.perf_counter()
        if profile and progress.step in (WARM + 1, WARM + 4):
            profiler.start() if progress.step == WARM + 1 else profiler.stop()

    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
    began = time.perf_counter()
    try:
        train(
            parts.learner,
            load(parts.packs, places(parts.packs, Place()), workers=plan.batches.workers),
            plan.train,
            optimizer=optimizer,
            progress=progress,
            on_step=on_step,
        )
        torch.cuda.synchronize()
    finally:
        torch._dynamo.config.error_on_recompile = False
    end = time.perf_counter()
    seconds = end - clock["start"]
    lengths = lengths_of(parts, WARM + steps)
    useful = lengths.sum() * steps / (WARM + steps)
    windows = clock["middle"] - clock["start"], end - clock["middle"]
    cost = flops(parts.learner.encoder.config, float(np.average(lengths, weights=lengths)))
    record(
        part="firth",
        name=name,
        useful_tokens_per_second=useful / seconds,
        windows=[useful / 2 / window for window in windows],
        share_of_ceiling=useful / seconds * cost / 1e12 / top,
        gflop_per_token=cost / 1e9,
        waiting=progress.waited / seconds,
        peak_gb=torch.cuda.max_memory_allocated() / 1e9,
        mean_length=float(lengths.mean()),
        median_length=float(np.median(lengths)),
        max_length=int(lengths.max()),
        filled=float(lengths.sum() / ((WARM + steps) * plan.batches.tokens)),
        warm_up_seconds=clock["start"] - began,
        first_loss=float(losses[0]),
        last_loss=float(losses[-1]),
    )
    if profile:
        print(profiler.key_averages().table(sort_by="cuda_time_total", row_limit=24, max_name_column_width=70))
    return [float(loss) for loss in losses]


def padded(parts: Parts, batch: int, steps: int) -> Iterator[tuple[dict[str, torch.Tensor], int]]:
    """The same sequences and masks as rows of 128 with padding: what transformers trains on."""
    _, packs = parts.packs._plan(0)
    length = parts.packs.config.max_length
    rows = np.concatenate(packs)
    made = 0
    pool: list[tuple[np.ndarray, ...]] = []
    for index in range(len(packs)):
        made_batch = parts.packs[Place(0, index)]
        bounds = made_batch.bounds_B1.numpy()[: len(packs[index]) + 1]
        labels = np.full(made_batch.num_tokens, -100)
        targets = {k: v.numpy() for k, v in made_batch.targets.items()}
        real = targets["masked_lm_labels"] != -100
        labels[targets["masked_lm_positions"][real]] = targets["masked_lm_labels"][real]
        ids, segments = made_batch.ids_N.numpy(), made_batch.segments_N.numpy()
        for b in range(len(packs[index])):
            span = slice(bounds[b], bounds[b + 1])
            pair = targets["next_sentence_labels"][b] if "next_sentence_labels" in targets else -100
            pool.append((ids[span], segments[span], labels[span], pair))
        while len(pool) >= batch:
            chosen, pool = pool[:batch], pool[batch:]
            arrays = np.zeros((4, batch, length), np.int64)
            arrays[2] = -100
            for row, (i, s, y, _) in enumerate(chosen):
                arrays[0, row, : len(i)], arrays[1, row, : len(i)], arrays[2, row, : len(i)] = i, s, y
                arrays[3, row, : len(i)] = 1
            tensors = [torch.from_numpy(array).cuda() for array in arrays]
            names = ("input_ids", "token_type_ids", "labels", "attention_mask")
            feed = dict(zip(names, tensors, strict=True))
            if chosen[0][3] != -100:
                feed["next_sentence_label"] = torch.tensor([c[3] for c in chosen]).cuda()
            yield feed, sum(len(c[0]) for c in chosen)
            made += 1
            if made == steps:
                return
    assert len(rows)


def run_transformers(name: str, data: Shards, top: float, *, ragged: bool, dropout: float = 0.0) -> None:
    from transformers import BertConfig, BertForMaskedLM, BertForPreTraining

    torch._dynamo.reset()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    parts = build(plan_for(ragged, tokens=65536, dropout=0.0, shape=None, workers=0), data, device="cpu")
    config = BertConfig(
        vocab_size=parts.learner.encoder.vocab_size, hidden_dropout_prob=dropout, attention_probs_dropout_prob=0.0
    )
    model = (BertForMaskedLM if ragged else BertForPreTraining)(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    compiled = torch.compile(model, dynamic=False)
    feeds = list(padded(parts, 512, WARM + STEPS))
    useful = sum(count for _, count in feeds[WARM:])
    clock = []
    for step, (feed, _) in enumerate(feeds):
        if step in (WARM, WARM + STEPS // 2):
            torch.cuda.synchronize()
            clock.append(time.perf_counter())
        with torch.autocast("cuda", torch.bfloat16):
            loss = compiled(**feed).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()
    clock.append(time.perf_counter())
    seconds = clock[2] - clock[0]
    halves = [sum(count for _, count in half) for half in (feeds[WARM : WARM + STEPS // 2], feeds[WARM + STEPS // 2 :])]
    lengths = lengths_of(parts, WARM + STEPS)
    cost = flops(parts.learner.encoder.config, float(np.average(lengths, weights=lengths)))
    record(
        part="transformers",
        name=name,
        useful_tokens_per_second=useful / seconds,
        windows=[halves[0] / (clock[1] - clock[0]), halves[1] / (clock[2] - clock[1])],
        share_of_ceiling=useful / seconds * cost / 1e12 / top,
        peak_gb=torch.cuda.max_memory_allocated() / 1e9,
        last_loss=float(loss.detach()),
    )


def parity(data: Shards) -> None:
    """The first steps of base on the GPU in bf16 and on the CPU in fp32, dropout 0: the same losses within bf16."""
    found = {}
    for device, precision in (("cuda", "bf16"), ("cpu", "fp32")):
        plan = plan_for(False, tokens=8192, dropout=0.0, shape=None, workers=0)
        plan = override(plan, [f"train.precision={precision}"])
        parts = build(plan, data, device=device)
        losses: list[float] = []

        def on_step(progress: Progress, norm: torch.Tensor, losses: list[float] = losses) -> None:
            losses.append(float(progress.sums["masked_lm"]) / progress.counts["masked_lm"])
            progress.sums, progress.counts = {}, {}

        train(
            parts.learner,
            load(parts.packs, places(parts.packs, Place()), workers=0),
            plan.train,
            optimizer=make_optimizer(parts.learner, plan.train.optim),
            progress=Progress(4),
            on_step=on_step,
        )
        found[device] = losses
    worst = max(abs(a - b) for a, b in zip(found["cuda"], found["cpu"], strict=True))
    record(part="parity", gpu=found["cuda"], cpu=found["cpu"], worst=worst)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path, required=True)
    parser.add_argument("--ragged", type=Path, required=True)
    parser.add_argument("--parts", default="ceiling,parity,firth,transformers,small,memory")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    global OUT
    OUT = arguments.out
    pairs, ragged = Shards.open(arguments.pairs, verify=False), Shards.open(arguments.ragged, verify=False)
    print(torch.__version__, torch.cuda.get_device_name(), flush=True)
    top = ceiling()
    if "parity" in parts:
        parity(pairs)
    if "firth" in parts:
        run_firth("pairs", pairs, top, ragged=False, steps=100)
        run_firth("ragged", ragged, top, ragged=True)
    if "transformers" in parts:
        run_transformers("pairs", pairs, top, ragged=False)
        run_transformers("ragged", ragged, top, ragged=True)
    if "dropout" in parts:
        run_firth("pairs, dropout 0.1", pairs, top, ragged=False, dropout=0.1)
        run_firth("ragged, dropout 0.1", ragged, top, ragged=True, dropout=0.1)
        run_transformers("pairs, dropout 0.1", pairs, top, ragged=False, dropout=0.1)
        run_transformers("ragged, dropout 0.1", ragged, top, ragged=True, dropout=0.1)
    if "tuned" in parts:
        torch._inductor.config.coordinate_descent_tuning = True
        run_firth("pairs, elementwise kernels tuned", pairs, top, ragged=False)
        torch._inductor.config.coordinate_descent_tuning = False
    if "profile" in parts:
        run_firth("pairs, profiled", pairs, top, ragged=False, profile=True, steps=8)
    if "small" in parts:
        run_firth("12 x 384, ragged", ragged, top, ragged=True, shape=(12, 384, 12))
        run_firth("12 x 256, ragged", ragged, top, ragged=True, shape=(12, 256, 8))
    if "memory" in parts:
        run_firth("pairs, recompute", pairs, top, ragged=False, checkpointing=True)
        run_firth("large", pairs, top, ragged=False, shape=(24, 1024, 16), tokens=32768)


if __name__ == "__main__":
    main()
