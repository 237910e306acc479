"""Choosing the next token: the likeliest one, or a sample with temperature, top-k and top-p.

In: scores of next tokens and uniform random numbers, so that a text is a pure function of its seed. Out: tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from firth.errors import BadConfig


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen."""

    temperature: float = 1.0
    """Scores are divided by it: below 1 likely tokens get likelier; 0 takes the likeliest."""
    top_k: int = 0
    """Draw from this many of the likeliest tokens; 0 draws from all."""
    top_p: float = 1.0
    """Draw from the fewest likeliest tokens that together have this probability (Holtzman et al. 2019)."""
    no_repeat: int = 0
    """No run of this many tokens may occur twice; 0 allows all repetitions."""

    def __post_init__(self) -> None:
        if self.temperature < 0 or self.top_k < 0 or self.no_repeat < 0 or not 0 < self.top_p <= 1:
            raise BadConfig(
                "Generating needs a temperature, top-k and no-repeat of at least 0, and a top-p above 0 and up to 1."
            )


def choose(scores_BV: Tensor, draws_B: Tensor, choice: Choice) -> Tensor:
    """One token a row; `draws_B` are uniform numbers in [0, 1)."""
    if not choice.temperature:
        return scores_BV.argmax(1)
    # Double precision, because a sum over a large vocabulary decides which token a draw falls on.
    probabilities_BV = (scores_BV.double() / choice.temperature).softmax(1)
    probabilities_BV, order_BV = probabilities_BV.sort(stable=True, dim=1, descending=True)
    if choice.top_k:
        probabilities_BV[:, choice.top_k :] = 0
        probabilities_BV /= probabilities_BV.sum(1, keepdim=True)
    # Top-p keeps a token if those before it do not reach p together, so the first one always stays.
    before_BV = probabilities_BV.cumsum(1) - probabilities_BV
    probabilities_BV[before_BV >= choice.top_p] = 0
    # A draw, scaled to what is left, falls between the cumulative sums of two tokens.
    ends_BV = probabilities_BV.cumsum(1)
    draws_B1 = draws_B.double()[:, None] * ends_BV[:, -1:]
    place_B1 = (ends_BV <= draws_B1).sum(1, keepdim=True)
    chosen_B1: Tensor = order_BV.gather(1, place_B1.clamp(max=order_BV.shape[1] - 1))
    return chosen_B1[:, 0]


def repeats(tokens: Sequence[int], size: int) -> list[int]:
    """The next tokens that would make the last `size` tokens a run that occurred before."""
    if size < 1 or len(tokens) < size:
        return []
    last_start = len(tokens) - size
    end = tuple(tokens[last_start + 1 :])
    repeated = []
    for start in range(last_start + 1):
        run = tuple(tokens[start : start + size])
        if run[:-1] == end:
            repeated.append(run[-1])
    return repeated
