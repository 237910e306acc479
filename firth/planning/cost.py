"""The cost model of a training step: a recipe and a device in; floating-point operations, bytes and seconds out.

Seconds of a step on one device = A x FLOP / product rate + B x bytes of states / bandwidth + C x bytes of scores /
bandwidth + D x bytes of the optimizer / bandwidth. FLOP of a token, forward and backward: 6 x weights of the blocks +
12 x layers x width x length (attention) + 6 x share predicted x (transform + vocabulary x width). A to D were fitted to
runs on one H200 (`bench/plan_check.py` shows how close), and A and B once more to two cores of a CPU.
"""

from dataclasses import dataclass, replace
from typing import Any

from firth.errors import Unsupported
from firth.lineage import Recipe
from firth.planning.machines import CPU, Device
from firth.train.settings import TRAINING_BYTES

OPTIMIZER_BYTES = 40
"""Bytes that move for a parameter and step: gradient, weight, moments, clipping, the rounded copy."""


@dataclass(frozen=True)
class Coefficients:
    """The multiples of the four terms."""

    products: float
    states: float
    """Bytes that move for each layer, token and unit of width."""
    scores: float
    """Bytes that move for each predicted token and entry of the vocabulary."""
    optimizer: float
    """Multiple of OPTIMIZER_BYTES."""


GPU_COEFFICIENTS = Coefficients(products=0.669, states=355.0, scores=38.0, optimizer=5.0)
CPU_COEFFICIENTS = Coefficients(products=1.0, states=2030.0, scores=0.0, optimizer=1.0)
SHORT_LENGTH = 128
"""Up to here attention is one program of our own (`nn/kernels.py`)."""
LONG_ATTENTION = 4.0
"""How many times longer an operation of attention takes in longer sequences."""
DROPOUT_COST = 0.08
"""More time with dropout 0.1 and more, on a GPU (813k tokens/s without, 750k with)."""
RECOMPUTE_COST = 1 / 3
"""More time if blocks compute their forward pass twice (813k tokens/s and 617k)."""
FILLED_SHARE = 0.94
"""How much of the longest length the sequences of a text fill, on average."""
EVALUATION_SHARE = 0.04
"""Of the time, for evaluations and states."""
START_SECONDS = {"gpu": 35.0, "cpu": 5.0}
"""Importing, opening the text, compiling."""

# Memory, in bytes
FP32_TRAINING_BYTES = 16
"""Of a parameter in single precision: TRAINING_BYTES without the rounded copy."""
STATE_BYTES = 29.7
"""Of the activations that a layer keeps for a token and unit of width until the backward pass, in half precision."""
DROPOUT_BYTES = 2.15
SCORE_BYTES = 6.0
"""Of a predicted token and entry of the vocabulary."""


@dataclass(frozen=True)
class Work:
    """What one token and one step cost, without regard to the machine."""

    flops: float
    """Of a token, forward and backward."""
    states: float
    """Layers x width, summed over networks."""
    scores: float
    """Predicted tokens x vocabulary, for a token of text."""
    parameters: float
    tokens: int
    """Of a micro-batch."""
    block_inputs: float
    """Layers x width that are kept if blocks are computed again; 0 if they are not."""
    widest: float
    """The widest network."""
    dropout: bool = False

    def __add__(self, other: "Work") -> "Work":
        """Two networks over the same tokens."""
        return replace(
            self,
            flops=self.flops + other.flops,
            states=self.states + other.states,
            scores=self.scores + other.scores,
            parameters=self.parameters + other.parameters,
            block_inputs=self.block_inputs + other.block_inputs,
            widest=max(self.widest, other.widest),
        )


@dataclass(frozen=True)
class Network:
    """A Transformer and what it predicts."""

    num_layers: int
    width: int
    ffn_width: int
    vocab_size: int
    predicted: float
    """Share of the tokens whose words are predicted."""
    embedding_width: int = 0
    """0: the width."""
    own_layers: int = 0
    """Layers with weights of their own; 0: all."""
    heads: int = 1
    """Layers over the vocabulary."""
    has_embedding: bool = True
    """False if it shares another network's."""

    def work(self, *, tokens: int, length: float, dropout: bool = False, recompute: bool = False) -> Work:
        """`length` is the mean length of a sequence."""
        block = 4 * self.width**2 + 2 * self.width * self.ffn_width
        embedding_width = self.embedding_width or self.width
        head = self.width * embedding_width + self.vocab_size * embedding_width
        attention = 12 * self.num_layers * self.width * length
        if length > SHORT_LENGTH:
            attention *= LONG_ATTENTION
        parameters = (self.own_layers or self.num_layers) * block + self.width * embedding_width
        if self.has_embedding:
            parameters += self.vocab_size * embedding_width
        states = self.num_layers * self.width
        # A multiplication and an addition for each weight, three times: forwards, and backwards to inputs and weights.
        block_flops = 6 * self.num_layers * block
        head_flops = 6 * self.predicted * self.heads * head
        return Work(
            flops=block_flops + attention + head_flops,
            states=states,
            scores=self.predicted * self.heads * self.vocab_size,
            parameters=parameters,
            tokens=tokens,
            block_inputs=states if recompute else 0.0,
            widest=self.width,
            dropout=dropout,
        )


