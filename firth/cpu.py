"""What the CPU can do. Everything else asks here.

In: the CPU's own flags, the limits of `ONEDNN_MAX_CPU_ISA` and `FIRTH_CPU`. Out: a `Cpu`. `FIRTH_CPU` is for tests:
`avx2` or `avx512` (without units for bf16 or bytes) makes firth and torch behave as on such a machine, `native` as on
this one.
"""

import os
import platform
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from firth.errors import BadConfig

EMULATED = {"avx2": "AVX2", "avx512": "AVX512_CORE", "native": ""}
"""The values of `FIRTH_CPU`, and how oneDNN names the same CPU."""
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
"""What oneDNN uses under each value of `ONEDNN_MAX_CPU_ISA`; values that are not here set no limit."""


@dataclass(frozen=True)
class Cpu:
    """The units that matter to matrix products."""

    avx2: bool = False
    avx512: bool = False
    bf16: bool = False
    """Products of bf16 numbers have instructions of their own. Without them bf16 is slower than fp32."""
    vnni: bool = False
    """Products of bytes are added up in 32 bits. Without it, x86 adds two products in 16 bits, which saturate."""
    amx: bool = False
    arm: bool = False

    def units(self) -> list[str]:
        """The names of what is there."""
        return [field.name for field in fields(self) if getattr(self, field.name)]


def this_cpu() -> Cpu:
    """What the CPU has and the environment allows."""
    own = native_cpu()
    allowed = _allowed()
    if allowed is None or own.arm:
        return own
    units = [unit for unit in own.units() if unit in allowed]
    return Cpu(**dict.fromkeys(units, True))


@cache
def native_cpu() -> Cpu:
    """What the CPU has, by the flags that the operating system shows, else by torch's own look at it."""
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
        avx2=_torch_sees("_is_avx2_supported"),
        avx512=_torch_sees("_is_avx512_supported"),
        bf16=_torch_sees("_is_avx512_bf16_supported"),
        vnni=_torch_sees("_is_vnni_supported"),
        amx=_torch_sees("_is_amx_tile_supported"),
    )


def cpu_name() -> str:
    """The CPU's model and units in one line."""
    wanted = ("model name", "cpu family", "model\t", "stepping", "CPU implementer", "CPU part")
    found = [line.partition(":")[2].strip() for line in _cpuinfo()[:10] if line.startswith(wanted)]
    model = " ".join(found) or platform.processor() or platform.machine()
    return " ".join([model, *this_cpu().units()])


def configure() -> None:
    """Limits torch and oneDNN to what `FIRTH_CPU` says; they read this at their first use. What is set stays."""
    isa = EMULATED.get(os.environ.get("FIRTH_CPU", "native"), "")
    if isa:
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", isa)
        os.environ.setdefault("ATEN_CPU_CAPABILITY", "avx512" if "512" in isa else "avx2")


def _allowed() -> tuple[str, ...] | None:
    """The units that the environment allows; None where it sets no limit."""
    asked = os.environ.get("FIRTH_CPU", "native")
    if asked not in EMULATED:
        raise BadConfig(f"FIRTH_CPU is '{asked}'; it can be {', '.join(EMULATED)}.")
    limits = (os.environ.get("ONEDNN_MAX_CPU_ISA"), os.environ.get("DNNL_MAX_CPU_ISA"), EMULATED[asked])
    found = [ONEDNN_UNITS[limit.upper()] for limit in limits if limit and limit.upper() in ONEDNN_UNITS]
    return min(found, key=len) if found else None


def _flags() -> set[str]:
    for line in _cpuinfo():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return set(value.split())
    return set()


@cache
def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def _torch_sees(name: str) -> bool:
    """What one of torch's private functions says; they differ between versions."""
    import torch

    function = getattr(torch.cpu, name, None)
    return bool(function()) if function is not None else False
