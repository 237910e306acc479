"""`firth.serve` from Python: it blocks, answers on loopback, and ends when another thread asks it to."""

import logging
import re
import resource
import time
from pathlib import Path
from threading import Event, Thread

import httpx
import pytest
import torch

import firth
from firth.errors import BadConfig
from firth.serving import server


def address(caplog: pytest.LogCaptureFixture) -> str:
    """Where the server listens, as soon as it says so."""
    for _ in range(600):
        found = re.search(r"Serving on (\S+)", caplog.text)
        if found:
            return found[1]
        time.sleep(0.05)
    raise AssertionError("the server did not start")


@pytest.mark.parametrize("named", [True, False], ids=["by name", "by folder"])
def test_serve_answers_until_it_is_stopped(named: bool, run: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="firth")
    models = {"small": run} if named else run
    stop = Event()
    server = Thread(target=firth.serve, args=(models,), kwargs={"port": 0, "stop": stop})
    server.start()
    try:
        url = address(caplog)
        answer = httpx.post(f"{url}/fill", json={"text": "The [MASK] is open.", "top": 2}).json()
        assert server.is_alive()
    finally:
        stop.set()
        server.join(30)
    assert answer["model"] == ("small" if named else run.name)
    found = [row["token"] for row in answer["masks"][0]["candidates"]]
    assert found == [row.token for row in firth.load(run).fill("The [MASK] is open.", top=2)]
    assert not server.is_alive()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/health")


def test_gradients_still_work_after_serving(run: Path) -> None:
    stop = Event()
    stop.set()
    firth.serve(run, port=0, stop=stop)
    assert torch.is_grad_enabled()


def test_names_are_checked(run: Path) -> None:
    with pytest.raises(BadConfig, match="'a b' cannot be a model's name"):
        firth.serve({"a b": run})


def test_the_limit_of_open_files_is_never_lowered() -> None:
    no_limit = resource.RLIM_INFINITY
    assert server.open_files_limit(1024, 4096) == 4096
    assert server.open_files_limit(1024, 1 << 20) == server.MAX_OPEN_FILES
    assert server.open_files_limit(1024, no_limit) == server.MAX_OPEN_FILES
    for soft, hard in ((1 << 19, 1 << 20), (1 << 20, no_limit), (no_limit, no_limit)):
        assert server.open_files_limit(soft, hard) == soft


def test_a_server_starts_where_the_limit_of_open_files_cannot_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    with server.listen("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1]
