"""`make bench`: its table, and what it says where something is missing."""

from pathlib import Path

import pytest

from bench import __main__ as bench
from bench.table import Row, forget_peak, peak_memory, show


def test_a_row_compares_round_by_round(capsys: pytest.CaptureFixture[str]) -> None:
    row = Row("encode", "texts/s", [300, 200], "peer", [100, 100], "≥ 2")
    assert row.cells() == ["encode", "250 texts/s", "peer 100", "2.50", "2–3", "≥ 2", ""]
    assert Row("loader", "tokens/s", [9.0e6, 9.5e6]).cells()[1:5] == ["9.25M tokens/s", "", "", "9M–9.5M"]
    show([row, Row("serve", note="not measured: no wrk")])
    lines = capsys.readouterr().out.splitlines()
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 4


@pytest.mark.parametrize("name", ["loader", "chain"])
def test_a_part_without_its_data_says_so(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIRTH_DATA", str(tmp_path))
    (row,) = bench.part(name)
    assert row.note.startswith("not measured: ")
    assert str(tmp_path) in row.note


def test_every_part_is_a_bench_with_rows() -> None:
    for name in bench.PARTS:
        assert "def rows()" in (Path(bench.__file__).parent / f"{name}_cpu.py").read_text("utf-8")


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(SystemExit, match=r"no bench named 'speed' .known: encode"):
        bench.main(["speed"])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="Linux tells it in /proc")
def test_the_peak_of_memory_can_be_forgotten() -> None:
    block = bytearray(200_000_000)
    block[::1000] = b"x" * len(block[::1000])
    high = peak_memory()
    del block
    forget_peak()
    assert peak_memory() < high - 150
