"""Pre-training speed on one GPU, firth against transformers, real shards through the real loader and loop, in one run.

    python bench/pretrain_gpu.py --pairs DIR --ragged DIR [--cases pairs,ragged,...] [--rounds 2] [--out FILE]

    python bench/pretrain_gpu.py --draw FILE --figure docs/images/throughput.svg

Every case runs in a process of its own, after a first pass in which several at once compile into a shared cache.

DIR are folders made by `firth prepare`: documents by blank line for sentence pairs, `--documents line` for one
paragraph a sequence. Useful tokens are tokens of real sequences with their [CLS] and [SEP]; filler and padding do not
count. FLOP of a token, forward and backward: 6 x (weights of the blocks) + 12 x layers x width x length (attention,
at the mean length) + 6 x share predicted x (transform + vocabulary x width).
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from firth import lineage
from firth.config import override
from firth.data.loader import BatchAddress, load, places
from firth.data.shards import Shards
from firth.encoders.bert import Bert
from firth.lineage import Recipe
from firth.objectives.masked_lm import MaskedLM
from firth.pretraining.training import Parts, build
from firth.train.loop import Progress, train
from firth.train.optim import make_optimizer

WARM, STEPS = 12, 40
"""Steps before the clock starts, and steps timed, in two windows whose difference is the spread."""
AT_ONCE = 6
"""Cases that compile at the same time; more would not fit the GPU's memory."""
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


def plan_for(
    ragged: bool,
    *,
    tokens: int = 65536,
    dropout: float = 0.0,
    shape: tuple[int, int, int] | None = None,
    workers: int = 8,
) -> Recipe:
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
    plan, packs = parts.text.training._plan(0)
    return np.concatenate([plan.lengths_S[rows] for rows in packs[:steps]])


def watched(batches: Iterator[Any], gaps: list[tuple[Any, Any]]) -> Iterator[Any]:
    """The same batches; between the two events of a gap the GPU has nothing to do but wait for the next one.

    The host may wait for data while the GPU is still busy with earlier steps, which costs nothing.
    """
    while True:
        gap = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        gap[0].record()
        batch = next(batches)
        gap[1].record()
        gaps.append(gap)
        yield batch


