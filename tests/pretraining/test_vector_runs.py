"""TSDAE as a run over a trained model: what it changes, what its folder holds, and what it refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import firth
from firth import checkpoint as checkpoints
from firth.config import load_toml
from firth.errors import BadConfig
from firth.lineage.rewriting import TSDAE_RATE

BATCHES = (
    "batches.max_length=32",
    "batches.tokens=256",
    "train.log_every=2",
    "train.checkpoint_every=2",
    "train.keep=3",
)
STEPS = 10
TEXTS = ["The house is near the river.", "Nobody knew where the train would stop."]


@pytest.fixture(scope="module")
def trained(run: Path, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run over a small BERT."""
    out = tmp_path_factory.mktemp("tsdae") / "run"
    firth.pretrain(data, out=out, recipe="tsdae", start_from=run, steps=STEPS, changes=BATCHES, device="cpu")
    return out


def weights_after(checkpoint: Path, step: int) -> dict[str, torch.Tensor]:
    """The encoder's weights after a step of a run."""
    from safetensors.torch import load_file

    saved = load_file(checkpoint / "checkpoints" / f"step-{step}" / "weights.safetensors")
    return {name: tensor for name, tensor in saved.items() if name.startswith("encoder.")}


def test_the_decoder_learns_first_and_then_the_encoder(trained: Path, run: Path) -> None:
    before = checkpoints.load(run).encoder.state_dict()
    # Seven tenths of the steps are the decoder's.
    for name, tensor in weights_after(trained, 6).items():
        assert torch.equal(tensor, before[name.removeprefix("encoder.")]), name
    after = checkpoints.load(trained).encoder.state_dict()
    blocks = [name for name in after if name.startswith("blocks.") and name.endswith("weight")]
    assert blocks
    assert not any(torch.equal(after[name], before[name]) for name in blocks)
    furthest = max(float((after[name] - before[name]).abs().max()) for name in blocks)
    assert furthest <= 3 * TSDAE_RATE * 1.5


def test_its_folder_is_that_of_the_model_and_embeds(trained: Path, run: Path) -> None:
    loaded = checkpoints.load(trained)
    assert loaded.layout == checkpoints.load(run).layout == "bert"
    assert not loaded.goals
    assert loaded.info["trained_before"].startswith("bert, 40 steps")
    vectors_ND = firth.load(trained).embed(TEXTS)
    np.testing.assert_array_equal(vectors_ND, firth.load(trained).embed(TEXTS, pooling="mean"))
    assert not np.allclose(vectors_ND, firth.load(run).embed(TEXTS, pooling="mean"), atol=1e-5)
    _, report = transformers.AutoModel.from_pretrained(trained, output_loading_info=True)
    assert not report["missing_keys"]


def test_a_resumed_run_ends_with_the_same_bytes(
    trained: Path, data: Path, resumes_exactly: Callable[..., None]
) -> None:
    resumes_exactly(trained, data, last_step=STEPS)


def test_it_keeps_its_rates_whatever_trained_the_model(trained: Path) -> None:
    optim = load_toml(trained / "run.toml")["train"]["optim"]
    assert optim["optimizer"] == "adamw"
    assert optim["rate"] * optim["encoder_share"] == pytest.approx(TSDAE_RATE)


def test_its_folder_remembers_the_optimizer_that_made_the_model(run: Path, data: Path, tmp_path: Path) -> None:
    """Fine-tuning and other trainings go on with that one."""
    start = checkpoints.load(run)
    start.info["optimizer"] = "muon"
    folder = tmp_path / "start"
    checkpoints.save(folder, start)
    out = tmp_path / "run"
    firth.pretrain(data, out=out, recipe="tsdae", start_from=folder, steps=2, changes=BATCHES, device="cpu")
    assert load_toml(out / "run.toml")["train"]["optim"]["optimizer"] == "adamw"
    assert checkpoints.load(out).info["optimizer"] == "muon"


def test_the_command_makes_a_folder_that_embeds(
    run: Path, data: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    out = tmp_path / "run"
    begun = ("pretrain", data, "--recipe", "tsdae", "--from", run, "--steps", 4, "--out", out)
    assert command(*begun, "--device", "cpu", *BATCHES).code == 0
    lines = tmp_path / "lines.txt"
    lines.write_text("\n".join(TEXTS))
    assert command("embed", out, "--file", lines, "--out", tmp_path / "vectors.npy").code == 0
    assert np.load(tmp_path / "vectors.npy").shape == (2, checkpoints.load(run).encoder.width)


def test_it_needs_a_model_to_train_further(data: Path, tmp_path: Path, command: Callable[..., Any]) -> None:
    answer = command("pretrain", data, "--recipe", "tsdae", "--out", tmp_path / "run")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == "firth: The recipe tsdae trains a model further; name the model with --from.\n"
    assert not (tmp_path / "run").exists()


def test_it_learns_alone(run: Path, data: Path, tmp_path: Path) -> None:
    changes = (*BATCHES, 'objectives={"tsdae": {}, "masked_lm": {}}')
    with pytest.raises(BadConfig, match="learns alone"):
        firth.pretrain(data, out=tmp_path / "run", recipe="tsdae", start_from=run, steps=2, changes=changes)
