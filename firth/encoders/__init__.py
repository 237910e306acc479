"""Batch -> states. One file for each forward pass."""

from typing import Any

from firth.config import resolve as _resolve

TABLE = {
    "bert": "firth.encoders.bert:Bert",
}


def resolve(name: str) -> Any:
    return _resolve(TABLE, name, "encoder")
