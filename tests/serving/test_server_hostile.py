"""What the server makes of bad requests: a table of payloads with the status each must get, never a 5xx."""

import gzip
import json
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings

from firth.serving.openapi import TOKENLESS
from firth.serving.routes import TABLE

JSON = {"Content-Type": "application/json"}
DEEP = 100_000


WRONG = schemathesis.GenerationMode.NEGATIVE
CHECKS = (
    schemathesis.checks.not_a_server_error,
    schemathesis.checks.content_type_conformance,
    schemathesis.checks.response_schema_conformance,
    schemathesis.checks.status_code_conformance,
)


def body(value: Any) -> bytes:
    return json.dumps(value).encode()


PAYLOADS: list[tuple[str, str, bytes, dict[str, str], int]] = [
    # Not JSON
    ("empty", "/embed", b"", JSON, 400),
    ("half an object", "/embed", b'{"texts": "a"', JSON, 400),
    ("python", "/embed", b"{'texts': 'a'}", JSON, 400),
    ("trailing comma", "/embed", b'{"texts": ["a",]}', JSON, 400),
    ("two objects", "/embed", b'{"texts": "a"}{}', JSON, 400),
    ("a comment", "/embed", b'{"texts": "a"} // yes', JSON, 400),
    ("byte-order mark", "/embed", b'\xef\xbb\xbf{"texts": "a"}', JSON, 400),
    ("nul bytes", "/embed", b"\x00" * 100, JSON, 400),
    ("raw control character", "/embed", b'{"texts": "a\x01b"}', JSON, 400),
    ("latin-1", "/embed", '{"texts": "café"}'.encode("latin-1"), JSON, 400),
    ("utf-16", "/embed", '{"texts": "a"}'.encode("utf-16"), JSON, 400),
    ("gbk", "/embed", '{"texts": "好"}'.encode("gbk"), JSON, 400),
    ("overlong utf-8", "/embed", b'{"texts": "\xc0\xaf"}', JSON, 400),
    ("utf-8 of a surrogate", "/embed", b'{"texts": "\xed\xa0\x80"}', JSON, 400),
    ("lone surrogate", "/embed", b'{"texts": "\\ud800"}', JSON, 400),
    ("reversed surrogates", "/embed", b'{"texts": "\\udc00\\ud800"}', JSON, 400),
    ("NaN", "/similarity", b'{"texts": ["a"], "others": NaN}', JSON, 400),
    ("Infinity", "/fill", b'{"text": "[MASK]", "top": Infinity}', JSON, 400),
    ("a number beyond floats", "/fill", b'{"text": "[MASK]", "top": 1e400}', JSON, 400),
    ("deep lists", "/embed", b'{"texts": ' + b"[" * DEEP + b"]" * DEEP + b"}", JSON, 400),
    ("deep objects", "/predict", b'{"inputs": ' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}", JSON, 400),
    # JSON of the wrong shape
    ("null", "/embed", b"null", JSON, 422),
    ("a list", "/embed", b"[]", JSON, 422),
    ("a string", "/embed", b'"texts"', JSON, 422),
    ("a number", "/embed", b"1", JSON, 422),
    ("nothing in it", "/embed", b"{}", JSON, 422),
    ("texts null", "/embed", body({"texts": None}), JSON, 422),
    ("texts number", "/embed", body({"texts": 1}), JSON, 422),
    ("texts object", "/embed", body({"texts": {"a": "b"}}), JSON, 422),
    ("texts mixed", "/embed", body({"texts": ["a", 1]}), JSON, 422),
    ("texts nested", "/embed", body({"texts": [["a"]]}), JSON, 422),
    ("700 lists deep", "/predict", b'{"inputs": ' + b"[" * 700 + b"]" * 700 + b"}", JSON, 422),
    ("half a million numbers", "/embed", body({"texts": [1] * 500_000}), JSON, 422),
    ("unknown field", "/embed", body({"texts": "a", "text": "b"}), JSON, 422),
    ("unknown pooling", "/embed", body({"texts": "a", "pooling": "sum"}), JSON, 422),
    ("tokens without a vector head", "/embed", body({"texts": "a", "pooling": "tokens"}), JSON, 422),
    ("boolean for a number", "/fill", body({"text": "[MASK]", "top": True}), JSON, 422),
    ("text for a number", "/fill", body({"text": "[MASK]", "top": "5"}), JSON, 422),
    ("no candidates", "/fill", body({"text": "[MASK]", "top": 0}), JSON, 422),
    ("minus", "/fill", body({"text": "[MASK]", "top": -1}), JSON, 422),
    ("too many candidates", "/fill", body({"text": "[MASK]", "top": 10**9}), JSON, 422),
    ("an integer of 30 digits", "/fill", b'{"text": "[MASK]", "top": ' + b"9" * 30 + b"}", JSON, 422),
    ("no mask", "/fill", body({"text": "nothing to fill"}), JSON, 422),
    ("more masks than positions", "/fill", body({"text": "[MASK] " * 100}), JSON, 422),
    ("no input", "/v1/embeddings", body({"input": []}), JSON, 400),
    ("ids below zero", "/v1/embeddings", body({"input": [-1]}), JSON, 422),
    ("ids beyond the vocabulary", "/v1/embeddings", body({"input": [[1, 10**6]]}), JSON, 422),
    ("ids as floats", "/v1/embeddings", body({"input": [1.5]}), JSON, 422),
    ("ids beyond 64 bits", "/v1/embeddings", b'{"input": [' + b"9" * 40 + b"]}", JSON, 422),
    ("no dimensions", "/v1/embeddings", body({"input": "a", "dimensions": 0}), JSON, 422),
    ("a task that is not there", "/predict", body({"inputs": ["a"], "model": "classify", "task": "x"}), JSON, 422),
    ("a model without tasks", "/predict", body({"inputs": ["a"]}), JSON, 422),
    ("three texts for a pair", "/predict", body({"inputs": [["a", "b", "c"]], "model": "classify"}), JSON, 422),
    ("a row without its columns", "/predict", body({"inputs": [{"x": "y"}], "model": "answer"}), JSON, 422),
    ("a row with an unknown column", "/predict", body({"inputs": [{"x": "y"}], "model": "classify"}), JSON, 422),
    ("a row without columns", "/predict", body({"inputs": [{}], "model": "classify"}), JSON, 422),
    ("one option", "/predict", body({"inputs": [["a", "b"]], "model": "choose"}), JSON, 422),
    ("a negative layer", "/attention", body({"text": "a", "layer": -1}), JSON, 422),
    ("a pattern for a word", "/meaning", body({"word": "(a+)+$", "texts": ["a" * 5000]}), JSON, 422),
    # Names
    ("a strange model", "/embed", body({"texts": "a", "model": "gpt"}), JSON, 404),
    ("a path for a model", "/embed", body({"texts": "a", "model": "../../etc/passwd"}), JSON, 404),
    ("a strange route", "/evil", body({}), JSON, 404),
    ("a path up", "/page/../server.py", body({}), JSON, 404),
    ("an encoded path up", "/page/%2e%2e%2fserver.py", body({}), JSON, 404),
    ("a nul in the path", "/embed%00", body({}), JSON, 404),
    ("posting to a page", "/info", body({}), JSON, 405),
    # Too much
    ("3 MB", "/embed", b'{"texts": "' + b"a" * 3_000_000 + b'"}', JSON, 413),
    ("2,049 inputs", "/embed", body({"texts": ["a"] * 2049}), JSON, 413),
    ("a text too long", "/embed", body({"texts": "a" * 40_000}), JSON, 413),
    ("tokens too many", "/embed", body({"texts": ["a b " * 8000] * 30}), JSON, 413),
    ("tokens too many to list", "/tokenize", body({"texts": ["a b " * 8000] * 30}), JSON, 413),
    ("candidates too many", "/fill", body({"text": "[MASK] " * 20, "top": 100}), JSON, 413),
    ("candidates too long", "/fill", body({"text": "[MASK] " * 10 + "a" * 32_000, "top": 100}), JSON, 413),
    ("attention too long", "/attention", body({"text": "a " * 2000}), JSON, 413),
    # Not declared as JSON
    ("a form", "/embed", b"texts=a", {"Content-Type": "application/x-www-form-urlencoded"}, 415),
    ("plain text", "/embed", body({"texts": "a"}), {"Content-Type": "text/plain"}, 415),
    ("another charset", "/embed", body({"texts": "a"}), {"Content-Type": "application/json; charset=utf-16"}, 415),
    ("compressed", "/embed", gzip.compress(body({"texts": "a"})), {**JSON, "Content-Encoding": "gzip"}, 415),
    ("no type", "/embed", body({"texts": "a"}), {}, 415),
    # Odd, and right
    ("a pair of surrogates", "/embed", b'{"texts": "\\ud83d\\ude00"}', JSON, 200),
    ("a nul in a text", "/embed", body({"texts": "a\x00b"}), JSON, 200),
    ("right-to-left and joiners", "/tokenize", body({"texts": "\u202eabc\u200d\ufeff\U000e0001"}), JSON, 200),
    ("special tokens as text", "/tokenize", body({"texts": "[CLS] [SEP] [PAD] <script>"}), JSON, 200),
    ("a word of 30,000 letters", "/tokenize", body({"texts": "a" * 30_000}), JSON, 200),
    ("combining marks", "/embed", body({"texts": "e" + "\u0301" * 5000}), JSON, 200),
    ("no texts", "/embed", body({"texts": []}), JSON, 200),
    ("a key twice", "/embed", b'{"texts": "a", "texts": "b"}', JSON, 200),
]  # fmt: skip


