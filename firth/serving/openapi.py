"""The routes' table as an OpenAPI 3.1 document: written by nobody, so it cannot differ from what the server does."""

from functools import cache
from typing import Any

from pydantic import TypeAdapter

from firth import __version__
from firth.serving import schemas as shapes
from firth.serving.routes import TABLE, Route

REFUSALS = {
    "400": "The body is not JSON in UTF-8, or a list of inputs is empty.",
    "401": "The token is missing or wrong.",
    "403": "The Host header names no address of this server.",
    "404": "There is no such route, model or run.",
    "405": "The route has another method.",
    "408": "The body did not arrive in time.",
    "413": "The body, a text, or the number of inputs or tokens is above a limit.",
    "415": "The body is not declared as application/json.",
    "422": "The JSON has not the right shape, or the model cannot do this.",
    "429": "Too much load; Retry-After says when to come again.",
}
OPEN = {("GET", "/health")}
"""Routes without a token."""
QUERY_TYPES = {str: {"type": "string"}, int: {"type": "integer", "minimum": 0}}


@cache
def document() -> dict[str, Any]:
    named = {shape.__name__: shape for route in TABLE.values() for shape in (route.asked, route.answer) if shape}
    named["Error"] = shapes.Error
    inputs = [
        (name, "validation" if issubclass(shape, shapes.Asked) else "serialization", TypeAdapter(shape))
        for name, shape in named.items()
    ]
    found, defined = TypeAdapter.json_schemas(inputs, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    schemas = defined.get("$defs", {}) | {
        name: schema for (name, _), schema in found.items() if schema != {"$ref": f"#/components/schemas/{name}"}
    }
    paths: dict[str, Any] = {}
    for (method, path), route in TABLE.items():
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "firth", "version": __version__, "description": "Answers of language models."},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(method: str, path: str, route: Route) -> dict[str, Any]:
    good = {"application/json": {"schema": _ref(route.answer)}} if route.answer else {"text/plain": {"schema": {}}}
    operation: dict[str, Any] = {
        "operationId": route.run.__name__,
        "summary": route.summary,
        "security": [] if (method, path) in OPEN else [{"token": []}, {}],
        "responses": {
            "200": {"description": "The answer.", "content": good},
            **{
                status: {"description": text, "content": {"application/json": {"schema": _ref(shapes.Error)}}}
                for status, text in REFUSALS.items()
            },
        },
    }
    if route.asked:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(route.asked)}}}
    if route.query:
        operation["parameters"] = [
            {"name": name, "in": "query", "required": kind is str, "schema": QUERY_TYPES[kind]}
            for name, kind in route.query
        ]
    return operation


def _ref(shape: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{shape.__name__}"}
