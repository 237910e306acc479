"""Pre-training speed of T5-small's shape, firth against a compiled transformers loop, in one run.

    python bench/t5_gpu.py [--cases full,ragged,full-1.1] [--sequences 128] [--rounds 2] [--parity] [--out FILE]
    python bench/t5_gpu.py --device cpu --tiny        # only to see that it runs

Sources of at most 512 and targets of at most 114 random tokens, as T5's span corruption makes them. `full`: all
sequences have these lengths, so that the peer pads nothing. `ragged`: lengths vary around 60 % of them; firth packs
the sequences, the peer pads them. Both: bf16 (the peer by autocast), dropout 0, fused AdamW, gradients clipped at 1,
the same number of useful tokens a step. Useful tokens are those of sources and targets. Every case runs in a process
of its own, after a first pass in which all of them compile at once into a shared cache; peak memory is what the
allocator gave out. `--parity` first compares losses and gradients in bf16, where our kernels run, with those in fp32,
where they do not.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from firth.data.loader import BatchAddress  # noqa: E402
from firth.data.packing import pack_tokens  # noqa: E402
from firth.encoders.t5 import T5  # noqa: E402
from firth.nn.encoder_decoder import output_loss  # noqa: E402
from firth.nn.likelihood import IGNORE  # noqa: E402
from firth.tensors import Batch, Goal, Loss, States  # noqa: E402
from firth.train.loop import Learner, Progress, train  # noqa: E402
from firth.train.optim import make_optimizer  # noqa: E402
from firth.train.parallel import in_precision  # noqa: E402
from firth.train.settings import OptimConfig, TrainConfig  # noqa: E402

WARM, STEPS = 10, 30
"""Steps before the clock starts, and steps timed."""
LENGTHS = 512, 114
"""The longest source and target."""
RAGGED = 0.6
"""The mean length of the ragged cases, as a share of the longest."""
SMALL = T5.Config(dropout=0.0)
SHAPES = {
    "1.0": SMALL,
    "1.1": replace(
        SMALL,
        num_layers=8,
        num_heads=6,
        head_width=64,
        ffn_width=1024,
        gated=True,
        activation="gelu_new",
        tied_output=False,
        scale_output=False,
    ),
}
CASES = {"full": ("1.0", False), "ragged": ("1.0", True), "full-1.1": ("1.1", False), "ragged-1.1": ("1.1", True)}
"""The shape, and whether lengths vary."""


@dataclass(frozen=True)
class Text:
    """The sequences of one step."""

    sources: list[np.ndarray]
    targets: list[np.ndarray]
    labels: list[np.ndarray]

    @property
    def useful(self) -> int:
        return sum(map(len, self.sources)) + sum(map(len, self.targets))


class Labels(Goal):
    """Cross-entropy of given labels."""

    word_losses = {"labels": "next token"}

    def loss(self, states: States, batch: Batch) -> Loss:
        total, correct = output_loss(states, batch.targets["labels"])
        return Loss({"labels": total}, {"labels_correct": correct})

    def counts(self, batch: Batch) -> Mapping[str, int]:
        return {"labels": int((batch.targets["labels"] != IGNORE).sum())}


def lengths_of(random: np.random.Generator, count: int, longest: int, *, ragged: bool) -> np.ndarray:
    """Lengths whose sum is the same in every step, so that shapes are static without filler."""
    if not ragged:
        return np.full(count, longest)
    lengths = np.full(count, round(longest * RAGGED))
    for _ in range(4):
        # Some give, others take.
        order = random.permutation(count)
        giving = order[: count // 2]
        taking = order[count // 2 : 2 * (count // 2)]
        most = np.minimum(lengths[giving] - 8, longest - lengths[taking])
        moved = random.integers(0, np.maximum(most, 0) + 1)
        lengths[giving] -= moved
        lengths[taking] += moved
    return lengths


def texts(count: int, steps: int, vocab_size: int, lengths: tuple[int, int], *, ragged: bool) -> list[Text]:
    random = np.random.default_rng(1)
    made = []
    for _ in range(steps):
        sizes = [lengths_of(random, count, longest, ragged=ragged) for longest in lengths]

        def draw(sizes: np.ndarray) -> list[np.ndarray]:
            return [random.integers(2, vocab_size, size) for size in sizes]

        made.append(Text(draw(sizes[0]), draw(sizes[1]), draw(sizes[1])))
    return made


def packed(text: Text, lengths: tuple[int, int]) -> Batch:
    labels = torch.from_numpy(np.concatenate(text.labels))
    source = replace(pack_tokens(text.sources), max_length=lengths[0])
    target = replace(pack_tokens(text.targets), max_length=lengths[1])
    return replace(target, source=source, targets={"labels": labels})


def run_firth(config: T5.Config, steps: list[Text], lengths: tuple[int, int], device: str) -> dict[str, float]:
    torch.manual_seed(1)
    learner = Learner(T5(config), {"labels": Labels()}).to(device)
    settings = TrainConfig(optim=OptimConfig(rate=1e-3, schedule="constant", weight_decay=0.0))
    batches = [packed(text, lengths).to(device) for text in steps]
    found: dict[str, float] = {}

    def on_step(progress: Progress, norm: torch.Tensor) -> None:
        if progress.step == WARM:
            synchronise(device)
            found["start"] = time.perf_counter()
        if progress.step == len(steps):
            synchronise(device)
            found["end"] = time.perf_counter()
            found["loss"] = float(progress.sums["labels"]) / progress.counts["labels"]

    def addressed() -> Iterator[tuple[BatchAddress, Batch]]:
        for index, batch in enumerate(batches):
            yield BatchAddress(0, index), batch

    train(
        learner,
        addressed(),
        settings,
        optimizer=make_optimizer(learner, settings.optim),
        progress=Progress(len(steps)),
        on_step=on_step,
    )
    return found


def run_transformers(config: T5.Config, steps: list[Text], lengths: tuple[int, int], device: str) -> dict[str, float]:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(1)
    shape = T5Config(
        vocab_size=config.vocab_size,
        d_model=config.width,
        d_kv=config.head_width or config.width // config.num_heads,
        d_ff=config.ffn_width,
        num_layers=config.num_layers,
        num_heads=config.num_heads,
        dropout_rate=0.0,
        feed_forward_proj="gated-gelu" if config.gated else "relu",
        tie_word_embeddings=config.tied_output,
        use_cache=False,
    )
    model = T5ForConditionalGeneration(shape).to(device).train()
    if not config.tied_output:
        # Initial weights as in firth, so that losses can be compared.
        weight_VD = torch.randn_like(model.lm_head.weight) * config.width**-0.5
        model.lm_head.weight = torch.nn.Parameter(weight_VD)
    forward = torch.compile(model, dynamic=False) if device == "cuda" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    feeds = [padded(text, lengths, device) for text in steps]
    found: dict[str, float] = {}
    total = 0.0
    for step, feed in enumerate(feeds):
        if step == WARM:
            synchronise(device)
            found["start"] = time.perf_counter()
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            loss = forward(**feed).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        total += loss.detach()
    synchronise(device)
    found["end"] = time.perf_counter()
    found["loss"] = float(total) / len(steps)
    return found


def padded(text: Text, lengths: tuple[int, int], device: str) -> dict[str, torch.Tensor]:
    """What transformers trains on; without padding there is no mask."""

    def rows(sequences: list[np.ndarray], longest: int, filler: int) -> torch.Tensor:
        array = np.full((len(sequences), longest), filler)
        for row, ids in enumerate(sequences):
            array[row, : len(ids)] = ids
        return torch.from_numpy(array).to(device)

    feed = {
        "input_ids": rows(text.sources, lengths[0], 0),
        "decoder_input_ids": rows(text.targets, lengths[1], 0),
        "labels": rows(text.labels, lengths[1], IGNORE),
    }
    if any(len(ids) < lengths[0] for ids in text.sources):
        feed["attention_mask"] = (feed["input_ids"] != 0).long()
    return feed


def parity(device: str) -> None:
    """How far loss and gradients in bf16 are from those in fp32, as shares of their size."""
    config = replace(SMALL, vocab_size=1024, num_layers=2, width=256, num_heads=4, ffn_width=512)
    lengths = 200, 70
    text = texts(16, 1, config.vocab_size, lengths, ragged=True)[0]
    found: dict[str, tuple[float, dict[str, torch.Tensor]]] = {}
    for precision in ("fp32", "bf16"):
        torch.manual_seed(1)
        learner = Learner(T5(config), {"labels": Labels()}).to(device)
        loss = in_precision(learner, precision)(packed(text, lengths).to(device)).sums["labels"]
        loss.backward()
        gradients = {name: p.grad for name, p in learner.named_parameters() if p.grad is not None}
        found[precision] = float(loss.detach()), gradients
    exact_loss, exact = found["fp32"]
    half_loss, half = found["bf16"]
    worst = {name: float((half[name] - g).norm() / g.norm()) for name, g in exact.items()}
    row = {"part": "parity", "loss": abs(half_loss / exact_loss - 1), "worst_gradient": max(worst.values())}
    row["relative_positions"] = max(share for name, share in worst.items() if "relative" in name)
    print(json.dumps(row), flush=True)


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def run_case(name: str, who: str, arguments: argparse.Namespace) -> None:
    version, ragged = CASES[name]
    config = SHAPES[version]
    lengths = LENGTHS
    steps = WARM + STEPS
    if arguments.compile_only:
        steps = 2
    if arguments.tiny:
        config = replace(config, vocab_size=256, width=32, num_layers=2, num_heads=2, head_width=16, ffn_width=64)
        lengths = 24, 8
        steps = WARM + 2
    made = texts(arguments.sequences, steps, config.vocab_size, lengths, ragged=ragged)
    run = run_firth if who == "firth" else run_transformers
    found = run(config, made, lengths, arguments.device)
    if arguments.compile_only:
        return
    seconds = found["end"] - found["start"]
    useful = sum(text.useful for text in made[WARM:])
    peak = torch.cuda.max_memory_allocated() / 1e9 if arguments.device == "cuda" else 0.0
    row: dict[str, Any] = {
        "case": name,
        "who": who,
        "useful_tokens_per_second": round(useful / seconds),
        "milliseconds_per_step": round(1000 * seconds / (steps - WARM), 2),
        "peak_gb": round(peak, 2),
        "mean_loss": round(found["loss"], 4),
    }
    print(json.dumps(row), flush=True)
    if arguments.out:
        with arguments.out.open("a") as file:
            file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="full,ragged")
    parser.add_argument("--sequences", type=int, default=128, help="sequences of a step")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a shape of no interest, to see that it runs")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--parity", action="store_true")
    parser.add_argument("--compile-only", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--who", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.case:
        return run_case(arguments.case, arguments.who, arguments)
    if arguments.tiny:
        arguments.sequences = min(arguments.sequences, 8)
    options = ["--sequences", str(arguments.sequences), "--device", arguments.device]
    options += ["--tiny"] if arguments.tiny else []
    options += ["--out", str(arguments.out)] if arguments.out else []
    runs = [(case, who) for case in arguments.cases.split(",") for who in ("firth", "transformers")]
    commands = [[sys.executable, __file__, "--case", case, "--who", who, *options] for case, who in runs]
    if arguments.parity:
        parity(arguments.device)
    if arguments.device == "cuda":
        compiling = [subprocess.Popen([*command, "--compile-only"]) for command in commands]
        for process in compiling:
            process.wait()
    for _ in range(arguments.rounds):
        for command in commands:
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
