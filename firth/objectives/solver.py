"""An objective that needs no gradients: counts, decompositions, word2vec's own loops. `pretraining/solving.py` runs it.

It is no network: text goes in, the arrays of an encoder come out, and torch is not needed for that.
"""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from firth.config import part_config
from firth.data.stream import Stream
from firth.errors import BadConfig
from firth.objectives.passes import Passes
from firth.tokenizers import Tokenizer

Report = Callable[[float], None]
"""Told now and then which share of the work is done."""
Solved = tuple[dict[str, np.ndarray], dict[str, float]]
"""The encoder's arrays by the names it has for them, and figures about them."""
ROWS = "table.weight"
"""What the encoders of tables call theirs."""


class Solver:
    Config: ClassVar[type]
    fills: ClassVar[str]
    """The encoder whose arrays it gives, by name."""
    word_losses: ClassVar[Mapping[str, str]] = {}
    """None: it is not trained by the loop, whose reports these are for."""

    def __init__(self, config: Any, shape: Any, *, tokenizer: Tokenizer, seed: int) -> None:
        """Of the tokenizer only what is needed is kept: lists of words take a good part of their vectors' memory."""
        self.config, self.shape, self.seed = config, shape, seed
        self.num_tokens, self.specials = len(tokenizer.vocab), tokenizer.vocab.specials
        if not isinstance(shape, part_config("firth.encoders", self.fills)):
            raise BadConfig(f"{type(self).__name__} fills a table of its own kind; its encoder must be {self.fills}.")

    def solve(self, stream: Stream, *, epochs: int, threads: int, report: Report, passes: Passes) -> Solved:
        """The encoder's arrays from the documents of a stream, in so many passes.

        `passes` keeps whole ones, so that a killed run can go on. `threads` above one may cost bit-equal repetition,
        one never does. Take `**_` for what is not needed.
        """
        raise NotImplementedError
