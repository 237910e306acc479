"""A causal language model continues texts: prompts in, prompts with their continuations out.

With a key-value cache each step reads one new token of every text. A text that outgrows the length the model was
trained on continues from its last half.
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
from firth.nn.decoding import Choice, WritingRules, Written, write
from firth.nn.kv_cache import KeyValueCache
from firth.objectives.causal_lm import CausalLM
from firth.tensors import Batch, Encoder, States
from firth.tokenizers import Tokenizer
from firth.types import Generated


@dataclass(frozen=True)
class GenerationOptions:
    """How many tokens are generated, and how."""

    max_tokens: int = 50
    """The most new tokens; fewer if the model ends the text."""
    choice: Choice = field(default_factory=Choice)
    """How the next token is chosen."""
    seed: int = 1
    """The seed of the random numbers for every text and token."""
    use_cache: bool = True
    """Keep keys and values. Without them every step reads the whole text, with the same result."""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise BadConfig(f"max_tokens must be at least 1; it is {self.max_tokens}.")


@torch.inference_mode()
def generate(checkpoint: Checkpoint, prompts: Sequence[str], options: GenerationOptions) -> list[Generated]:
    """Each prompt with its continuation, in order."""
    tokenizer = checkpoint.tokenizer
    vocab = tokenizer.vocab
    contexts: list[list[int]] = []
    for ids in tokenizer.ids_batch(list(prompts)):
        context = [*vocab.frame.opening, *ids]
        # An empty prompt starts from the token that separates texts.
        contexts.append(context or [vocab.sep])
    if not contexts:
        return []
    # Of the special tokens only the one that ends a text may be generated.
    banned = tuple(sorted(vocab.specials - {vocab.sep}))
    key = rng.key(options.seed, "generate")

    def draw(rows: list[int], step: int) -> Tensor:
        # A draw depends on the seed, the prompt and the step, not on the other prompts.
        return torch.from_numpy(rng.uniform(key, np.array(rows), step))

    texts = write(
        _CausalScores(checkpoint, contexts, use_cache=options.use_cache),
        options.choice,
        WritingRules(len(vocab), vocab.sep, banned),
        contexts=contexts,
        limits=[options.max_tokens] * len(contexts),
        draw=draw,
    )
    generated = []
    for prompt, context, text in zip(prompts, contexts, texts, strict=True):
        generated.append(_result(prompt, context, text, tokenizer))
    return generated


class _CausalScores:
    """The scores of the next token of each text, by a causal language model with or without a key-value cache."""

    def __init__(self, checkpoint: Checkpoint, contexts: Sequence[list[int]], *, use_cache: bool) -> None:
        objective = checkpoint.goals.get("causal_lm")
        if not isinstance(objective, CausalLM) or not checkpoint.encoder.causal:
            raise Unsupported(
                "This model does not predict what comes next, so it cannot generate; pre-train one with `recipe='gpt'`."
            )
        self.encoder: Encoder = checkpoint.encoder
        self.objective = objective
        self.opening = list(checkpoint.tokenizer.vocab.frame.opening)
        max_positions = self.encoder.max_positions
        trained_length = int(checkpoint.info.get("max_length", max_positions))
        self.max_length = min(trained_length, max_positions)
        self.use_cache = use_cache and self.encoder.supports_cache
        self.cache: KeyValueCache | None = None
        self.windows = [self._fit(tokens) for tokens in contexts]
        """Those tokens of each text that the model reads."""

    def first(self) -> Tensor:
        return self._read_windows()

    def next(self, parents: list[int], tokens: list[int]) -> Tensor:
        longer = []
        for parent, token in zip(parents, tokens, strict=True):
            longer.append([*self.windows[parent], token])
        self.windows = longer
        if any(len(window) > self.max_length for window in self.windows):
            # Positions change when a window is shortened, so everything is read again.
            self.windows = [self._fit(window) for window in self.windows]
            return self._read_windows()
        if self.cache is None:
            return self._read_windows()
        self.cache.keep(torch.tensor(parents))
        ids_N = torch.tensor(tokens)
        # The cache holds all tokens before this one, so their number is its position.
        positions_N = self.cache.lengths_B.clone()
        bounds_B1 = torch.arange(len(tokens) + 1, dtype=torch.int32)
        return self._scores(Batch(ids_N, positions_N, torch.zeros_like(ids_N), bounds_B1, 1))

    def _fit(self, tokens: list[int]) -> list[int]:
        """The tokens; of too many, the opening and the last half of what fits."""
        if len(tokens) <= self.max_length:
            return tokens
        kept = max(1, self.max_length // 2 - len(self.opening))
        return [*self.opening, *tokens[len(tokens) - kept :]]

    def _read_windows(self) -> Tensor:
        if self.use_cache:
            self.cache = KeyValueCache(self.encoder.num_layers, len(self.windows), self.max_length)
        return self._scores(pack_tokens([np.array(window) for window in self.windows]))

    def _scores(self, batch: Batch) -> Tensor:
        """Scores (B x V) of the token after each sequence."""
        options: dict[str, KeyValueCache] = {}
        if self.cache is not None:
            # Encoders that do not support a cache do not know the argument.
            options["cache"] = self.cache
        states: States = self.encoder(batch, **options)
        last_positions_B = batch.bounds_B1[1:].long() - 1
        last_states_BD = states.last_ND[last_positions_B]
        return self.objective.scores(last_states_BD, states.table_VD)


def _result(prompt: str, context: list[int], text: Written, tokenizer: Tokenizer) -> Generated:
    """The prompt as it was given, followed by the decoded new tokens."""
    decoded_prompt = tokenizer.decode(context)
    decoded = tokenizer.decode([*context, *text.tokens])
    if decoded.startswith(decoded_prompt):
        continuation = decoded[len(decoded_prompt) :]
    else:
        continuation = f" {tokenizer.decode(text.tokens)}"
    # An incomplete last character decodes to the replacement character.
    continuation = continuation.rstrip("\ufffd")
    return Generated(prompt + continuation, continuation, len(text.tokens), text.ended)
