"""The base of all objectives: goals that make their own labels from running text.

In: a stream of documents, cut by the objective into sequences and packed. Out: the same packs with some ids changed and
the targets of its loss added. What needs no gradients is not an objective of the training loop but a
`firth/objectives/solver.py`.
"""

from collections.abc import Mapping
from typing import ClassVar

from firth.data.packing import Pack, Plan
from firth.data.stream import CorpusView
from firth.tensors import Encoder, Goal
from firth.tokenizers import Tokenizer
from firth.types import ShareFigure


class Objective(Goal):
    """A goal that makes its own labels. Of several objectives, the first cuts the stream, and all corrupt in order."""

    requires: ClassVar[tuple[str, ...]] = ()
    """Objectives that must have corrupted a pack before this one can."""
    makes_pairs: ClassVar[bool] = False
    """Whether it cuts the text into pairs, so that it must be the first objective."""
    gives_perplexity: ClassVar[bool] = False
    """Whether its loss over the vocabulary is that of the text itself, so that its exponential is a perplexity."""
    has_weights: ClassVar[bool] = True
    """Whether it has weights of its own, besides those of the encoder."""
    is_kept: ClassVar[bool] = True
    """Whether a saved model keeps it; otherwise it has done its work when training ends."""
    per_token: ClassVar[tuple[str, ...] | None] = None
    """Its tensors that have a row for every token, as far as a model has them; None if `extend` cannot extend it."""
    other_losses: ClassVar[tuple[str, ...]] = ()
    """Its losses that are not over the vocabulary."""
    shares: ClassVar[Mapping[str, ShareFigure]] = {}
    """Its accuracies, recalls and the like, besides the accuracies of its losses over the vocabulary."""

    def set_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Called once before training with what made the ids; overridden by objectives that look at words."""

    def set_text(self, stream: CorpusView) -> None:
        """Called once before training with the text; overridden by objectives that look at how often tokens occur."""

    def begin(self, encoder: Encoder) -> None:
        """Called once before it trains a trained encoder further; overridden by objectives that begin with weights of
        the encoder."""

    def warning(self) -> str:
        """What a user should know before training with it; empty if there is nothing."""
        return ""

    @classmethod
    def finding(cls, figures: Mapping[str, float]) -> str:
        """What the last held-out figures say, as the end of a sentence that begins with `It`; empty for nothing."""
        return ""

    def sequences(self, stream: CorpusView, epoch: int) -> Plan:
        """Cuts a stream of documents into a plan: which tokens make up each sequence of this epoch."""
        raise NotImplementedError

    def corrupt(self, pack: Pack, epoch: int) -> None:
        """Changes a pack's ids and adds the targets of this objective, as numpy arrays."""
        raise NotImplementedError
