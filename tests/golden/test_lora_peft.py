"""LoRA folders against peft: peft opens firth's with the same answers, and firth opens peft's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from firth import checkpoint as checkpoints
from firth import rng
from firth.checkpoint import Checkpoint, LightAdapter
from firth.convert.task_heads import TYPES
from firth.data.packing import pack_tokens
from firth.nn.lora import LoraConfig, insert_lora, lora_parameters
from firth.tasks.classify import ClassifyHead
from firth.tokenizers.wordpiece import WordPiece

peft = pytest.importorskip("peft", reason="peft is not installed")
transformers = pytest.importorskip("transformers")
TOLERANCE = 1e-5
SHAPE = {
    "vocab_size": 1200,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "initializer_range": 0.2,
}
OWN_SHAPES: dict[str, dict[str, Any]] = {
    "distilbert": {"vocab_size": 1200, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "pad_token_id": 0},
    "albert": SHAPE | {"embedding_size": 16},
    "electra": SHAPE | {"embedding_size": 16},
    "deberta-v2": SHAPE | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8},
}
KINDS = ["bert", "roberta", "distilbert", "electra", "deberta-v2", "mpnet", "modernbert"]
TARGETS = {
    "bert": ["query", "value"],
    "roberta": ["query", "key", "value", "intermediate.dense"],
    "electra": ["query", "value"],
    "distilbert": ["q_lin", "v_lin", "lin1"],
    "deberta-v2": ["query_proj", "value_proj"],
    "modernbert": ["Wqkv", "attn.Wo"],
}


def base(name: str, folder: Path, tokenizer: WordPiece) -> Path:
    """A model with random weights."""
    ending = "ForMaskedLM" if name == "mpnet" else "Model"
    cls = getattr(transformers, TYPES[name].classes + ending, None)
    if cls is None:
        pytest.skip("this transformers does not have the class")
    torch.manual_seed(4)
    cls(cls.config_class(**OWN_SHAPES.get(name, SHAPE))).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


def sequences() -> list[np.ndarray]:
    key = rng.key("lora")
    return [2 + rng.below(key, 1190, np.arange(length), row) for row, length in enumerate((3, 17, 9, 30))]


def theirs(model: Any) -> Tensor:
    with torch.inference_mode():
        return torch.cat([model(torch.from_numpy(row)[None]).logits for row in sequences()])


def ours(model: Checkpoint) -> Tensor:
    batch = pack_tokens(sequences())
    (head,) = model.tasks.values()
    assert isinstance(head, ClassifyHead)
    with torch.inference_mode():
        return head.scores(model.encoder(batch), batch)


def make(name: str, folder: Path, *, num_labels: int = 3) -> Any:
    cls = getattr(transformers, TYPES[name].classes + "ForSequenceClassification")
    torch.manual_seed(6)
    return cls.from_pretrained(folder, num_labels=num_labels).eval()


@pytest.mark.parametrize("name", KINDS)
def test_peft_opens_an_adapter_of_firth(name: str, tokenizer: WordPiece, tmp_path: Path) -> None:
    loaded = checkpoints.load(base(name, tmp_path / "base", tokenizer))
    config = LoraConfig(rank=3, alpha=7.0, targets=("query", "value", "out", "up", "gate"))
    insert_lora(loaded.encoder, config)
    torch.manual_seed(8)
    with torch.no_grad():
        for matrix in lora_parameters(loaded.encoder).values():
            matrix.normal_(std=0.3)
    head = checkpoints.make_head("classify", {}, loaded.encoder, labels={"label": ("a", "b", "c")})
    light = LightAdapter(str(tmp_path / "base"), config)
    tuned = Checkpoint(
        loaded.encoder, {}, tokenizer, tasks={"classify": head}, layout=loaded.layout, text="A card.\n", light=light
    )
    wanted = ours(tuned)
    checkpoints.save(tmp_path / "adapter", tuned)

    opened = peft.PeftModel.from_pretrained(make(name, tmp_path / "base"), tmp_path / "adapter").eval()
    assert float((theirs(opened) - wanted).abs().max()) < 5 * TOLERANCE
    again = checkpoints.load(tmp_path / "adapter")
    assert float((ours(again) - wanted).abs().max()) < TOLERANCE
    assert list(again.tasks["classify"].labels["label"]) == ["a", "b", "c"]
    unlike = ours(Checkpoint(checkpoints.load(tmp_path / "base").encoder, {}, tokenizer, tasks={"classify": head}))
    assert float((unlike - wanted).abs().max()) > 100 * TOLERANCE
    for matrix, copy in zip(
        lora_parameters(tuned.encoder).values(), lora_parameters(again.encoder).values(), strict=True
    ):
        assert torch.equal(matrix, copy)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", TARGETS)
def test_firth_opens_an_adapter_of_peft(name: str, scaled: bool, tokenizer: WordPiece, tmp_path: Path) -> None:
    model = make(name, base(name, tmp_path / "base", tokenizer))
    saved = {heads.partition(".")[0] for heads in ("classifier", TYPES[name].layer) if heads}
    settings = peft.LoraConfig(
        task_type="SEQ_CLS",
        r=4,
        lora_alpha=6,
        target_modules=TARGETS[name],
        modules_to_save=sorted(saved),
        use_rslora=scaled,
    )
    wrapped = peft.get_peft_model(model, settings).eval()
    torch.manual_seed(9)
    with torch.no_grad():
        for key, parameter in wrapped.named_parameters():
            if "lora_" in key or "modules_to_save" in key:
                parameter.normal_(std=0.3)
    wrapped.save_pretrained(tmp_path / "adapter")
    opened = checkpoints.load(tmp_path / "adapter")
    if name == "bert":
        # The pooler of the base is the one that peft used.
        assert opened.encoder.config.pooler
    assert list(opened.tasks) == ["classify"]
    assert float((ours(opened) - theirs(wrapped)).abs().max()) < TOLERANCE
