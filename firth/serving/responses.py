"""What goes back to a client: a status, headers and bytes. Every refusal is `{"error": {"type", "message"}}`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from firth.errors import FirthError, Unsupported

JSON = "application/json"
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE_HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""On every reply: nothing foreign is loaded, nothing inline runs, no other page may look in."""


@dataclass(frozen=True)
class Reply:
    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        named = {
            "content-type": self.content_type,
            "content-length": str(len(self.body)),
            **SAFE_HEADERS,
            **self.headers,
        }
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()]


class Refusal(Exception):
    """What a client is told instead of an answer."""

    def __init__(self, status: int, kind: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message = status, kind, message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def reply(self) -> Reply:
        body = {"error": {"type": self.kind, "message": self.message}}
        return Reply(to_json(body), self.status, headers=self.headers)


def refusal_of(error: FirthError) -> Refusal:
    """A mistake that a model found in a request."""
    return Refusal(422, "unsupported" if isinstance(error, Unsupported) else "invalid_request", str(error))


def too_large(message: str, **headers: str) -> Refusal:
    return Refusal(413, "too_large", message, **headers)


def overloaded(message: str, seconds: float) -> Refusal:
    return Refusal(429, "overloaded", message, retry_after=str(max(1, round(seconds))))


def to_json(value: Any) -> bytes:
    """Arrays of numbers go as they are; what is not a number becomes null. A lone surrogate becomes a question mark."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(value, option=options)
    except TypeError:
        return orjson.dumps(_writable(value), option=options)


def _writable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_writable(name): _writable(inner) for name, inner in value.items()}
    return [_writable(inner) for inner in value] if isinstance(value, list | tuple) else value
