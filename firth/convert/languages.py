"""The language of a model's texts, where the model has language embeddings (XLM).

`firth.json` has the `languages`, in the order of their embeddings, and the `language` that a model was fine-tuned in.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from firth.errors import BadConfig
from firth.files import JsonObject

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LANGUAGES = "languages"
LANGUAGE = "language"
Config = TypeVar("Config", bound="DataclassInstance")


def chosen_language(info: JsonObject, language: str = "") -> str:
    """The language that was asked for, else the model's own, else its first; empty for a model without any."""
    known = info.get(LANGUAGES, ())
    if not known:
        if language:
            raise BadConfig(f"The model has no language embeddings; leave out `language='{language}'`.")
        return ""
    chosen = language or str(info.get(LANGUAGE) or known[0])
    if chosen not in known:
        raise BadConfig(f"The model does not know the language '{chosen}' (known: {', '.join(known)}).")
    return chosen


def in_language(config: Config, info: JsonObject, language: str = "") -> Config:
    """An encoder's config with which it reads texts of one language; unchanged for a model without languages."""
    chosen = chosen_language(info, language)
    if not chosen:
        return config
    number = list(info[LANGUAGES]).index(chosen)
    return replace(config, language=number)  # type: ignore[call-arg]
