"""AdamW with decay groups (Loshchilov & Hutter 2017) and the schedules of its learning rate."""

import math
from collections.abc import Callable

import torch
from torch import nn

from firth.train.settings import OptimConfig

SLANT = 32
"""How many times higher the highest rate of a slanted schedule is than its lowest."""


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
