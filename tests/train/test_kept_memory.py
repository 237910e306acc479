"""Memory that a step frees stays with the process, and goes back to the system at the end of training."""

import gc
import resource
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


@pytest.fixture(autouse=True)
def no_free_memory() -> None:
    """Free memory that earlier tests left would be used for the blocks, and nothing would seem to grow."""
    gc.collect()
    allocator = kept_memory._glibc()
    assert allocator is not None
    allocator.malloc_trim(0)


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def test_a_block_is_handed_out_once_and_goes_back_at_the_end() -> None:
    before = resident_bytes()
    with keep_memory():
        page_faults_of_steps(1)
        assert resident_bytes() > before + NUM_BYTES // 2
        # Thirty new blocks, or a few that are used again and again.
        assert page_faults_of_steps(30) < 10 * NUM_BYTES // PAGE
    assert resident_bytes() < before + NUM_BYTES // 2


def test_the_last_of_several_runs_gives_the_memory_back() -> None:
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
