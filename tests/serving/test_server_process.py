"""The server as a process: patience with slow clients, load, an orderly end, and what it says to a wrong start."""

import json
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed (Debian: apt-get install wrk)")
HEAD = b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def half_open(server: Any, *, sockets: int, within: float) -> None:
    """Half-sent heads and bodies are closed in time, and others are served meanwhile."""
    address = ("127.0.0.1", server.port)
    heads = [socket.create_connection(address) for _ in range(sockets)]
    bodies = [socket.create_connection(address) for _ in range(sockets)]
    silent = [socket.create_connection(address) for _ in range(20)]
    for connection in heads:
        connection.sendall(HEAD)
    for connection in bodies:
        connection.sendall(HEAD + b'Content-Length: 100\r\n\r\n{"texts": "')
    began, slowest = time.monotonic(), 0.0
    left = {*heads, *bodies, *silent}
    for connection in left:
        connection.setblocking(False)
    while left and time.monotonic() - began < within + 5:
        asked = time.monotonic()
        assert server.post("/embed", {"texts": "served meanwhile"}).status_code == 200
        slowest = max(slowest, time.monotonic() - asked)
        for connection in heads[:10]:
            with suppress(OSError):
                connection.send(b"X-Slow: 1\r\n")  # a drop now and then does not help
        left -= {connection for connection in left if _closed(connection)}
        time.sleep(0.2)
    assert not left
    assert time.monotonic() - began < within
    assert slowest < 2
    for connection in (*heads, *bodies, *silent):
        connection.close()


def _closed(connection: socket.socket) -> bool:
    try:
        while data := connection.recv(65536):
            assert b" 408 " in data or b"error" in data
        return True
    except BlockingIOError:
        return False
    except OSError:
        return True


def test_half_open_sockets_are_closed(start: Callable[..., Any], run: Path) -> None:
    with start(f"m={run}", "--limit", "receive_seconds=2") as server:
        half_open(server, sockets=40, within=7)
        assert server.post("/embed", {"texts": "after"}).status_code == 200


@pytest.mark.long
def test_many_half_open_sockets_with_the_usual_limits(start: Callable[..., Any], run: Path) -> None:
    with start(f"m={run}") as server:
        half_open(server, sockets=200, within=15)


def test_a_client_that_does_not_read_is_cut_off(start: Callable[..., Any], run: Path) -> None:
    text = json.dumps({"text": "a b " * 30}).encode()
    request = HEAD.replace(b"/embed", b"/attention") + b"Content-Length: %d\r\n\r\n" % len(text) + text
    with start(f"m={run}", "--limit", "idle_seconds=1") as server, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(request * 30)
        deadline = time.monotonic() + 15
        while _connections(server) > 0 and time.monotonic() < deadline:
            time.sleep(0.2)
        assert _connections(server) == 0


