"""The configs of encoders that are one table.

They are separate from their encoders because a solver that fills such a table without gradients
(`objectives/solver.py`) does not need torch, which would take more memory than most tables do.
"""

from dataclasses import dataclass
from typing import Literal

from firth.errors import BadConfig


@dataclass(frozen=True)
class OneHotConfig:
    vocab_size: int = 30000
    """Columns of a vector: one for each token."""

    def __post_init__(self) -> None:
        if self.vocab_size < 1:
            raise BadConfig("One-hot vectors need a vocab_size of at least 1.")


@dataclass(frozen=True)
class TopicsConfig:
    vocab_size: int = 30000
    """Number of words."""
    width: int = 100
    """Number of topics."""
    alpha: float = 0.0
    """Pseudo-count of every topic in every document; 0 shares one among all topics."""
    num_iterations: int = 30
    """How often the mixtures and the topics of tokens are updated in turn."""
    init_std: float = 0.1
    """How far apart the topics are before training, as the standard deviation of a logarithm."""

    def __post_init__(self) -> None:
        if min(self.vocab_size, self.width, self.num_iterations) < 1 or min(self.alpha, self.init_std) < 0:
            raise BadConfig("Topics need sizes and num_iterations of at least 1, alpha and init_std of at least 0.")


@dataclass(frozen=True)
class StaticConfig:
    vocab_size: int = 30000
    """Rows of the table."""
    width: int = 100
    """Width of a vector."""
    init_std: float = 0.02
    """Standard deviation of the initial vectors."""

    def __post_init__(self) -> None:
        if self.vocab_size < 1 or self.width < 1 or self.init_std < 0:
            raise BadConfig("Word vectors need a vocab_size and a width of at least 1 and an init_std of at least 0.")


@dataclass(frozen=True)
class BagConfig:
    vocab_size: int = 30000
    """Rows of the table: words, hashed n-grams, features."""
    width: int = 100
    """Width of a vector."""
    combine: Literal["mean", "sum"] = "mean"
    """How the rows of a token's parts become its vector."""
    init_std: float = 0.02
    """Standard deviation of the initial vectors."""

    def __post_init__(self) -> None:
        if self.vocab_size < 1 or self.width < 1 or self.init_std < 0:
            raise BadConfig("A bag needs a vocab_size and a width of at least 1 and an init_std of at least 0.")
