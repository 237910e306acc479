"""The house: which rooms may know which, how large a file may grow, which names are public."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import firth

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "firth").rglob("*.py"))


def test_imports_go_one_way() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "0 broken" in done.stdout


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short_and_say_what_they_are(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.count("\n") < 500
    if text:
        assert text.startswith('"""') or path.name == "__main__.py"
    assert path.stem not in {"utils", "helpers", "common", "base", "manager"}


def test_public_names() -> None:
    functions = {"check", "compress", "demo", "evaluate", "export", "extend", "finetune", "import_model", "load"}
    functions |= {"plan", "prepare", "pretrain", "serve", "tune"}
    classes = {"Fill", "FirthError", "Generated", "Model", "Prediction", "Rewritten"}
    assert set(firth.__all__) == functions | classes
    assert {name for names in firth._MODULES.values() for name in names} == set(firth.__all__)
    for name in firth.__all__:
        assert getattr(firth, name).__doc__, name
        assert getattr(firth, name).__name__ == name
    with pytest.raises(AttributeError, match="'firth' has no attribute 'pretain'"):
        firth.pretain  # noqa: B018


def test_no_class_name_occurs_twice() -> None:
    found: dict[str, Path] = {}
    for path in SOURCES:
        tree = ast.parse(path.read_text("utf-8"))
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                assert node.name not in found, f"{node.name} is in {found[node.name]} and in {path}"
                found[node.name] = path
    assert len(found) > 200


def test_every_test_file_has_a_name_of_its_own() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(names) == len(set(names))
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_no_pickle() -> None:
    """Nothing is pickled, and one file, asked for by `--unsafe-pickle`, reads other people's, weights only."""
    loading = re.compile(r"torch\.load\(.*")
    for path in SOURCES:
        text = path.read_text("utf-8")
        assert not re.search(r"^\s*(import|from) pickle\b", text, re.MULTILINE), path
        assert "torch.save(" not in text, path
        calls = loading.findall(text)
        assert not calls or path.name == "pickled.py", path
        assert all("weights_only=True" in call for call in calls)