def _connections(server: Any) -> int:
    """Established connections of the server, as the kernel lists them."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return sum(row[1].endswith(f":{server.port:04X}") and row[3] == "01" for row in rows)


def test_sigterm_answers_what_is_in_flight(start: Callable[..., Any], run: Path) -> None:
    texts = [f"{i} " + "the " * 300 for i in range(32)]
    with start(f"m={run}") as server, ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(server.post, "/embed", {"texts": texts}) for _ in range(16)]
        while server.metric("firth_held_bytes") == 0 and not answers[0].done():
            time.sleep(0.01)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(20) == 0
        assert time.monotonic() - began < 20
        codes = [answer.result().status_code for answer in answers if answer.exception() is None]
        assert codes.count(200) >= 1
        assert set(codes) == {200}
        # What was not yet accepted may be refused by the kernel, but nothing is broken off in the middle.
        assert all(isinstance(answer.exception(), httpx.ConnectError | None) for answer in answers)
        assert "Traceback" not in server.log.read_text()


def wrk(server: Any, folder: Path, *, clients: int, seconds: int) -> dict[str, Any]:
    """Load with answers checked one by one; gives statuses, wrong answers and the 99th percentile in seconds."""
    right = server.post("/embed", {"texts": ["The door is open."]}).content.decode()
    (folder / "right.txt").write_text(right)
    script = folder / "ask.lua"
    script.write_text(
        f"""
        local file = io.open("{folder / "right.txt"}"); right = file:read("*a"); file:close()
        statuses, wrong, threads = {{}}, 0, {{}}
        function setup(thread) table.insert(threads, thread) end
        wrk.method, wrk.path, wrk.headers["Content-Type"] = "POST", "/embed", "application/json"
        wrk.body = '{{"texts": ["The door is open."]}}'
        function near(body)
          local a, b = body:gmatch("%-?%d+%.?%d*[eE]?%-?%d*"), right:gmatch("%-?%d+%.?%d*[eE]?%-?%d*")
          for x in b do
            local y = a()
            if y == nil or math.abs(tonumber(x) - tonumber(y)) > 1e-5 then return false end
          end
          return a() == nil
        end
        function response(status, headers, body)
          statuses[status] = (statuses[status] or 0) + 1
          if status == 200 and body ~= right and not near(body) then wrong = wrong + 1 end
          if status == 429 and headers["retry-after"] == nil then wrong = wrong + 1 end
        end
        function done(summary, latency, requests)
          for _, thread in ipairs(threads) do
            for status, count in pairs(thread:get("statuses")) do print("status", status, count) end
            print("wrong", thread:get("wrong"))
          end
          print("p99", latency:percentile(99) / 1e6)
          local e = summary.errors
          print("errors", e.connect + e.read + e.write + e.timeout)
        end
        """
    )
    command = ["wrk", "-t1", f"-c{clients}", f"-d{seconds}s", "--timeout", "20s", "-s", script, server.url]
    done = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    statuses = {int(code): int(count) for code, count in re.findall(r"status\s+(\d+)\s+(\d+)", done)}
    numbers = {name: float(re.search(rf"{name}\s+([\d.]+)", done)[1]) for name in ("wrong", "p99", "errors")}  # type: ignore[index]
    return {"statuses": statuses, **numbers}


@needs_wrk
def test_a_little_load(start: Callable[..., Any], run: Path, tmp_path: Path) -> None:
    with start(f"m={run}") as server:
        found = wrk(server, tmp_path, clients=32, seconds=2)
        assert set(found["statuses"]) == {200}
        assert (found["wrong"], found["errors"]) == (0, 0)
        assert found["statuses"][200] > 100


@needs_wrk
def test_a_little_overload(start: Callable[..., Any], run: Path, tmp_path: Path) -> None:
    with start(f"m={run}", "--limit", "queued=4") as server:
        found = wrk(server, tmp_path, clients=64, seconds=2)
        assert set(found["statuses"]) == {200, 429}
        assert (found["wrong"], found["errors"]) == (0, 0)
        until = time.monotonic() + 5  # what the clients that left had queued is dropped first
        while (status := server.post("/embed", {"texts": "after"}).status_code) == 429 and time.monotonic() < until:
            time.sleep(0.1)
        assert status == 200


@pytest.mark.long
@needs_wrk
def test_256_clients_for_half_a_minute(start: Callable[..., Any], run: Path, tmp_path: Path) -> None:
    with start(f"m={run}") as server:
        found = wrk(server, tmp_path, clients=256, seconds=30)
        assert set(found["statuses"]) == {200}
        assert (found["wrong"], found["errors"]) == (0, 0)
        assert found["p99"] <= 1.0


@pytest.mark.long
@needs_wrk
def test_1000_clients(start: Callable[..., Any], run: Path, tmp_path: Path) -> None:
    with start(f"m={run}") as server:
        wrk(server, tmp_path, clients=16, seconds=3)
        before = server.resident
        found = wrk(server, tmp_path, clients=1000, seconds=20)
        assert set(found["statuses"]) <= {200, 429}
        assert (found["wrong"], found["errors"]) == (0, 0)
        assert server.resident - before <= 64 << 20
        time.sleep(5)
        began = time.monotonic()
        assert server.post("/embed", {"texts": "after"}).status_code == 200
        assert time.monotonic() - began < 0.5
        assert server.metric("firth_queued") == 0


def test_wrong_starts(command: Callable[..., Any], run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FIRTH_TOKEN", raising=False)
    (tmp_path / "short").write_text("abc")
    (tmp_path / "latin").write_bytes("ein-schönes-langes-token".encode("latin-1"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for arguments, says in (
            ((f"m={run}", "--host", "0.0.0.0"), "give a token"),
            ((f"m={run}", "--host", "0.0.0.0", "--token-file", tmp_path / "short"), "at least 16"),
            ((f"m={run}", "--token-file", tmp_path / "none"), "none"),
            ((f"m={run}", "--token-file", tmp_path / "latin"), "latin must hold a token"),
            (
                (f"m={run}", "--port", port),
                f"127.0.0.1:{port} cannot be listened on: address already in use; choose another --host or --port.",
            ),
            ((f"m={run}", "--host", "host.invalid", "--token-file", tmp_path / "short"), "at least 16"),
            ((f"m={tmp_path / 'nothing'}", "--port", 0), "nothing"),
            ((f"m={run}", f"m={run}"), "Two models are named 'm'"),
            ((f"a b={run}",), "cannot be a model's name"),
            ((f"m={run}", "--limit", "queued=0"), "must be above 0"),
            ((f"m={run}", "--limit", "quued=1"), "did you mean 'queued'"),
            ((f"m={run}", "--port", 0, "--runs", tmp_path / "none"), "is not a folder"),
        ):
            code, out, err = command("serve", *arguments)
            assert (code, out) == (2, ""), err
            assert err.count("\n") == 1
            assert says in err


def test_without_models_it_serves_those_that_come_with_firth(
    start: Callable[..., Any], with_models: Path, tmp_path: Path
) -> None:
    with start() as server:
        told = httpx.get(f"{server.url}/info").json()
        assert (told["default"], list(told["models"])) == ("en-small", ["en-small", "zh-small"])
        assert not told["runs"]
        assert "No model was named: serving en-small, zh-small." in server.log.read_text().splitlines()
        for name, text in (("en-small", "The [MASK] is open."), ("zh-small", "今天很[MASK]。")):
            assert server.post("/fill", {"model": name, "text": text}).status_code == 200


def test_names_are_served_beside_folders(start: Callable[..., Any], with_models: Path, run: Path) -> None:
    with start("en-small", f"zh={with_models / 'zh-small'}", "other=en-small", run) as server:
        assert list(httpx.get(f"{server.url}/info").json()["models"]) == ["en-small", "zh", "other", run.name]


@pytest.mark.parametrize("has_models", [True, False])
def test_without_models_it_serves_the_demo(
    has_models: bool,
    start: Callable[..., Any],
    models_folder: Path,
    run: Path,
    folders: dict[str, Path],
    tmp_path: Path,
) -> None:
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/run").symlink_to(run)
    (tmp_path / "demo/classify-zh").symlink_to(folders["classify"])
    home = models_folder if has_models else tmp_path
    with start(environment={"FIRTH_MODELS": str(home)}) as server:
        told = httpx.get(f"{server.url}/info").json()
        shipped = ["en-small", "zh-small"] if has_models else []
        assert list(told["models"]) == [*shipped, "demo", "classify-zh"]
        assert told["default"] == next(iter(told["models"]))
        assert [row["name"] for row in httpx.get(f"{server.url}/runs").json()["runs"]] == ["run"]


def test_limits_are_listed(command: Callable[..., Any]) -> None:
    code, out, _ = command("serve", "--limit", "help")
    assert code == 0
    assert "body_bytes=2000000" in out
    assert "queued=512" in out
