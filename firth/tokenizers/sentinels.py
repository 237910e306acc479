"""Sentinel tokens (Raffel et al. 2020): `<extra_id_0>`, `<extra_id_1>` and so on replace spans of a text.

T5's own folders have them. Any other vocabulary gets them when a recipe needs them: they come behind all tokens, so
that every old id stays, and they are special, so that no text is read as one. Prepared text needs no change.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from firth.errors import Unsupported
from firth.tokenizers.vocab import sentinel
from firth.tokenizers.wordpiece_folder import Added

if TYPE_CHECKING:
    from firth.tokenizers import Tokenizer
    from firth.tokenizers.vocab import Vocab


def with_sentinels(tokenizer: "Tokenizer", count: int) -> "Tokenizer":
    """The tokenizer with at least `count` sentinels."""
    known = len(tokenizer.vocab.sentinels)
    names = [sentinel(number) for number in range(known, count)]
    if not names:
        return tokenizer
    old = tokenizer.vocab
    other_specials = old.other_specials | set(names)
    vocab = replace(old, tokens=(*old.tokens, *names), other_specials=other_specials)
    return _changed(tokenizer, vocab, [*_added(tokenizer), *map(Added, names)])


def without_sentinels(tokenizer: "Tokenizer") -> "Tokenizer":
    """The tokenizer as it was before `with_sentinels`; T5's own sentinels stay."""
    old = tokenizer.vocab
    names = {old.tokens[i] for i in old.sentinels}
    size = len(old) - len(names)
    are_last = set(old.tokens[size:]) == names
    if not names or not are_last or names & set(old.roles):
        return tokenizer
    vocab = replace(old, tokens=old.tokens[:size], other_specials=old.other_specials - names)
    return _changed(tokenizer, vocab, [one for one in _added(tokenizer) if one.token not in names])


def _added(tokenizer: "Tokenizer") -> tuple[Added, ...]:
    rules = getattr(tokenizer, "rules", None)
    if rules is None:
        raise Unsupported(
            "This vocabulary cannot have sentinel tokens, which the recipe needs; prepare the text with "
            "`tokenizer='wordpiece'` or 'bpe'."
        )
    added: tuple[Added, ...] = rules.added
    return added


def _changed(tokenizer: "Tokenizer", vocab: "Vocab", added: list[Added]) -> "Tokenizer":
    """A tokenizer of the same kind with these tokens."""
    from firth.tokenizers.bpe import BPE
    from firth.tokenizers.unigram import Unigram
    from firth.tokenizers.wordpiece import WordPiece

    assert isinstance(tokenizer, BPE | Unigram | WordPiece)
    if isinstance(tokenizer, Unigram):
        return Unigram(vocab, replace(tokenizer.rules, added=tuple(added)), max_length=tokenizer.max_length)
    last_piece = tokenizer.rules.num_pieces or len(tokenizer.vocab)
    num_pieces = last_piece if last_piece < len(vocab) else None
    if isinstance(tokenizer, BPE):
        bpe_rules = replace(tokenizer.rules, added=tuple(added), num_pieces=num_pieces)
        return BPE(vocab, tokenizer.merges, bpe_rules, max_length=tokenizer.max_length)
    rules = replace(tokenizer.rules, added=tuple(added), num_pieces=num_pieces)
    return WordPiece(vocab, rules, max_length=tokenizer.max_length)
