"""A new tokenizer from the text it will cut: in go files and a tokenizer's name, out comes the tokenizer."""

import sys
from dataclasses import fields
from typing import Any

from firth import tokenizers
from firth.console import say
from firth.corpus.readers import Paths, find_files
from firth.data.prepare import sample_texts
from firth.errors import BadConfig

SAMPLE_BYTES = 64_000_000
"""Text that pieces of words are learned from at most; a list of words is counted over all of it."""


def train_tokenizer(
    name: str,
    paths: Paths,
    *,
    vocab_size: int | None = None,
    min_count: int | None = None,
    cased: bool = False,
    seed: int = 1,
    config: Any = None,
    **reading: Any,
) -> tokenizers.Tokenizer:
    """Trains the table's tokenizer `name` on (a keyed sample of) the documents in `paths`.

    A text that supports fewer pieces is refused where someone asked for so many; the usual number is only a limit.
    """
    cls = tokenizers.resolve(name)
    config = config or _config(cls, name, vocab_size=vocab_size, min_count=min_count, cased=cased)
    of_words = getattr(cls, "counts_all", False)
    units = "words" if of_words else "pieces"
    find_files(paths)  # what is not there is told before anything is announced
    say(f"Training a vocabulary of up to {config.vocab_size:,} {units} ...")
    texts = sample_texts(paths, sys.maxsize if of_words else SAMPLE_BYTES, seed=seed, **reading)
    trained: tokenizers.Tokenizer = cls.train(texts, config, fewer=vocab_size is None)
    if len(trained.vocab) == len(trained.vocab.specials):
        raise BadConfig(f"No {units} of the text occur often enough: give it more text or lower --min-count.")
    if len(trained.vocab) < config.vocab_size:
        say(f"The text supports a vocabulary of {len(trained.vocab):,} {units}.")
    return trained


def _config(cls: Any, name: str, *, vocab_size: int | None, min_count: int | None, cased: bool) -> Any:
    known = {field.name for field in fields(cls.Config)}
    asked = {"vocab_size": vocab_size, "min_count": min_count}
    asked = {key: value for key, value in asked.items() if value is not None}
    if strange := asked.keys() - known:
        raise BadConfig(f"The tokenizer '{name}' has no {min(strange)} to set; leave it out.")
    case = {key: not cased for key in ("lowercase", "strip_accents") if key in known}
    return cls.Config(**case, **asked)
