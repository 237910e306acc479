"""A model as a wheel: pip installs it, and it answers offline as the folder does."""

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import firth
from firth import samples
from firth.errors import BadConfig, BadInput
from firth.model_files import package

CLASSIFY = samples.labelled("classify", "en")
TEXTS = ["A fine day.", "The worst film of the year."]


@pytest.fixture(scope="module")
def tuned(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "Mood of texts"
    firth.finetune(run, out=out, task="classify", train=CLASSIFY, device="cpu", changes=("epochs=1",))
    return out


def installed(wheel: Path, folder: Path) -> dict[str, str]:
    """Installs a wheel and nothing else into a folder; returns the environment that finds it."""
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet", "--target", str(folder)]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True)
    paths = [str(folder), str(Path(firth.__file__).parent.parent)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def test_a_wheel_installs_and_answers_as_the_folder_does(
    tuned: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    reply = command("package", tuned, "--out", tmp_path / "dist")
    assert reply.code == 0, reply.err
    wheel = tmp_path / "dist" / "mood_of_texts-1.0-py3-none-any.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert "mood_of_texts/model/model.safetensors" in names
    assert not any("run.toml" in name or "seed-1" in name for name in names)
    environment = installed(wheel, tmp_path / "site")
    program = [sys.executable, "-m", "mood_of_texts", *TEXTS]
    found = subprocess.run(program, check=True, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert found.stdout.splitlines() == [made.label for made in firth.load(tuned).predict(TEXTS)]
    # One text in place of a list is refused, not read letter by letter.
    for call in ("predict", "embed"):
        one_text = [sys.executable, "-c", f"import mood_of_texts; mood_of_texts.{call}('A fine day.')"]
        refused = subprocess.run(one_text, check=False, capture_output=True, text=True, env=environment, cwd=tmp_path)
        assert "put the one text into a list" in refused.stderr


def test_the_same_model_gives_the_same_bytes(tuned: Path, tmp_path: Path) -> None:
    wheels = [package(tuned, out=tmp_path / name, name="mood")["wheel"] for name in ("one", "other")]
    one, other = (Path(str(wheel)).read_bytes() for wheel in wheels)
    assert one == other


def test_a_light_adapter_is_merged(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "light"
    changes = ("epochs=1", "transfer.mode=lora", "transfer.merge=false")
    firth.finetune(run, out=out, task="classify", train=CLASSIFY, device="cpu", changes=changes)
    made = package(out, out=tmp_path)
    assert "light/model/model.safetensors" in zipfile.ZipFile(str(made["wheel"])).namelist()
    assert not list(tmp_path.glob(".*merged"))


def test_mistakes(tuned: Path, tmp_path: Path) -> None:
    package(tuned, out=tmp_path, name="twice")
    with pytest.raises(BadInput, match="already exists"):
        package(tuned, out=tmp_path, name="twice")
    with pytest.raises(BadConfig, match="begins with a letter"):
        package(tuned, out=tmp_path, name="1st")
    with pytest.raises(BadConfig, match="A version is numbers"):
        package(tuned, out=tmp_path, name="other", version="new")
