"""The languages of an index and of a question: whether a model can compare the two by meaning.

A model that was made for one language gives texts of another some vector, and cosines with it that say nothing. Told
apart are Chinese (`zh`) and all other languages (`en`), as in `firth/models`.
"""

from collections import Counter
from collections.abc import Iterable

from firth.inference.model import Model
from firth.models import language_of
from firth.tokenizers.unknown import unknown_share

LEAST_SHARE = 0.05
"""A language in which fewer of the passages are is none of the index."""
MOST_UNKNOWN = 0.5
"""A question of which a model does not know more tokens than this share is not one that it reads."""


def languages_of(texts: Iterable[str]) -> frozenset[str]:
    """The languages of passages, without those of very few."""
    counts = Counter(map(language_of, texts))
    least = LEAST_SHARE * counts.total()
    return frozenset(language for language, count in counts.items() if count >= least)


def reads(model: Model, question: str, languages: frozenset[str]) -> bool:
    """Whether the model can compare the meaning of a question with that of texts in these languages."""
    tokenizer = model.tokenizer
    if unknown_share(tokenizer, [tokenizer.encode(question).ids]) > MOST_UNKNOWN:
        return False
    language = language_of(question)
    return language in languages or not _has_letters(question) or language in model.languages


def other_language(question: str, languages: frozenset[str]) -> str:
    """The beginning of a sentence about a question in another language than all passages; empty if it is not."""
    language = language_of(question)
    if language in languages or not _has_letters(question):
        return ""
    if language == "zh":
        return "The question is in Chinese and the index holds no Chinese text"
    return "The question is not in Chinese and the index holds Chinese text only"


def _has_letters(question: str) -> bool:
    """Whether it has any; a number is of no language."""
    return any(character.isalpha() for character in question)
