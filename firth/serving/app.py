"""The application behind the server (ASGI): who may ask, how much, how long; then the routes' table answers.

A request's life: host and token, route, body within bytes and seconds, JSON, shape, answer within seconds. Whatever
goes wrong is one `Refusal`. What users write is never logged.
"""

import asyncio
import hmac
import logging
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

import orjson
from pydantic import ValidationError

from firth.errors import FirthError
from firth.serving.files import Files
from firth.serving.openapi import OPEN, document
from firth.serving.reference import reference
from firth.serving.registry import House
from firth.serving.responses import JSON, Refusal, Reply, overloaded, refusal_of, to_json, too_large
from firth.serving.routes import TABLE, Route
from firth.serving.schemas import Asked

log = logging.getLogger(__name__)

OWN: dict[str, Callable[[], Reply]] = {"/openapi.json": lambda: Reply(to_json(document())), "/docs": reference}
"""What tells of the routes."""
PATHS = {path for _, path in TABLE} | OWN.keys()


class Gone(Exception):
    """The client has left."""


class App:
    def __init__(self, house: House, *, token: str | None = None, hosts: frozenset[str] = frozenset()) -> None:
        self.house, self.hosts, self.files = house, hosts, Files()
        self.token = None if token is None else token.encode()
        self.held = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        began = time.perf_counter()
        try:
            reply = await self._reply(scope, receive)
        except Gone:
            return
        except Refusal as refusal:
            reply = refusal.reply()
        except FirthError as error:
            reply = refusal_of(error).reply()
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            log.error(f"Internal error: {type(error).__name__} at {where.filename}:{where.lineno}.")
            reply = Refusal(500, "internal", "The server met a mistake of its own; its log says where.").reply()
        await send({"type": "http.response.start", "status": reply.status, "headers": reply.raw_headers()})
        await send({"type": "http.response.body", "body": reply.body})
        self._count(scope["path"], reply.status, time.perf_counter() - began)

    def _count(self, path: str, status: int, seconds: float) -> None:
        route = path if path in PATHS else "page" if path in self.files else "other"
        self.house.meters.requests.labels(route, status).inc()
        self.house.meters.request_seconds.labels(route).observe(seconds)

    async def _reply(self, scope: Any, receive: Any) -> Reply:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        method, path = "GET" if scope["method"] == "HEAD" else scope["method"], scope["path"]
        self._check_host(headers)
        if method == "GET" and path in self.files:
            return self.files.reply(path, headers)
        if (method, path) not in OPEN:
            self._check_token(headers)
        if method == "GET" and path in OWN:
            return OWN[path]()
        route = TABLE.get((method, path))
        if route is None:
            raise _no_route(path)
        if method == "GET":
            answer = await route.run(self.house, _query(route, scope["query_string"]))
            return answer if isinstance(answer, Reply) else Reply(to_json(answer))
        return await self._post(route, headers, receive)

    async def _post(self, route: Route, headers: Mapping[str, str], receive: Any) -> Reply:
        body = bytearray()
        try:
            await self._receive(body, headers, receive)
            answer = await self._answer(route, read(bytes(body), route.asked), receive)
            return answer if isinstance(answer, Reply) else Reply(to_json(answer))
        finally:
            self._hold(-len(body))

    async def _answer(self, route: Route, asked: Any, receive: Any) -> Any:
        """The route's answer, unless it takes too long or the client leaves: then its work is dropped."""
        work = asyncio.ensure_future(route.run(self.house, asked))
        leaving = asyncio.ensure_future(receive())
        try:
            await asyncio.wait(
                (work, leaving), timeout=self.house.limits.answer_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                return work.result()
            if leaving.done():
                raise Gone
            raise overloaded("The answer did not come in time; try again later.", self.house.limits.answer_seconds)
        finally:
            work.cancel()
            leaving.cancel()

    def _check_host(self, headers: Mapping[str, str]) -> None:
        """Without a token a page of another site must not reach in by a name that leads here."""
        name = headers.get("host", "").rpartition(":")[0] if _has_port(headers) else headers.get("host", "")
        if self.token is None and name.strip("[]").lower() not in self.hosts:
            raise Refusal(403, "wrong_host", "The Host header names no address of this server.")

    def _check_token(self, headers: Mapping[str, str]) -> None:
        if self.token is None:
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode("utf-8", "replace"), self.token):
            message = "The token is missing or wrong; send it as 'Authorization: Bearer TOKEN'."
            raise Refusal(401, "unauthorized", message, www_authenticate="Bearer")

    async def _receive(self, body: bytearray, headers: Mapping[str, str], receive: Any) -> None:
        """Fills `body`, within the limits."""
        _check_type(headers)
        most = self.house.limits.body_bytes
        declared = headers.get("content-length", "0")
        long = too_large(f"The body is longer than {most} bytes; send several requests.")
        if not declared.isdecimal() or int(declared[:20]) > most:
            raise long
        try:
            async with asyncio.timeout(self.house.limits.receive_seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    body += message["body"]
                    self._hold(len(message["body"]))
                    if len(body) > most:
                        raise long
                    if self.held > self.house.limits.held_bytes:
                        raise overloaded("The server holds as many bytes of requests as it may; try again later.", 1)
                    more = message["more_body"]
        except TimeoutError:
            raise Refusal(408, "too_slow", "The body did not arrive in time.", connection="close") from None

    def _hold(self, size: int) -> None:
        self.held += size
        self.house.meters.held_bytes.set(self.held)


def read(body: bytes, shape: type[Asked] | None) -> Asked:
    """The request that a body spells; what is wrong with it is said in one sentence."""
    assert shape is not None  # every POST route has one
    try:
        value = orjson.loads(body)
    except (orjson.JSONDecodeError, RecursionError):
        raise Refusal(400, "invalid_json", "The body is not JSON in UTF-8.") from None
    if not isinstance(value, dict):
        raise Refusal(422, "invalid_request", "The body must be a JSON object.")
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise Refusal(422, "invalid_request", _sentence(shape, error)) from None


def _sentence(shape: type[Asked], error: ValidationError) -> str:
    """What the first wrong field must be."""
    found = error.errors(include_url=False, include_context=False, include_input=False)[0]
    name = str(found["loc"][0]) if found["loc"] else ""
    if name not in shape.model_fields:
        return f"The body has a field that is not known; known are {', '.join(shape.model_fields)}."
    what = "is missing; it must be" if found["type"] == "missing" else "must be"
    return f"'{name}' {what} {shape.model_fields[name].description}."


def _query(route: Route, text: bytes) -> dict[str, Any] | None:
    if not route.query:
        return None
    try:
        given = dict(parse_qsl(text.decode("ascii"), keep_blank_values=True, max_num_fields=10, errors="strict"))
    except ValueError:
        raise Refusal(422, "invalid_request", "What follows the question mark cannot be read.") from None
    values: dict[str, Any] = {}
    for name, kind in route.query:
        value = given.get(name, "" if kind is str else "0")
        if kind is str and not value:
            raise Refusal(422, "invalid_request", f"'{name}' is missing.")
        if kind is int and not (value.isascii() and value.isdecimal() and len(value) < 16):
            raise Refusal(422, "invalid_request", f"'{name}' must be a whole number from 0.")
        values[name] = kind(value)
    return values


def _check_type(headers: Mapping[str, str]) -> None:
    kind, _, parameters = headers.get("content-type", "").lower().partition(";")
    charset = parameters.strip().replace('"', "").removeprefix("charset=")
    if (
        kind.strip() != JSON
        or charset not in ("", "utf-8")
        or headers.get("content-encoding", "identity") != "identity"
    ):
        raise Refusal(415, "unsupported_type", f"The body must be plain {JSON}: send 'Content-Type: {JSON}'.")


def _no_route(path: str) -> Refusal:
    methods = sorted({method for method, known in TABLE if known == path} | ({"GET"} if path in OWN else set()))
    if methods:
        return Refusal(405, "wrong_method", f"This route takes {' or '.join(methods)}.", allow=", ".join(methods))
    return Refusal(404, "not_found", "There is no such route; GET /openapi.json lists them.")


def _has_port(headers: Mapping[str, str]) -> bool:
    return headers.get("host", "").rpartition(":")[2].isdecimal()
