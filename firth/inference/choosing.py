"""Which precision a model should run in on this CPU: measured once on sample texts, then remembered.

`int8` means bytes in the widening products (queries, keys and values; the first half of a feed-forward), in as many
layers as leave the vectors alike, for texts that are not short; the rest is in bf16 where the CPU has units for it.
`auto` is the fastest of all that keeps every sample text's cosine to fp32.
"""

import hashlib
import inspect
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from firth import rng, samples
from firth.cpu import cpu_name, this_cpu
from firth.errors import BadConfig, FirthError
from firth.files import read_json, write_json
from firth.inference.operators import ByteProducts, byte_products
from firth.inference.precision import Int8Linear, Seen, linears, packed_linears, replaced, see_inputs, widening
from firth.tensors import Batch, Encoder, States
from firth.tokenizers import Tokenizer

log = logging.getLogger(__name__)

PRECISIONS = ("fp32", "bf16", "int8", "auto")
ALIKE = 0.9994
"""The least cosine to fp32 that every sample text must keep: others lose up to twice as much, and shall keep 0.999."""
SHORT = 16
"""Sequences of fewer tokens never meet bytes: no mean evens out their errors, and they cost next to nothing."""
SAMPLE_LENGTHS = (SHORT, 32, 64, 128) * 3
"""Tokens of the sample texts."""
ROUNDS = 8
"""How often each precision is timed; the quickest time counts."""

Run = Callable[[Batch], States]
Vectors = Callable[[Run], np.ndarray]
"""The vectors an encoder gives to the sample, each of norm 1."""


@dataclass(frozen=True)
class Choice:
    """What was found out about a model on a CPU."""

    precision: str
    in_bytes: tuple[str, ...] = ()
    """The linear layers that take bytes."""


def known_precision(name: str) -> str:
    if name not in PRECISIONS:
        raise BadConfig(f"There is no precision named '{name}' (known: {', '.join(PRECISIONS)}).")
    return name


def compute_dtype(precision: str) -> torch.dtype:
    """What layers compute in; under `int8`, those that do not take bytes."""
    if precision == "fp32":
        return torch.float32
    if precision == "bf16" or this_cpu().bf16:
        return torch.bfloat16
    return torch.float32


def quicken(encoder: Encoder, precision: str, vectors: Vectors, *, judged_on: str) -> Run:
    """The encoder's copy for inference; for `int8` and `auto` the sample is looked at. A batch of it has its sequences
    in order of length, the shortest first. `judged_on` says which sample that is, and how its vectors are made."""
    if not linears(encoder):
        return encoder
    if precision == "bf16" and not this_cpu().bf16:
        log.warning(
            "This CPU has no units for bf16, so bf16 will be slower than fp32; `precision='auto'` takes the fastest."
        )
    if precision in ("fp32", "bf16"):
        return _Copies(encoder, {}).make(Choice(precision))
    key = fingerprint(encoder, precision, judged_on)
    choice = _recall(key, encoder)
    seen = see_inputs(encoder, vectors) if choice is None or choice.in_bytes else {}
    copies = _Copies(encoder, seen)
    if choice is None:
        choice = _choose(copies, precision, vectors)
        _remember(key, choice)
    return copies.make(choice)


def sample(tokenizer: Tokenizer, max_length: int) -> list[np.ndarray]:
    """Sequences of prose in both languages and of random tokens, so that every kind of token has been seen."""
    vocab, size = tokenizer.vocab, max_length - tokenizer.vocab.frame.size()
    prose = tokenizer.ids_batch([samples.prose(language).read_text("utf-8")[:8000] for language in ("en", "zh")])
    ends = np.cumsum(SAMPLE_LENGTHS)
    random = rng.below(rng.key("sample of tokens"), len(vocab), np.arange(ends[-1]), 0)
    return [
        vocab.frame.join(np.array(ids[end - length : end - vocab.frame.size()][:size]))
        for ids in (*prose, random.tolist())
        for length, end in zip(SAMPLE_LENGTHS, ends, strict=True)
    ]


def digest(sequences: list[np.ndarray], pooling: str) -> str:
    """What stands for a sample."""
    return hashlib.sha256(b"|".join([pooling.encode(), *(ids.tobytes() for ids in sequences)])).hexdigest()