def test_the_table_is_long_enough() -> None:
    assert len(PAYLOADS) >= 60
    assert len({name for name, *_ in PAYLOADS}) == len(PAYLOADS)


@pytest.mark.parametrize(("name", "path", "content", "headers", "status"), PAYLOADS, ids=[row[0] for row in PAYLOADS])
def test_hostile_payloads(
    name: str, path: str, content: bytes, headers: dict[str, str], status: int, served: Any
) -> None:
    answer = raw(served, _http("POST", path, content, headers))
    assert answer.status == status, answer.text[:300]
    if status != 200:
        error = json.loads(answer.text)["error"]
        assert set(error) == {"type", "message"}
        assert error["message"].endswith(".")


RAW: list[tuple[str, bytes, int | None]] = [
    ("not HTTP", b"hello\r\n\r\n", 400),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 60 + b"\r\n\r\n", 400),
    ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 403),
    ("no host", b"GET /health HTTP/1.1\r\n\r\n", 400),
    ("another host", b"GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403),
    ("a head of 1 MB", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n", None),
    ("a negative length", b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
    ("two lengths", b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
    ("a huge length", b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
     b"Content-Length: 9999999999999999999\r\n\r\n", 413),
    ("a header in the header", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n", 400),
    ("a strange method", b"BREW /embed HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
    ("an upgrade", b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
     b"Upgrade: websocket\r\n\r\n", 200),
    ("a bad chunk", b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
     b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", None),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content", "status"), RAW, ids=[row[0] for row in RAW])
def test_hostile_bytes(name: str, content: bytes, status: int | None, served: Any) -> None:
    answer = raw(served, content)
    assert answer.status in ((status,) if status else (None, 400)), answer.text


def test_chunked_bodies_are_counted_before_parsing(served: Any) -> None:
    chunk = b"100000\r\n" + b"a" * 0x100000 + b"\r\n"
    head = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += b"Transfer-Encoding: chunked\r\n\r\n"
    assert raw(served, head + chunk * 3 + b"0\r\n\r\n").status == 413


def test_no_payload_was_an_internal_error(served: Any) -> None:
    assert "Internal error" not in served.log.read_text()
    assert httpx.get(f"{served.url}/health").json() == {"status": "ok"}


@pytest.fixture(scope="module")
def api(served: Any) -> Any:
    return schemathesis.openapi.from_url(f"{served.url}/openapi.json")


@pytest.mark.parametrize(("method", "path"), TABLE, ids=lambda value: value)
def test_schemathesis(method: str, path: str, api: Any) -> None:
    """Requests made from the OpenAPI document, right and wrong ones: no 5xx, every answer as the document says."""
    operation, route = api[path][method], TABLE[method, path]
    has_input = route.request is not None or route.query is not None
    right = operation.as_strategy()
    wrong = operation.as_strategy(generation_mode=WRONG) if has_input else right

    @settings(max_examples=60, deadline=None, database=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(case=right | wrong)
    def ask(case: Any) -> None:
        answer = case.call()
        assert answer.status_code < 500
        case.validate_response(answer, checks=CHECKS)

    ask()


def test_every_route_refuses_without_the_token(start: Callable[..., Any], run: Path, tmp_path: Path) -> None:
    token = "a-long-and-secret-token-1"
    (tmp_path / "token").write_text(f"{token}\n")
    with start(f"m={run}", "--host", "0.0.0.0", "--token-file", tmp_path / "token") as server:
        url = f"http://127.0.0.1:{server.port}"
        routes = [*TABLE, ("GET", "/docs"), ("GET", "/openapi.json"), ("GET", "/strange"), ("DELETE", "/embed")]
        for method, path in routes:
            for given in (
                "",
                f"Bearer {token}x",
                "Bearer",
                token,
                f"Basic {token}",
                "Bearer é",
                f"Bearer {token[:-1]}",
            ):
                answer = server.client.request(
                    method, url + path, headers={"Authorization": given.encode()} if given else {}
                )
                if (method, path) in TOKENLESS:
                    assert answer.status_code == 200
                else:
                    assert answer.status_code == 401, path
                    assert answer.json()["error"]["type"] == "unauthorized"
        good = {"Authorization": f"Bearer {token}"}
        assert httpx.get(f"{url}/info", headers=good).status_code == 200
        assert httpx.post(f"{url}/embed", headers=good, json={"texts": "a"}).status_code == 200
        assert token not in server.log.read_text()


class Raw:
    def __init__(self, data: bytes) -> None:
        head, _, rest = data.partition(b"\r\n\r\n")
        self.status = int(head.split()[1]) if head.startswith(b"HTTP/") else None
        self.text = rest.decode("utf-8", "replace")


def raw(served: Any, content: bytes) -> Raw:
    """What comes back for these bytes."""
    with socket.create_connection(("127.0.0.1", served.port), timeout=20) as connection:
        with suppress(OSError):  # the server may have closed before all was sent
            connection.sendall(content)
        data = b""
        try:
            while part := connection.recv(65536):
                data += part
                head, _, rest = data.partition(b"\r\n\r\n")
                length = [
                    line.split(b":")[1] for line in head.lower().splitlines() if line.startswith(b"content-length")
                ]
                if length and len(rest) >= int(length[0]):
                    break
        except ConnectionError:
            pass
        return Raw(data)


def _http(method: str, path: str, content: bytes, headers: dict[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(content)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content
