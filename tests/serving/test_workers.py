"""Several processes on one port: the same answers, added metrics, shared weights, and a lost one is replaced."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch

from firth.inference.model import load
from firth.serving.shared_weights import SMALLEST, share_weights


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
def test_workers_end_with_their_supervisor(start, run):
    with start(f"m={run}", "--workers", "2") as server:
        wait_for(lambda: len(children(server.process.pid)) == 2)
        workers = children(server.process.pid)
        server.process.kill()
        server.process.wait()
        wait_for(lambda: not any(Path(f"/proc/{worker}/cmdline").exists() for worker in workers))


def test_sigterm_ends_all_and_leaves_nothing(start, run):
    with start(f"m={run}", "--workers", "2") as server:
        wait_for(lambda: len(children(server.process.pid)) == 2)
        workers = children(server.process.pid)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 0
        assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


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
