"""What the CPU can do, under the limits of the environment; and how torch is limited, too."""

import os
import subprocess
import sys

import pytest

from firth import cpu
from firth.errors import BadConfig

EVERYTHING = cpu.Cpu(avx2=True, avx512=True, bf16=True, vnni=True, amx=True)
VARIABLES = (
    "FIRTH_CPU",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "GOMP_SPINCOUNT",
    "KMP_BLOCKTIME",
    "OMP_WAIT_POLICY",
)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def with_flags(monkeypatch: pytest.MonkeyPatch, line: str, *, machine: str = "x86_64") -> None:
    monkeypatch.setattr(cpu, "_cpuinfo", lambda: ["model name\t: Some CPU", line])
    monkeypatch.setattr(cpu.platform, "machine", lambda: machine)
    monkeypatch.setattr(cpu, "native_cpu", cpu.native_cpu.__wrapped__)


@pytest.mark.parametrize(
    ("flags", "units"),
    [
        ("sse4_1", []),
        ("avx2 fma", ["avx2"]),
        ("avx2 avx_vnni", ["avx2", "vnni"]),
        ("avx2 avx512f", ["avx2"]),
        ("avx2 avx512f avx512bw avx512vl avx512dq", ["avx2", "avx512"]),
        ("avx2 avx512f avx512bw avx512vl avx512dq avx512_vnni", ["avx2", "avx512", "vnni"]),
        ("avx2 avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16", ["avx2", "avx512", "bf16", "vnni"]),
    ],
)
def test_units_by_the_flags_of_the_system(monkeypatch: pytest.MonkeyPatch, flags: str, units: list[str]) -> None:
    with_flags(monkeypatch, f"flags\t\t: {flags}")
    assert cpu.this_cpu().units() == units
    assert cpu.cpu_name() == " ".join(["Some CPU", *units])


def test_arm(monkeypatch: pytest.MonkeyPatch) -> None:
    with_flags(monkeypatch, "Features\t: fp asimd asimddp bf16", machine="aarch64")
    monkeypatch.setenv("FIRTH_CPU", "avx2")  # says nothing of this CPU
    assert cpu.this_cpu() == cpu.Cpu(arm=True, bf16=True, vnni=True)


@pytest.mark.parametrize(
    ("variables", "units"),
    [
        ({}, ["avx2", "avx512", "bf16", "vnni", "amx"]),
        ({"FIRTH_CPU": "native"}, ["avx2", "avx512", "bf16", "vnni", "amx"]),
        ({"FIRTH_CPU": "avx2"}, ["avx2"]),
        ({"FIRTH_CPU": "avx512"}, ["avx2", "avx512"]),
        ({"ONEDNN_MAX_CPU_ISA": "AVX2"}, ["avx2"]),
        ({"ONEDNN_MAX_CPU_ISA": "avx2_vnni"}, ["avx2", "vnni"]),
        ({"DNNL_MAX_CPU_ISA": "AVX512_CORE_VNNI"}, ["avx2", "avx512", "vnni"]),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}, ["avx2", "avx512", "bf16", "vnni"]),
        ({"ONEDNN_MAX_CPU_ISA": "ALL"}, ["avx2", "avx512", "bf16", "vnni", "amx"]),
        ({"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI", "FIRTH_CPU": "avx2"}, ["avx2"]),
        ({"ONEDNN_MAX_CPU_ISA": "AVX2_VNNI", "FIRTH_CPU": "avx512"}, ["avx2"]),
    ],
)
def test_limits(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], units: list[str]) -> None:
    monkeypatch.setattr(cpu, "native_cpu", lambda: EVERYTHING)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cpu.this_cpu().units() == units


def test_no_limit_adds_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "native_cpu", lambda: cpu.Cpu(avx2=True))
    monkeypatch.setenv("FIRTH_CPU", "avx512")
    assert cpu.this_cpu() == cpu.Cpu(avx2=True)


def test_unknown_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRTH_CPU", "z80")
    with pytest.raises(BadConfig, match=r"FIRTH_CPU is 'z80'; it can be avx2, avx512, native"):
        cpu.this_cpu()


def environment_of(**variables: str) -> dict[str, str]:
    """What `import firth` leaves in the environment of a process, and whether it has imported torch."""
    code = "import firth, os, sys; print([*os.environ.items()]); print('torch' in sys.modules)"
    plain = {name: value for name, value in os.environ.items() if name not in (*VARIABLES, "ATEN_CPU_CAPABILITY")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=plain | variables, capture_output=True, text=True, check=True
    )
    items, has_torch = done.stdout.splitlines()
    assert has_torch == "False"
    return dict(eval(items))


def test_what_a_user_has_set_stays() -> None:
    assert environment_of(FIRTH_CPU="avx2", ONEDNN_MAX_CPU_ISA="AVX2_VNNI")["ONEDNN_MAX_CPU_ISA"] == "AVX2_VNNI"


def test_the_variable_for_tests_limits_torch_as_well() -> None:
    found = environment_of(FIRTH_CPU="avx2")
    assert found["ONEDNN_MAX_CPU_ISA"] == "AVX2"
    assert found["ATEN_CPU_CAPABILITY"] == "avx2"
    assert "ONEDNN_MAX_CPU_ISA" not in environment_of(FIRTH_CPU="native")


def test_a_misspelt_variable_is_warned_of_on_import() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import firth"], env={**os.environ, "FIRTH_CPU": "avx"}, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert "FIRTH_CPU is 'avx'; it can be avx2, avx512, native." in done.stderr
