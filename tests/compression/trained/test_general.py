"""Distillation on plain text (DistilBERT, MiniLM, TinyBERT, MobileBERT) and by several teachers."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import firth
from firth import checkpoint as checkpoints
from firth import compression
from firth.checkpoint import Checkpoint
from firth.compression import general as general_stage
from firth.compression.distilbert import SoftWords
from firth.compression.lesson import Compared
from firth.compression.method import CompressionJob
from firth.compression.teacher import Teacher
from firth.data.packing import pack_tokens
from firth.errors import BadConfig, BadInput, Unsupported
from firth.nn.likelihood import IGNORE

Compress = Callable[..., Checkpoint]


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory, texts: list[Path]) -> Path:
    lines = [line for line in texts[0].read_text("utf-8").splitlines() if line.strip()][:150]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


@pytest.fixture
def general(pretrained: Path, text: Path, tmp_path: Path) -> Compress:
    """Runs a method on plain text."""

    def call(name: str, *, folder: str = "general", **settings: object) -> Checkpoint:
        method = compression.resolve(name)
        job = CompressionJob(
            model=pretrained,
            original=checkpoints.load(pretrained),
            files={"train": text},
            folder=tmp_path / folder,
        )
        usual: dict[str, object] = {"epochs": 0.3, "rate": 1e-3}
        return method(method.Config(**{**usual, **settings})).compress(job)

    return call


@pytest.mark.parametrize("method", ["minilm", "tinybert", "mobilebert", "distilbert"])
def test_text_is_learned_in_the_precision_asked_for(
    method: str, general: Compress, pretrained: Path, tmp_path: Path
) -> None:
    # A student with all layers that starts as its teacher, so that MobileBERT's can be compared, too.
    exact = general(method, folder="exact", precision="fp32", student=str(pretrained))
    rounded = general(method, folder="rounded", precision="bf16", student=str(pretrained))
    for folder, precision in (("exact", "fp32"), ("rounded", "bf16")):
        numbers = (tmp_path / folder / "run" / "run.toml").read_text("utf-8")
        assert f'precision = "{precision}"' in numbers
    same = rounded.encoder.state_dict()
    for name, weight in exact.encoder.state_dict().items():
        assert weight.dtype == same[name].dtype == torch.float32
        assert bool(same[name].isfinite().all())
    assert any(not torch.equal(weight, same[name]) for name, weight in exact.encoder.state_dict().items())


def test_soft_words_against_the_formula(pretrained: Path) -> None:
    loaded = checkpoints.load(pretrained)
    teacher = Teacher.of(pretrained, loaded)
    head = loaded.goals["masked_lm"]
    batch = pack_tokens([torch.arange(5, 15).numpy()])
    positions = torch.tensor([2, 5, 0])
    labels = torch.tensor([7, 9, IGNORE])
    batch = replace(batch, targets={"masked_lm_positions": positions, "masked_lm_labels": labels})
    taught = teacher.states(batch)
    own = torch.randn(3, loaded.encoder.vocab_size)
    term = SoftWords(head, temperature=2.0, weight=1.0)  # type: ignore[arg-type]
    wanted = 0.0
    for row in range(2):
        p = (head.scores(taught, positions)[row] / 2).softmax(-1)  # type: ignore[operator]
        q = (own[row] / 2).softmax(-1)
        wanted += 4 * float((p * (p / q).log()).sum())
    assert float(term(Compared(batch, taught, own, taught))) == pytest.approx(wanted, rel=1e-4)
    assert term.count(batch) == 2


def test_distilbert_is_a_smaller_pretrained_model(general: Compress, tmp_path: Path) -> None:
    small = general("distilbert")
    assert small.encoder.num_layers == 2
    assert "masked_lm" in small.goals
    logged = (tmp_path / "general" / "run" / "metrics.jsonl").read_text()
    for name in ("soft_words", "cosine", "masked_lm"):
        assert f'"{name}":' in logged
    checkpoints.save(tmp_path / "saved", small)
    assert firth.load(tmp_path / "saved").fill("A [MASK] text.")


@pytest.mark.parametrize(
    ("method", "settings", "name"),
    [
        ("minilm", {"num_layers": 2, "random": True, "width": 16}, "relations"),
        ("tinybert", {"num_layers": 2}, "attention"),
    ],
)
def test_the_general_stage(
    general: Compress, method: str, settings: dict[str, object], name: str, tmp_path: Path
) -> None:
    small = general(method, **settings)
    assert small.encoder.width == settings.get("width", 32)
    logged = (tmp_path / "general" / "run" / "metrics.jsonl").read_text()
    assert f'"{name}":' in logged
    assert '"masked_lm":' not in logged


def test_a_stopped_general_stage_ends_with_the_same_bytes(
    general: Compress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(general_stage, "STATE_EVERY", 20)
    whole = general("distilbert", folder="whole", epochs=1.0)
    general("distilbert", folder="again", epochs=1.0)
    run = tmp_path / "again" / "run"
    # As if the process had been killed before it wrote the model.
    for name in ("manifest.json", "model.safetensors"):
        (run / name).unlink()
    states = sorted((run / "checkpoints").iterdir(), key=lambda path: int(path.name.partition("-")[2]))
    assert len(states) > 1
    for path in states[1:]:
        for file in path.iterdir():
            file.unlink()
        path.rmdir()
    again = general("distilbert", folder="again", epochs=1.0)
    for name, tensor in whole.encoder.state_dict().items():
        assert torch.equal(again.encoder.state_dict()[name], tensor)


def test_mobilebert_copies_layer_by_layer(
    general: Compress, compress: Compress, pretrained: Path, tmp_path: Path
) -> None:
    loaded = checkpoints.load(pretrained)
    config = replace(loaded.encoder.config, ffn_width=16)
    torch.manual_seed(1)
    narrow = replace(loaded, encoder=type(loaded.encoder)(config), goals={})  # type: ignore[call-arg]
    checkpoints.save(tmp_path / "narrow", narrow)
    small = general("mobilebert", student=str(tmp_path / "narrow"))
    assert small.encoder.config.ffn_width == 16
    assert compress("mobilebert", student=str(tmp_path / "narrow")).encoder.config.ffn_width == 16
    with pytest.raises(BadConfig, match="needs student=FOLDER"):
        general("mobilebert")


def test_an_ensemble_is_the_mean_of_its_teachers(
    compress: Compress, job: CompressionJob, tuned: Path, tmp_path: Path
) -> None:
    one = compress("distil", folder="one", num_layers=1)
    same = compress("ensemble", folder="same", num_layers=1, teachers=(str(tuned),))
    for name, tensor in one.encoder.state_dict().items():
        torch.testing.assert_close(same.encoder.state_dict()[name], tensor, atol=1e-5, rtol=0)
    other = compress("ensemble", folder="other", num_layers=1, teachers=(str(tmp_path / "one" / "run"),))
    assert not torch.equal(
        other.encoder.state_dict()["blocks.0.ffn.up.weight"], one.encoder.state_dict()["blocks.0.ffn.up.weight"]
    )


def test_mistakes(general: Compress, compress: Compress, pretrained: Path, tuned: Path, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="is fine-tuned"):
        compress("distilbert")
    with pytest.raises(Unsupported, match="not fine-tuned for a task"):
        general("distil")
    with pytest.raises(BadConfig, match="same width"):
        general("distilbert", random=True, width=16)
    with pytest.raises(BadConfig, match="several teachers"):
        compress("ensemble")
    with pytest.raises(BadConfig, match="is not fine-tuned for classify"):
        compress("ensemble", teachers=(str(pretrained),))
    with pytest.raises(BadInput, match="not a folder"):
        compress("ensemble", teachers=("nowhere",))
