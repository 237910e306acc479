"""Scores of next tokens -> the tokens chosen: the likeliest, or drawn from what temperature, top-k and top-p leave.

Chance comes in as numbers, so that a text is a pure function of its seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from firth.errors import BadConfig


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen."""

    temperature: float = 1.0
    """Scores are divided by it: below 1 the likely gets likelier; 0 takes the likeliest."""
    top_k: int = 0
    """Draw from so many of the likeliest tokens; 0 from all."""
    top_p: float = 1.0
    """Draw from the fewest likeliest tokens that together have this probability (Holtzman et al. 2019)."""
    no_repeat: int = 0
    """No run of so many tokens may occur twice; 0 lets all repeat."""

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
    shares_BV, order_BV = (scores_BV.double() / choice.temperature).softmax(1).sort(stable=True, dim=1, descending=True)
    if choice.top_k:
        shares_BV[:, choice.top_k :] = 0
        shares_BV /= shares_BV.sum(1, keepdim=True)
    before_BV = shares_BV.cumsum(1) - shares_BV
    shares_BV[before_BV >= choice.top_p] = 0  # the first always stays
    ends_BV = shares_BV.cumsum(1)
    place_B1 = (ends_BV <= draws_B.double()[:, None] * ends_BV[:, -1:]).sum(1, keepdim=True)
    chosen_B1: Tensor = order_BV.gather(1, place_B1.clamp(max=order_BV.shape[1] - 1))
    return chosen_B1[:, 0]


def repeats(tokens: Sequence[int], size: int) -> list[int]:
    """The tokens that would make the last `size` tokens a run that occurred before."""
    if size < 1 or len(tokens) < size:
        return []
    end = tuple(tokens[len(tokens) - size + 1 :])
    runs = zip(*(tokens[i:] for i in range(size)), strict=False)
    return [run[-1] for run in runs if run[:-1] == end]
