"""Threads stop spinning beside a busy process, and nothing else changes."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from firth.train import shared_cores

BUSY = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
needs_libgomp = pytest.mark.skipif(shared_cores.find_libgomp() is None, reason="torch does not use libgomp here")


def native_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def until(wanted: bool, sleeping: threading.Event) -> bool:
    """Waits until sleepers are there, or gone."""
    end = time.monotonic() + 30
    while sleeping.is_set() != wanted and time.monotonic() < end:
        time.sleep(0.05)
    return sleeping.is_set() == wanted


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@needs_libgomp
def test_sleepers_are_threads_of_libgomp_and_end() -> None:
    libgomp = shared_cores.find_libgomp()
    assert libgomp is not None
    before = native_threads()
    sleepers = shared_cores.Sleepers(libgomp, 3)
    end = time.monotonic() + 30
    while native_threads() < before + 3 and time.monotonic() < end:
        time.sleep(0.01)
    assert native_threads() == before + 3  # the one that owns them counts among the three
    sleepers.end()
    while native_threads() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert native_threads() == before


@needs_libgomp
def test_sleepers_come_and_go_with_the_load(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    load = [0.0]
    sleeping = threading.Event()

    class Watched(shared_cores.Sleepers):
        def __init__(self, libgomp: object, count: int) -> None:
            super().__init__(libgomp, count)  # type: ignore[arg-type]
            sleeping.set()

        def end(self) -> None:
            super().end()
            sleeping.clear()

    monkeypatch.setattr(shared_cores, "INTERVAL", 0.02)
    monkeypatch.setattr(shared_cores, "Sleepers", Watched)
    monkeypatch.setattr(shared_cores, "_load_of_others", lambda cores: lambda: load[0])
    x = torch.randn(400, 400)
    expected = x @ x
    with shared_cores.share_cores():
        assert torch.equal(x @ x, expected)
        time.sleep(0.2)
        assert not sleeping.is_set()
        load[0] = float(len(os.sched_getaffinity(0)))
        assert until(True, sleeping)
        assert torch.equal(x @ x, expected)
        assert torch.get_num_threads() == 2
        load[0] = 0.0
        assert until(False, sleeping)
        load[0] = float(len(os.sched_getaffinity(0)))
        assert until(True, sleeping)
    assert not sleeping.is_set()
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the load is read from /proc/stat")
def test_the_load_of_others_is_seen() -> None:
    used = shared_cores._load_of_others(os.sched_getaffinity(0))
    neighbour = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        time.sleep(1)
        used()
        time.sleep(1)
        found = used()
    finally:
        neighbour.kill()
        neighbour.wait()
    assert 0.2 < found < os.cpu_count() + 0.5  # type: ignore[operator]


def test_one_thread_needs_no_watcher() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    running = threading.active_count()
    with shared_cores.share_cores():
        assert threading.active_count() == running
    torch.set_num_threads(before)
