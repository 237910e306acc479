"""The communication terms of `firth plan` against gloo: seconds of adding up gradients over 2 and 4 processes.

    python -m bench.gloo_cpu

Bandwidth and latency are fitted to two processes; those of four are then predicted by the ring's formula. The processes
share one machine, and its cores do the sending: where there are more processes than cores, each has its share of the
bandwidth. This checks the form of the terms and says nothing about the speed of a cluster.
"""

import argparse
import multiprocessing
import time
from collections.abc import Mapping
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

import torch

from firth.cpu import num_cores
from firth.planning.communication import all_reduce_seconds

MEGABYTES = (4, 16, 32)
REPEATS = 20


def rank(number: int, size: int, folder: str, answers: Any) -> None:
    """Times all-reduces of several sizes in one process."""
    torch.set_num_threads(1)
    rendezvous = f"file://{folder}/rendezvous-{size}"
    torch.distributed.init_process_group("gloo", init_method=rendezvous, rank=number, world_size=size)
    found: dict[int, float] = {}
    for megabytes in MEGABYTES:
        tensor = torch.ones(megabytes * 2**20 // 4)
        seconds = []
        for _ in range(REPEATS):
            torch.distributed.barrier()
            began = time.perf_counter()
            torch.distributed.all_reduce(tensor)
            seconds.append(time.perf_counter() - began)
        found[megabytes] = min(seconds)  # the least disturbed by other programs
    torch.distributed.destroy_process_group()
    if number == 0:
        answers.put(found)


def measured(size: int) -> dict[int, float]:
    """Seconds by megabytes, the shortest of many."""
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    with TemporaryDirectory() as folder:
        processes = [context.Process(target=rank, args=(number, size, folder, answers)) for number in range(size)]
        for process in processes:
            process.start()
        found: dict[int, float] = answers.get(timeout=120)
        for process in processes:
            process.join()
    return found


@dataclass(frozen=True)
class Link:
    """What two processes have between them."""

    bandwidth: float
    """Bytes a second."""
    latency: float
    """Seconds of a message."""

    @classmethod
    def fitted(cls, seconds: Mapping[int, float]) -> "Link":
        """To the smallest and the largest message: seconds = bytes / bandwidth + 2 x latency for two processes."""
        smallest = MEGABYTES[0]
        largest = MEGABYTES[-1]
        bandwidth = (largest - smallest) * 2**20 / (seconds[largest] - seconds[smallest])
        latency = (seconds[smallest] - smallest * 2**20 / bandwidth) / 2
        return cls(bandwidth, max(0.0, latency))

    def predicted(self, megabytes: int, size: int) -> float:
        """Seconds by the ring's formula, with the bandwidth that is left to each of so many processes."""
        share = min(1.0, num_cores() / size)
        return all_reduce_seconds(megabytes * 2**20, size, bandwidth=share * self.bandwidth, latency=self.latency)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    two = measured(2)
    link = Link.fitted(two)
    cores = num_cores()
    print(f"{cores} cores; two processes: {link.bandwidth / 1e9:.2f} GB/s, latency {link.latency * 1e6:.0f} us")
    print("| processes | MB | measured ms | predicted ms | ratio |")
    print("|---|---|---|---|---|")
    for size, found in ((2, two), (4, measured(4))):
        for megabytes, seconds in found.items():
            predicted = link.predicted(megabytes, size)
            print(f"| {size} | {megabytes} | {1e3 * seconds:.2f} | {1e3 * predicted:.2f} | {predicted / seconds:.2f} |")


if __name__ == "__main__":
    main()
