"""An objective that is solved without gradients: counts, decompositions, word2vec's loops.

`pretraining/solving.py` runs it. It is not a network: text goes in, the arrays of an encoder come out. It does not need
torch.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from firth.config import part_config
from firth.data.stream import CorpusView
from firth.errors import BadConfig
from firth.objectives.passes import Passes
from firth.tokenizers import Tokenizer

Report = Callable[[float], None]
"""Takes the share of the work that is done; called from time to time."""
Solved = tuple[dict[str, np.ndarray], dict[str, float]]
"""The encoder's arrays, by the encoder's names for them, and figures about them."""
ROWS = "table.weight"
"""The name of the table in encoders that are one table."""


class Solver:
    Config: ClassVar[type]
    config: object
    shape: object
    """The config of the encoder; subclasses name its type."""
    fills: ClassVar[str]
    """The name of the encoder whose arrays it computes."""
    word_losses: ClassVar[Mapping[str, str]] = {}
    """Empty: these are for reports of the training loop, which does not train a solver."""

    def __init__(self, config: object, shape: object, *, tokenizer: Tokenizer, seed: int) -> None:
        # The tokenizer itself is not kept: a word list takes a good part of the memory of its vectors.
        self.config = config
        self.shape = shape
        self.seed = seed
        self.num_tokens = len(tokenizer.vocab)
        self.specials = tokenizer.vocab.specials
        if not isinstance(shape, part_config("firth.encoders", self.fills)):
            raise BadConfig(f"{type(self).__name__} fills a table of its own kind; its encoder must be {self.fills}.")

    def solve(self, stream: CorpusView, *, epochs: int, threads: int, report: Report, passes: Passes) -> Solved:
        """The encoder's arrays from the documents of a stream, after this many passes over them.

        `passes` holds checkpoints of whole passes, so that a killed run can resume. One thread gives the same bits
        every time; several may not. A subclass takes `**_` for the arguments that it does not need.
        """
        raise NotImplementedError
