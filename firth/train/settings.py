"""The settings of the training loop and its optimizer. No torch here, so that recipes can be listed without it."""

from dataclasses import dataclass, field
from typing import Literal

from firth.errors import BadConfig

Optimizer = Literal["auto", "adamw", "muon"]
OPTIMIZER = "optimizer"
"""What `firth.json` calls the optimizer that trained a model's weights."""
BUCKET_BYTES = 32 * 2**20
"""Gradients are added over ranks in buckets of about this size: a message for each would cost more than its bytes."""
TRAINING_BYTES = 18
"""Bytes of a parameter in training: weight 4, gradient 4, AdamW's moments 8, bf16 copy 2."""
USABLE_SHARE = 0.6
"""Of a GPU's memory for these bytes: the rest is for activations. Weights that need more are shared by ranks."""


@dataclass(frozen=True)
class OptimConfig:
    optimizer: Optimizer = "adamw"
    """AdamW for everything, or Muon for the matrices of blocks and AdamW for the rest, at one learning rate; auto is
    the optimizer that the model was pre-trained with, and AdamW for a new model."""
    rate: float = 1e-4
    """Highest learning rate."""
    schedule: Literal["linear", "cosine", "trapezoid", "constant", "slanted", "inverse-sqrt"] = "linear"
    """How the rate falls after warm-up; trapezoid stays high and falls at the end (`decay_rate`); slanted is linear
    from and to a 32nd of the highest rate (Howard & Ruder 2018); inverse-sqrt falls with the square root of the step
    (Vaswani et al. 2017)."""
    warmup_rate: float = 0.01
    """Share of the steps over which the rate rises from 0."""
    decay_rate: float = 0.2
    """Share of the steps after warm-up over which a trapezoid falls to 0."""
    momentum: float = 0.95
    """Muon's memory of the gradient."""
    adamw_share: float = 1.0
    """With Muon, the share of the rate that AdamW has for the encoder's other parameters: embeddings, norms, biases."""
    encoder_share: float = 1.0
    """The share of the rate that the encoder has; heads have all of it."""
    heads_first: float = 0.0
    """Share of the steps, the first ones, in which heads learn and the encoder stays as it is."""
    weight_decay: float = 0.01
    """Decay of matrices; biases and norms never decay."""
    beta1: float = 0.9
    """Adam's memory of the gradient."""
    beta2: float = 0.999
    """Adam's memory of the squared gradient."""
    eps: float = 1e-6
    """Adam's small number."""
    clip: float = 1.0
    """Largest norm of the gradient; 0 does not clip."""

    def __post_init__(self) -> None:
        shares = [self.beta1, self.beta2, self.warmup_rate, self.momentum, self.heads_first]
        are_shares = all(0 <= share < 1 for share in shares)
        if self.rate < 0 or self.eps <= 0 or self.clip < 0 or not are_shares:
            raise BadConfig(
                "The optimizer needs rate >= 0, eps > 0, clip >= 0, and beta1, beta2, momentum, warmup_rate, "
                "heads_first in [0, 1)."
            )
        for name in ("adamw_share", "encoder_share", "weight_decay"):
            if getattr(self, name) < 0:
                raise BadConfig(f"train.optim.{name} must be at least 0; it is {getattr(self, name)}.")
        if not 0 < self.decay_rate <= 1:
            raise BadConfig("train.optim.decay_rate must be above 0 and at most 1.")


@dataclass(frozen=True)
class TrainConfig:
    steps: int = 1000
    """Optimizer steps of the whole run."""
    minutes: float = 0.0
    """Time limit in place of a number of steps; 0 for none."""
    accumulate: int = 1
    """Micro-batches of a step, over all ranks; a new run with several ranks has at least one for each."""
    parallel: Literal["auto", "ddp", "fsdp"] = "auto"
    """What each of several ranks holds: all weights (ddp), or a share of them (fsdp); auto is ddp if they fit."""
    seed: int = 1
    """Decides initial weights, order, pairs, masks and dropout."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Arithmetic of the matrix products; auto is bf16 on a GPU and on a CPU with units for it, else fp32."""
    compile: Literal["auto", "yes", "no"] = "auto"
    """Whether torch.compile is used; auto compiles on a GPU."""
    graphs: bool = True
    """Whether a compiled step is recorded and replayed as one CUDA graph, which spares the host its launches."""
    recompute: bool = False
    """Keep only the blocks' inputs and compute the rest again in the backward pass: less memory, slower."""
    log_every: int = 20
    """Steps between rows of metrics.jsonl."""
    evaluate_every: int = 500
    """Steps between evaluations on held-out documents."""
    checkpoint_every: int = 500
    """Steps between saved states."""
    keep: int = 2
    """Saved states kept."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    """The optimizer and its schedule."""

    def __post_init__(self) -> None:
        for name in ("steps", "accumulate", "log_every", "evaluate_every", "checkpoint_every", "keep"):
            if getattr(self, name) < 1:
                raise BadConfig(f"train.{name} must be at least 1; it is {getattr(self, name)}.")
        if self.minutes < 0:
            raise BadConfig(f"train.minutes must be at least 0, which is no limit; it is {self.minutes}.")
