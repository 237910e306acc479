"""The ASGI application: checks a request's host, token, size and time, then lets the table of routes answer it.

The steps of a request: host and token, route, body within bytes and seconds, JSON, validation, response within seconds.
Whatever goes wrong is one `HttpError`. What users write is never logged.
"""

import asyncio
import dataclasses
import hmac
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl

import orjson
from pydantic import ValidationError
from typing_extensions import TypedDict

from firth.errors import FirthError
from firth.serving.api_reference import api_reference
from firth.serving.limits import raised_by
from firth.serving.openapi import TOKENLESS, openapi_document
from firth.serving.responses import (
    JSON,
    HttpError,
    HttpResponse,
    http_error_from,
    invalid_request,
    not_found,
    overloaded,
    to_json,
    too_large,
)
from firth.serving.routes import TABLE, JsonResponse, Route
from firth.serving.schemas import ModelRequest
from firth.serving.server_state import ServerState
from firth.serving.static_files import StaticFiles

log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", bound=ModelRequest)
QueryT = TypeVar("QueryT")

DOCUMENTATION: dict[str, Callable[[], HttpResponse]] = {
    "/openapi.json": lambda: HttpResponse(to_json(openapi_document())),
    "/docs": api_reference,
}
"""Paths that describe the routes."""
PATHS = {path for _, path in TABLE} | DOCUMENTATION.keys()


class Scope(TypedDict):
    """ASGI's description of an HTTP request, without its body."""

    method: str
    path: str
    query_string: bytes
    headers: list[tuple[bytes, bytes]]


class ReceivedEvent(TypedDict):
    """ASGI's next piece of a request's body; an event of type `http.disconnect` has only its type."""

    type: str
    body: bytes
    more_body: bool


Receive = Callable[[], Awaitable[ReceivedEvent]]
Send = Callable[[dict[str, object]], Awaitable[None]]
Headers = Mapping[str, str]


class ClientDisconnected(Exception):
    """The client closed the connection before it got a response."""


