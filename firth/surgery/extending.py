"""A model and a domain's text -> the model with tokens for the domain's words.

A new token's rows (input embedding, masked-LM bias) are the means of the rows of its old pieces, so the model has an
idea of it before any training; every other weight stays as it is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from firth import checkpoint as checkpoints
from firth.checkpoint import Checkpoint, make_goal
from firth.corpus.cleaning import clean_documents, drop_duplicates
from firth.corpus.readers import read_documents
from firth.errors import BadInput, Unsupported
from firth.files import atomic_folder
from firth.tensors import Encoder
from firth.tokenizers.growth import grow
from firth.tokenizers.wordpiece import WordPiece
from firth.types import Document

TABLE = "embeddings.tokens.weight"
BY_TOKEN = {
    "masked_lm": {"head.bias"},
    "span_boundary": {"bias"},
    "next_sentence": set[str](),
    "sentence_order": set[str](),
}
"""The tensors of each head that have a row for every token."""


def extend(model: Path, texts: Sequence[Path], *, add: int, min_count: int, out: Path) -> dict[str, Any]:
    """Writes the model with `add` new tokens into the new folder `out`; gives tokens per text before and after."""
    if out.exists():
        raise BadInput(f"{out} already exists; choose another --out or remove it.")
    old = checkpoints.load(model)
    if not isinstance(old.tokenizer, WordPiece) or TABLE not in dict(old.encoder.named_parameters()):
        raise Unsupported(f"{model} is not a BERT with WordPiece tokens, the only kind that `extend` knows.")
    if old.tasks:
        raise Unsupported(f"{model} is fine-tuned for {', '.join(old.tasks)}: extend the model it was made from.")
    lines = (line for document in _documents(texts) for line in document.lines)
    tokenizer = grow(old.tokenizer, lines, count=add, min_count=min_count)
    made = replace(extended(old, tokenizer), info={**old.info, "extended_from": model.resolve().name})
    with atomic_folder(out) as folder:
        checkpoints.save(folder, made)
    return {
        **_lengths(old.tokenizer, tokenizer, texts),
        "vocabulary": len(tokenizer.vocab),
        "new": list(tokenizer.vocab.tokens[len(old.tokenizer.vocab) :]),
    }


def extended(old: Checkpoint, tokenizer: WordPiece) -> Checkpoint:
    """The model over a tokenizer that has the old one's tokens and more behind them."""
    size = max(old.encoder.vocab_size, len(tokenizer.vocab))
    new = range(len(old.tokenizer.vocab), len(tokenizer.vocab))
    pieces = old.tokenizer.ids_batch([tokenizer.vocab.tokens[i] for i in new])
    encoder: Encoder = type(old.encoder)(replace(old.encoder.config, vocab_size=size)).eval()
    _load(encoder, old.encoder, {TABLE}, pieces=pieces, first=new.start)
    goals = {}
    for name, goal in old.goals.items():
        if name not in BY_TOKEN:
            raise Unsupported(
                f"The model has the head {name}, whose rows for new tokens `extend` does not know to make."
            )
        goals[name] = make_goal(name, goal.config, encoder, tokenizer)
        _load(goals[name], goal, BY_TOKEN[name], pieces=pieces, first=new.start)
    return replace(old, encoder=encoder, goals=goals, tokenizer=tokenizer)


def _load(
    new: torch.nn.Module, old: torch.nn.Module, by_token: set[str], *, pieces: list[list[int]], first: int
) -> None:
    """All of the old weights; tensors with a row for every token get the new tokens' rows."""
    state = dict(old.state_dict())
    sizes = {name: len(tensor) for name, tensor in new.state_dict().items() if name in by_token}
    new.load_state_dict(state | {name: _grown(state[name], sizes[name], pieces, first) for name in by_token})


def _grown(old: Tensor, size: int, pieces: list[list[int]], first: int) -> Tensor:
    new = old.new_zeros(size, *old.shape[1:])
    new[: len(old)] = old  # rows behind the last token, if any, were nobody's and may be taken
    for row, ids in enumerate(pieces, first):
        new[row] = old[ids].mean(0)
    return new


def _lengths(before: WordPiece, after: WordPiece, texts: Sequence[Path]) -> dict[str, float]:
    counts = {"texts": 0, "before": 0, "after": 0}
    for document in _documents(texts):
        counts["texts"] += 1
        for name, tokenizer in (("before", before), ("after", after)):
            counts[name] += sum(map(len, tokenizer.ids_batch(list(document.lines))))
    means = {f"tokens_per_text_{name}": counts[name] / counts["texts"] for name in ("before", "after")}
    return {"texts": counts["texts"], **means}


def _documents(texts: Sequence[Path]) -> Iterator[Document]:
    return drop_duplicates(clean_documents(read_documents([str(path) for path in texts])))
