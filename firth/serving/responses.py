"""What goes back to a client: a status, headers and bytes. Every error is `{"error": {"type", "message"}}`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import orjson

from firth.errors import FirthError, Unsupported

JSON = "application/json"
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
"""On every response: nothing is loaded from other sites, no inline script runs, no other page can embed this one."""


ARGUMENT = re.compile(r"`(\w+)=([^`]*)`")
"""How messages of the package name an argument of Python."""
QUOTES = "'\""


@dataclass(frozen=True)
class HttpResponse:
    """A response as it is sent."""

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    def raw_headers(self) -> list[tuple[bytes, bytes]]:
        """All headers as ASGI takes them; those of this response replace the general ones."""
        headers = {
            "content-type": self.content_type,
            "content-length": str(len(self.body)),
            **SECURITY_HEADERS,
            **self.headers,
        }
        return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


class HttpError(Exception):
    """An error for the client; `kind` is the error's type in the JSON body."""

    def __init__(self, status: int, kind: str, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = in_fields(message)
        # Keyword arguments cannot have dashes: `retry_after` is the header `retry-after`.
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    def response(self) -> HttpResponse:
        body = {"error": {"type": self.kind, "message": self.message}}
        return HttpResponse(to_json(body), self.status, headers=self.headers)


def in_fields(text: str) -> str:
    """A message of the package in the terms of a request: `top=` becomes 'top', and `task='rewrite'` task rewrite."""

    def field_of(found: re.Match[str]) -> str:
        name, value = found.groups()
        return f"{name} {value.strip(QUOTES)}" if value else f"'{name}'"

    # A request holds its rows.
    return ARGUMENT.sub(field_of, text.replace(" by `file=`", ""))


def invalid_request(message: str) -> HttpError:
    return HttpError(422, "invalid_request", message)


def unsupported(message: str) -> HttpError:
    return HttpError(422, "unsupported", message)


def not_found(message: str) -> HttpError:
    return HttpError(404, "not_found", message)


def too_large(message: str) -> HttpError:
    return HttpError(413, "too_large", message)


def overloaded(message: str, seconds: float) -> HttpError:
    """Too much load; the client may try again after some seconds."""
    whole_seconds = max(1, round(seconds))
    return HttpError(429, "overloaded", message, retry_after=str(whole_seconds))


def http_error_from(error: FirthError) -> HttpError:
    """A mistake in a request that the model found."""
    if isinstance(error, Unsupported):
        return unsupported(str(error))
    return invalid_request(str(error))


def to_json(value: object) -> bytes:
    """Numpy arrays become lists, NaN becomes null, and a lone surrogate becomes a question mark."""
    options = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(value, option=options)
    except TypeError:
        # A lone surrogate cannot be written as UTF-8.
        return orjson.dumps(_without_surrogates(value), option=options)


def _without_surrogates(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_without_surrogates(name): _without_surrogates(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(inner) for inner in value]
    return value
