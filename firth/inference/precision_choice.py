"""Which precision a model should run in on this CPU: measured once on sample texts, then cached in the user's folder.

`int8` quantizes the widening linear layers (queries, keys and values; the first layer of a feed-forward): as many of
them as keep the vectors close to those of fp32, and not for short texts. The other layers are in bf16 if the CPU has
units for it. `auto` is the fastest precision that keeps every sample text's cosine to fp32. A model's folder can
hold choices that were measured before (`firth compress --by int8`).
"""

import hashlib
import inspect
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from firth import rng, samples
from firth.cpu import cpu_name, this_cpu
from firth.errors import BadConfig, FirthError
from firth.files import JsonObject, read_json, write_json
from firth.inference.operators import Int8Products, int8_products
from firth.inference.quantization import (
    Calibration,
    Int8Linear,
    block_linears,
    calibrate,
    copy_with_layers,
    packed_linears,
    widening_linears,
)
from firth.tensors import Batch, Encoder, States
from firth.tokenizers import Tokenizer

log = logging.getLogger(__name__)

PRECISIONS = ("fp32", "bf16", "int8", "auto")
MIN_COSINE = 0.9994
"""The cosine to fp32 that every sample text must keep. Other texts lose up to twice as much and should keep 0.999."""
MIN_INT8_LENGTH = 16
"""Shorter sequences never use int8: they have too few tokens to average errors out, and they cost little anyway."""
SAMPLE_LENGTHS = (MIN_INT8_LENGTH, 32, 64, 128) * 3
"""Tokens of the sample texts of each kind."""
TIMING_ROUNDS = 8
"""How often each precision is timed; its fastest time counts."""

EncoderCall = Callable[[Batch], States]
"""An encoder or something that is called like one."""
SavedChoices = Mapping[str, JsonObject]
"""Choices by what they depend on (`fingerprint`), as JSON."""
EmbedSample = Callable[[EncoderCall], np.ndarray]
"""Gives the vectors of the sample texts by some encoder, each of length 1."""


@dataclass(frozen=True)
class PrecisionChoice:
    """The precision of a model on a CPU; this is what is cached."""

    precision: str
    int8_layers: tuple[str, ...] = ()
    """The linear layers that are quantized to int8."""


def check_precision(name: str) -> str:
    """The name, if there is such a precision."""
    if name not in PRECISIONS:
        raise BadConfig(f"There is no precision named '{name}' (known: {', '.join(PRECISIONS)}).")
    return name


def layer_dtype(precision: str) -> torch.dtype:
    """What layers compute in; for `int8`, the layers that are not quantized."""
    if precision == "fp32":
        return torch.float32
    if precision == "bf16" or this_cpu().bf16:
        return torch.bfloat16
    return torch.float32


def fast_encoder(
    encoder: Encoder, precision: str, embed_sample: EmbedSample, *, sample: str, saved: SavedChoices | None = None
) -> EncoderCall:
    """A copy of the encoder for inference in this precision.

    For `int8` and `auto` it is calibrated and measured on the sample texts; `sample` identifies them. What `saved` has
    for this machine is not measured again. A batch must have its sequences in order of length, the shortest first.
    """
    # An encoder without matrix products (word vectors) is as fast as it can be.
    if not block_linears(encoder):
        return encoder
    if precision == "bf16" and not this_cpu().bf16:
        log.warning(
            "This CPU has no units for bf16, so bf16 will be slower than fp32; `precision='auto'` takes the fastest."
        )
    if precision in ("fp32", "bf16"):
        return _EncoderCopies(encoder, {}).make(PrecisionChoice(precision))
    key = fingerprint(encoder, precision, sample)
    choice = _known_choice(key, encoder, saved or {}) or _known_choice(key, encoder, _read_cache())
    # Only int8 layers need a calibration.
    calibration: Calibration = {}
    if choice is None or choice.int8_layers:
        calibration = calibrate(encoder, embed_sample)
    copies = _EncoderCopies(encoder, calibration)
    if choice is None:
        choice = _choose(copies, precision, embed_sample)
        _write_cache(key, choice)
    return copies.make(choice)


