"""What the tests of whole pre-training runs share: small runs of recipes, and the check that a resumed run is exact."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import firth
from firth import lineage
from firth.config import to_dict, to_toml

SHOWS_SECONDS = {"timing.jsonl", "report.html"}

MakeRuns = Callable[..., Callable[[str], Path]]


@pytest.fixture(scope="session")
def small_plan(shrink: Callable[[Any], Any]) -> Callable[..., str]:
    """A recipe in its smallest form, as the text of a config file."""

    def write(name: str, *, max_length: int = 64, tokens: int = 512) -> str:
        recipe = lineage.make(name, "tiny")
        small = replace(
            recipe,
            encoder={key: shrink(config) for key, config in recipe.encoder.items()},
            batches=replace(recipe.batches, max_length=max_length, tokens=tokens),
            train=replace(recipe.train, log_every=2, checkpoint_every=2, keep=3),
        )
        return to_toml(to_dict(small))

    return write


@pytest.fixture(scope="session")
def make_runs(small_plan: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> MakeRuns:
    """Of prepared text makes a function from a recipe's name to the folder of its run of six small steps, made once."""

    def make(data: Path, **sizes: int) -> Callable[[str], Path]:
        folder = tmp_path_factory.mktemp("runs")

        def run(name: str) -> Path:
            if not (folder / name).exists():
                plan = folder / f"{name}.toml"
                plan.write_text(small_plan(name, **sizes))
                firth.pretrain(data, out=folder / name, config=plan, steps=6, device="cpu")
            return folder / name

        return run

    return make


def check_exact_resume(whole: Path, data: Path, again: Path, *, last_step: int) -> None:
    """A run without its last state and its model, as if it had been killed, ends with the same bytes."""
    shutil.copytree(whole, again)
    for path in [*again.glob("*.safetensors"), again / "manifest.json", again / "firth.json"]:
        path.unlink()
    shutil.rmtree(again / "generator", ignore_errors=True)
    shutil.rmtree(again / "checkpoints" / f"step-{last_step}")
    assert any((again / "checkpoints").iterdir())
    firth.pretrain(data, out=again, resume=True, device="cpu")
    files = [path.relative_to(whole) for path in whole.rglob("*") if path.is_file() and "checkpoints" not in path.parts]
    assert len(files) > 8
    differing = {str(path) for path in files if (whole / path).read_bytes() != (again / path).read_bytes()}
    assert differing <= SHOWS_SECONDS


@pytest.fixture
def resumes_exactly(tmp_path: Path) -> Callable[..., None]:
    def check(whole: Path, data: Path, *, last_step: int = 6) -> None:
        check_exact_resume(whole, data, tmp_path / "again", last_step=last_step)

    return check
