"""The settings of batches that a recipe gives to `data/loader.py`; importing them imports no torch."""

from dataclasses import dataclass
from typing import Literal

from firth.errors import BadConfig


@dataclass(frozen=True)
class BatchConfig:
    """How text is cut into batches."""

    max_length: int = 128
    """Longest sequence, special tokens included."""
    tokens: int = 4096
    """Tokens of a micro-batch, filler included; of an encoder-decoder, those of the sources and targets together."""
    last_length: int = 0
    """Longest sequence in the last steps, as BERT ends with 512; 0: as in all other steps."""
    last_share: float = 0.1
    """With last_length, the share of the steps that read such sequences."""
    language_alpha: float = 1.0
    """With several languages, each one's share of the tokens is in proportion to its tokens to this power; 1: all text
    once an epoch. Held-out text is not changed."""
    segments: Literal["texts", "languages"] = "texts"
    """What the segment embeddings say of a token: which text of a pair it is in, or its language, as in XLM."""
    languages: tuple[str, ...] = ()
    """With segments=languages, the languages in the order of their embeddings; the prepared text decides."""
    shuffle_tokens: int = 0
    """Sequences are shuffled within stretches of so many tokens of the prepared text, and the stretches among
    themselves; 0: all together. For text in an object store, about as many tokens as half of the cache holds."""
    held_out_rate: float = 0.02
    """Share of the documents held out for evaluation (at least 2, at most 2,000 documents)."""
    workers: int = 0
    """Processes that make batches; 0 makes them in the training process."""

    def __post_init__(self) -> None:
        if self.workers < 0 or not 0 <= self.held_out_rate < 1:
            raise BadConfig("batches.workers must be at least 0, and held_out_rate at least 0 and below 1.")
        if self.shuffle_tokens < 0:
            raise BadConfig("batches.shuffle_tokens must be at least 0.")
        if not 0 < self.language_alpha <= 1:
            raise BadConfig("batches.language_alpha must be above 0 and at most 1.")
        if not 0 < self.last_share < 1:
            raise BadConfig("batches.last_share must be between 0 and 1.")
