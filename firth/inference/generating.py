"""A causal language model goes on with texts: prompts in, prompts with what follows out.

With a key-value cache each step reads one new token of every text. A text longer
than what the model was trained to read goes on from its last half.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from firth import rng
from firth.checkpoint import Checkpoint
from firth.data.packing import pack_tokens
from firth.errors import BadConfig, Unsupported
from firth.nn.kv_cache import KeyValueCache
from firth.nn.search import Choice, choose, repeats
from firth.objectives.causal_lm import CausalLM
from firth.tensors import Batch, Encoder
from firth.tokenizers import Tokenizer
from firth.types import Generated


@dataclass(frozen=True)
class Options:
    max_tokens: int = 50
    """New tokens at most; fewer where the model ends the text."""
    choice: Choice = field(default_factory=Choice)
    """How the next token is chosen."""
    seed: int = 1
    """Decides what is drawn, for every text and token."""
    use_cache: bool = True
    """Keep keys and values; without them every step reads the whole text, with the same result."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise BadConfig(f"max_tokens must be at least 1; it is {self.max_tokens}.")


@dataclass
class _Text:
    row: int
    whole: list[int]
    """All tokens, the new ones included."""
    window: list[int]
    """What the model reads of them."""
    start: int
    """Tokens of the prompt."""
    ended: bool = False


@torch.inference_mode()
def generate(checkpoint: Checkpoint, prompts: Sequence[str], options: Options) -> list[Generated]:
    reader = _Reader(checkpoint, use_cache=options.use_cache)
    vocab, opening = checkpoint.tokenizer.vocab, checkpoint.tokenizer.vocab.frame.opening
    texts = []
    for row, ids in enumerate(checkpoint.tokenizer.ids_batch(list(prompts))):
        whole = [*opening, *ids] or [vocab.sep]
        texts.append(_Text(row, whole, reader.fitted(whole), len(whole)))
    barred = sorted(vocab.specials - {vocab.sep})
    key = rng.key(options.seed, "generate")
    for step in range(options.max_tokens):
        going = [text for text in texts if not text.ended]
        if not going:
            break
        scores_BV = reader.scores(going)[:, : len(vocab)].float()
        scores_BV[:, [token for token in barred if token < scores_BV.shape[1]]] = -torch.inf
        for place, text in enumerate(going):
            scores_BV[place, repeats(text.whole, options.choice.no_repeat)] = -torch.inf
        draws_B = torch.from_numpy(rng.uniform(key, np.array([text.row for text in going]), step))
        for text, token in zip(going, choose(scores_BV, draws_B, options.choice).tolist(), strict=True):
            text.ended = token == vocab.sep
            text.whole.append(token)
            text.window.append(token)
    return [_told(text, prompt, checkpoint.tokenizer) for text, prompt in zip(texts, prompts, strict=True)]


class _Reader:
    """The scores of the tokens that may follow each text."""

    def __init__(self, checkpoint: Checkpoint, *, use_cache: bool) -> None:
        goal = checkpoint.goals.get("causal_lm")
        if not isinstance(goal, CausalLM) or not checkpoint.encoder.causal:
            raise Unsupported(
                "This model does not predict what comes next, so it cannot generate; pre-train one with `recipe='gpt'`."
            )
        self.encoder: Encoder = checkpoint.encoder
        self.goal, self.opening = goal, list(checkpoint.tokenizer.vocab.frame.opening)
        trained = int(checkpoint.info.get("max_length", self.encoder.max_positions))
        self.limit = min(trained, self.encoder.max_positions)
        self.use_cache = use_cache and self.encoder.supports_cache
        self.cache: KeyValueCache | None = None
        self.rows: list[int] = []

    def fitted(self, ids: list[int]) -> list[int]:
        """The text, or its opening and last half where it is too long."""
        if len(ids) <= self.limit:
            return list(ids)
        return [*self.opening, *ids[len(ids) - max(1, self.limit // 2 - len(self.opening)) :]]

    def scores(self, texts: Sequence[_Text]) -> Tensor:
        if any(len(text.window) > self.limit for text in texts):
            self.cache = None
            for text in texts:
                text.window = self.fitted(text.window)
        batch = self._new(texts, self.cache) if self.cache else pack_tokens([np.array(text.window) for text in texts])
        if self.use_cache and not self.cache:
            self.cache = KeyValueCache(self.encoder.num_layers, len(texts), self.limit)
        self.rows = [text.row for text in texts]
        states = self.encoder(batch, cache=self.cache) if self.cache else self.encoder(batch)
        return self.goal.scores(states.last_ND[batch.bounds_B1[1:].long() - 1], states.table_VD)

    def _new(self, texts: Sequence[_Text], cache: KeyValueCache) -> Batch:
        """The last token of each text; the cache drops texts that ended."""
        if len(texts) < len(self.rows):
            cache.keep(torch.tensor([self.rows.index(text.row) for text in texts]))
        ids_N = torch.tensor([text.window[-1] for text in texts])
        bounds_B1 = torch.arange(len(texts) + 1, dtype=torch.int32)
        return Batch(ids_N, cache.lengths_B.clone(), torch.zeros_like(ids_N), bounds_B1, 1)


def _told(text: _Text, prompt: str, tokenizer: Tokenizer) -> Generated:
    before, after = (tokenizer.decode(ids) for ids in (text.whole[: text.start], text.whole))
    new = text.whole[text.start :]
    more = after[len(before) :] if after.startswith(before) else f" {tokenizer.decode(new)}"
    more = more.rstrip("\ufffd")  # a character of which the last bytes are missing
    return Generated(prompt + more, more, len(new), text.ended)
