"""The table of routes as an OpenAPI 3.1 document: generated, so it cannot differ from what the server does."""

import dataclasses
from functools import cache

from pydantic import JsonValue, TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from firth import __version__
from firth.files import JsonObject
from firth.serving.routes import TABLE, Route
from firth.serving.schemas import ErrorResponse, ModelRequest

ERRORS = {
    "400": "The body is not JSON in UTF-8, or a list of inputs is empty.",
    "401": "The token is missing or wrong.",
    "403": "The Host header names no address of this server.",
    "404": "There is no such route, model or run.",
    "405": "The route has another method.",
    "408": "The body did not arrive in time.",
    "413": "The body, a text, or the number of inputs or tokens is above a limit.",
    "415": "The body is not declared as application/json.",
    "422": "The JSON has not the right shape, or the model cannot do this.",
    "429": "Too much load; Retry-After says when to try again.",
}
TOKENLESS = {("GET", "/health")}
"""Routes that need no token."""
_SCHEMA_PATH = "#/components/schemas/"


@cache
def openapi_document() -> JsonObject:
    """The document as JSON values."""
    paths: dict[str, dict[str, JsonValue]] = {}
    for (method, path), route in TABLE.items():
        operations = paths.setdefault(path, {})
        operations[method.lower()] = _operation(method, path, route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "firth", "version": __version__, "description": "Answers of language models."},
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas() -> JsonObject:
    """The JSON schemas of all requests and responses by name, and of the types they contain."""
    types: dict[str, type] = {}
    for route in TABLE.values():
        for body in (route.request, route.response):
            if body is not None:
                types[body.__name__] = body
    types[ErrorResponse.__name__] = ErrorResponse
    inputs: list[tuple[str, JsonSchemaMode, TypeAdapter[object]]] = []
    for name, body in types.items():
        mode: JsonSchemaMode = "serialization"
        if issubclass(body, ModelRequest):
            mode = "validation"
        inputs.append((name, mode, TypeAdapter(body)))
    found, definitions = TypeAdapter.json_schemas(inputs, ref_template=_SCHEMA_PATH + "{model}")
    schemas = dict(definitions.get("$defs", {}))
    for (name, _), schema in found.items():
        # A type that others contain is among the definitions, and its own schema is only a reference to itself.
        if schema != {"$ref": f"{_SCHEMA_PATH}{name}"}:
            schemas[name] = schema
    return schemas


def _operation(method: str, path: str, route: Route[None]) -> dict[str, JsonValue]:
    """A route's entry in the document."""
    # With or without a token: whether one is needed depends on how the server was started.
    security: list[JsonValue] = [{"token": []}, {}]
    if (method, path) in TOKENLESS:
        security = []
    operation: dict[str, JsonValue] = {
        "operationId": route.handle.__name__,
        "summary": route.summary,
        "security": security,
        "responses": _responses(route),
    }
    if route.request is not None:
        operation["requestBody"] = {"required": True, "content": _json_content(route.request)}
    if route.query is not None:
        operation["parameters"] = _parameters(route.query)
    return operation


def _responses(route: Route[None]) -> dict[str, JsonValue]:
    """The route's response and all errors, by status."""
    content: dict[str, JsonValue] = {"text/plain": {"schema": {}}}
    if route.response is not None:
        content = _json_content(route.response)
    responses: dict[str, JsonValue] = {"200": {"description": "The answer.", "content": content}}
    for status, text in ERRORS.items():
        responses[status] = {"description": text, "content": _json_content(ErrorResponse)}
    return responses


def _json_content(body: type) -> dict[str, JsonValue]:
    return {"application/json": {"schema": {"$ref": f"{_SCHEMA_PATH}{body.__name__}"}}}


def _parameters(query: type) -> list[JsonValue]:
    """The parameters of a query string: texts are required, numbers are 0 if they are not given."""
    parameters: list[JsonValue] = []
    for field in dataclasses.fields(query):
        schema: dict[str, JsonValue] = {"type": "string"}
        if field.type is int:
            schema = {"type": "integer", "minimum": 0}
        required = field.type is str
        parameters.append({"name": field.name, "in": "query", "required": required, "schema": schema})
    return parameters
