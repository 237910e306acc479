"""Goals that make their own labels. One file holds an objective's cut, its corruption and its loss."""

from typing import Any

from firth.config import resolve as _resolve

TABLE = {
    "masked_lm": "firth.objectives.masked_lm:MaskedLM",
    "next_sentence": "firth.objectives.next_sentence:NextSentence",
}


def resolve(name: str) -> Any:
    return _resolve(TABLE, name, "objective")
