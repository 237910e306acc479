"""Texts that are nearly the same: texts in, pairs with their likeness out. The method depends on the length.

Short texts (a sentence, a review) are compared word by word. Two texts of n words of which most are the same share a
word among their rarest ones (prefix filtering, Bayardo et al. 2007, Scaling Up All Pairs Similarity Search), so only
such pairs are compared. Long texts (articles) are found by their SimHash fingerprints (`simhash.py`), which take no
longer for a long text; in a short one a single changed word changes too many bits.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from firth.data.simhash import fingerprint, near_pairs
from firth.data.spoken import words_of
from firth.errors import BadConfig

SHORT_WORDS = 200
"""Texts of at most so many words are compared word by word."""
LONG_WORDS = 100
"""Texts of at least so many words are compared by fingerprint; those between the two limits by both ways."""


@dataclass(frozen=True)
class NearTexts:
    """Two texts, by their positions, and the share of their words that is the same (of short texts, in order)."""

    first: int
    second: int
    alike: float


def near_texts(
    texts: Sequence[str],
    *,
    alike: float = 0.8,
    within: int = 3,
    shingle: int = 3,
    fingerprints: Sequence[int] | None = None,
) -> list[NearTexts]:
    """All pairs of texts that are nearly the same; texts without words are similar to nothing.

    `fingerprints` are those of the texts, if they are known already.
    """
    if not 0.5 <= alike <= 1:
        raise BadConfig(f"The share of equal words must be from 0.5 to 1; it is {alike}.")
    words = [words_of(text) for text in texts]
    pairs = _near_short(words, alike)
    long = [place for place, own in enumerate(words) if len(own) >= LONG_WORDS]
    if len(long) < 2:
        return pairs
    if fingerprints is None:
        marks = [fingerprint(texts[place], shingle=shingle) for place in long]
    else:
        marks = [fingerprints[place] for place in long]
    known = {(pair.first, pair.second) for pair in pairs}
    for one, other, _ in near_pairs(marks, within=within):
        first = long[one]
        second = long[other]
        if (first, second) not in known:
            # Word by word would take too long here, so the order does not count.
            likeness = _shared_words(words[first], words[second])
            pairs.append(NearTexts(first, second, likeness))
    return pairs


def _near_short(words: Sequence[list[str]], alike: float) -> list[NearTexts]:
    """The pairs of short texts that are nearly the same, word by word."""
    short = [place for place, own in enumerate(words) if 0 < len(own) <= SHORT_WORDS]
    pairs = []
    for first, second in _sharing_rare_words(words, short, alike):
        likeness = _likeness(words[first], words[second], alike)
        if likeness >= alike:
            pairs.append(NearTexts(first, second, likeness))
    return pairs


def _sharing_rare_words(words: Sequence[list[str]], places: Sequence[int], alike: float) -> Iterator[tuple[int, int]]:
    """Pairs of texts of similar length that share one of the rarest words of both, each pair once."""
    counts: Counter[str] = Counter()
    for place in places:
        counts.update(words[place])
    with_word: dict[tuple[str, int], list[int]] = defaultdict(list)
    for place in places:
        own = words[place]
        # Of n words at least `alike` are in a similar text, so one of the rarest n - alike * n + 1 is.
        num_rarest = len(own) - math.ceil(alike * len(own)) + 1
        rarest_first = sorted(own, key=lambda word: (counts[word], word))
        # A word that occurs twice is told apart from itself.
        numbered = _numbered(rarest_first)
        candidates: set[int] = set()
        for key in numbered[:num_rarest]:
            for other in with_word[key]:
                if _are_of_similar_length(own, words[other], alike):
                    candidates.add(other)
            with_word[key].append(place)
        for other in sorted(candidates):
            yield other, place


def _are_of_similar_length(one: list[str], other: list[str], alike: float) -> bool:
    """Whether neither text has so few words that the share of equal ones must be below `alike`."""
    shorter = min(len(one), len(other))
    longer = max(len(one), len(other))
    return shorter >= alike * longer


def _numbered(words: Sequence[str]) -> list[tuple[str, int]]:
    """Each word with the number of its occurrences before."""
    seen: Counter[str] = Counter()
    numbered = []
    for word in words:
        numbered.append((word, seen[word]))
        seen[word] += 1
    return numbered


def _likeness(first: list[str], second: list[str], least: float) -> float:
    """The share of the longer text's words that the other has in the same order; 0 where it is surely below `least`."""
    if _shared_words(first, second) < least:
        return 0.0
    matcher = SequenceMatcher(None, first, second, autojunk=False)
    num_same = sum(block.size for block in matcher.get_matching_blocks())
    return num_same / max(len(first), len(second))


def _shared_words(first: list[str], second: list[str]) -> float:
    """The share of the longer text's words that the other has, in any order."""
    num_shared = sum((Counter(first) & Counter(second)).values())
    return num_shared / max(len(first), len(second))
