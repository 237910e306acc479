"""The tests of precisions as on other CPUs: each in a process of its own, because oneDNN reads its limit once.

A limit above what the CPU has changes nothing, so these run on any x86 machine; ARM cannot be made to look like one.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from firth.cpu import native_cpu

TESTS = Path(__file__).parent
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
AVX512 = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}
AVX512_VNNI = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}
AS = [pytest.param(AVX2, id="avx2"), pytest.param(AVX512, id="avx512"), pytest.param(AVX512_VNNI, id="avx512-vnni")]
SMALL = "not real_model"
INT8 = "not real_model or real_model and int8"
pytestmark = pytest.mark.skipif(native_cpu().arm, reason="an ARM CPU cannot be limited to an x86 one's units")


def run_python(*arguments: object, limits: dict[str, str], cache: Path) -> subprocess.CompletedProcess[str]:
    unlimited = {name: value for name, value in os.environ.items() if name != "FIRTH_CPU"}
    environment = {**unlimited, **limits, "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)


def run_tests(limits: dict[str, str], cache: Path, chosen: str) -> None:
    files = [TESTS / "test_precision.py", TESTS / "test_embed.py"]
    quiet = ("-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp", cache / "tests")
    done = run_python("-m", "pytest", *quiet, "-k", chosen, *files, limits=limits, cache=cache)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.parametrize("limits", AS)
def test_precisions_as_on_another_cpu(limits: dict[str, str], tmp_path: Path) -> None:
    run_tests(limits, tmp_path, INT8 if limits is AVX2 else SMALL)


@pytest.mark.long
@pytest.mark.parametrize("limits", AS)
def test_all_precisions_of_a_real_model_as_on_another_cpu(limits: dict[str, str], tmp_path: Path) -> None:
    run_tests(limits, tmp_path, "real_model")


@pytest.mark.parametrize("precision", ["bf16", "auto", "int8", "fp32"])
def test_embed_as_on_avx2(run: Path, tmp_path: Path, precision: str) -> None:
    """The command itself ends well, and says so where bf16 will be slow."""
    texts = tmp_path / "texts.txt"
    texts.write_text("One text.\nAnother, longer text is here.\n", encoding="utf-8")
    out = tmp_path / "vectors.npy"
    arguments = ("-m", "firth", "embed", run, "--file", texts, "--out", out, "--precision", precision)
    done = run_python(*arguments, limits={"FIRTH_CPU": "avx2"}, cache=tmp_path)
    assert done.returncode == 0, done.stderr
    assert out.exists()
    warnings = [line for line in done.stderr.splitlines() if "no units for bf16" in line]
    assert len(warnings) == (precision == "bf16")
    if precision == "auto":
        remembered = (tmp_path / "firth" / "precision.json").read_text("utf-8")
        assert "bf16" not in remembered