def work_of(recipe: Recipe, *, length: float | None = None) -> Work:
    """The work of a recipe. Without `length`, the mean length of a sequence, they fill most of the longest one."""
    length = length or FILLED_SHARE * recipe.batches.max_length
    networks = [_network(recipe), *_second_networks(recipe)]
    config = next(iter(recipe.encoder.values()))
    dropout = getattr(config, "dropout", 0.0) > 0
    tokens = recipe.batches.tokens
    recompute = recipe.train.recompute
    works = []
    for network in networks:
        work = network.work(tokens=tokens, length=length, dropout=dropout, recompute=recompute)
        works.append(work)
    total, *others = works
    for work in others:
        total = total + work
    return total


def _network(recipe: Recipe) -> Network:
    """The encoder of a recipe with what its objectives predict."""
    config: Any = next(iter(recipe.encoder.values()))
    wanted = ("num_layers", "width", "ffn_width", "vocab_size")
    writes_too = hasattr(config, "decoder_layers") or "tsdae" in recipe.objectives
    if writes_too or not all(hasattr(config, name) for name in wanted):
        raise Unsupported(
            f"`firth plan` knows Transformers that read or write one text; {recipe.recipe} is none of them. "
            "Train it for a minute and look at timing.jsonl."
        )
    predicted, heads = _predicted(recipe)
    # 0: each layer has weights of its own.
    own_layers = 1 if "albert" in recipe.encoder else 0
    return Network(
        num_layers=config.num_layers,
        width=config.width,
        ffn_width=config.ffn_width,
        vocab_size=config.vocab_size,
        predicted=predicted,
        embedding_width=getattr(config, "embedding_width", 0) or 0,
        own_layers=own_layers,
        heads=heads,
    )


def _predicted(recipe: Recipe) -> tuple[float, int]:
    """The share of tokens that the encoder predicts, and by how many layers over the vocabulary."""
    objectives = recipe.objectives
    if "replaced_token" in objectives:
        detection = objectives["replaced_token"]
        if not detection.corrective_weight:
            return 0.0, 0
        return detection.masking.rate, 1
    if "causal_lm" in objectives:
        return 1.0, 1
    for name in ("masked_lm", "permutation_lm", "unilm"):
        if name in objectives:
            heads = 2 if "span_boundary" in objectives else 1
            return float(getattr(objectives[name], "rate", 0.15)), heads
    return 0.0, 0


def _second_networks(recipe: Recipe) -> list[Network]:
    """ELECTRA's generator, which has the encoder's embedding."""
    if "replaced_token" not in recipe.objectives:
        return []
    detection = recipe.objectives["replaced_token"]
    generator = detection.generator
    config: Any = next(iter(recipe.encoder.values()))
    return [
        Network(
            num_layers=generator.num_layers,
            width=generator.width,
            ffn_width=generator.ffn_width,
            vocab_size=config.vocab_size,
            predicted=detection.masking.rate,
            embedding_width=getattr(config, "embedding_width", 0) or config.width,
            has_embedding=False,
        )
    ]


def step_seconds(work: Work, device: Device, *, micro_batches: int = 1, shares: int = 1) -> float:
    """Seconds of a step on one device; its optimizer updates one of `shares` parts of the weights."""
    is_cpu = device.name == CPU
    factors = CPU_COEFFICIENTS if is_cpu else GPU_COEFFICIENTS
    products = factors.products * work.flops / device.flops
    states = factors.states * work.states / device.bandwidth
    scores = factors.scores * work.scores / device.bandwidth
    per_token = products + states + scores
    if work.dropout and not is_cpu:
        per_token *= 1 + DROPOUT_COST
    if work.block_inputs:
        per_token *= 1 + RECOMPUTE_COST
    optimizer = factors.optimizer * OPTIMIZER_BYTES * work.parameters / shares / device.bandwidth
    all_tokens = work.tokens * micro_batches * per_token
    return (all_tokens + optimizer) / device.speed


def memory_bytes(work: Work, device: Device, *, shares: int = 1) -> float:
    """Bytes that training needs on one device, which holds one of `shares` parts of the weights."""
    width_factor = 2.0
    training_bytes = FP32_TRAINING_BYTES
    if device.is_half:
        width_factor = 1.0
        training_bytes = TRAINING_BYTES
    static = training_bytes * work.parameters / shares
    scores = SCORE_BYTES * work.scores
    kept = STATE_BYTES
    if work.dropout:
        kept += DROPOUT_BYTES
    if work.block_inputs:
        one_block = kept * work.widest
        activations = 2 * work.block_inputs + max(scores, one_block)
    else:
        activations = kept * work.states + scores
    gathered = 2 * work.parameters if shares > 1 else 0.0
    return static + gathered + width_factor * work.tokens * activations
