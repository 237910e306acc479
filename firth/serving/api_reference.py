"""The API page: every route with its fields and a curl command, as plain HTML without scripts or other hosts."""

import dataclasses
from functools import cache
from html import escape

import orjson
from pydantic import JsonValue

from firth import __version__
from firth.serving.openapi import ERRORS
from firth.serving.responses import HttpResponse
from firth.serving.routes import TABLE, Route
from firth.serving.schemas import ModelRequest

EXAMPLES: dict[str, dict[str, JsonValue]] = {
    "/v1/embeddings": {"input": ["a text", "一段文字"]},
    "/embed": {"texts": ["a text", "一段文字"]},
    "/similarity": {"texts": ["a cat sleeps", "a cat naps", "it rains"]},
    "/rerank": {"query": "where is the cat", "documents": ["the cat is here", "it rains"]},
    "/predict": {"inputs": ["What a day."]},
    "/fill": {"text": "The [MASK] is open.", "top": 3},
    "/tokenize": {"texts": "Words become pieces. 词变成片段。"},
    "/neighbours": {"word": "river", "top": 5},
    "/attention": {"text": "The cat sat on the mat.", "layer": 0},
    "/rewrite": {"texts": ["A man is sleeping."], "beams": 4},
    "/meaning": {"word": "bank", "texts": ["the bank of the river", "money in the bank"]},
}
"""A request for the curl command of each route."""


@cache
def api_reference() -> HttpResponse:
    """The page."""
    links = []
    sections = []
    for (method, path), route in TABLE.items():
        links.append(f'<li><a href="#{route.handle.__name__}">{method} {path}</a></li>')
        sections.append(_section(method, path, route))
    errors = [f"<tr><td>{status}</td><td>{escape(text)}</td></tr>" for status, text in ERRORS.items()]
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>firth: API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="stylesheet" href="/page/api.css"></head><body><main>'
        f"<h1>firth {escape(__version__)}: API</h1>"
        '<p>JSON in, JSON out; the same as a document: <a href="/openapi.json">openapi.json</a>. '
        "Where the server has a token, every request but /health sends <code>Authorization: Bearer TOKEN</code>.</p>"
        f"<ul>{''.join(links)}</ul>{''.join(sections)}<section><h2>Errors</h2>"
        '<p>One shape: <code>{"error": {"type": ..., "message": ...}}</code></p>'
        f"<table>{''.join(errors)}</table></section></main></body></html>"
    )
    return HttpResponse(page.encode(), content_type="text/html; charset=utf-8")


def _section(method: str, path: str, route: Route[None]) -> str:
    """A route: its summary, the fields of its request, a curl command, and the fields of its response."""
    request_fields = ""
    if route.request is not None:
        request_fields = _request_table(route.request)
    response_fields = ""
    if route.response is not None:
        names = [f"<code>{escape(name)}</code>" for name in route.response.__annotations__]
        response_fields = f"<p>Answer: {', '.join(names)}</p>"
    return (
        f'<section id="{route.handle.__name__}"><h2><b>{method}</b> {path}</h2><p>{escape(route.summary)}</p>'
        f"{request_fields}<pre>{escape(_curl(method, path, route))}</pre>"
        f"{response_fields}</section>"
    )


def _request_table(request: type[ModelRequest]) -> str:
    rows = []
    for name, field in request.model_fields.items():
        needed = ""
        if field.is_required():
            needed = "needed"
        description = escape(field.description or "")
        rows.append(f"<tr><td><code>{escape(name)}</code></td><td>{description}</td><td>{needed}</td></tr>")
    return f"<table>{''.join(rows)}</table>"


def _curl(method: str, path: str, route: Route[None]) -> str:
    """A command that asks the route; a required parameter of a query string is NAME, others are 0."""
    if method == "POST":
        body = orjson.dumps(EXAMPLES.get(path, {})).decode()
        # A single quote in a shell's single-quoted text: end it, write an escaped quote, begin again.
        quoted = body.replace("'", "'\\''")
        return f"curl http://127.0.0.1:8080{path} --json '{quoted}'"
    parameters = []
    if route.query is not None:
        for field in dataclasses.fields(route.query):
            value = "0"
            if field.type is str:
                value = "NAME"
            parameters.append(f"{field.name}={value}")
    query = ""
    if parameters:
        query = f"?{'&'.join(parameters)}"
    return f"curl 'http://127.0.0.1:8080{path}{query}'"
