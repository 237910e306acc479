"""Several processes on one port: the same answers, added metrics, shared weights, and a lost one is replaced."""

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from firth.config import to_dict
from firth.errors import Unsupported
from firth.inference.model import load
from firth.serving import server as server_module
from firth.serving import workers
from firth.serving.limits import Limits
from firth.serving.shared_weights import SMALLEST, share_weights
from firth.serving.workers import WorkerSpec


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in found.split()]


def wait_for(condition: Callable[[], bool], *, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture(scope="module")
def server(serve_for_module, run) -> Any:
    with serve_for_module(f"m={run}", "--workers", "2") as served:
        wait_for(lambda: len(children(served.process.pid)) == 2)
        yield served


def ask(server: Any, text: str = "asked") -> httpx.Response:
    """One request on a connection of its own, which any worker may accept."""
    return httpx.post(f"{server.url}/embed", json={"texts": text}, timeout=60)


def test_workers_answer_as_the_model_does(server, run):
    wanted = load(run).embed(["asked"])
    for _ in range(10):
        answer = ask(server)
        assert answer.status_code == 200
        np.testing.assert_allclose(answer.json()["vectors"], wanted, atol=1e-5)


def test_metrics_are_those_of_all_workers(server):
    def count() -> float:
        return server.metric("firth_requests_total")

    before = count()
    for _ in range(12):
        ask(server)
    # The requests for the metrics count, too.
    assert count() - before >= 12
    assert "pid=" not in server.client.get(f"{server.url}/metrics").text


def test_a_killed_worker_is_replaced_and_others_go_on(server):
    killed, other = children(server.process.pid)
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: killed not in children(server.process.pid) and len(children(server.process.pid)) == 2)
    assert other in children(server.process.pid)
    for _ in range(5):
        assert ask(server).status_code == 200
    assert f"Worker {killed}" in server.log.read_text()


@pytest.mark.long
def test_a_stopped_worker_is_replaced(run, tmp_path):
    """A process that does not run cannot report; patience is short here."""
    code = (
        "import sys; from firth.serving import workers; workers.STALLED_SECONDS = 3.0;"
        "sys.argv[0] = 'firth'; from firth.cli import main; main()"
    )
    log = tmp_path / "log.txt"
    with log.open("wb") as file:
        command = [sys.executable, "-c", code, "serve", f"m={run}", "--workers", "2", "--port", "0"]
        process = subprocess.Popen(command, stderr=file)
    try:
        wait_for(lambda: "Serving on" in log.read_text())
        wait_for(lambda: len(children(process.pid)) == 2)
        stopped = children(process.pid)[0]
        os.kill(stopped, signal.SIGSTOP)
        wait_for(lambda: stopped not in children(process.pid))
        url = re.search(r"Serving on (\S+)", log.read_text())[1]  # type: ignore[index]
        assert httpx.get(f"{url}/health", timeout=30).status_code == 200
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


@pytest.mark.long
def test_workers_end_with_their_supervisor_and_leave_nothing(start, run, tmp_path):
    with start(f"m={run}", "--workers", "2", environment={"TMPDIR": str(tmp_path)}) as server:
        wait_for(lambda: len(children(server.process.pid)) == 2)
        workers = children(server.process.pid)
        server.process.kill()
        server.process.wait()
        wait_for(lambda: not any(Path(f"/proc/{worker}/cmdline").exists() for worker in workers))
    assert not list(tmp_path.glob("firth-serve-*"))


def test_sigterm_ends_all_and_leaves_nothing(start, run):
    with start(f"m={run}", "--workers", "2") as server:
        wait_for(lambda: len(children(server.process.pid)) == 2)
        workers = children(server.process.pid)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
        # Nothing is said about steps, which a server does not have.
        assert server.log.read_text().splitlines()[1:] == []


def test_mistakes_are_one_sentence(command, run, tmp_path):
    wrong = command("serve", f"m={tmp_path}", "--workers", "2", "--port", "0")
    assert wrong.code == 2
    assert wrong.err.count("\n") == 1
    assert str(tmp_path) in wrong.err
    open_to_all = command("serve", f"m={run}", "--workers", "2", "--host", "0.0.0.0")
    assert "token" in open_to_all.err


