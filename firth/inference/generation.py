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
from firth.nn.kv_cache import KeyValueCache
from firth.nn.search import Choice, choose, repeats
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


@dataclass
class _TextState:
    """A text while it is generated."""

    row: int
    """The number of its prompt."""
    tokens: list[int]
    """The prompt's tokens and the new ones."""
    window: list[int]
    """Those the model reads."""
    prompt_length: int
    """Tokens of the prompt."""
    ended: bool = False

    def append(self, token: int) -> None:
        self.tokens.append(token)
        self.window.append(token)


@torch.inference_mode()
def generate(checkpoint: Checkpoint, prompts: Sequence[str], options: GenerationOptions) -> list[Generated]:
    """Each prompt with its continuation, in order."""
    scorer = _NextTokenScorer(checkpoint, use_cache=options.use_cache)
    tokenizer = checkpoint.tokenizer
    vocab = tokenizer.vocab
    texts = []
    for row, ids in enumerate(tokenizer.ids_batch(list(prompts))):
        # An empty prompt starts from the token that separates texts.
        tokens = [*vocab.frame.opening, *ids] or [vocab.sep]
        texts.append(_TextState(row, tokens, scorer.fit(tokens), len(tokens)))
    key = rng.key(options.seed, "generate")
    for step in range(options.max_tokens):
        unfinished = [text for text in texts if not text.ended]
        if not unfinished:
            break
        scores_BV = _allowed_scores(scorer, unfinished, checkpoint, no_repeat=options.choice.no_repeat)
        # A draw depends on the seed, the prompt and the step, not on the other prompts.
        rows_B = np.array([text.row for text in unfinished])
        draws_B = torch.from_numpy(rng.uniform(key, rows_B, step))
        tokens_B = choose(scores_BV, draws_B, options.choice)
        for text, token in zip(unfinished, tokens_B.tolist(), strict=True):
            text.append(token)
            text.ended = token == vocab.sep
    return [_result(text, prompt, tokenizer) for text, prompt in zip(texts, prompts, strict=True)]


def _allowed_scores(
    scorer: "_NextTokenScorer", texts: Sequence[_TextState], checkpoint: Checkpoint, *, no_repeat: int
) -> Tensor:
    """The scores of the next token of each text; tokens that must not come have minus infinity."""
    vocab = checkpoint.tokenizer.vocab
    # The output layer may have more rows than there are tokens.
    scores_BV = scorer.scores(texts)[:, : len(vocab)].float()
    # Of the special tokens only the one that ends a text may be generated.
    banned = sorted(vocab.specials - {vocab.sep})
    num_scores = scores_BV.shape[1]
    scored = [token for token in banned if token < num_scores]
    scores_BV[:, scored] = -torch.inf
    for index, text in enumerate(texts):
        repeated = repeats(text.tokens, no_repeat)
        scores_BV[index, repeated] = -torch.inf
    return scores_BV


class _NextTokenScorer:
    """The scores of the next token of each text, by a causal language model with or without a key-value cache."""

    def __init__(self, checkpoint: Checkpoint, *, use_cache: bool) -> None:
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
        self.cached_rows: list[int] = []
        """The rows of the texts that the cache holds, in its order."""

    def fit(self, tokens: list[int]) -> list[int]:
        """A copy of the tokens; of too many, the opening and the last half of what fits."""
        if len(tokens) <= self.max_length:
            return list(tokens)
        kept = max(1, self.max_length // 2 - len(self.opening))
        return [*self.opening, *tokens[len(tokens) - kept :]]

    def scores(self, texts: Sequence[_TextState]) -> Tensor:
        """Scores (B x V) of the token after each text's window."""
        if any(len(text.window) > self.max_length for text in texts):
            # Positions change when a window is shortened, so everything is read again.
            self.cache = None
            for text in texts:
                text.window = self.fit(text.window)
        if self.cache is not None:
            batch = self._last_tokens(texts, self.cache)
        else:
            batch = pack_tokens([np.array(text.window) for text in texts])
        if self.use_cache and self.cache is None:
            self.cache = KeyValueCache(self.encoder.num_layers, len(texts), self.max_length)
        self.cached_rows = [text.row for text in texts]
        states = self._encode(batch)
        last_positions_B = batch.bounds_B1[1:].long() - 1
        last_states_BD = states.last_ND[last_positions_B]
        return self.objective.scores(last_states_BD, states.table_VD)

    def _encode(self, batch: Batch) -> States:
        """The encoder's states; without a cache also by encoders that do not support one."""
        if self.cache is None:
            states: States = self.encoder(batch)
            return states
        states = self.encoder(batch, cache=self.cache)
        return states

    def _last_tokens(self, texts: Sequence[_TextState], cache: KeyValueCache) -> Batch:
        """A batch with the last token of each text; texts that ended are dropped from the cache."""
        if len(texts) < len(self.cached_rows):
            kept = [self.cached_rows.index(text.row) for text in texts]
            cache.keep(torch.tensor(kept))
        ids_N = torch.tensor([text.window[-1] for text in texts])
        # The cache holds all tokens before this one, so their number is its position.
        positions_N = cache.lengths_B.clone()
        bounds_B1 = torch.arange(len(texts) + 1, dtype=torch.int32)
        return Batch(ids_N, positions_N, torch.zeros_like(ids_N), bounds_B1, 1)


def _result(text: _TextState, prompt: str, tokenizer: Tokenizer) -> Generated:
    """The prompt as it was given, followed by the decoded new tokens."""
    new_tokens = text.tokens[text.prompt_length :]
    decoded_prompt = tokenizer.decode(text.tokens[: text.prompt_length])
    decoded = tokenizer.decode(text.tokens)
    if decoded.startswith(decoded_prompt):
        continuation = decoded[len(decoded_prompt) :]
    else:
        continuation = f" {tokenizer.decode(new_tokens)}"
    # The last character may lack some of its bytes, which decode to the replacement character.
    continuation = continuation.rstrip("\ufffd")
    return Generated(prompt + continuation, continuation, len(new_tokens), text.ended)
