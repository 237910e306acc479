"""Embedding rows of tokens that do not occur in a text are removed, with the tokens.

In: a BERT, a BiLSTM or a bag of words with WordPiece tokens, and text. Out: the model with fewer tokens. WordPiece
takes the longest known piece, so a text whose tokens are all kept is cut as before and has the same vectors, exactly.
Other texts are cut into smaller pieces; the single characters of the text are kept for that.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from firth.checkpoint import Checkpoint, make_objective
from firth.compression.method import CompressionJob, Method, MethodConfig
from firth.compression.structure import refuse_additions
from firth.config import check_counts
from firth.corpus.readers import find_files, read_lines
from firth.errors import BadConfig, Unsupported
from firth.objectives.objective import Objective
from firth.tensors import Encoder
from firth.tokenizers.segmentation import has_chinese
from firth.tokenizers.vocab import PREFIX, Vocab
from firth.tokenizers.wordpiece import WordPiece

TOKEN_EMBEDDINGS = ("embeddings.tokens.weight", "tokens.weight", "table.weight")
"""Names of the parameter with a row for each token: of BERTs, BiLSTMs, and bags of words."""
BATCH_LINES = 10_000


class PruneVocabulary(Method):
    """Tokens that do not occur in a text (`--vocabulary-from`) are removed with their embedding rows."""

    name = "vocabulary"

    @dataclass(frozen=True)
    class Config(MethodConfig):
        min_count: int = 1
        """How often a token must occur in the text to be kept."""
        keep_characters: bool = True
        """Whether pieces of one character are kept if the character occurs in the text, so that new words of these
        characters do not become unknown."""

        def __post_init__(self) -> None:
            check_counts(min_count=self.min_count)

    config: Config

    @classmethod
    def strengths(cls, original: Checkpoint, config: Config) -> Sequence[Config]:
        return [replace(config, min_count=count) for count in (1, 2, 3, 5, 8, 13, 21, 34, 55)]

    @property
    def described(self) -> str:
        times = "once" if self.config.min_count == 1 else f"{self.config.min_count} times"
        return f"tokens that occur at least {times}"

    def compress(self, job: CompressionJob) -> Checkpoint:
        if not job.vocabulary_from:
            raise BadConfig("vocabulary keeps the tokens of a text; name it with `vocabulary_from=`.")
        tokenizer = job.original.tokenizer
        if not isinstance(tokenizer, WordPiece) or not _token_embedding(job.original.encoder):
            raise Unsupported(
                f"{job.model} is not a BERT, a BiLSTM or a bag of words with WordPiece tokens, the kinds that "
                "vocabulary knows."
            )
        refuse_additions(job.original)
        return with_tokens(job.original, self._kept_ids(tokenizer, job.vocabulary_from))

    def _kept_ids(self, tokenizer: WordPiece, paths: Sequence[Path]) -> list[int]:
        """The ids of the tokens that stay, in their order."""
        counts: Counter[int] = Counter()
        characters: set[str] = set()
        for file in find_files([str(path) for path in paths]):
            lines = read_lines(file)
            for start in range(0, len(lines), BATCH_LINES):
                for ids in tokenizer.ids_batch(lines[start : start + BATCH_LINES]):
                    counts.update(ids)
        tokens = tokenizer.vocab.tokens
        for token_id in counts:
            if token_id not in tokenizer.vocab.specials:
                characters.update(tokens[token_id].removeprefix(PREFIX))
        kept = []
        for token_id, token in enumerate(tokens):
            is_character = self.config.keep_characters and token.removeprefix(PREFIX) in characters
            # A Chinese character is a word of its own, so it never continues one.
            if tokenizer.continues[token_id] and has_chinese(token):
                is_character = False
            is_special = token_id in tokenizer.vocab.specials
            if counts[token_id] >= self.config.min_count or is_special or is_character:
                kept.append(token_id)
        return kept


def with_tokens(checkpoint: Checkpoint, kept: Sequence[int]) -> Checkpoint:
    """The model with only these tokens; every tensor that has a row for each token loses the others."""
    old = checkpoint.tokenizer
    assert isinstance(old, WordPiece)
    tokenizer = smaller_tokenizer(old, kept)
    encoder: Encoder = type(checkpoint.encoder)(replace(checkpoint.encoder.config, vocab_size=len(kept)))
    _load_rows(encoder, checkpoint.encoder, {_token_embedding(encoder)}, kept)
    goals: dict[str, Objective] = {}
    for name, goal in checkpoint.goals.items():
        if goal.per_token is None:
            raise Unsupported(f"The model has the head {name}, from which tokens cannot be removed.")
        goals[name] = make_objective(name, goal.config, encoder, tokenizer)
        per_token = set(goal.per_token) & goal.state_dict().keys()
        _load_rows(goals[name], goal, per_token, kept)
    return replace(checkpoint, encoder=encoder.eval(), goals=goals, tokenizer=tokenizer)


def _token_embedding(encoder: Encoder) -> str:
    """The name of the parameter with a row for each token; empty if there is none that is known."""
    parameters = dict(encoder.named_parameters())
    known = [name for name in TOKEN_EMBEDDINGS if name in parameters]
    return known[0] if known else ""


def smaller_tokenizer(tokenizer: WordPiece, kept: Sequence[int]) -> WordPiece:
    """The tokenizer with only these tokens, which get new ids in the same order."""
    old = tokenizer.vocab
    tokens = tuple(old.tokens[token_id] for token_id in kept)
    known = set(tokens)
    rules = tokenizer.rules
    num_pieces = rules.num_pieces
    if num_pieces is not None:
        num_pieces = sum(token_id < num_pieces for token_id in kept)
    new_rules = replace(
        rules, added=tuple(added for added in rules.added if added.token in known), num_pieces=num_pieces
    )
    return WordPiece(Vocab(tokens, old.roles, old.other_specials), new_rules, max_length=tokenizer.max_length)


def _load_rows(new: nn.Module, old: nn.Module, per_token: set[str], kept: Sequence[int]) -> None:
    """Loads the old weights; the tensors named in `per_token` keep the rows of these tokens."""
    state = dict(old.state_dict())
    rows = torch.tensor(kept)
    for name in per_token:
        state[name] = state[name][rows]
    new.load_state_dict(state)