def measured_choice(encoder: Encoder, precision: str, embed_sample: EmbedSample, *, sample: str) -> SavedChoices:
    """The choice for this machine, to be saved in a model's folder; empty if the precision needs no choice."""
    if not block_linears(encoder) or precision in ("fp32", "bf16"):
        return {}
    key = fingerprint(encoder, precision, sample)
    choice = _known_choice(key, encoder, _read_cache())
    if choice is None:
        copies = _EncoderCopies(encoder, calibrate(encoder, embed_sample))
        choice = _choose(copies, precision, embed_sample)
        _write_cache(key, choice)
    return {key: asdict(choice)}


def sample_sequences(tokenizer: Tokenizer, max_length: int) -> list[np.ndarray]:
    """Sample texts as ids: English and Chinese prose, and random tokens, so that every kind of token occurs."""
    vocab = tokenizer.vocab
    frame_size = vocab.frame.size()
    prose = [samples.prose(language).read_text("utf-8")[:8000] for language in ("en", "zh")]
    ends = np.cumsum(SAMPLE_LENGTHS)
    key = rng.key("sample of tokens")
    random_ids = rng.below(key, len(vocab), np.arange(ends[-1]), 0)
    sequences = []
    for ids in (*tokenizer.ids_batch(prose), random_ids.tolist()):
        # The sequences follow each other in the text, without overlap.
        for length, end in zip(SAMPLE_LENGTHS, ends, strict=True):
            tokens = ids[end - length : end - frame_size]
            fitting = np.array(tokens[: max_length - frame_size])
            sequences.append(vocab.frame.join(fitting))
    return sequences


def sample_digest(sequences: Sequence[np.ndarray], pooling: str) -> str:
    """sha256 of the sample texts and how their vectors are made."""
    parts = [pooling.encode()]
    parts += [ids.tobytes() for ids in sequences]
    return hashlib.sha256(b"|".join(parts)).hexdigest()


def fingerprint(encoder: Encoder, precision: str, sample: str) -> str:
    """Everything a choice depends on: CPU, threads, torch, this code, the sample, and all weights of the model."""
    digest = hashlib.sha256(f"{encoder.config!r} {sample}".encode())
    for defined_here in (PrecisionChoice, Int8Linear, Int8Products):
        digest.update(Path(inspect.getfile(defined_here)).read_bytes())
    # Weights are hashed as bytes, whatever their type.
    for tensor in encoder.state_dict().values():
        digest.update(tensor.contiguous().view(torch.uint8).numpy())
    cpu = f"{cpu_name()}, {torch.get_num_threads()} threads"
    return f"{precision}; {cpu}; torch {torch.__version__}; {digest.hexdigest()[:32]}"


class _EncoderCopies:
    """Copies of an encoder in several precisions, which share the layers made for them."""

    def __init__(self, encoder: Encoder, calibration: Calibration) -> None:
        self.encoder = encoder
        self.calibration = calibration
        self.packed: dict[torch.dtype, dict[str, nn.Module]] = {}
        self.quantized: dict[str, nn.Module] = {}

    def make(self, choice: PrecisionChoice) -> EncoderCall:
        """A copy as `choice` describes it."""
        dtype = layer_dtype(choice.precision)
        if dtype not in self.packed:
            self.packed[dtype] = packed_linears(self.encoder, dtype)
        packed = self.packed[dtype]
        plain_copy = copy_with_layers(self.encoder, packed)
        if not choice.int8_layers:
            return plain_copy
        quantized = {name: self._quantize(name, dtype) for name in choice.int8_layers}
        int8_copy = copy_with_layers(self.encoder, {**packed, **quantized})

        def encode(batch: Batch) -> States:
            # The first sequence is the shortest one, and the first bound is 0.
            shortest = batch.bounds_B1[1]
            copy = int8_copy
            if shortest < MIN_INT8_LENGTH:
                copy = plain_copy
            states: States = copy(batch)
            return states

        return encode

    def _quantize(self, name: str, dtype: torch.dtype) -> nn.Module:
        if name not in self.quantized:
            linear = widening_linears(self.encoder)[name]
            self.quantized[name] = Int8Linear(linear, self.calibration[name], dtype)
        return self.quantized[name]


