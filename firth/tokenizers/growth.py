"""A WordPiece tokenizer and a domain's text -> the same tokenizer with new tokens for frequent words of the text.

Every old token keeps its id. A new word of letters becomes a piece like the others. A Chinese word cannot be a piece,
because BERT's tokenizer separates Chinese characters before it looks for pieces; it becomes an added token that is
matched in the text itself, the longest at each position, independently of the segmenter.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import nsmallest

import numpy as np

from firth.errors import BadConfig, Unsupported
from firth.tokenizers.segmentation import CHINESE, chinese_starts
from firth.tokenizers.vocab import Vocab
from firth.tokenizers.vocabulary_learning import count_words
from firth.tokenizers.wordpiece import WordPiece
from firth.tokenizers.wordpiece_folder import Added

_chinese_word = re.compile(f"[{CHINESE}]{{2,}}")


def grow(tokenizer: WordPiece, texts: Iterable[str], *, count: int, min_count: int) -> WordPiece:
    """The tokenizer with `count` new tokens: the words that occur `min_count` times and save the most tokens."""
    word_counts = _count_words(tokenizer, texts, min_count)
    savings = _token_savings(tokenizer, word_counts)
    chosen = nsmallest(count, savings, key=lambda word: (-savings[word], word))
    if len(chosen) < count:
        fewer = f"`add={len(chosen)}`, " if chosen else ""
        raise BadConfig(
            f"The text has only {len(chosen)} words for new tokens that occur {min_count} times, not {count}: use "
            f"{fewer}a lower `min_count=` or more text."
        )
    chinese = [word for word in chosen if _chinese_word.fullmatch(word)]
    pieces = [word for word in chosen if not _chinese_word.fullmatch(word)]
    return _with_words(tokenizer, pieces=pieces, chinese=chinese)


def _with_words(tokenizer: WordPiece, *, pieces: list[str], chinese: list[str]) -> WordPiece:
    """The tokenizer with new pieces, and with Chinese words as added tokens behind them."""
    old = tokenizer.vocab
    rules = tokenizer.rules
    if pieces and rules.num_pieces is not None:
        raise Unsupported(
            f"This tokenizer has tokens added behind its pieces, so a new piece such as {pieces[0]!r} finds no place."
        )
    vocab = Vocab((*old.tokens, *pieces, *chinese), old.roles, old.other_specials)
    num_pieces = rules.num_pieces or len(old) + len(pieces)
    new_added = [Added(word, special=False) for word in chinese]
    has_added = num_pieces < len(vocab)
    new_rules = replace(
        rules,
        added=(*rules.added, *new_added),
        num_pieces=num_pieces if has_added else None,
    )
    return WordPiece(vocab, new_rules, max_length=tokenizer.max_length)


def _count_words(tokenizer: WordPiece, texts: Iterable[str], min_count: int) -> dict[str, int]:
    """How often each word occurs, of those that occur at least `min_count` times."""
    chinese_counts: Counter[str] = Counter()

    def count_chinese_on_the_way() -> Iterator[str]:
        # The texts can be read only once.
        for text in texts:
            chinese_counts.update(_chinese_words(text))
            yield text

    piece_counts = count_words(
        count_chinese_on_the_way(),
        tokenizer.split_words,
        chinese_characters=True,
        longest=tokenizer.rules.longest_word,
    )
    all_counts = Counter(piece_counts) | chinese_counts
    return {word: count for word, count in all_counts.items() if count >= min_count}


def _chinese_words(text: str) -> list[str]:
    """The Chinese words of more than one character."""
    positions, begins_word = chinese_starts(text)
    # A word also ends where the run of Chinese characters does.
    follows_gap = np.diff(positions, prepend=-2) > 1
    precedes_gap = np.diff(positions) > 1
    is_first = begins_word | follows_gap
    is_last = np.append(begins_word[1:] | precedes_gap, True)[: len(positions)]
    words = []
    for first, last in zip(positions[is_first].tolist(), positions[is_last].tolist(), strict=True):
        if last > first:
            words.append(text[first : last + 1])
    return words


def _token_savings(tokenizer: WordPiece, counts: dict[str, int]) -> dict[str, int]:
    """How many tokens of the text each word would save as a single token; an unknown token in it counts twice."""
    words = [word for word in sorted(counts) if word not in tokenizer.vocab.ids]
    savings = {}
    for word, ids in zip(words, tokenizer.ids_batch(words), strict=True):
        saved = len(ids) - 1 + ids.count(tokenizer.vocab.unk)
        if saved:
            savings[word] = counts[word] * saved
    return savings
