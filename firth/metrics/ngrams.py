"""Texts that a model wrote against reference texts, by their n-grams: BLEU, chrF and ROUGE.

In: one reference and one written text a row. Out: figures from 0 to 1, equal to those of sacrebleu (BLEU with the
tokens `13a` or `zh`, chrF2) and rouge-score (mean F of ROUGE-1, -2 and -L, without stemming). BLEU and chrF add up
counts over all rows; ROUGE is a mean over rows.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from firth.metrics.classification import mean, row_of, same_length

BleuTokens = Literal["13a", "zh"]
"""How BLEU cuts texts: the rules of mteval-v13a for languages with spaces, or Chinese by character."""
BLEU_ORDER = 4
"""The longest n-grams of BLEU, in tokens."""
CHRF_ORDER = 6
"""The longest n-grams of chrF, in characters."""
CHRF_BETA = 2
"""How many times recall counts as much as precision in chrF."""

# BLEU (Papineni et al. 2002)


def bleu(gold: Sequence[str], predicted: Sequence[str], *, tokens: BleuTokens = "13a") -> float:
    """The geometric mean of the precisions of 1- to 4-grams, times a penalty for texts shorter than the references.

    Where no n-gram of a length is right, sacrebleu's `exp` smoothing takes 1/2, 1/4 ... for the number of right ones.
    """
    same_length(gold, predicted)
    cut = BLEU_TOKENS[tokens]
    num_right = [0] * BLEU_ORDER
    num_written = [0] * BLEU_ORDER
    gold_length = 0
    predicted_length = 0
    for gold_text, predicted_text in zip(gold, predicted, strict=True):
        gold_tokens = cut(gold_text)
        predicted_tokens = cut(predicted_text)
        gold_length += len(gold_tokens)
        predicted_length += len(predicted_tokens)
        for order in range(1, BLEU_ORDER + 1):
            common, _, written = _overlap(gold_tokens, predicted_tokens, order)
            num_right[order - 1] += common
            num_written[order - 1] += written
    if not any(num_right):
        return 0.0
    return _brevity_penalty(gold_length, predicted_length) * _mean_precision(num_right, num_written)


def _mean_precision(num_right: Sequence[int], num_written: Sequence[int]) -> float:
    """The geometric mean of the precisions; 0 if all texts are too short for an n-gram of some length."""
    logarithms = 0.0
    smoothed = 1.0
    for right, written in zip(num_right, num_written, strict=True):
        if not written:
            return 0.0
        if right:
            logarithms += math.log(right / written)
        else:
            smoothed /= 2
            logarithms += math.log(smoothed / written)
    return math.exp(logarithms / len(num_right))


def _brevity_penalty(gold_length: int, predicted_length: int) -> float:
    if predicted_length >= gold_length:
        return 1.0
    return math.exp(1 - gold_length / predicted_length)


_SPLIT_RULES = (
    # ASCII marks except the apostrophe, hyphen, full stop and comma are tokens of their own.
    (re.compile(r"([{-~\[-` -&(-+:-@/])"), r" \1 "),
    # So do a full stop and a comma, unless they are between two digits ...
    (re.compile(r"([^0-9])([.,])"), r"\1 \2 "),
    (re.compile(r"([.,])([^0-9])"), r" \1 \2"),
    # ... and a hyphen after a digit.
    (re.compile(r"([0-9])(-)"), r"\1 \2 "),
)
_ENTITIES = (("&quot;", '"'), ("&amp;", "&"), ("&lt;", "<"), ("&gt;", ">"))
_ZH_CHARACTER = re.compile(
    # Ideographs and what belongs to their blocks. sacrebleu means the ideographs of Extension B by the last two ranges
    # of this first line, but its code compares with U+2001 to U+2A6D, which are punctuation marks and symbols.
    "([\u3400-\u4db5\u4e00-\u9fbb\uf900-\ufa2d\ufa30-\ufa6a\ufa70-\ufad9\u2001-\u2a6d\u2f81-\u2fa1"
    # Full-width forms, radicals, Chinese punctuation, strokes, phonetic signs, compatibility forms.
    "\uff00-\uffef\u2e80-\u2eff\u3000-\u303f\u31c0-\u31ef\u2f00-\u2fdf\u2ff0-\u2fff\u3100-\u312f\u31a0-\u31bf"
    "\ufe10-\ufe1f\ufe30-\ufe4f\u3200-\u33ff])"
    # Symbols and dingbats lie within U+2001 to U+2A6D.
)


def _tokens_13a(text: str) -> list[str]:
    """As mteval-v13a cuts, which WMT uses."""
    text = text.rstrip()
    text = text.replace("<skipped>", "")
    # A word that was hyphenated at a line end becomes whole again.
    text = text.replace("-\n", "")
    text = text.replace("\n", " ")
    for entity, character in _ENTITIES:
        text = text.replace(entity, character)
    return _split_marks(f" {text} ")


def _tokens_zh(text: str) -> list[str]:
    """Chinese characters one by one, the rest by the rules of 13a."""
    return _split_marks(_ZH_CHARACTER.sub(r" \1 ", text.strip()))


def _split_marks(text: str) -> list[str]:
    for pattern, replacement in _SPLIT_RULES:
        text = pattern.sub(replacement, text)
    return text.split()


BLEU_TOKENS: dict[BleuTokens, Callable[[str], list[str]]] = {"13a": _tokens_13a, "zh": _tokens_zh}

# chrF (Popović 2015)


def chrf(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """chrF2: the F2 of the mean precision and recall of 1- to 6-grams of characters, without spaces."""
    same_length(gold, predicted)
    # N-grams of each order: in both texts, in the gold one, in the predicted one.
    num_common = [0] * CHRF_ORDER
    num_wanted = [0] * CHRF_ORDER
    num_written = [0] * CHRF_ORDER
    for gold_text, predicted_text in zip(gold, predicted, strict=True):
        gold_characters = "".join(gold_text.split())
        predicted_characters = "".join(predicted_text.split())
        for order in range(1, CHRF_ORDER + 1):
            common, wanted, written = _overlap(gold_characters, predicted_characters, order)
            # What was written counts only where the reference has an n-gram of this length.
            if not wanted:
                written = 0
            num_common[order - 1] += common
            num_wanted[order - 1] += wanted
            num_written[order - 1] += written
    precisions = []
    recalls = []
    for common, wanted, written in zip(num_common, num_wanted, num_written, strict=True):
        if wanted and written:
            precisions.append(common / written)
            recalls.append(common / wanted)
    if not sum(precisions):
        return 0.0
    precision = mean(precisions)
    recall = mean(recalls)
    factor = CHRF_BETA**2
    return (1 + factor) * precision * recall / (factor * precision + recall)


# ROUGE (Lin 2004)

_ROUGE_TOKEN = re.compile("[a-z0-9]+|[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")


def rouge(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, float]:
    """The mean F of 1-grams, 2-grams and longest common subsequences: `rouge1`, `rouge2` and `rougeL`."""
    same_length(gold, predicted)
    figures: dict[str, list[float]] = {"rouge1": [], "rouge2": [], "rougeL": []}
    for gold_text, predicted_text in zip(gold, predicted, strict=True):
        for name, value in rouge_pair(gold_text, predicted_text).items():
            figures[name].append(value)
    return {name: mean(values) for name, values in figures.items()}


def rouge_pair(gold: str, predicted: str) -> dict[str, float]:
    """The figures of one text. Words are runs of a-z and 0-9 in lower case, and Chinese characters one by one."""
    gold_tokens = _ROUGE_TOKEN.findall(gold.lower())
    predicted_tokens = _ROUGE_TOKEN.findall(predicted.lower())
    figures = {}
    for order in (1, 2):
        common, wanted, written = _overlap(gold_tokens, predicted_tokens, order)
        figures[f"rouge{order}"] = row_of(common, written, wanted).f1
    common = _longest_subsequence(gold_tokens, predicted_tokens)
    figures["rougeL"] = row_of(common, len(predicted_tokens), len(gold_tokens)).f1
    return figures


def _longest_subsequence(first: Sequence[str], second: Sequence[str]) -> int:
    """Length of the longest common subsequence, one row of the table at a time as the bits of a number (Hyyrö 2004).

    Bit i of `row` is 0 where the length grows from the first i tokens of `first` to the first i + 1.
    """
    places: dict[str, int] = {}
    for place, token in enumerate(first):
        places[token] = places.get(token, 0) | 1 << place
    all_ones = (1 << len(first)) - 1
    row = all_ones
    for token in second:
        matches = row & places.get(token, 0)
        row = (row + matches | row - matches) & all_ones
    return len(first) - row.bit_count()


def _overlap(gold: Sequence[str], predicted: Sequence[str], order: int) -> tuple[int, int, int]:
    """N-grams of one length: those in both texts, those of the reference, those of the written text."""
    wanted = Counter(_ngrams(gold, order))
    written = Counter(_ngrams(predicted, order))
    common = wanted & written
    return common.total(), wanted.total(), written.total()


def _ngrams(tokens: Sequence[str], order: int) -> Iterator[Sequence[str]]:
    """Runs of `order` tokens; a slice of a string is a string, a list of tokens is given as a tuple."""
    hashable = tokens if isinstance(tokens, str) else tuple(tokens)
    for start in range(len(hashable) - order + 1):
        yield hashable[start : start + order]
