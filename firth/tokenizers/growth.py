"""A WordPiece tokenizer and a domain's text -> the same tokenizer with new tokens for the words the text is full of.

Every old token keeps its id. A new word of letters becomes a piece like the others. A Chinese word cannot be one, for
BERT's tokenizer parts Chinese characters before it looks for pieces; it becomes a token that is looked for in the text
itself, the longest at each place, whatever the segmenter would say there.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from heapq import nsmallest

import numpy as np

from firth.errors import BadConfig, Unsupported
from firth.tokenizers.folder import Added
from firth.tokenizers.pieces import count_words
from firth.tokenizers.vocab import Vocab
from firth.tokenizers.wordpiece import WordPiece
from firth.tokenizers.words import CHINESE, chinese_starts

_chinese_word = re.compile(f"[{CHINESE}]{{2,}}")


def grow(tokenizer: WordPiece, texts: Iterable[str], *, count: int, min_count: int) -> WordPiece:
    """The tokenizer with the `count` words of `texts` that save the most tokens, of those met `min_count` times."""
    gains = _gains(tokenizer, _count(tokenizer, texts, min_count))
    chosen = nsmallest(count, gains, key=lambda word: (-gains[word], word))
    if len(chosen) < count:
        raise BadConfig(
            f"The text has only {len(chosen)} words for new tokens that occur {min_count} times, not {count}: use "
            f"{f'--add {len(chosen)}, ' if chosen else ''}a lower --min-count or more text."
        )
    chinese = [word for word in chosen if _chinese_word.fullmatch(word)]
    pieces = [word for word in chosen if not _chinese_word.fullmatch(word)]
    old, rules = tokenizer.vocab, tokenizer.rules
    if pieces and rules.num_pieces is not None:
        raise Unsupported(
            f"This tokenizer has tokens added behind its pieces, so a new piece such as {pieces[0]!r} finds no place."
        )
    vocab = Vocab((*old.tokens, *pieces, *chinese), old.roles, old.other_specials)
    num_pieces = rules.num_pieces or len(old) + len(pieces)
    added = (*rules.added, *(Added(word, special=False) for word in chinese))
    rules = replace(rules, added=added, num_pieces=num_pieces if num_pieces < len(vocab) else None)
    return WordPiece(vocab, rules, max_length=tokenizer.max_length)


def _count(tokenizer: WordPiece, texts: Iterable[str], min_count: int) -> dict[str, int]:
    """How often each word occurs, of those met at least `min_count` times."""
    chinese: Counter[str] = Counter()

    def passing() -> Iterator[str]:
        for text in texts:
            chinese.update(_chinese_words(text))
            yield text

    words = count_words(passing(), tokenizer.split_words, chinese_characters=True, longest=tokenizer.rules.longest_word)
    return {word: times for word, times in (Counter(words) | chinese).items() if times >= min_count}


def _chinese_words(text: str) -> list[str]:
    positions, begins = chinese_starts(text)
    ends = np.append(begins[1:] | (np.diff(positions) > 1), True)[: len(positions)]
    firsts = begins | (np.diff(positions, prepend=-2) > 1)
    bounds = zip(positions[firsts].tolist(), positions[ends].tolist(), strict=True)
    return [text[first : last + 1] for first, last in bounds if last > first]


def _gains(tokenizer: WordPiece, counts: dict[str, int]) -> dict[str, int]:
    """How many tokens of the text each word would save as one; an unknown part of it counts as one to save."""
    words = [word for word in sorted(counts) if word not in tokenizer.vocab.ids]
    rows = tokenizer.ids_batch(words)
    saved = {w: len(ids) - 1 + ids.count(tokenizer.vocab.unk) for w, ids in zip(words, rows, strict=True)}
    return {word: counts[word] * pieces for word, pieces in saved.items() if pieces}
