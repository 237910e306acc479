"""Memory that a step frees stays with the process, and goes back to the system at the end of training."""

import resource
import subprocess
import sys

import pytest
import torch

from firth.train import kept_memory
from firth.train.kept_memory import keep_memory

pytestmark = pytest.mark.skipif(kept_memory._glibc() is None, reason="glibc's allocator is needed")
NUM_BYTES = 64 * 2**20
PAGE = resource.getpagesize()


def page_faults_of_steps(count: int) -> int:
    """How many pages the system hands out while a block of 64 MB is filled and freed so many times."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(count):
        block = torch.ones(NUM_BYTES, dtype=torch.uint8)
        del block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


@pytest.mark.parametrize("check", ["check_a_block_is_handed_out_once", "check_the_last_of_several_gives_back"])
def test_in_a_process_of_its_own(check: str) -> None:
    """Free memory that earlier tests left in this process would be used for the blocks, and nothing would grow."""
    done = subprocess.run([sys.executable, __file__, check], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def check_a_block_is_handed_out_once() -> None:
    before = resident_bytes()
    with keep_memory():
        page_faults_of_steps(1)
        assert resident_bytes() > before + NUM_BYTES // 2
        # Thirty new blocks, or a few that are used again and again.
        assert page_faults_of_steps(30) < 10 * NUM_BYTES // PAGE
    assert resident_bytes() < before + NUM_BYTES // 2


def check_the_last_of_several_gives_back() -> None:
    before = resident_bytes()
    with keep_memory():
        with keep_memory():
            page_faults_of_steps(1)
        assert resident_bytes() > before + NUM_BYTES // 2
    assert resident_bytes() < before + NUM_BYTES // 2


def test_without_glibc_nothing_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    kept_memory._glibc.cache_clear()
    try:
        with keep_memory():
            assert kept_memory._num_inside == 0
    finally:
        monkeypatch.undo()
        kept_memory._glibc.cache_clear()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
