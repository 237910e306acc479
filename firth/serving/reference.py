"""The API page: every route with its fields and a line for curl, as plain HTML without scripts or foreign hosts."""

from functools import cache
from html import escape
from typing import Any

import orjson

from firth.serving.openapi import REFUSALS, document
from firth.serving.responses import Reply

EXAMPLES: dict[str, Any] = {
    "/v1/embeddings": {"input": ["a text", "一段文字"]},
    "/embed": {"texts": ["a text", "一段文字"]},
    "/similarity": {"texts": ["a cat sleeps", "a cat naps", "it rains"]},
    "/rerank": {"query": "where is the cat", "documents": ["the cat is here", "it rains"]},
    "/predict": {"inputs": ["What a day."]},
    "/fill": {"text": "The [MASK] is open.", "top": 3},
    "/tokenize": {"texts": "Words become pieces. 词变成片段。"},
    "/neighbours": {"word": "river", "top": 5},
    "/attention": {"text": "The cat sat on the mat.", "layer": 0},
    "/meaning": {"word": "bank", "texts": ["the bank of the river", "money in the bank"]},
}


@cache
def reference() -> Reply:
    found = document()
    operations = [(method.upper(), path, row) for path, rows in found["paths"].items() for method, row in rows.items()]
    links = "".join(f'<li><a href="#{row["operationId"]}">{method} {path}</a></li>' for method, path, row in operations)
    sections = "".join(_section(method, path, row, found) for method, path, row in operations)
    refusals = "".join(f"<tr><td>{status}</td><td>{escape(text)}</td></tr>" for status, text in REFUSALS.items())
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>firth: API</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="stylesheet" href="/page/api.css"></head><body><main>'
        f"<h1>firth {escape(found['info']['version'])}: API</h1>"
        '<p>JSON in, JSON out; the same as a document: <a href="/openapi.json">openapi.json</a>. '
        "Where the server has a token, every request but /health sends <code>Authorization: Bearer TOKEN</code>.</p>"
        f"<ul>{links}</ul>{sections}<section><h2>Errors</h2>"
        '<p>One shape: <code>{"error": {"type": ..., "message": ...}}</code></p>'
        f"<table>{refusals}</table></section></main></body></html>"
    )
    return Reply(page.encode(), content_type="text/html; charset=utf-8")


def _section(method: str, path: str, row: dict[str, Any], found: dict[str, Any]) -> str:
    schemas = found["components"]["schemas"]
    body = row.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    answer = row["responses"]["200"]["content"].get("application/json", {}).get("schema", {})
    return (
        f'<section id="{row["operationId"]}"><h2><b>{method}</b> {path}</h2><p>{escape(row["summary"])}</p>'
        f"{_fields(body, schemas)}<pre>{escape(_curl(method, path, row))}</pre>"
        f"{_answer(answer, schemas)}</section>"
    )


def _fields(reference: dict[str, Any], schemas: dict[str, Any]) -> str:
    shape = schemas.get(reference.get("$ref", "").rpartition("/")[2], {})
    rows = [
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(field.get('description', ''))}</td>"
        f"<td>{'needed' if name in shape.get('required', ()) else ''}</td></tr>"
        for name, field in shape.get("properties", {}).items()
    ]
    return f"<table>{''.join(rows)}</table>" if rows else ""


def _answer(reference: dict[str, Any], schemas: dict[str, Any]) -> str:
    shape = schemas.get(reference.get("$ref", "").rpartition("/")[2], {})
    names = ", ".join(f"<code>{escape(name)}</code>" for name in shape.get("properties", {}))
    return f"<p>Answer: {names}</p>" if names else ""


def _curl(method: str, path: str, row: dict[str, Any]) -> str:
    if method == "POST":
        body = orjson.dumps(EXAMPLES.get(path, {})).decode().replace("'", "'\\''")
        return f"curl http://127.0.0.1:8080{path} --json '{body}'"
    query = "&".join(f"{one['name']}={'NAME' if one['required'] else 0}" for one in row.get("parameters", ()))
    return f"curl 'http://127.0.0.1:8080{path}{'?' + query if query else ''}'"
