"""What learns, and how fast."""

from collections.abc import Callable
from pathlib import Path

import pytest

import firth
from firth import samples
from firth.config import override
from firth.encoders.awd_lstm import AwdLstm
from firth.encoders.bert import Bert
from firth.errors import BadConfig, Unsupported
from firth.finetuning.settings import FinetuneConfig
from firth.finetuning.start import Start
from firth.finetuning.transfer import TransferConfig, adapt, unfreeze
from firth.finetuning.usual_settings import usual_layer_decay, usual_optimizer, usual_rate
from firth.nn.features import Features
from firth.tokenizers.wordpiece import WordPiece
from firth.train.layer_rates import rate_share


def test_rates_fall_layer_by_layer() -> None:
    def share(name: str) -> float:
        return rate_share(name, num_layers=4, decay=0.5)

    assert share("goals.classify.head.weight") == 1.0
    assert share("encoder.pooler.dense.weight") == share("encoder.norm.weight") == 1.0  # GPT-2's last norm
    assert share("encoder.narrow.weight") == share("encoder.output.weight") == 1.0  # before and in an output layer
    assert share("encoder.blocks.3.ffn.up.weight") == 0.5
    assert share("encoder.blocks.0.ffn.up.weight") == 0.5**4
    assert share("encoder.embeddings.tokens.weight") == 0.5**5


def test_deep_and_narrow_models_learn_slowly_below(small_bert: Callable[..., Bert], tokenizer: WordPiece) -> None:
    def settings(num_layers: int, *, trained: bool = True) -> tuple[float, float]:
        encoder = small_bert(num_layers=num_layers)
        start = Start("bert", encoder.config, tokenizer, trained=encoder if trained else None)
        return usual_rate(start, TransferConfig(), "adamw", steps=500), usual_layer_decay(start, "adamw")

    shallow_rate, shallow_decay = settings(4)
    deep_rate, deep_decay = settings(12)
    assert deep_rate < shallow_rate
    assert deep_decay < shallow_decay == 1.0
    # Random weights have no lower layers worth keeping.
    assert settings(12, trained=False) == (2 * shallow_rate, 1.0)


def test_weights_learn_by_the_optimizer_that_pre_trained_them(
    small_bert: Callable[..., Bert], tokenizer: WordPiece
) -> None:
    encoder = small_bert(num_layers=12)

    def chosen(*changes: str, by: str = "muon", trained: bool = True) -> str:
        start = Start("bert", encoder.config, tokenizer, trained=encoder if trained else None, optimizer=by)
        return usual_optimizer(start, override(FinetuneConfig(), changes))

    assert chosen() == "muon"
    assert chosen(by="adamw") == "adamw"
    assert chosen("train.optim.optimizer=adamw") == "adamw"
    assert chosen("train.optim.optimizer=muon", by="adamw") == "muon"
    assert chosen(trained=False) == "adamw"
    assert chosen("transfer.mode=lora") == "adamw"  # thin matrices that are new
    assert chosen("train.parallel=fsdp") == "adamw"


def test_a_folder_says_which_optimizer_trained_it(run: Path, tmp_path: Path) -> None:
    rows = samples.labelled("classify", "en")
    options = {"task": "classify", "train": rows, "changes": ["epochs=0.1", "train.optim.optimizer=muon"]}
    firth.finetune(run, out=tmp_path / "first", **options)
    firth.finetune(tmp_path / "first", task="classify", train=rows, out=tmp_path / "second", changes=["epochs=0.1"])
    assert 'optimizer = "adamw"' in (run / "run.toml").read_text()
    assert 'optimizer = "muon"' in (tmp_path / "second" / "run.toml").read_text()


def test_thawing_opens_one_block_after_another(small_bert: Callable[..., Bert]) -> None:
    encoder = small_bert()

    def learning(epochs: float) -> set[str]:
        unfreeze(encoder, num_layers=2, epochs_done=epochs, every=1.0)
        return {".".join(n.split(".")[:2]) for n, p in encoder.named_parameters() if p.requires_grad}

    assert learning(0.5) == {"pooler.dense"}
    assert learning(1.0) == {"pooler.dense", "blocks.1"}
    assert learning(2.9) == {"pooler.dense", "blocks.1", "blocks.0"}
    assert "embeddings.tokens" in learning(3.0)


def test_adapters_begin_as_nearly_nothing_and_leave_the_body_alone(small_bert: Callable[..., Bert]) -> None:
    encoder = small_bert()
    adapt(encoder, TransferConfig(mode="adapters", adapter_width=4))
    learning = [name for name, p in encoder.named_parameters() if p.requires_grad]
    assert sum("_slot." in name for name in learning) == 2 * 2 * 4
    others = [name for name in learning if "_slot." not in name]
    assert others
    assert all("norm" in name or "pooler" in name for name in others)


def test_settings_that_make_no_sense(small_bert: Callable[..., Bert]) -> None:
    with pytest.raises(BadConfig, match="layer_decay"):
        TransferConfig(layer_decay=1.5)
    with pytest.raises(BadConfig, match="unfreeze_every goes with"):
        TransferConfig(mode="adapters", unfreeze_every=1)
    with pytest.raises(BadConfig, match="layers from -3 to 2"):
        adapt(small_bert(), TransferConfig(mode="features", features=Features.Config(layers=(5,))))
    with pytest.raises(Unsupported, match="no blocks"):
        adapt(AwdLstm(AwdLstm.Config(width=8, cell_width=8)), TransferConfig(mode="adapters"))


def test_top_layers_get_new_weights_and_the_others_keep_theirs(small_bert: Callable[..., Bert]) -> None:
    encoder = small_bert()
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    adapt(encoder, TransferConfig(reinit_layers=1))
    changed = {name for name, tensor in encoder.state_dict().items() if not tensor.equal(before[name])}
    assert changed == {
        name
        for name in before
        if name.startswith(("blocks.1.", "pooler.")) and name.endswith("weight") and "norm" not in name
    }


def test_bottom_layers_stay_as_they_are(small_bert: Callable[..., Bert]) -> None:
    encoder = small_bert()
    adapt(encoder, TransferConfig(frozen_layers=1))
    learning = {".".join(name.split(".")[:2]) for name, p in encoder.named_parameters() if p.requires_grad}
    assert learning == {"blocks.1", "pooler.dense"}


@pytest.mark.parametrize("setting", ["reinit_layers", "frozen_layers"])
def test_not_all_layers_can_be_new_or_frozen(small_bert: Callable[..., Bert], setting: str) -> None:
    with pytest.raises(BadConfig, match=f"transfer.{setting} must be below the model's 2 blocks"):
        adapt(small_bert(), TransferConfig(**{setting: 2}))
    with pytest.raises(BadConfig, match="at least 0"):
        TransferConfig(**{setting: -1})
    with pytest.raises(BadConfig, match=r"transfer.mode=full"):
        TransferConfig(mode="adapters", **{setting: 1})
