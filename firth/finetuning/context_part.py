"""Pairs of neighbouring sentences -> the part of a vector head that the encoder computes (`ContextPart`).

The encoder stays as it is and reads each sentence once. A projection of the states of their first tokens begins as a
partial whitening and is trained by contrast: among the sentences of a batch, find the neighbour of each by cosine.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize

from firth import rng
from firth.console import bar
from firth.convert.vector_head import ContextPart
from firth.data.packing import pack_tokens
from firth.errors import BadConfig
from firth.nn.blocks import first_rows
from firth.nn.pooling import last_rows
from firth.tasks.predicting import token_batches
from firth.tensors import Encoder

BATCH_TOKENS = 4096
"""Tokens that the encoder reads at once."""
WHITENING = 0.25
"""The power of the variances by which directions are divided at first: 0.5 would make them vary alike."""


@dataclass(frozen=True)
class ContextConfig:
    pairs: int = 5000
    """Pairs of neighbouring sentences that the encoder reads; 0 for vectors without the encoder."""
    width: int = 128
    """Width of the part, at most that of the encoder."""
    weight: float = 0.7
    """How long this part of a vector is, compared with the part of the tokens."""
    steps: int = 300
    """Training steps; 0 keeps the projection that training begins with."""
    batch_size: int = 512
    """Pairs in a step."""
    rate: float = 1e-3
    temperature: float = 0.2
    """Divides the cosines; the smaller, the more the nearest wrong sentences count."""

    def __post_init__(self) -> None:
        if self.temperature <= 0 or self.weight <= 0:
            raise BadConfig("context.temperature and context.weight must be above 0.")
        if self.pairs < 0 or self.steps < 0 or self.width < 1 or self.batch_size < 2:
            raise BadConfig(
                "context.pairs and context.steps must be at least 0, context.width at least 1 and context.batch_size "
                "at least 2."
            )


def train_context_part(
    encoder: Encoder, sentences: Sequence[np.ndarray], config: ContextConfig, *, seed: int
) -> ContextPart:
    """The part, from sentences as sequences of ids: the first half, and after them the neighbour of each."""
    states_BD = torch.from_numpy(first_states(encoder, sentences))
    num_pairs = len(sentences) // 2
    projection_DK, bias_K = _partial_whitening(states_BD, min(config.width, encoder.width))
    projection_DK.requires_grad_()
    bias_K.requires_grad_()
    optimizer = torch.optim.Adam([projection_DK, bias_K], lr=config.rate)
    with bar("context part", config.steps, unit="steps") as advance:
        for step in range(config.steps):
            for group in optimizer.param_groups:
                group["lr"] = config.rate * (1 - step / config.steps)
            draw = rng.key(seed, "context part", step)
            numbers = rng.below(draw, num_pairs, np.arange(min(config.batch_size, num_pairs)))
            chosen_B = torch.from_numpy(numbers)
            x_BK = normalize(states_BD[chosen_B] @ projection_DK + bias_K, dim=-1)
            y_BK = normalize(states_BD[chosen_B + num_pairs] @ projection_DK + bias_K, dim=-1)
            loss = partner_loss(x_BK, y_BK, config.temperature)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            advance(step + 1, f"loss {loss.item():.3f}")
    return ContextPart(projection_DK.detach().numpy(), bias_K.detach().numpy(), config.weight)


def partner_loss(x_BK: Tensor, y_BK: Tensor, temperature: float) -> Tensor:
    """The cross-entropy of finding each unit vector's partner among those of the batch, both ways (InfoNCE)."""
    scores_BB = x_BK @ y_BK.T / temperature
    partners_B = torch.arange(len(scores_BB))
    return (cross_entropy(scores_BB, partners_B) + cross_entropy(scores_BB.T, partners_B)) / 2


@torch.inference_mode()
def first_states(encoder: Encoder, sequences: Sequence[np.ndarray]) -> np.ndarray:
    """The last state of the token that stands for each sequence: its first one, in XLNet its last one."""
    encoder.eval()
    pick = last_rows if encoder.cls_last else first_rows
    states_BD = np.empty((len(sequences), encoder.width), np.float32)
    lengths = [len(sequence) for sequence in sequences]
    with bar("reading sentences", len(sequences), unit="sentences") as advance:
        num_done = 0
        for rows in token_batches(lengths, BATCH_TOKENS):
            batch = pack_tokens([sequences[row] for row in rows])
            states_BD[rows] = pick(encoder(batch).last_ND, batch.bounds_B1).numpy()
            num_done += len(rows)
            advance(num_done, "")
    return states_BD


def _partial_whitening(states_BD: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The main directions of centred states, those of large variance made shorter; and minus the mean, projected."""
    mean_D = states_BD.mean(0)
    variances_D, directions_DD = torch.linalg.eigh(torch.cov((states_BD - mean_D).T))
    # eigh sorts them upwards.
    variances_K = variances_D.flip(0)[:width].clamp(min=1e-6)
    projection_DK = directions_DD.flip(1)[:, :width] / variances_K**WHITENING
    # Only the direction of a vector counts, so the scale is free: this one suits the learning rate.
    projection_DK = projection_DK * (width**0.5 / projection_DK.norm())
    return projection_DK, -mean_D @ projection_DK
