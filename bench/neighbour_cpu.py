"""Speed beside a busy neighbour: tokens a second of fine-tuning and embedding, alone and with one more busy process.

    python -m bench.neighbour_cpu [--threads 2] [--seconds 6] [--rounds 3] [--work finetune embed]

The work is all-MiniLM-L6-v2 on RTE (fine-tuning, batches of 8 rows) and on paragraphs of Wikipedia (embedding). The
neighbour is one process that counts in a loop. Each measurement is a process of its own, because OpenMP reads its
settings once, when it is loaded. Ways to wait are measured in turn: OpenMP as it comes, the watcher of
`firth.train.shared_cores` ("firth", which training uses), and other values of GOMP_SPINCOUNT on request.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.table import say

LIMIT = 120
"""Seconds after which a neighbour or a measurement ends by itself."""
NEIGHBOUR = f"import time\nend = time.monotonic() + {LIMIT}\nwhile time.monotonic() < end: pass"


def main() -> None:
    arguments = _arguments()
    if arguments.measure:
        from firth.train.shared_cores import share_cores

        with share_cores() if arguments.share else nullcontext():
            print(MEASURES[arguments.measure](arguments.seconds))
        return
    print("| work | waiting | threads | alone, tokens/s | beside a neighbour | share kept |")
    print("|---|---|---|---|---|---|")
    for work in arguments.work:
        settings = [("as it comes", arguments.threads), ("firth", arguments.threads), ("as it comes", 1)]
        show(work, settings, rounds=arguments.rounds, seconds=arguments.seconds, spins=arguments.spins)


def show(work: str, settings: list[tuple[str, int]], *, rounds: int, seconds: float, spins: list[str]) -> None:
    """The rounds go through all settings in turn, so that a change of the machine's speed slows all."""
    settings = settings + [(f"GOMP_SPINCOUNT={count}", settings[0][1]) for count in spins]
    alone: dict[tuple[str, int], list[float]] = {setting: [] for setting in settings}
    beside: dict[tuple[str, int], list[float]] = {setting: [] for setting in settings}
    for _ in range(rounds):
        for setting in settings:
            alone[setting].append(measured(work, *setting, seconds=seconds))
            with neighbour():
                beside[setting].append(measured(work, *setting, seconds=seconds))
            say(f"{work}, {setting}: {alone[setting][-1]:.0f} alone, {beside[setting][-1]:.0f} beside a neighbour")
    for setting in settings:
        name, threads = setting
        own = median(alone[setting])
        shared = median(beside[setting])
        print(f"| {work} | {name} | {threads} | {own:,.0f} | {shared:,.0f} | {shared / own:.2f} |", flush=True)


def measured(work: str, setting: str, threads: int, *, seconds: float) -> float:
    """Tokens a second of a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "bench.neighbour_cpu", "--measure", work, "--seconds", str(seconds)]
    if setting == "firth":
        command.append("--share")
    elif "=" in setting:
        name, value = setting.split("=")
        environment[name] = value
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=LIMIT, check=True)
    return float(done.stdout.splitlines()[-1])


@contextmanager
def neighbour() -> Iterator[None]:
    """One busy process, as long as this lasts."""
    process = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def finetune(seconds: float) -> float:
    """Steps of fine-tuning, forward, backward and optimizer, for that many seconds after two that warm up."""
    from bench.finetune_cpu import RATE, _step
    from bench.texts import minilm, unpacked
    from firth import checkpoint as checkpoints
    from firth.checkpoint import make_head
    from firth.data.items import ItemBatches
    from firth.data.loader import BatchAddress
    from firth.finetuning import labelled
    from firth.tasks.classify import ClassifyConfig
    from firth.train.loop import Learner
    from firth.train.optim import make_optimizer
    from firth.train.settings import OptimConfig

    with TemporaryDirectory() as folder:
        file = unpacked("en/glue.tar.xz", "RTE/train.tsv", Path(folder))
        data = labelled.read("classify", ClassifyConfig(preset="rte"), {"train": file})
    start = checkpoints.load(minilm())
    task = make_head("classify", data.config, start.encoder, labels=data.labels)
    items = task.encode(data.examples["train"][:400], start.tokenizer, max_length=256, training=True)
    batches = ItemBatches({"classify": task}, {"classify": items}, 8, seed=1)
    learner = Learner(start.encoder, {"classify": task}).train()
    optimizer = make_optimizer(learner, OptimConfig(rate=RATE))

    def step(number: int) -> int:
        batch = batches[BatchAddress(0, number % batches.num_packs(0))]
        loss = learner(batch).sums["classify"] / len(batch.targets["gold_E"])
        _step(loss, optimizer)
        return batch.num_tokens

    return _rate(step, seconds)


def embed(seconds: float) -> float:
    """Blocks of 64 texts, for that many seconds after two that warm up."""
    import firth
    from bench.texts import minilm, paragraphs

    model = firth.load(minilm())
    texts = paragraphs(640)
    lengths = [len(ids) + 2 for ids in model.tokenizer.ids_batch(texts)]

    def step(number: int) -> int:
        start = number * 64 % 640
        model.embed(texts[start : start + 64])
        return sum(lengths[start : start + 64])

    return _rate(step, seconds)


MEASURES: dict[str, Callable[[float], float]] = {"finetune": finetune, "embed": embed}


def _rate(step: Callable[[int], int], seconds: float) -> float:
    warm = time.perf_counter()
    step(0)
    step(1)
    while time.perf_counter() - warm < 1:  # the watcher has looked at the load once
        step(1)
    tokens = 0
    number = 2
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        tokens += step(number)
        number += 1
    return tokens / (time.perf_counter() - began)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", nargs="+", choices=list(MEASURES), default=list(MEASURES))
    parser.add_argument("--spins", nargs="*", default=[], help="values of GOMP_SPINCOUNT to measure as well")
    parser.add_argument("--share", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--measure", choices=list(MEASURES), default="", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
