"""A model and text of a domain -> the model with tokens for the domain's words.

The rows of a new token (input embedding, masked-LM bias) are the means of the rows of its old pieces, so the model has
an approximation before any training. Every other weight stays as it is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint, make_objective
from firth.corpus.cleaning import clean_documents, drop_duplicates
from firth.corpus.readers import read_documents
from firth.errors import Unsupported
from firth.files import atomic_folder, check_can_be_made
from firth.objectives.objective import Objective
from firth.tensors import Encoder
from firth.tokenizers.growth import grow
from firth.tokenizers.wordpiece import WordPiece
from firth.types import Document

TOKEN_EMBEDDING = "embeddings.tokens.weight"


class ExtensionFigures(TypedDict):
    """What an extended vocabulary gives."""

    texts: int
    tokens_per_text_before: float
    """With the old vocabulary ..."""
    tokens_per_text_after: float
    """... and with the new one."""
    vocabulary: int
    """Tokens of the new vocabulary."""
    new: list[str]
    """Those that were added."""


def extend(model: Path, texts: Sequence[Path], *, add: int, min_count: int, out: Path) -> ExtensionFigures:
    """Writes the model with `add` new tokens into the new folder `out`; returns tokens per text before and after."""
    check_can_be_made(out)
    old = checkpoints.load(model)
    old_tokenizer = old.tokenizer
    parameter_names = {name for name, _ in old.encoder.named_parameters()}
    if not isinstance(old_tokenizer, WordPiece) or TOKEN_EMBEDDING not in parameter_names:
        raise Unsupported(f"{model} is not a BERT with WordPiece tokens, the only kind that `extend` knows.")
    if old.tasks:
        raise Unsupported(f"{model} is fine-tuned for {', '.join(old.tasks)}: extend the model it was made from.")

    # The texts are read twice: now for new words, later to count tokens.
    tokenizer = grow(old_tokenizer, _lines(texts), count=add, min_count=min_count)
    info = {**old.info, "extended_from": model.resolve().name}
    new = replace(extended(old, tokenizer), info=info)
    with atomic_folder(out) as folder:
        checkpoints.save(folder, new)

    num_texts, tokens_before, tokens_after = _count(texts, old_tokenizer, tokenizer)
    return ExtensionFigures(
        texts=num_texts,
        tokens_per_text_before=tokens_before / num_texts,
        tokens_per_text_after=tokens_after / num_texts,
        vocabulary=len(tokenizer.vocab),
        new=list(tokenizer.vocab.tokens[len(old_tokenizer.vocab) :]),
    )


def extended(old: Checkpoint, tokenizer: WordPiece) -> Checkpoint:
    """The model with a new tokenizer, which has the old one's tokens followed by new ones."""
    first_new = len(old.tokenizer.vocab)
    new_tokens = list(tokenizer.vocab.tokens[first_new:])
    pieces = old.tokenizer.ids_batch(new_tokens)

    # The old table may already have rows after its last token.
    vocab_size = max(old.encoder.vocab_size, len(tokenizer.vocab))
    config = replace(old.encoder.config, vocab_size=vocab_size)
    encoder: Encoder = type(old.encoder)(config).eval()
    _load_extended(encoder, old.encoder, {TOKEN_EMBEDDING}, pieces=pieces, first_new=first_new)

    goals: dict[str, Objective] = {}
    for name, goal in old.goals.items():
        if goal.per_token is None:
            raise Unsupported(f"The model has the head {name}, which `extend` cannot give rows for new tokens.")
        goals[name] = make_objective(name, goal.config, encoder, tokenizer)
        per_token = set(goal.per_token) & goal.state_dict().keys()
        _load_extended(goals[name], goal, per_token, pieces=pieces, first_new=first_new)
    return replace(old, encoder=encoder, goals=goals, tokenizer=tokenizer)


def _load_extended(
    new: torch.nn.Module,
    old: torch.nn.Module,
    per_token: set[str],
    *,
    pieces: list[list[int]],
    first_new: int,
) -> None:
    """Loads the old weights into the new module; the tensors named in `per_token` get rows for the new tokens."""
    state = dict(old.state_dict())
    new_state = new.state_dict()
    for name in per_token:
        num_rows = len(new_state[name])
        state[name] = _with_new_rows(state[name], num_rows, pieces, first_new)
    new.load_state_dict(state)


def _with_new_rows(old: Tensor, num_rows: int, pieces: list[list[int]], first_new: int) -> Tensor:
    """A tensor with one row for each token (V x D, or V for a bias), extended to `num_rows` rows."""
    new = old.new_zeros(num_rows, *old.shape[1:])
    new[: len(old)] = old
    # Rows after the last old token, if there are any, belong to no token, so they can be overwritten.
    for row, ids in enumerate(pieces, first_new):
        new[row] = old[ids].mean(0)
    return new


def _count(texts: Sequence[Path], before: WordPiece, after: WordPiece) -> tuple[int, int, int]:
    """The number of texts, and of all their tokens with each tokenizer."""
    num_texts = 0
    tokens_before = 0
    tokens_after = 0
    for document in _documents(texts):
        lines = list(document.lines)
        num_texts += 1
        tokens_before += _count_tokens(before, lines)
        tokens_after += _count_tokens(after, lines)
    return num_texts, tokens_before, tokens_after


def _count_tokens(tokenizer: WordPiece, lines: list[str]) -> int:
    return sum(len(ids) for ids in tokenizer.ids_batch(lines))


def _lines(texts: Sequence[Path]) -> Iterator[str]:
    for document in _documents(texts):
        yield from document.lines


def _documents(texts: Sequence[Path]) -> Iterator[Document]:
    """The documents of the files, cleaned and without duplicates, as `prepare` reads them."""
    documents = read_documents([str(path) for path in texts])
    return drop_duplicates(clean_documents(documents))
