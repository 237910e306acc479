"""Losses of text similarity. In: cosines, unit vectors or scores, and gold labels. Out: losses summed over pairs."""

import torch
from torch import Tensor
from torch.nn import functional as F


def contrastive(cosine_E: Tensor, alike_E: Tensor, *, margin: float) -> Tensor:
    """Pulls similar texts together and pushes others apart, up to a margin (Hadsell et al. 2006, equation 4)."""
    distance_E = 1 - cosine_E
    # How much too close texts are that differ.
    missing_E = F.relu(margin - distance_E)
    pull_E = alike_E * distance_E**2
    push_E = (1 - alike_E) * missing_E**2
    losses_E = pull_E + push_E
    return losses_E.sum()


def cosent(cosine_E: Tensor, gold_E: Tensor, *, scale: float) -> Tensor:
    """Of every two pairs of a batch, the one with the higher gold score should have the higher cosine (Su 2022).

    The loss is log(1 + sum of exp(scale (cos_j - cos_i))) over all i, j with gold_i > gold_j, times the number of pairs
    of the batch, because the loop expects a sum over pairs.
    """
    # Row i, column j: how much higher the cosine of pair j is than that of pair i.
    cosine_i_E1 = cosine_E[:, None]
    cosine_j_1E = cosine_E[None, :]
    excess_EE = scale * (cosine_j_1E - cosine_i_E1)
    is_ordered_EE = gold_E[:, None] > gold_E[None, :]
    excess_EE = excess_EE.masked_fill(~is_ordered_EE, -torch.inf)
    # exp(0) is the 1 inside the logarithm.
    zero = cosine_E.new_zeros(1)
    terms = torch.cat([zero, excess_EE.flatten()])
    return len(cosine_E) * terms.logsumexp(0)


def cross(scores_EK: Tensor, gold_E: Tensor, *, kind: str) -> Tensor:
    """The loss of a cross-encoder, by the kind of labels.

    number: squared error. triplets: cross-entropy, the first of the two pairs is right. Otherwise: binary
    cross-entropy of similar or not.
    """
    if kind == "triplets":
        first_E = torch.zeros_like(gold_E, dtype=torch.long)
        return F.cross_entropy(scores_EK, first_E, reduction="sum")
    # Rows of two texts have one score.
    scores_E = scores_EK[:, 0]
    if kind == "number":
        return F.mse_loss(scores_E, gold_E, reduction="sum")
    return F.binary_cross_entropy_with_logits(scores_E, gold_E, reduction="sum")


def ranking(unit_EKD: Tensor, asks_E: Tensor, *, ignored_EC: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """In-batch negatives: each first text must find its second among all others of the batch (Henderson et al. 2017).

    Returns the summed loss and how many texts find theirs. `unit_EKD` are K unit vectors a row, `ignored_EC` marks
    candidates that are not counted as negatives. Rows outside `asks_E` only lend their texts as negatives.
    """
    first_ED = unit_EKD[:, 0]
    # All second texts, then all third ones: the second text of row e is candidate e.
    candidates_CD = unit_EKD[:, 1:].transpose(0, 1).flatten(0, 1)
    scores_EC = scale * first_ED @ candidates_CD.T
    scores_EC = scores_EC.masked_fill(ignored_EC, -torch.inf)
    own_E = torch.arange(len(scores_EC), device=scores_EC.device)
    losses_E = F.cross_entropy(scores_EC, own_E, reduction="none")
    total = (losses_E * asks_E).sum()
    is_found_E = (scores_EC.argmax(1) == own_E) & asks_E
    return total, is_found_E.sum()
