"""LoRA, BitFit and prefixes: what learns, what is saved, adapters over one base, and the mistakes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import firth
from firth import checkpoint as checkpoints
from firth import rng, samples
from firth.data.packing import pack_tokens
from firth.encoders.bert import Bert
from firth.encoders.mpnet import MPNet
from firth.errors import BadConfig, BadInput, Unsupported
from firth.files import read_json, write_json
from firth.finetuning.transfer import TransferConfig, adapt
from firth.nn.lora import LoraConfig, LoraLinear, insert_lora, lora_parameters, merge_lora
from firth.nn.prefix import insert_prefixes
from firth.tensors import parameter_count

CLASSIFY = samples.labelled("classify", "en")
ENTITIES = samples.labelled("entities", "en")
TEXTS = ["A fine day.", "The worst film of the year, sadly.", "Good."]
Finetune = Callable[..., Path]


@pytest.fixture
def finetune(run: Path, tmp_path: Path) -> Finetune:
    """Fine-tunes the small pre-trained model and gives the folder."""

    def call(*changes: str, name: str = "tuned", **options: Any) -> Path:
        settings: dict[str, Any] = {"task": "classify", "train": CLASSIFY, "device": "cpu", **options}
        firth.finetune(run, out=tmp_path / name, changes=("batch_size=16", "epochs=1", *changes), **settings)
        return tmp_path / name

    return call


def small() -> Bert:
    torch.manual_seed(2)
    config = Bert.Config(vocab_size=100, width=16, num_layers=2, num_heads=2, ffn_width=24, max_positions=32)
    return Bert(config).eval()


def batch() -> Any:
    key = rng.key("light")
    return pack_tokens([rng.below(key, 100, np.arange(length), row) for row, length in enumerate((3, 11, 7, 30))])


def probabilities(folder: Path) -> np.ndarray:
    return np.array([list(made.probabilities.values()) for made in firth.load(folder).predict(TEXTS)])


@pytest.mark.parametrize("targets", [("query", "value"), ("key", "out", "down"), ("up",)])
def test_thin_matrices_begin_as_nothing_and_merge_exactly(targets: tuple[str, ...]) -> None:
    encoder = small()
    with torch.inference_mode():
        before = encoder(batch()).last_ND
    insert_lora(encoder, LoraConfig(rank=3, alpha=5.0, targets=targets))
    assert {name for name, each in encoder.named_parameters() if each.requires_grad} == set(lora_parameters(encoder))
    assert {name.rpartition(".")[2] for name in lora_parameters(encoder)} == set(targets)
    with torch.inference_mode():
        assert torch.equal(encoder(batch()).last_ND, before)
        for matrix in lora_parameters(encoder).values():
            matrix.normal_(std=0.3)
        learned = encoder(batch()).last_ND
        assert float((learned - before).abs().max()) > 0.1
        merge_lora(encoder)
        assert not any(isinstance(part, LoraLinear) for part in encoder.modules())
        assert float((encoder(batch()).last_ND - learned).abs().max()) < 1e-5


def test_a_prefix_is_attended_to_and_belongs_to_no_neighbour() -> None:
    encoder = small()
    packed = batch()
    insert_prefixes(encoder, 5)
    with torch.inference_mode():
        together = encoder(packed, attention=True)
        alone = []
        for start, end in zip(packed.bounds_B1[:-1].tolist(), packed.bounds_B1[1:].tolist(), strict=True):
            alone.append(encoder(pack_tokens([packed.ids_N[start:end].numpy()])).last_ND)
        assert float((together.last_ND - torch.cat(alone)).abs().max()) < 1e-5
        assert float(together.attention[0][1].sum(-1).max()) < 1.0  # the rest goes to the prefix
        for block in encoder.blocks:
            block.attention.prefix_keys.normal_()  # type: ignore[union-attr,operator]
            block.attention.prefix_values.normal_()  # type: ignore[union-attr,operator]
        assert float((encoder(packed).last_ND - together.last_ND).abs().max()) > 0.01


def test_only_biases_learn_with_bitfit() -> None:
    encoder = small()
    adapt(encoder, TransferConfig(mode="bitfit"))
    learning = [name for name, each in encoder.named_parameters() if each.requires_grad]
    assert learning
    assert all(name.endswith("bias") for name in learning)


@pytest.mark.parametrize("mode", ["lora", "bitfit", "prefix"])
@pytest.mark.parametrize("task", ["classify", "tag"])
def test_the_rest_stays_and_the_model_comes_back(run: Path, finetune: Finetune, mode: str, task: str) -> None:
    folder = finetune(f"transfer.mode={mode}", task=task, train=CLASSIFY if task == "classify" else ENTITIES)
    before = checkpoints.load(run).encoder.state_dict()
    loaded = checkpoints.load(folder)
    after = loaded.encoder.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    expected: set[str] = set()
    if mode == "lora":
        expected = {name for name in before if name.endswith("weight") and (".attention." in name or ".ffn." in name)}
    if mode == "bitfit":
        expected = {name for name in before if name.endswith("bias")}
    # A bias that no gradient reaches, such as that of keys, may stay.
    assert changed <= expected
    assert len(changed) >= 0.7 * len(expected)
    assert loaded.prefix_length == (16 if mode == "prefix" else 0)
    figures = firth.evaluate(folder, data=CLASSIFY if task == "classify" else ENTITIES)
    assert figures["rows"] > 100
    firth.load(folder).save(folder / "copy")
    again = checkpoints.load(folder / "copy").encoder.state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in after.items())


def test_adapters_are_small_and_share_their_base(run: Path, finetune: Finetune) -> None:
    changes = ("transfer.mode=lora", "transfer.merge=false", "transfer.lora.rank=4")
    first = finetune(*changes, name="first")
    second = finetune(*changes, "train.seed=2", name="second", task="tag", train=ENTITIES)
    size = sum(file.stat().st_size for file in first.glob("*.safetensors"))
    assert size < 0.25 * (run / "model.safetensors").stat().st_size
    assert not (first / "model.safetensors").exists()
    models = [checkpoints.load(folder) for folder in (first, second)]
    encoders = [model.encoder for model in models]
    base = models[0].light
    assert base is not None
    assert base.model is models[1].light.model  # type: ignore[union-attr]
    own = sum(matrix.numel() for encoder in encoders for matrix in lora_parameters(encoder).values())
    assert parameter_count(encoders) == parameter_count([base.model.encoder]) + own  # type: ignore[union-attr]
    # Together they answer as each does alone, and as the merged model does.
    firth.export(first, out=first / "merged", kind="huggingface")
    assert np.abs(probabilities(first / "merged") - probabilities(first)).max() < 1e-5
    assert (first / "merged" / "model.safetensors").exists()
    merged = finetune("transfer.mode=lora", "transfer.lora.rank=4", name="merged")
    assert np.abs(probabilities(merged) - probabilities(first)).max() < 1e-5
    # It can be fine-tuned further, from the merged weights.
    firth.finetune(first, out=first / "more", task="classify", train=CLASSIFY, device="cpu", changes=("epochs=1",))


def test_an_adapter_without_its_base_says_so(finetune: Finetune, tmp_path: Path) -> None:
    folder = finetune("transfer.mode=lora", "transfer.merge=false")
    (folder / "manifest.json").unlink()
    (folder / "firth.json").unlink()
    (folder / "run.toml").unlink()
    values = read_json(folder / "adapter_config.json")
    for base, says in (("nowhere", "nowhere, which is not there"), ("", "does not name its base")):
        write_json(folder / "adapter_config.json", values | {"base_model_name_or_path": base})
        with pytest.raises(BadInput, match=says):
            firth.load(folder)
    for key, value in {"peft_type": "IA3", "use_dora": True, "bias": "all"}.items():
        write_json(folder / "adapter_config.json", values | {key: value})
        with pytest.raises(Unsupported, match=key):
            firth.load(folder)


def test_what_does_not_go_together_is_refused(finetune: Finetune, tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match=r"goes with transfer\.mode=lora"):
        TransferConfig(mode="bitfit", merge=False)
    with pytest.raises(BadConfig, match="targets are some of"):
        LoraConfig(targets=("nothing",))
    shape = MPNet.Config(vocab_size=50, width=8, num_layers=1, num_heads=2, ffn_width=8, max_positions=16)
    with pytest.raises(Unsupported, match="another kind"):
        insert_prefixes(MPNet(shape), 3)
    with pytest.raises(BadConfig, match="needs a model"):
        firth.finetune(
            out=tmp_path / "random",
            random=True,
            task="classify",
            train=CLASSIFY,
            device="cpu",
            changes=("transfer.mode=lora", "transfer.merge=false"),
        )
    with pytest.raises(BadConfig, match="heads that transformers has"):
        finetune("transfer.mode=lora", "transfer.merge=false", "tasks.tag.tagger=crf", task="tag", train=ENTITIES)
