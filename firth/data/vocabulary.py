"""A new tokenizer from the text it will cut: files and a tokenizer's name in, the trained tokenizer out."""

import logging
import sys
from dataclasses import fields
from typing import Any

from firth import tokenizers
from firth.corpus.languages import find_sources, language_names
from firth.corpus.readers import Documents, Paths
from firth.data import distributed
from firth.data.pieces import Reading
from firth.data.vocabulary_sample import SAMPLE_BYTES, sample_texts
from firth.engines.engine import Engine
from firth.errors import BadConfig

log = logging.getLogger(__name__)


def train_tokenizer(
    name: str,
    paths: Paths,
    *,
    vocab_size: int | None = None,
    min_count: int | None = None,
    cased: bool = False,
    seed: int = 1,
    config: Any = None,
    documents: Documents = "blank-line",
    field: str = "text",
    repair: bool = False,
    engine: Engine | None = None,
) -> tokenizers.Tokenizer:
    """Trains the tokenizer `name` on a random sample of the documents in `paths`.

    `config` replaces `vocab_size`, `min_count` and `cased`. A text that supports fewer pieces than an explicit
    `vocab_size` is refused; the default size is only a limit. With an `engine` its workers count the words, unless
    there are several languages, of which this process draws equal shares.
    """
    cls = tokenizers.resolve(name)
    if not config:
        config = _config(cls, name, vocab_size=vocab_size, min_count=min_count, cased=cased)
    counts_words = cls.counts_all_words
    units = "words" if counts_words else "pieces"
    sample_bytes = sys.maxsize if counts_words else SAMPLE_BYTES
    # A missing file is reported before any progress message.
    sources = find_sources(paths)
    log.info(f"Training a vocabulary of up to {config.vocab_size:,} {units} ...")
    trained: tokenizers.Tokenizer
    can_count = engine is not None and hasattr(cls, "count") and len(language_names(sources)) < 2
    if engine is not None and can_count:
        reading = Reading(documents=documents, field=field, repair=repair)
        counts = distributed.count_words(engine, paths, cls, config, seed=seed, reading=reading)
        trained = cls.from_counts(counts, config, fewer=vocab_size is None)
    else:
        texts = sample_texts(paths, sample_bytes, seed=seed, documents=documents, field=field, repair=repair)
        trained = cls.train(texts, config, fewer=vocab_size is None)
    if len(trained.vocab) == len(trained.vocab.specials):
        raise BadConfig(f"No {units} of the text occur often enough: give it more text or lower `min_count=`.")
    if len(trained.vocab) < config.vocab_size:
        log.info(f"The text supports a vocabulary of {len(trained.vocab):,} {units}.")
    return trained


def _config(cls: Any, name: str, *, vocab_size: int | None, min_count: int | None, cased: bool) -> Any:
    """The tokenizer's own `Config` with the values that were given."""
    known = {field.name for field in fields(cls.Config)}
    values: dict[str, int | bool] = {}
    # An uncased vocabulary has neither capitals nor accents, where the tokenizer can choose.
    for setting in ("lowercase", "strip_accents"):
        if setting in known:
            values[setting] = not cased
    for setting, value in (("min_count", min_count), ("vocab_size", vocab_size)):
        if value is None:
            continue
        if setting not in known:
            raise BadConfig(f"The tokenizer '{name}' has no {setting} to set; leave it out.")
        values[setting] = value
    return cls.Config(**values)