def _choose(copies: _EncoderCopies, precision: str, embed_sample: EmbedSample) -> PrecisionChoice:
    """The choice for `int8` or `auto`, measured."""
    exact = embed_sample(copies.encoder)
    int8_layers: tuple[str, ...] = ()
    if int8_products(layer_dtype("int8")) is not Int8Products.MISSING:
        int8_layers = _choose_int8_layers(copies, embed_sample, exact)
    int8_choice = PrecisionChoice("int8", int8_layers)
    if precision == "int8":
        return int8_choice

    candidates = []
    # bf16 without units takes six times as long as fp32, so it is not even tried.
    if this_cpu().bf16:
        candidates.append(PrecisionChoice("bf16"))
    if int8_layers:
        candidates.append(int8_choice)
    fp32_choice = PrecisionChoice("fp32")
    encoders = {fp32_choice: copies.make(fp32_choice)}
    for choice in candidates:
        encoder = copies.make(choice)
        cosines = _cosines(embed_sample(encoder), exact)
        if (cosines >= MIN_COSINE).all():
            encoders[choice] = encoder
    return _fastest(encoders, embed_sample)


def _fastest(encoders: dict[PrecisionChoice, EncoderCall], embed_sample: EmbedSample) -> PrecisionChoice:
    """The choice with the shortest time."""
    # They take turns, so that other load on the machine affects all of them equally.
    rounds = []
    for _ in range(TIMING_ROUNDS):
        rounds.append([_seconds(embed_sample, encoder) for encoder in encoders.values()])
    shortest = np.min(rounds, axis=0)
    return list(encoders)[int(np.argmin(shortest))]


def _choose_int8_layers(copies: _EncoderCopies, embed_sample: EmbedSample, exact: np.ndarray) -> tuple[str, ...]:
    """The layers to quantize: tried in order of the error each makes alone, kept while all together stay accurate.

    Errors do not add up: what one layer disturbs may leave the range that another one was calibrated for.
    """

    def lowest_cosine(*names: str) -> float:
        copy = copies.make(PrecisionChoice("int8", names))
        return float(_cosines(embed_sample(copy), exact).min())

    kept: tuple[str, ...] = ()
    for name in sorted(widening_linears(copies.encoder), key=lowest_cosine, reverse=True):
        if lowest_cosine(*kept, name) >= MIN_COSINE:
            kept = (*kept, name)
    return kept


def _cosines(vectors: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The cosine of each vector to the other one in its row; all have length 1."""
    return np.asarray((vectors * others).sum(axis=1))


def _seconds(embed_sample: EmbedSample, encoder: EncoderCall) -> float:
    start = time.perf_counter()
    embed_sample(encoder)
    return time.perf_counter() - start


def cache_file() -> Path:
    """Where choices are cached: a file in the user's cache folder."""
    cache_folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache_folder) / "firth" / "precision.json"


def _known_choice(key: str, encoder: Encoder, rows: SavedChoices) -> PrecisionChoice | None:
    """The choice of an earlier run; None if there is none, or if it cannot be read or used."""
    try:
        row = rows[key]
        choice = PrecisionChoice(row["precision"], tuple(row["int8_layers"]))
    except (TypeError, KeyError):
        return None
    if choice.precision not in ("fp32", "bf16", "int8"):
        return None
    if not set(choice.int8_layers) <= widening_linears(encoder).keys():
        return None
    return choice


def _read_cache() -> JsonObject:
    """All cached choices by key; none if the file cannot be read."""
    try:
        rows = read_json(cache_file())
    except (FirthError, OSError, ValueError):
        return {}
    if not isinstance(rows, dict):
        return {}
    return rows


def _write_cache(key: str, choice: PrecisionChoice) -> None:
    # If the folder cannot be written to, the choice is measured again next time.
    with suppress(OSError):
        write_json(cache_file(), {**_read_cache(), key: asdict(choice)})