def fingerprint(encoder: Encoder, precision: str, judged_on: str) -> str:
    """All that a choice depends on: the CPU, the threads, torch, this code, the sample, and the model to the last
    weight."""
    found = hashlib.sha256(f"{encoder.config!r} {judged_on}".encode())
    for file in map(inspect.getfile, (Choice, Int8Linear, ByteProducts)):
        found.update(Path(file).read_bytes())
    for tensor in encoder.state_dict().values():
        found.update(tensor.contiguous().view(torch.uint8).numpy())
    cpu = f"{cpu_name()}, {torch.get_num_threads()} threads"
    return f"{precision}; {cpu}; torch {torch.__version__}; {found.hexdigest()[:32]}"


def memory_file() -> Path:
    """Where choices are remembered: the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "firth" / "precision.json"


def _recall(key: str, encoder: Encoder) -> Choice | None:
    """What was chosen before; what cannot be read or followed counts as nothing."""
    try:
        row = _memory()[key]
        choice = Choice(row["precision"], tuple(row["in_bytes"]))
    except (TypeError, KeyError):
        return None
    sound = choice.precision in PRECISIONS[:-1] and widening(encoder).keys() >= set(choice.in_bytes)
    return choice if sound else None


class _Copies:
    """Copies of an encoder in several precisions, which share the layers that are made for them."""

    def __init__(self, encoder: Encoder, seen: Seen) -> None:
        self.encoder = encoder
        self.seen = seen
        self.packed: dict[torch.dtype, dict[str, nn.Module]] = {}
        self.in_bytes: dict[str, nn.Module] = {}

    def make(self, choice: Choice) -> Run:
        dtype = compute_dtype(choice.precision)
        if dtype not in self.packed:
            self.packed[dtype] = packed_linears(self.encoder, dtype)
        plain = replaced(self.encoder, self.packed[dtype])
        if not choice.in_bytes:
            return plain
        for name in choice.in_bytes:
            if name not in self.in_bytes:
                self.in_bytes[name] = Int8Linear(widening(self.encoder)[name], self.seen[name], dtype)
        in_bytes = {name: self.in_bytes[name] for name in choice.in_bytes}
        mixed = replaced(self.encoder, {**self.packed[dtype], **in_bytes})
        return lambda batch: (plain if batch.bounds_B1[1] < SHORT else mixed)(batch)


def _choose(copies: _Copies, precision: str, vectors: Vectors) -> Choice:
    exact = vectors(copies.encoder)
    has_bytes = byte_products(compute_dtype("int8")) is not ByteProducts.MISSING
    bytes_choice = Choice("int8", _bearable(copies, vectors, exact) if has_bytes else ())
    if precision == "int8":
        return bytes_choice
    # What is known to be slower than fp32 is not even tried: bf16 without units takes six times as long.
    candidates = [Choice("bf16")] if this_cpu().bf16 else []
    candidates += [bytes_choice] if bytes_choice.in_bytes else []
    alike = {Choice("fp32"): copies.make(Choice("fp32"))}
    for choice in candidates:
        copy = copies.make(choice)
        if (_cosines(vectors(copy), exact) >= ALIKE).all():
            alike[choice] = copy
    # In turn, so that whatever else the machine does disturbs all of them.
    rounds = [[_seconds(vectors, copy) for copy in alike.values()] for _ in range(ROUNDS)]
    return list(alike)[int(np.argmin(np.min(rounds, axis=0)))]


def _bearable(copies: _Copies, vectors: Vectors, exact: np.ndarray) -> tuple[str, ...]:
    """The layers that take bytes: tried in the order of what each costs alone, kept while all together stay `ALIKE`.

    Costs do not add up: what one layer disturbs may leave the range another one was given."""

    def least(*names: str) -> float:
        copy = copies.make(Choice("int8", names))
        return float(_cosines(vectors(copy), exact).min())

    kept: tuple[str, ...] = ()
    for name in sorted(widening(copies.encoder), key=least, reverse=True):
        if least(*kept, name) >= ALIKE:
            kept = (*kept, name)
    return kept


def _cosines(vectors: np.ndarray, others: np.ndarray) -> np.ndarray:
    return np.asarray((vectors * others).sum(axis=1))


def _seconds(vectors: Vectors, encoder: Run) -> float:
    began = time.perf_counter()
    vectors(encoder)
    return time.perf_counter() - began


def _memory() -> dict[str, Any]:
    try:
        rows = read_json(memory_file())
    except (FirthError, OSError, ValueError):
        return {}
    return rows if isinstance(rows, dict) else {}


def _remember(key: str, choice: Choice) -> None:
    with suppress(OSError):  # where the home cannot be written to, it is measured again next time
        write_json(memory_file(), {**_memory(), key: asdict(choice)})
