"""Helpers around the tokenizers library that the WordPiece, BPE and unigram tokenizers share."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from firth.errors import BadInput
from firth.tokenizers.wordpiece_folder import Added


def add_tokens(tokenizer: Tokenizer, added: Iterable[Added]) -> None:
    """Adds the tokens one by one, so that they get their ids in this order."""
    for one in added:
        # The library's own defaults differ from ours, so every flag is given.
        token = AddedToken(
            one.token,
            special=one.special,
            single_word=one.single_word,
            lstrip=one.lstrip,
            rstrip=one.rstrip,
            normalized=one.normalized,
        )
        tokenizer.add_tokens([token])


def without_specials(added: Iterable[Added]) -> tuple[Added, ...]:
    return tuple(one for one in added if not one.special)


def with_plain_mask(added: Iterable[Added], *, mask: str) -> tuple[Added, ...]:
    """The tokens with `mask` not special: it is then recognised where special tokens are read as plain text."""
    return tuple(replace(one, special=one.special and one.token != mask) for one in added)


@contextmanager
def library_errors_as_bad_input(folder: Path) -> Iterator[None]:
    """Turns an error of the library into one `BadInput` about `folder`.

    A panic of its Rust code is a BaseException that has no class to import.
    """
    try:
        yield
    except BaseException as error:
        is_panic = type(error).__name__ == "PanicException"
        if not isinstance(error, Exception) and not is_panic:
            raise
        raise BadInput(f"{folder} holds a tokenizer that cannot be built ({error}).") from None
