"""The cores and the instruction sets of the CPU. All other modules ask this one.

In: the CPU's flags, and the limits in the environment variables `ONEDNN_MAX_CPU_ISA` and `FIRTH_CPU`. Out: a `Cpu`.
`FIRTH_CPU` is for tests: with `avx2` or `avx512` (which is without bf16 and VNNI), firth and torch behave as on such a
machine; `native` sets no limit.
"""

import os
import platform
import warnings
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from firth.errors import BadConfig

EMULATED = {"avx2": "AVX2", "avx512": "AVX512_CORE", "native": ""}
"""The values of `FIRTH_CPU` -> oneDNN's names of the same CPUs."""
ONEDNN_UNITS = {
    "SSE41": (),
    "AVX": (),
    "AVX2": ("avx2",),
    "AVX2_VNNI": ("avx2", "vnni"),
    "AVX2_VNNI_2": ("avx2", "vnni"),
    "AVX512_CORE": ("avx2", "avx512"),
    "AVX512_CORE_VNNI": ("avx2", "avx512", "vnni"),
    "AVX512_CORE_BF16": ("avx2", "avx512", "vnni", "bf16"),
    "AVX512_CORE_FP16": ("avx2", "avx512", "vnni", "bf16"),
    "AVX10_1_512": ("avx2", "avx512", "vnni", "bf16"),
}
"""The units that oneDNN uses for each value of `ONEDNN_MAX_CPU_ISA`; other values set no limit."""


@dataclass(frozen=True)
class Cpu:
    """The units that matter for matrix products."""

    avx2: bool = False
    avx512: bool = False
    bf16: bool = False
    """Instructions for products of bf16 numbers. Without them bf16 is slower than fp32."""
    vnni: bool = False
    """Instructions that sum products of bytes in 32 bits. Without them, x86 sums pairs in 16 bits, which saturate."""
    amx: bool = False
    arm: bool = False

    @property
    def trains_in_bf16(self) -> bool:
        """Whether training is faster in bf16 than in fp32. CPUs other than x86 were not measured."""
        return self.avx512 and self.bf16

    def units(self) -> list[str]:
        """The names of the units that the CPU has."""
        return [field.name for field in fields(self) if getattr(self, field.name)]


def num_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def this_cpu() -> Cpu:
    """The units that the CPU has and the environment allows."""
    native = native_cpu()
    allowed = _allowed_units()
    # The limits are about x86 only.
    if allowed is None or native.arm:
        return native
    units = [unit for unit in native.units() if unit in allowed]
    return Cpu(**dict.fromkeys(units, True))


@cache
def native_cpu() -> Cpu:
    """The units of the CPU, from the operating system's flags; without flags (not Linux), from torch."""
    flags = _flags()
    is_arm = platform.machine().lower() in ("aarch64", "arm64")
    if is_arm:
        return Cpu(arm=True, bf16="bf16" in flags, vnni="asimddp" in flags)
    if flags:
        return Cpu(
            avx2="avx2" in flags,
            avx512={"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= flags,
            bf16="avx512_bf16" in flags or "amx_bf16" in flags,
            vnni="avx512_vnni" in flags or "avx_vnni" in flags,
            amx="amx_tile" in flags,
        )
    return Cpu(
        avx2=_torch_has("_is_avx2_supported"),
        avx512=_torch_has("_is_avx512_supported"),
        bf16=_torch_has("_is_avx512_bf16_supported"),
        vnni=_torch_has("_is_vnni_supported"),
        amx=_torch_has("_is_amx_tile_supported"),
    )


def cpu_name() -> str:
    """The CPU's model and units in one line."""
    wanted = ("model name", "cpu family", "model\t", "stepping", "CPU implementer", "CPU part")
    values: list[str] = []
    # The first lines are about the first core, and all cores are the same.
    for line in _cpuinfo()[:10]:
        if line.startswith(wanted):
            value = line.partition(":")[2]
            values.append(value.strip())
    model = " ".join(values) or platform.processor() or platform.machine()
    return " ".join([model, *this_cpu().units()])


def configure() -> None:
    """Limits torch and oneDNN as `FIRTH_CPU` says. They read these variables at their first use; set ones are kept."""
    emulated = os.environ.get("FIRTH_CPU", "native")
    if emulated not in EMULATED:
        # A warning only, because an error would make the package impossible to import.
        warnings.warn(_unknown(emulated), stacklevel=2)
    isa = EMULATED.get(emulated, "")
    if isa:
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", isa)
        capability = "avx512" if "512" in isa else "avx2"
        os.environ.setdefault("ATEN_CPU_CAPABILITY", capability)


def _unknown(emulated: str) -> str:
    return f"FIRTH_CPU is '{emulated}'; it can be {', '.join(EMULATED)}."


def _allowed_units() -> set[str] | None:
    """The units that the environment allows; None if it sets no limit."""
    emulated = os.environ.get("FIRTH_CPU", "native")
    if emulated not in EMULATED:
        raise BadConfig(_unknown(emulated))
    limits = (
        os.environ.get("ONEDNN_MAX_CPU_ISA", ""),
        os.environ.get("DNNL_MAX_CPU_ISA", ""),  # oneDNN's old name of the same variable
        EMULATED[emulated],
    )
    allowed: list[set[str]] = []
    for limit in limits:
        if limit.upper() in ONEDNN_UNITS:
            allowed.append(set(ONEDNN_UNITS[limit.upper()]))
    if not allowed:
        return None
    # A unit is used if every limit allows it.
    return set.intersection(*allowed)


def _flags() -> set[str]:
    """The CPU's flags; empty if the operating system does not show them."""
    for line in _cpuinfo():
        name, _, value = line.partition(":")
        # "flags" on x86, "Features" on ARM.
        if name.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


@cache
def _cpuinfo() -> list[str]:
    """The lines of Linux's `/proc/cpuinfo`; empty on other systems."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return []
    return path.read_text(errors="replace").splitlines()


def _torch_has(name: str) -> bool:
    """The result of one of torch's private functions; False if this version of torch does not have it."""
    import torch

    function = getattr(torch.cpu, name, None)
    if function is None:
        return False
    return bool(function())
