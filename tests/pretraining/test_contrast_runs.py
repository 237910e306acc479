"""InfoWord and WKLM as runs: what their folders keep, exact resume, and that transformers opens them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import transformers

import firth
from firth import checkpoint as checkpoints
from firth.errors import BadInput
from firth.train.journal import read_rows

LOSSES = {"infoword": "infoword", "wklm": "entity_replacement"}


@pytest.fixture(scope="module")
def trained(data: Path, tiny: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A short run of each recipe, made once."""
    made: dict[str, Path] = {}

    def run(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp(name) / "run"
            settings = (*tiny, "train.checkpoint_every=3")
            firth.pretrain(data, out=made[name], recipe=name, steps=6, changes=settings, device="cpu")
        return made[name]

    return run


@pytest.mark.parametrize("name", LOSSES)
def test_its_folder_keeps_both_objectives(name: str, trained: Callable[[str], Path], data: Path) -> None:
    model = trained(name)
    assert set(checkpoints.load(model).goals) == {LOSSES[name], "masked_lm"}
    measured = firth.evaluate(model, data=data)
    held_out = read_rows(model / "metrics.jsonl")[-1]
    assert measured["masked_lm"] == pytest.approx(held_out["masked_lm"], rel=0.3)
    if name == "wklm":
        assert measured["entity_replacement"] == pytest.approx(held_out["entity_replacement"], rel=0.3)
    else:
        # The packs of `evaluate` are larger, so it is harder to find an n-gram in one of them.
        assert measured["infoword"] > held_out["infoword"] + 1
    filled = firth.load(model).fill("The [MASK] is open.")
    assert filled


@pytest.mark.parametrize("name", LOSSES)
def test_transformers_opens_it(name: str, trained: Callable[[str], Path]) -> None:
    model, report = transformers.AutoModelForMaskedLM.from_pretrained(trained(name), output_loading_info=True)
    assert type(model).__name__ == "RobertaForMaskedLM"
    assert not report["missing_keys"]


@pytest.mark.parametrize("name", LOSSES)
def test_a_resumed_run_ends_with_the_same_bytes(
    name: str, trained: Callable[[str], Path], data: Path, resumes_exactly: Callable[..., None]
) -> None:
    resumes_exactly(trained(name), data)


def test_a_resumed_run_needs_the_same_names(data: Path, tiny: tuple[str, ...], tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("the door\nthe house\nthe man\n")
    out = tmp_path / "run"
    changes = (*tiny, "train.checkpoint_every=1", f"objectives.entity_replacement.entities={names}")
    firth.pretrain(data, out=out, recipe="wklm", steps=2, changes=changes, device="cpu")
    (out / "manifest.json").unlink()
    names.write_text("the door\nthe house\nthe woman\n")
    with pytest.raises(BadInput, match=r"names\.txt \(objectives\.entity_replacement\.entities\) is not as it was"):
        firth.pretrain(data, out=out, resume=True, device="cpu")
    names.unlink()
    with pytest.raises(BadInput, match="is not as it was"):
        firth.pretrain(data, out=out, resume=True, device="cpu")