def test_shared_weights_are_the_same_memory(run, tmp_path):
    first = load(run)
    second = load(run)
    wanted = first.embed(["A text."])
    file = tmp_path / "weights"
    num_shared = share_weights(first, file)
    assert num_shared == share_weights(second, file) > 0
    large = [tensor for tensor in second.encoder.parameters() if tensor.nbytes >= SMALLEST]
    mapped = Path("/proc/self/maps").read_text()
    ranges = [line.split()[0].split("-") for line in mapped.splitlines() if str(file) in line]
    for tensor in large:
        assert any(int(low, 16) <= tensor.data_ptr() < int(high, 16) for low, high in ranges)
    assert np.array_equal(second.embed(["A text."]), wanted)


def test_other_weights_stay_private(run, tmp_path):
    first = load(run)
    share_weights(first, tmp_path / "weights")
    second = load(run)
    with torch.no_grad():
        changed = next(tensor for tensor in second.encoder.parameters() if tensor.nbytes >= SMALLEST)
        changed.add_(1.0)
    before = changed.clone()
    share_weights(second, tmp_path / "weights")
    assert torch.equal(changed, before)


class FakeProcess:
    """A process that has ended with an exit code, or runs."""

    pid = 1 << 30

    def __init__(self, returncode: int | None = None) -> None:
        self.returncode = returncode
        self.stdin = io.BytesIO()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        return self.returncode

    def send_signal(self, number: int) -> None:
        self.returncode = -number

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@pytest.fixture
def spec(tmp_path) -> WorkerSpec:
    return WorkerSpec({}, "127.0.0.1", Limits(), None, None, None, None, shared=str(tmp_path))


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


def test_a_worker_does_not_import_from_the_current_folder(spec, listener, monkeypatch):
    environments = []

    def start(*_: object, env: dict[str, str], **__: object) -> FakeProcess:
        environments.append(env)
        return FakeProcess(0)

    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(subprocess, "Popen", start)
    workers._ServingProcess(spec, listener, 1).forget()
    folders = environments[0]["PYTHONPATH"].split(os.pathsep)
    assert "" not in folders
    assert str(Path(workers.__file__).parents[2]) in folders


def test_an_error_after_reports_is_not_lost(spec, listener, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: FakeProcess(0))
    worker = workers._ServingProcess(spec, listener, 1)
    os.close(worker.reports)
    worker.reports, sender = os.pipe()
    os.set_blocking(worker.reports, False)
    os.write(sender, b'..!["BadInput", "..."]')
    worker.look()
    os.close(sender)
    worker.forget()
    assert worker.is_ready
    assert str(workers._as_error(worker.error)) == "..."


def test_workers_that_die_while_they_load_end_the_server(spec, listener, monkeypatch):
    """However long loading takes: a worker that memory does not suffice for would be started again for ever."""
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: FakeProcess(-signal.SIGKILL))
    monkeypatch.setattr(workers, "EARLY_SECONDS", 0.0)
    with pytest.raises(Unsupported, match="memory ran out"):
        workers._Supervisor(spec, listener, 1).run(lambda: False)


def test_early_ends_are_forgotten_once_all_workers_serve(spec, listener, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: FakeProcess())
    monkeypatch.setattr(workers, "EARLY_SECONDS", 0.0)
    supervisor = workers._Supervisor(spec, listener, 1)
    supervisor.num_early_ends = workers.MAX_EARLY_ENDS - 1

    def is_over() -> bool:
        for worker in supervisor.workers:
            worker.is_ready = True
        return supervisor.num_early_ends == 0

    supervisor.run(is_over)
    supervisor.end(0.0)


def test_a_file_that_a_worker_cannot_read_is_one_sentence(spec, listener, monkeypatch):
    def answer(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "index/vectors.bin")

    receiver, sender = os.pipe()
    monkeypatch.setattr(server_module, "answer", answer)
    monkeypatch.setattr(socket, "socket", lambda fileno: listener)
    monkeypatch.setattr(sys, "argv", ["-c", str(listener.fileno()), str(sender)])
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(to_dict(spec))))
    with pytest.raises(SystemExit):
        workers.work()
    os.close(sender)
    error = workers._as_error(os.read(receiver, 4096))
    os.close(receiver)
    assert "index/vectors.bin could not be read" in str(error)
