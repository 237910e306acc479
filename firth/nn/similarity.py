"""Losses that make cosines and scores mean likeness. In: unit vectors or scores, and what people said. Out: sums."""

import torch
from torch import Tensor
from torch.nn import functional as F


def contrastive(cosine_E: Tensor, alike_E: Tensor, *, margin: float) -> Tensor:
    """Draws like texts together and pushes others apart, up to a margin (Hadsell et al. 2006, equation 4)."""
    distance_E = 1 - cosine_E
    return (alike_E * distance_E**2 + (1 - alike_E) * F.relu(margin - distance_E) ** 2).sum()


def cross(scores_EK: Tensor, gold_E: Tensor, *, kind: str) -> Tensor:
    """Of a cross-encoder: squared error of a number, the first of a triplet's two pairs, or alike or not."""
    if kind == "number":
        return F.mse_loss(scores_EK[:, 0], gold_E, reduction="sum")
    if kind == "triplets":
        return F.cross_entropy(scores_EK, torch.zeros_like(gold_E, dtype=torch.long), reduction="sum")
    return F.binary_cross_entropy_with_logits(scores_EK[:, 0], gold_E, reduction="sum")


def ranking(unit_EKD: Tensor, asks_E: Tensor, *, ignored_EC: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Each first text must find its second among all others of the batch (Henderson et al. 2017); sum, and how many do.

    Rows that do not ask lend their texts as negatives.
    """
    candidates_CD = unit_EKD[:, 1:].transpose(0, 1).flatten(0, 1)
    scores_EC = (scale * unit_EKD[:, 0] @ candidates_CD.T).masked_fill(ignored_EC, -torch.inf)
    own_E = torch.arange(len(scores_EC), device=scores_EC.device)
    each_E = F.cross_entropy(scores_EC, own_E, reduction="none")
    return (each_E * asks_E).sum(), ((scores_EC.argmax(1) == own_E) & asks_E).sum()