class App:
    """The application that uvicorn calls for each request."""

    def __init__(self, state: ServerState, *, token: str | None = None, hosts: frozenset[str] = frozenset()) -> None:
        self.state = state
        self.limits = state.limits
        self.hosts = hosts
        self.static_files = StaticFiles()
        self.token: bytes | None = None
        if token is not None:
            self.token = token.encode()
        self.held_bytes = 0
        """Bytes of all bodies that are being received or answered."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = time.perf_counter()
        try:
            response = await self._respond(scope, receive)
        except ClientDisconnected:
            return
        except HttpError as error:
            response = error.response()
        except FirthError as error:
            response = http_error_from(error).response()
        except Exception as error:
            response = _internal_error(error).response()
        await send({"type": "http.response.start", "status": response.status, "headers": response.raw_headers()})
        await send({"type": "http.response.body", "body": response.body})
        self._count(scope["path"], response.status, time.perf_counter() - start)

    def _count(self, path: str, status: int, seconds: float) -> None:
        """Counts a request. Unknown paths share one label, because a client chooses them."""
        route = "other"
        if path in PATHS:
            route = path
        elif path in self.static_files:
            route = "page"
        self.state.metrics.requests.labels(route, status).inc()
        self.state.metrics.request_seconds.labels(route).observe(seconds)

    async def _respond(self, scope: Scope, receive: Receive) -> HttpResponse:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        path = scope["path"]
        method = scope["method"]
        if method == "HEAD":
            method = "GET"
        self._check_host(headers)
        # The page itself needs no token; its requests do.
        if method == "GET" and path in self.static_files:
            return self.static_files.response(path, headers)
        if (method, path) not in TOKENLESS:
            self._check_token(headers)
        if method == "GET" and path in DOCUMENTATION:
            return DOCUMENTATION[path]()
        route = TABLE.get((method, path))
        if route is None:
            raise _unknown_route(path)
        if route.request is not None:
            return await self._post(route, route.request, headers, receive)
        query = None
        if route.query is not None:
            query = parse_query(scope["query_string"], route.query)
        return _as_response(await route.handle(self.state, query))

    async def _post(
        self,
        route: Route[Any],
        request_type: type[ModelRequest],
        headers: Headers,
        receive: Receive,
    ) -> HttpResponse:
        """Receives a body and answers it; its bytes count as held until then."""
        body = bytearray()
        try:
            await self._receive_body(body, headers, receive)
            request = parse_request(bytes(body), request_type)
            return _as_response(await self._handle(route, request, receive))
        finally:
            self._add_held_bytes(-len(body))

    async def _handle(self, route: Route[Any], request: ModelRequest, receive: Receive) -> JsonResponse | HttpResponse:
        """The route's response. If it takes too long or the client disconnects, its work is cancelled."""
        working = asyncio.ensure_future(route.handle(self.state, request))
        # After the body the only event to receive is that the client disconnects.
        disconnecting = asyncio.ensure_future(receive())
        timeout = self.limits.answer_seconds
        try:
            await asyncio.wait((working, disconnecting), timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            if disconnecting.done():
                raise ClientDisconnected
            raise overloaded("The answer did not come in time; try again later.", timeout)
        finally:
            working.cancel()
            disconnecting.cancel()

    def _check_host(self, headers: Headers) -> None:
        """Without a token, refuses other host names, because another site could reach in by DNS rebinding."""
        if self.token is not None:
            return
        host = headers.get("host", "")
        name, _, port = host.rpartition(":")
        if not port.isdecimal():
            name = host
        if name.strip("[]").lower() not in self.hosts:
            raise HttpError(403, "wrong_host", "The Host header names no address of this server.")

    def _check_token(self, headers: Headers) -> None:
        if self.token is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        given_token = given.strip().encode("utf-8", "replace")
        # `compare_digest` takes the same time for every wrong token.
        if scheme.lower() != "bearer" or not hmac.compare_digest(given_token, self.token):
            message = "The token is missing or wrong; send it as 'Authorization: Bearer TOKEN'."
            raise HttpError(401, "unauthorized", message, www_authenticate="Bearer")

    async def _receive_body(self, body: bytearray, headers: Headers, receive: Receive) -> None:
        """Appends the request's body to `body`, within the limits of bytes and seconds."""
        _check_content_type(headers)
        limit = self.limits.body_bytes
        too_long = too_large(
            f"The body is longer than {limit} bytes; send several requests." + raised_by("body_bytes", 2 * limit)
        )
        declared = headers.get("content-length", "0")
        # Twenty digits are more than any limit, and Python refuses to parse very long numbers.
        if not declared.isdecimal() or int(declared[:20]) > limit:
            raise too_long
        try:
            async with asyncio.timeout(self.limits.receive_seconds):
                more = True
                while more:
                    event = await receive()
                    if event["type"] == "http.disconnect":
                        raise ClientDisconnected
                    body += event["body"]
                    self._add_held_bytes(len(event["body"]))
                    if len(body) > limit:
                        raise too_long
                    if self.held_bytes > self.limits.held_bytes:
                        raise overloaded("The server holds as many bytes of requests as it may; try again later.", 1)
                    more = event["more_body"]
        except TimeoutError:
            raise HttpError(408, "too_slow", "The body did not arrive in time.", connection="close") from None

    def _add_held_bytes(self, size: int) -> None:
        self.held_bytes += size
        self.state.metrics.held_bytes.set(self.held_bytes)


def _as_response(answer: JsonResponse | HttpResponse) -> HttpResponse:
    if isinstance(answer, HttpResponse):
        return answer
    return HttpResponse(to_json(answer))


def _internal_error(error: Exception) -> HttpError:
    """Logs where an unexpected error was raised, without its text, which may contain what users wrote."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    log.error(f"Internal error: {type(error).__name__} at {where.filename}:{where.lineno}.")
    return HttpError(500, "internal", "The server had an internal error; its log says where.")


def parse_request(body: bytes, request_type: type[RequestT]) -> RequestT:
    """The request in a JSON body; an error says in one sentence what is wrong with it."""
    # orjson refuses what is not UTF-8, and nesting that is too deep.
    try:
        value = orjson.loads(body)
    except (orjson.JSONDecodeError, RecursionError):
        raise HttpError(400, "invalid_json", "The body is not JSON in UTF-8.") from None
    if not isinstance(value, dict):
        raise invalid_request("The body must be a JSON object.")
    try:
        return request_type.model_validate(value)
    except ValidationError as error:
        raise invalid_request(_first_error(request_type, error)) from None


def _first_error(request_type: type[ModelRequest], error: ValidationError) -> str:
    """What the first wrong field must be."""
    # The input is left out of the error, because the message must not repeat it.
    found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    fields = request_type.model_fields
    name = ""
    if found["loc"]:
        name = str(found["loc"][0])
    if name not in fields:
        return f"The body has a field that is not known; known are {', '.join(fields)}."
    verb = "must be"
    if found["type"] == "missing":
        verb = "is missing; it must be"
    return f"'{name}' {verb} {fields[name].description}."


def parse_query(text: bytes, query_type: type[QueryT]) -> QueryT:
    """The parameters of a query string, as a dataclass of texts and numbers."""
    try:
        pairs = parse_qsl(text.decode("ascii"), keep_blank_values=True, max_num_fields=10, errors="strict")
    except ValueError:
        raise invalid_request("What follows the question mark cannot be read.") from None
    given = dict(pairs)
    values: dict[str, str | int] = {}
    for field in dataclasses.fields(query_type):  # type: ignore[arg-type]
        if field.type is int:
            values[field.name] = _query_number(field.name, given.get(field.name, "0"))
        else:
            values[field.name] = given.get(field.name, "")
            if not values[field.name]:
                raise invalid_request(f"'{field.name}' is missing.")
    return query_type(**values)


def _query_number(name: str, text: str) -> int:
    # `isdecimal` alone is also true for digits of other scripts.
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise invalid_request(f"'{name}' must be a whole number from 0.")
    return int(text)


def _check_content_type(headers: Headers) -> None:
    media_type, _, parameters = headers.get("content-type", "").lower().partition(";")
    charset = parameters.strip().replace('"', "").removeprefix("charset=")
    is_json = media_type.strip() == JSON
    is_utf8 = charset in ("", "utf-8")
    is_plain = headers.get("content-encoding", "identity") == "identity"
    if not (is_json and is_utf8 and is_plain):
        raise HttpError(415, "unsupported_type", f"The body must be plain {JSON}: send 'Content-Type: {JSON}'.")


def _unknown_route(path: str) -> HttpError:
    """404, or 405 if the path has another method."""
    methods = {method for method, known in TABLE if known == path}
    if path in DOCUMENTATION:
        methods.add("GET")
    if not methods:
        return not_found("There is no such route; GET /openapi.json lists them.")
    names = sorted(methods)
    return HttpError(405, "wrong_method", f"This route takes {' or '.join(names)}.", allow=", ".join(names))
