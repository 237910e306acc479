"""AdamW with decay groups (Loshchilov & Hutter 2017) and the schedules of its learning rate."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from firth.errors import BadConfig

SLANT = 32
"""How many times higher the highest rate of a slanted schedule is than its lowest."""


@dataclass(frozen=True)
class OptimConfig:
    rate: float = 1e-4
    """Highest learning rate."""
    schedule: Literal["linear", "cosine", "trapezoid", "constant", "slanted"] = "linear"
    """How the rate falls after warm-up; trapezoid stays high and falls over the last fifth; slanted is linear from and
    to a 32nd of the highest rate (Howard & Ruder 2018)."""
    warmup_rate: float = 0.01
    """Share of the steps over which the rate rises from 0."""
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
        shares = self.beta1, self.beta2, self.warmup_rate
        if self.rate < 0 or self.eps <= 0 or self.clip < 0 or not all(0 <= share < 1 for share in shares):
            raise BadConfig(
                "The optimizer needs rate >= 0, eps > 0, clip >= 0, and beta1, beta2, warmup_rate in [0, 1)."
            )


def make_optimizer(
    model: nn.Module, config: OptimConfig, *, scale: Callable[[str], float] = lambda name: 1.0
) -> torch.optim.AdamW:
    """Bias-corrected AdamW; matrices and embeddings decay, biases and norms do not.

    `scale` says what share of the learning rate a parameter gets, by its name.
    """
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((parameter.ndim > 1, scale(name)), []).append(parameter)
    return torch.optim.AdamW(
        [
            {"params": parameters, "weight_decay": config.weight_decay if decays else 0.0, "scale": share}
            for (decays, share), parameters in groups.items()
        ],
        lr=config.rate,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


def scheduled_rate(step: int, steps: int, config: OptimConfig) -> float:
    """The learning rate of a step (counted from 0) in a run of `steps`."""
    warmup = max(1, round(config.warmup_rate * steps))
    if config.schedule == "slanted":
        share = step / warmup if step < warmup else 1 - (step - warmup) / max(1, steps - warmup)
        return config.rate * (1 + share * (SLANT - 1)) / SLANT
    if step < warmup:
        return config.rate * (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    if config.schedule == "linear":
        return config.rate * (1 - done)
    if config.schedule == "cosine":
        return config.rate * 0.5 * (1 + math.cos(math.pi * done))
    if config.schedule == "trapezoid":
        return config.rate * min(1.0, (1 - done) / 0.2)
    return config.rate