def run_firth(name: str, data: Shards, top: float, *, ragged: bool, steps: int = STEPS, **options: Any) -> list[float]:
    """Times the real loop; the losses of all steps come back."""
    changes = options.pop("changes", ())
    profile = options.pop("profile", False)
    plan = plan_for(ragged, **options)
    plan = override(plan, changes)
    parts = build(plan, data, device="cuda")
    packs = parts.text.training
    optimizer = make_optimizer(parts.learner, plan.train.optim)
    progress = Progress(WARM + steps)
    losses: list[torch.Tensor] = []
    clock: dict[str, float] = {}
    gaps: list[tuple[Any, Any]] = []

    def on_step(progress: Progress, norm: torch.Tensor) -> None:
        losses.append(progress.sums["masked_lm"] / progress.counts["masked_lm"])
        progress.sums, progress.counts = {}, {}
        if progress.step == WARM:
            torch.cuda.synchronize()
            torch._dynamo.config.error_on_recompile = True
            clock["start"], progress.waited = time.perf_counter(), 0.0
            gaps.clear()
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
            watched(load(packs, places(packs, BatchAddress()), workers=plan.batches.workers), gaps),
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
        gpu_waiting=sum(before.elapsed_time(after) for before, after in gaps) / 1e3 / seconds,
        host_waiting=progress.waited / seconds,
        peak_gb=torch.cuda.max_memory_allocated() / 1e9,
        mean_length=float(lengths.mean()),
        median_length=float(np.median(lengths)),
        max_length=int(lengths.max()),
        filled=float(lengths.sum() / ((WARM + steps) * plan.batches.tokens)),
        warm_up_seconds=clock["start"] - began,
        first_loss=float(losses[0]),
        last_loss=float(losses[-1]),
        losses=[round(float(loss), 4) for loss in losses[:: max(1, len(losses) // 12)]],
    )
    if profile:
        print(profiler.key_averages().table(sort_by="cuda_time_total", row_limit=24, max_name_column_width=70))
    return [float(loss) for loss in losses]


def padded(parts: Parts, batch: int, steps: int) -> Iterator[tuple[dict[str, torch.Tensor], int]]:
    """The same sequences and masks as rows of 128 with padding: what transformers trains on."""
    _, packs = parts.text.training._plan(0)
    length = parts.text.training.config.max_length
    rows = np.concatenate(packs)
    made = 0
    pool: list[tuple[np.ndarray, ...]] = []
    for index in range(len(packs)):
        made_batch = parts.text.training[BatchAddress(0, index)]
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


def run_transformers(
    name: str, data: Shards, top: float, *, ragged: bool, dropout: float = 0.0, steps: int = STEPS
) -> None:
    from transformers import BertConfig, BertForMaskedLM, BertForPreTraining

    parts = build(plan_for(ragged, workers=0), data, device="cpu")
    config = BertConfig(
        vocab_size=parts.learner.encoder.vocab_size, hidden_dropout_prob=dropout, attention_probs_dropout_prob=0.0
    )
    model = (BertForMaskedLM if ragged else BertForPreTraining)(config).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    compiled = torch.compile(model, dynamic=False)
    feeds = list(padded(parts, 512, WARM + steps))
    useful = sum(count for _, count in feeds[WARM:])
    clock = []
    for step, (feed, _) in enumerate(feeds):
        if step in (WARM, WARM + steps // 2):
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
    halves = [sum(count for _, count in half) for half in (feeds[WARM : WARM + steps // 2], feeds[WARM + steps // 2 :])]
    lengths = lengths_of(parts, WARM + steps)
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
        plan = plan_for(False, tokens=8192, workers=0)
        plan = override(plan, [f"train.precision={precision}"])
        parts = build(plan, data, device=device)
        losses: list[float] = []

        def on_step(progress: Progress, norm: torch.Tensor, losses: list[float] = losses) -> None:
            losses.append(float(progress.sums["masked_lm"]) / progress.counts["masked_lm"])
            progress.sums, progress.counts = {}, {}

        train(
            parts.learner,
            load(parts.text.training, places(parts.text.training, BatchAddress()), workers=0),
            plan.train,
            optimizer=make_optimizer(parts.learner, plan.train.optim),
            progress=Progress(4),
            on_step=on_step,
        )
        found[device] = losses
    worst = max(abs(a - b) for a, b in zip(found["cuda"], found["cpu"], strict=True))
    record(part="parity", gpu=found["cuda"], cpu=found["cpu"], worst=worst)


NO_GRAPHS = "no graphs"
PEER = "transformers"
CASES: dict[str, dict[str, Any]] = {
    "pairs": {"ragged": False, "steps": 100},
    "ragged": {"ragged": True},
    "pairs, transformers": {"ragged": False},
    "ragged, transformers": {"ragged": True},
    "pairs, dropout 0.1": {"ragged": False, "dropout": 0.1},
    "ragged, dropout 0.1": {"ragged": True, "dropout": 0.1},
    "pairs, dropout 0.1, transformers": {"ragged": False, "dropout": 0.1},
    "ragged, dropout 0.1, transformers": {"ragged": True, "dropout": 0.1},
    "12 x 384": {"ragged": True, "shape": (12, 384, 12)},
    "12 x 256": {"ragged": True, "shape": (12, 256, 8)},
    "12 x 384, no graphs": {"ragged": True, "shape": (12, 384, 12)},
    "12 x 256, no graphs": {"ragged": True, "shape": (12, 256, 8)},
    "pairs, no graphs": {"ragged": False, "steps": 100},
    "recompute": {"ragged": False, "changes": ["train.recompute=true"]},
    "large": {"ragged": False, "shape": (24, 1024, 16), "tokens": 32768},
    **{
        f"length {length}": {"ragged": False, "steps": 20, "changes": [f"batches.max_length={length}"]}
        for length in (32, 64, 256, 512)
    },
    **{
        f"batch {tokens}": {"ragged": False, "steps": 20, "tokens": tokens}
        for tokens in (4096, 8192, 16384, 32768, 131072)
    },
}
"""What is measured: how the sequences are cut, and what differs from `base`, 65,536 tokens a step, dropout 0."""


def run_case(name: str, top: float, arguments: argparse.Namespace) -> None:
    options = dict(CASES[name])
    if arguments.compile_only:
        options["steps"] = 2
    if NO_GRAPHS in name:
        options["changes"] = [*options.get("changes", ()), "train.graphs=false"]
    data = Shards.open(arguments.ragged if options["ragged"] else arguments.pairs, verify=False)
    run = run_transformers if PEER in name else run_firth
    run(name, data, top, **options)


def draw(source: Path, figure: Path) -> None:
    """Useful tokens a second over the length of a sequence and over the tokens of a step."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    found: dict[str, float] = {}
    for line in source.read_text().splitlines():
        row = json.loads(line)
        if row["part"] == "firth":
            found[row["name"]] = row["useful_tokens_per_second"] / 1e3
    matplotlib.rcParams["svg.hashsalt"] = "firth"  # the same bytes from the same rows
    page, panels = pyplot.subplots(1, 2, figsize=(8.4, 3.2), sharey=True)
    axes = {
        "length": ("longest sequence, 65,536 tokens a step", {128: "pairs"}),
        "batch": ("tokens a step, sequences of 128", {65536: "pairs"}),
    }
    for panel, (kind, (label, known)) in zip(panels, axes.items(), strict=True):
        points = {int(name.split()[1]): value for name, value in found.items() if name.startswith(kind)}
        points |= {at: found[name] for at, name in known.items() if name in found}
        places = sorted(points)
        panel.plot(places, [points[at] for at in places], marker="o", color="#0072b2")
        panel.set(xscale="log", xlabel=label, xticks=places, xticklabels=[f"{at:,}" for at in places], ylim=(0, 950))
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("thousand useful tokens/s")
    page.tight_layout()
    figure.parent.mkdir(parents=True, exist_ok=True)
    page.savefig(figure, metadata={"Date": None})


def spawn(name: str, top: float, arguments: argparse.Namespace, *more: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, __file__, "--pairs", arguments.pairs, "--ragged", arguments.ragged, "--case", name]
    return subprocess.Popen([*command, "--top", str(top), *more])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=Path)
    parser.add_argument("--ragged", type=Path)
    parser.add_argument("--cases", default=",".join(name.replace(", ", "/") for name in CASES))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--parity", action="store_true")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--case")
    parser.add_argument("--top", type=float)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--draw", type=Path, help="draw the rows of an earlier run's --out instead")
    parser.add_argument("--figure", type=Path)
    arguments = parser.parse_args()
    global OUT
    if arguments.draw:
        return draw(arguments.draw, arguments.figure)
    OUT = arguments.out
    if arguments.case:
        return run_case(arguments.case, arguments.top, arguments)
    print(torch.__version__, torch.cuda.get_device_name(), flush=True)
    top = ceiling()
    if arguments.parity:
        parity(Shards.open(arguments.pairs, verify=False))
    names = [name.replace("/", ", ") for name in arguments.cases.split(",")]
    waiting, running = list(names), []
    while waiting or running:
        running = [process for process in running if process.poll() is None]
        while waiting and len(running) < AT_ONCE:
            running.append(spawn(waiting.pop(0), top, arguments, "--compile-only"))
        time.sleep(0.2)
    for _ in range(arguments.rounds):
        for name in names:
            spawn(name, top, arguments, *(["--out", str(OUT)] if OUT else [])).wait()


if __name__ == "__main__":
    main()
