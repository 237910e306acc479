"""AdamW with decay groups (Loshchilov & Hutter 2017), Muon for block matrices, and schedules of the learning rate."""

import math
from collections.abc import Callable

import torch
from torch import nn

from firth.train.muon import Muon, ParameterGroup
from firth.train.settings import OptimConfig

SLANT = 32
"""How many times higher the highest rate of a slanted schedule is than its lowest."""


def make_optimizer(
    model: nn.Module,
    config: OptimConfig,
    *,
    scale: Callable[[str], float] = lambda name: 1.0,
) -> torch.optim.Optimizer:
    """Bias-corrected AdamW, or Muon for the matrices of blocks and AdamW for the rest.

    Matrices and embeddings decay, biases and norms do not. `scale` gives a parameter's share of the learning rate, by
    its name.
    """
    groups = _parameter_groups(model, config, scale)

    def make_adamw(adamw_groups: list[ParameterGroup]) -> torch.optim.AdamW:
        betas = (config.beta1, config.beta2)
        return torch.optim.AdamW(adamw_groups, lr=config.rate, betas=betas, eps=config.eps, fused=True)

    if config.optimizer == "muon":
        return Muon(groups, lr=config.rate, momentum=config.momentum, make_adamw=make_adamw)
    return make_adamw(groups)


def _parameter_groups(model: nn.Module, config: OptimConfig, scale: Callable[[str], float]) -> list[ParameterGroup]:
    """The parameters that learn, grouped by weight decay, share of the rate and Muon's pieces."""
    members: dict[tuple[float, float, int], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        # Biases and norms have one dimension.
        weight_decay = config.weight_decay if parameter.ndim > 1 else 0.0
        pieces = 0
        share = scale(name)
        if name.startswith("encoder."):
            share *= config.encoder_share
        if config.optimizer == "muon":
            pieces = _muon_pieces(name, parameter)
            if not pieces and name.startswith("encoder."):
                share *= config.adamw_share
        key = (weight_decay, share, pieces)
        members.setdefault(key, []).append(parameter)
    groups: list[ParameterGroup] = []
    for (weight_decay, share, pieces), parameters in members.items():
        groups.append({"params": parameters, "weight_decay": weight_decay, "scale": share, "pieces": pieces})
    return groups


def _muon_pieces(name: str, parameter: nn.Parameter) -> int:
    """How many matrices a parameter holds for Muon; 0 for what AdamW updates."""
    if parameter.ndim != 2 or "blocks." not in name:
        return 0
    if name.endswith("qkv.weight"):
        return 3  # queries, keys and values
    if name.endswith("kv.weight"):
        return 2  # keys and values of cross-attention
    return 1


def scheduled_rate(step: float, steps: int, config: OptimConfig) -> float:
    """The learning rate of a step (counted from 0) in a run of `steps`."""
    warmup = max(1, round(config.warmup_rate * steps))
    if config.schedule == "slanted":
        share = step / warmup
        if step >= warmup:
            share = 1 - (step - warmup) / max(1, steps - warmup)
        return config.rate * (1 + share * (SLANT - 1)) / SLANT
    if step < warmup:
        return config.rate * min(1.0, (step + 1) / warmup)
    if config.schedule == "inverse-sqrt":
        return config.rate * math.sqrt(warmup / (step + 1))
    # The share of the steps after warm-up that are done.
    done = (step - warmup) / max(1, steps - warmup)
    if config.schedule == "linear":
        return config.rate * (1 - done)
    if config.schedule == "cosine":
        return config.rate * 0.5 * (1 + math.cos(math.pi * done))
    if config.schedule == "trapezoid":
        return config.rate * min(1.0, (1 - done) / config.decay_rate)
    return config.rate
