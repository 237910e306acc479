"""Texts in, one vector for each out, by a model's vector head; `convert/vector_head.py` says what that is.

The part of the tokens needs no encoder. The part of the context is computed from states that the caller has pooled.
"""

from dataclasses import dataclass

import numpy as np

from firth.checkpoint import Checkpoint, token_table
from firth.convert.vector_head import ContextPart
from firth.inference.tokenized_texts import TokenizedTexts
from firth.metrics.cosines import unit_vectors

CONTEXT_POOLING = "cls"
"""The states that the context part projects."""


@dataclass(frozen=True, eq=False)
class HeadEmbedder:
    """A vector head with the rows of its model's tokens."""

    rows_VD: np.ndarray
    """The row of each token."""
    context: ContextPart | None
    """The part that the encoder computes; None for a head that adds up rows alone."""

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "HeadEmbedder | None":
        """That of a model; None for a model without a vector head."""
        head = checkpoint.vector_head
        table_VE = token_table(checkpoint.encoder)
        if head is None or table_VE is None:
            return None
        on_cpu = table_VE.float().cpu()
        return cls(head.rows(on_cpu.numpy()), head.context)

    @property
    def width(self) -> int:
        """The width of a vector."""
        token_width = int(self.rows_VD.shape[1])
        if self.context is None:
            return token_width
        return token_width + len(self.context.bias_K)

    def token_part(self, texts: TokenizedTexts) -> np.ndarray:
        """For each text the sum of its tokens' rows; zeros for one without tokens that have a weight."""
        sums = np.empty((len(texts.sequences), self.rows_VD.shape[1]), np.float32)
        for number, sequence in enumerate(texts.sequences):
            assert isinstance(sequence, np.ndarray), "a vector head is made for tokens without parts only"
            sums[number] = self.rows_VD[sequence].sum(0)
        return texts.add_windows(sums)

    def with_context(self, token_part: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Both parts of the vectors, side by side; `states` has one row a text."""
        assert self.context is not None
        context_part = self.context.vectors(states)
        # A text without a token that counts, such as a blank one, has a vector of zeros.
        context_part[~token_part.any(1)] = 0.0
        return np.concatenate([unit_vectors(token_part), context_part], 1)
