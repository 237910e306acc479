"""What machines can do: names of GPUs in, speeds, memory and links out.

The H200 and two cores of a CPU were measured. Other GPUs have the figures of their data sheets, scaled by how much of
its own the H200 reaches.
"""

import math
import os
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Literal

from firth.cpu import num_cores, this_cpu
from firth.errors import BadConfig

CPU = "cpu"


@dataclass(frozen=True)
class Device:
    """One GPU, or all cores of a CPU."""

    name: str
    flops: float
    """Matrix products a second, in floating-point operations, in the precision of training."""
    bandwidth: float
    """Bytes a second from and to its memory."""
    memory: float
    """Bytes."""
    link: float
    """Bytes a second that each device sends to another of the same machine."""
    source: Literal["measured", "data sheet", "probe"] = "data sheet"
    is_half: bool = True
    """Whether training is in bf16 there."""
    speed: float = 1.0
    """What a probe found: the measured speed as a multiple of the predicted one."""


def _gpu(name: str, teraflops: float, terabytes: float, gigabytes: float, *, link: float) -> Device:
    """A GPU by its data sheet: dense bf16 products, memory bandwidth and size, GB/s to its neighbours."""
    # An H200 reached 788 of 989 TFLOP/s in a large product.
    return Device(name, teraflops * 1e12 * 788 / 989, terabytes * 1e12, gigabytes * 1e9, link * 1e9)


NVLINK_SHARE = 0.75
"""Of a link's bytes in one direction that a ring of GPUs uses; assumed."""

GPUS: dict[str, Device] = {
    "H200": replace(_gpu("H200", 989, 4.8, 141, link=450 * NVLINK_SHARE), source="measured"),
    "B200": _gpu("B200", 2250, 8.0, 180, link=900 * NVLINK_SHARE),
    "H100": _gpu("H100", 989, 3.35, 80, link=450 * NVLINK_SHARE),
    "H100-PCIe": _gpu("H100-PCIe", 756, 2.0, 80, link=25),
    "A100": _gpu("A100", 312, 2.04, 80, link=300 * NVLINK_SHARE),
    "A100-40": _gpu("A100-40", 312, 1.555, 40, link=300 * NVLINK_SHARE),
    "L40S": _gpu("L40S", 362, 0.864, 48, link=25),
    "A10": _gpu("A10", 125, 0.6, 24, link=12),
    "L4": _gpu("L4", 121, 0.3, 24, link=12),
    "RTX-4090": _gpu("RTX-4090", 165, 1.008, 24, link=12),
    "RTX-3090": _gpu("RTX-3090", 71, 0.936, 24, link=12),
}
"""By the name that `--gpu` takes."""


@dataclass(frozen=True)
class Core:
    """One core of a CPU."""

    flops: float
    """Products a second, measured."""
    bandwidth: float
    """Bytes a second, such that the bytes of a step take what was measured."""


FP32_CORE = Core(flops=107.5e9, bandwidth=13e9)
"""Of an AMD EPYC (Zen 4, AVX-512)."""
BF16_CORE = Core(flops=526e9, bandwidth=23e9)
"""Of an AMD EPYC (Zen 5, AVX-512 with units for bf16)."""
CPU_MEMORY = 16e9


def cpu(cores: int | None = None, *, precision: str = "auto") -> Device:
    """A CPU with `cores` cores, or those of this process, that trains in this precision."""
    if cores is None:
        cores = num_cores()
    is_half = precision == "bf16" or (precision == "auto" and this_cpu().trains_in_bf16)
    core = BF16_CORE if is_half else FP32_CORE
    return Device(
        CPU,
        flops=cores * core.flops,
        bandwidth=cores * core.bandwidth,
        memory=_memory_here() or CPU_MEMORY,
        link=2e9,
        source="measured",
        is_half=is_half,
    )


def _memory_here() -> float:
    """Bytes of this machine's memory; 0 if the system does not say."""
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        return 0.0


def find(name: str, *, precision: str = "auto") -> Device:
    """A device by name, in any case; a CPU has another speed in each precision."""
    if name.lower() == CPU:
        return cpu(precision=precision)
    by_lower = {known.lower(): device for known, device in GPUS.items()}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    nearest = get_close_matches(name.lower(), list(by_lower), n=1)
    hint = f"; did you mean {by_lower[nearest[0]].name}?" if nearest else ""
    raise BadConfig(f"There is no GPU '{name}' in the table (known: {', '.join(GPUS)}, cpu){hint or '.'}")


def from_cuda_name(name: str) -> str:
    """The name in the table of what CUDA calls a GPU; empty if it is not there."""
    words = name.lower()
    words = words.replace("nvidia", "")
    words = words.replace("geforce ", "")
    words = words.strip().replace(" ", "-")
    # The longest first: an H100-PCIe is also an H100.
    for known in sorted(GPUS, key=len, reverse=True):
        # An L40 is no L4, and an A1000 no A100; but an A10G is nearly an A10.
        if re.search(rf"{re.escape(known.lower())}(?!\d)", words):
            return known
    return ""


@dataclass(frozen=True)
class Cluster:
    """Machines of one kind."""

    device: Device
    machines: int = 1
    devices: int = 1
    """Of each machine."""
    network: float = 100.0
    """Gbit/s of each machine to the others."""
    price: float = 0.0
    """Of one device for an hour; 0 if it is not known."""

    def __post_init__(self) -> None:
        # Written so that NaN and infinity are refused too.
        has_network = 0 < self.network < math.inf
        has_price = 0 <= self.price < math.inf
        if self.machines < 1 or self.devices < 1 or not has_network or not has_price:
            raise BadConfig("A plan needs at least one machine and GPU, network above 0 and price at least 0.")

    @property
    def size(self) -> int:
        """All devices."""
        return self.machines * self.devices
