"""Which GPU a process of several takes."""

import pytest

from firth.errors import BadConfig
from firth.train.launch import gpu_number


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.delenv("SLURM_LOCALID", raising=False)


def test_a_process_that_was_started_alone_takes_the_first_gpu() -> None:
    assert gpu_number(8) == 0


def test_processes_of_srun_take_a_gpu_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_LOCALID", "3")
    assert gpu_number(8) == 3
    assert gpu_number(1) == 0  # srun shows each process only its own
    with pytest.raises(BadConfig, match="This machine has 2 GPUs"):
        gpu_number(2)


def test_torchrun_counts_also_where_srun_started_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_LOCALID", "0")
    monkeypatch.setenv("LOCAL_RANK", "5")
    assert gpu_number(8) == 5
    with pytest.raises(BadConfig, match="This machine has 1 GPU;"):
        gpu_number(1)
