"""One machine needs neither ray nor fsspec: nothing imports them, and who asks for them gets one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from firth import samples

REMEDY = "run `pip install '.[ray]'` in the folder of firth's source."
WITHOUT = """
import sys
from importlib.machinery import PathFinder

ABSENT = ("ray", "fsspec")


class WithoutExtra(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            return None
        return super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutExtra
from firth.cli import main

try:
    main()
finally:
    assert not set(ABSENT) & set(sys.modules)
"""
"""The command line in a process that finds neither package."""


def firth_without(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, *map(str, arguments)]
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def test_one_machine_needs_no_extra(run: Path, tmp_path: Path) -> None:
    text = samples.prose("en")
    steps = [
        ("prepare", text, "--out", tmp_path / "data", "--vocab-size", 300, "--near-duplicates", 3),
        ("duplicates", text),
        ("embed", run, "--file", text, "--out", tmp_path / "vectors.npy"),
    ]
    for arguments in steps:
        done = firth_without(*arguments)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--engine", "ray"), f"firth: --engine ray needs ray; {REMEDY}\n"),
        (("--engine", "spark"), "firth: There is no engine 'spark' (known: local, ray).\n"),
    ],
)
def test_what_is_missing_is_one_sentence(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    done = firth_without("prepare", samples.prose("en"), "--out", tmp_path / "data", *arguments)
    assert done.returncode == 2
    assert done.stderr == sentence
    assert not (tmp_path / "data").exists()


def test_a_url_needs_fsspec(tmp_path: Path) -> None:
    done = firth_without("prepare", "s3://bucket/texts", "--out", tmp_path / "data")
    assert done.returncode == 2
    assert done.stderr == f"firth: s3://bucket/texts needs fsspec; {REMEDY}\n"
