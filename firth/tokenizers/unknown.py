"""How much of some texts a tokenizer does not know: sequences of ids in, the share of unknown tokens out.

A model that was made for another language reads most of a text as `[UNK]`. Its answers are then about nothing, so every
command that reads texts with a given model reports this share and warns about a high one.
"""

import logging
from collections.abc import Iterable, Sequence

import numpy as np

from firth.tokenizers import Tokenizer

log = logging.getLogger(__name__)

WARN_ABOVE = 0.05
"""Share of unknown tokens above which a model of pieces hardly reads the texts."""
WARN_ABOVE_OF_WORDS = 0.3
"""The same for a list of words, which leaves out rare words on purpose."""


def unknown_share(tokenizer: Tokenizer, sequences: Iterable[Sequence[int] | np.ndarray]) -> float:
    """The share of unknown tokens among all tokens of the texts; special tokens around the texts do not count.

    It is 0 without tokens, and for tokenizers that read every word by its n-grams (fastText).
    """
    vocab = tokenizer.vocab
    # GPT-2's only special token has all roles, and its bytes spell every text.
    if tokenizer.has_word_parts or vocab.roles.count(vocab.roles[1]) > 1:
        return 0.0
    unknown = vocab.unk
    others = np.array(sorted(vocab.specials - {unknown}), np.int64)
    num_unknown = 0
    num_tokens = 0
    for sequence in sequences:
        ids = np.asarray(sequence, np.int64)
        num_unknown += int((ids == unknown).sum())
        num_tokens += len(ids) - int(np.isin(ids, others).sum())
    return num_unknown / num_tokens if num_tokens else 0.0


def hardly_reads(tokenizer: Tokenizer, share: float) -> bool:
    """Whether so many unknown tokens deserve a warning."""
    return share > (WARN_ABOVE_OF_WORDS if tokenizer.counts_all_words else WARN_ABOVE)


def warn_about_unknown(what: str, tokenizer: Tokenizer, share: float) -> None:
    """Warns if the model cannot read much of the texts; `what` names them."""
    if hardly_reads(tokenizer, share):
        log.warning(f"{what}: {unknown_sentence(share)}")


def unknown_sentence(share: float) -> str:
    """What a high share of unknown tokens means, and the remedy."""
    return (
        f"{share:.1%} of the tokens are unknown to this model, so it reads little of the texts; "
        "use a model for their language (en-small reads English, zh-small Chinese)."
    )
