"""Fine-tuning, evaluation and prediction work where the packages that only prepare text are not installed."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from firth import samples
from firth.errors import absent

ROOT = Path(__file__).parents[2]

WITHOUT = """
import sys
from importlib.machinery import PathFinder

ABSENT = ("sentencex", "rjieba")


class WithoutPreparation(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            return None
        return super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutPreparation
from firth.cli import main

try:
    main()
finally:
    assert not set(ABSENT) & set(sys.modules)
"""
"""The command line in a process that finds neither package."""


def firth_without(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT, *map(str, arguments)]
    return subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_finetune_evaluate_and_predict_need_no_preparation(run: Path, tmp_path: Path, language: str) -> None:
    rows = samples.labelled("classify", language)
    tuned = tmp_path / "tuned"
    texts = tmp_path / "texts.txt"
    texts.write_text("It is fine.\n这里也很好。\n", encoding="utf-8")
    steps = [
        ("finetune", run, "--task", "classify", "--train", rows, "--out", tuned, "epochs=1"),
        ("evaluate", tuned, "--data", rows),
        ("predict", tuned, "--file", texts),
    ]
    for arguments in steps:
        done = firth_without(*arguments)
        assert done.returncode == 0, done.stderr


def test_the_packages_are_really_absent(tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("One sentence. And another one.\n", encoding="utf-8")
    done = firth_without("prepare", texts, "--out", tmp_path / "data")
    assert done.returncode == 2
    assert "pip install sentencex" in done.stderr


def test_every_extra_that_is_named_is_there_and_installed_from_the_source() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        known = set(tomllib.load(file)["project"]["optional-dependencies"])
    named = set()
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "firth").rglob("*.py")]:
        text = path.read_text("utf-8")
        assert not re.search(r"pip install '?firth\[", text), f"{path}: firth is in no registry"
        for extras in re.findall(r"pip install '\.\[([\w,]+)\]'", text):
            named |= set(extras.split(","))
        named |= set(re.findall(r"""\b(?:install\(|absent\([^)]*extra=)["'](\w+)["']""", text))
    assert named <= known
    assert {"ann", "convert", "data", "onnx", "plot", "ray", "serve", "vectors"} <= named


def test_an_absent_package_has_one_sentence() -> None:
    sentence = str(absent("pyarrow", extra="data", user="rows.parquet"))
    assert sentence == "rows.parquet needs pyarrow; run `pip install '.[data]'` in the folder of firth's source."
