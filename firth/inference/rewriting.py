"""A model that writes: sources in, texts out, and where it looked at the source for each token of a text.

A model that was fine-tuned to rewrite has its own settings; any other encoder-decoder (a public T5, say) writes with
the usual ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from firth.checkpoint import Checkpoint, make_head
from firth.data.items import Item
from firth.errors import BadConfig, Unsupported
from firth.nn.decoding import Choice
from firth.tasks.rewrite import RewriteConfig, RewriteHead, WritingOptions, as_text
from firth.tensors import Batch, States
from firth.types import Example, Rewritten


@dataclass(frozen=True)
class WrittenAttention:
    """A text, and the attention of each of its tokens to the source while it was written."""

    rewritten: Rewritten
    source: list[str]
    """The tokens of the source, with its special ones."""
    target: list[str]
    """The tokens that were written, including the one that ends a text."""
    weights: np.ndarray
    """layers x heads x target x source."""


def rewriting_head(checkpoint: Checkpoint, task: str = "") -> RewriteHead:
    """The head of the task with this name, or of the model's only task that rewrites; else one with usual settings."""
    heads = {name: head for name, head in checkpoint.tasks.items() if isinstance(head, RewriteHead)}
    if task and task not in heads:
        raise BadConfig(f"This model has no task '{task}' that rewrites; it has {', '.join(heads) or 'none'}.")
    if not task and len(heads) > 1:
        raise BadConfig(f"This model has several tasks that rewrite ({', '.join(heads)}); name one with `task=`.")
    for name, head in heads.items():
        if task in ("", name):
            return head
    # A model that was pre-trained by UniLM has all that it needs to write.
    has_unilm = "unilm" in checkpoint.goals
    config = RewriteConfig(way="prefix" if has_unilm else "source")
    made = make_head("rewrite", config, checkpoint.encoder, labels={})
    assert isinstance(made, RewriteHead)
    made.start_from(checkpoint.goals)
    return made


@dataclass(frozen=True)
class RewriteSettings:
    """The settings of one call; None takes the model's own."""

    beams: int | None = None
    length_penalty: float | None = None
    no_repeat_ngram: int | None = None
    max_tokens: int | None = None
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 1

    def options(self, config: RewriteConfig) -> WritingOptions:
        """How texts are written with a model's config."""
        # Sampling draws one text, whatever the model's number of beams is.
        beams = self.beams
        if beams is None:
            beams = 1 if self.temperature else config.beams
        no_repeat_ngram = self.no_repeat_ngram
        if no_repeat_ngram is None:
            no_repeat_ngram = config.no_repeat_ngram
        length_penalty = self.length_penalty
        if length_penalty is None:
            length_penalty = config.length_penalty
        max_tokens = self.max_tokens
        if max_tokens is None:
            max_tokens = config.max_tokens
        choice = Choice(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            no_repeat_ngram=no_repeat_ngram,
            beams=beams,
            length_penalty=length_penalty,
        )
        if self.max_tokens is not None and self.max_tokens < 1:
            raise BadConfig(f"max_tokens must be at least 1; it is {self.max_tokens}.")
        return WritingOptions(choice, max_tokens, self.seed)


class Rewriter:
    """A model's part that rewrites. A server prepares each request (`tokenize`) and computes many together."""

    def __init__(self, checkpoint: Checkpoint, task: str = "") -> None:
        self.head = rewriting_head(checkpoint, task)
        self.encoder = checkpoint.encoder
        self.tokenizer = checkpoint.tokenizer
        # Texts are cut as in fine-tuning.
        self.max_length = int(checkpoint.info.get("max_length", self.encoder.max_positions))

    def tokenize(self, texts: Sequence[str]) -> list[Item]:
        """Texts as sources, ready to be rewritten."""
        examples = [Example((text,)) for text in texts]
        return self.head.encode(examples, self.tokenizer, max_length=self.max_length, training=False)

    @torch.inference_mode()
    def rewrite(self, items: Sequence[Item], settings: RewriteSettings) -> list[Rewritten]:
        """A text for each source, in order."""
        options = settings.options(self.head.config)
        written = self.head.write_items(self.encoder, items, options)
        return [as_text(text, self.tokenizer) for text in written]

    @torch.inference_mode()
    def rewrite_with_attention(self, item: Item, settings: RewriteSettings) -> WrittenAttention:
        """The text for one source, and the attention of its tokens to the source."""
        if not self.encoder.reads_source:
            raise Unsupported("This model has no attention from a text to its source to show: it has both in one text.")
        options = settings.options(self.head.config)
        [written] = self.head.write_items(self.encoder, [item], options)
        vocab = self.tokenizer.vocab
        # The text is read once more: the state that wrote a token is the one of the token before it.
        target = np.array([token for token in written.tokens if token != vocab.sep], np.int64)
        batch: Batch = self.head.writer.batch([item], [target], vocab)
        states: States = self.encoder(replace(batch, targets={}), attention=True)
        weights = np.stack([layer[0].numpy() for layer in states.cross_attention])
        num_written = len(written.tokens)
        return WrittenAttention(
            rewritten=as_text(written, self.tokenizer),
            source=[self._spelled(token) for token in item.windows[0].ids.tolist()],
            target=[self._spelled(token) for token in written.tokens],
            weights=weights[:, :, :num_written],
        )

    def _spelled(self, token: int) -> str:
        """A token as people read it: without marks of spaces and byte letters."""
        vocab = self.tokenizer.vocab
        if token in vocab.specials:
            return vocab.tokens[token]
        return self.tokenizer.spelled(token).strip() or vocab.tokens[token]
