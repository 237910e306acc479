"""Heads of tasks against transformers and sentence-transformers: the same scores, both ways, for every model type."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import firth
from firth import checkpoint as checkpoints
from firth import rng
from firth.checkpoint import Checkpoint
from firth.convert.task_heads import TYPES
from firth.data.packing import pack_tokens
from firth.tasks.answer import AnswerHead
from firth.tasks.classify import ClassifyHead
from firth.tasks.compare import CompareHead
from firth.tasks.tag import TagHead
from firth.tensors import Batch
from firth.tokenizers.wordpiece import WordPiece

transformers = pytest.importorskip("transformers")
TOLERANCE = 1e-5
LENGTHS = (3, 17, 9, 30)
SHAPE = {
    "vocab_size": 1200,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
OWN_SHAPES: dict[str, dict[str, Any]] = {
    "distilbert": {"vocab_size": 1200, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48, "pad_token_id": 0},
    "albert": SHAPE | {"embedding_size": 16},
    "electra": SHAPE | {"embedding_size": 16},
    "deberta-v2": SHAPE | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8},
}
ENDINGS = {"classify": "ForSequenceClassification", "tag": "ForTokenClassification", "answer": "ForQuestionAnswering"}
CASES = [(name, task) for name in TYPES for task in ENDINGS if (name, task) != ("nomic_bert", "answer")]


def drawn(name: str, ending: str, *, num_labels: int) -> Any:
    cls = getattr(transformers, TYPES[name].classes + ending, None)
    if cls is None:
        pytest.skip("this transformers does not have the class")
    shape = OWN_SHAPES.get(name, SHAPE)
    labels = dict(enumerate(("O", "B-X", "I-X")[:num_labels]))
    torch.manual_seed(5)
    model = cls(cls.config_class(**shape, num_labels=num_labels, id2label=labels, initializer_range=0.3)).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.3, std=0.3)
    return model


def sequences() -> list[np.ndarray]:
    key = rng.key("heads")
    return [2 + rng.below(key, 1190, np.arange(length), row) for row, length in enumerate(LENGTHS)]


def theirs(model: Any, ids: Sequence[np.ndarray]) -> Tensor:
    """The scores of all texts or all tokens, end to end."""
    found = []
    for row in ids:
        with torch.inference_mode():
            reply = model(torch.from_numpy(row)[None])
        if hasattr(reply, "start_logits"):
            found.append(torch.stack([reply.start_logits[0], reply.end_logits[0]], 1))
        else:
            logits = reply.logits
            found.append(logits[0] if logits.ndim == 3 else logits)
    return torch.cat(found)


def ours(model: Checkpoint, batch: Batch) -> Tensor:
    (head,) = model.tasks.values()
    with torch.inference_mode():
        states = model.encoder(batch)
        if isinstance(head, ClassifyHead):
            return head.scores(states, batch)
        if isinstance(head, TagHead):
            scores_NT: Tensor = head.tagger.head(head._tagger_inputs(states, batch))
            return scores_NT
        if isinstance(head, CompareHead):
            return head._pair_scores(states, batch)[:, None]
        assert isinstance(head, AnswerHead)
        return torch.from_numpy(np.concatenate(head.outputs(states, batch)))


def assert_equal(found: Tensor, wanted: Tensor, tolerance: float = TOLERANCE) -> None:
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) < tolerance
    assert float(wanted.std()) > 10 * TOLERANCE


@pytest.mark.parametrize(("name", "task"), CASES)
def test_heads_of_transformers_open_and_go_back(name: str, task: str, tokenizer: WordPiece, tmp_path: Path) -> None:
    model = drawn(name, ENDINGS[task], num_labels=2 if task == "answer" else 3)
    model.save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs")
    ids = sequences()
    wanted = theirs(model, ids)

    opened = checkpoints.load(tmp_path / "theirs")
    assert list(opened.tasks) == [task]
    assert_equal(ours(opened, pack_tokens(ids)), wanted)
    if task != "answer":
        (labels,) = opened.tasks[task].labels.values()
        assert labels == ("O", "B-X", "I-X")

    checkpoints.save(tmp_path / "ours", opened)
    assert_equal(ours(checkpoints.load(tmp_path / "ours"), pack_tokens(ids)), wanted)
    again, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert_equal(theirs(again.eval(), ids), wanted)


@pytest.mark.parametrize("kind", ["one", "many", "number"])
@pytest.mark.parametrize("name", [name for name, heads in TYPES.items() if heads.layer])
def test_heads_that_firth_made_are_the_same_in_transformers(
    name: str, kind: str, tokenizer: WordPiece, tmp_path: Path
) -> None:
    """Without the layer that the class has before the scores: it is written so that it changes nothing."""
    model = drawn(name, "Model" if name != "mpnet" else "ForMaskedLM", num_labels=3)
    model.save_pretrained(tmp_path / "bare")
    tokenizer.save(tmp_path / "bare")
    bare = checkpoints.load(tmp_path / "bare")
    torch.manual_seed(1)
    labels = {} if kind == "number" else {"label": ("a", "b", "c")}
    settings = {"kind": kind, "centre": 2.0 if kind == "number" else 0.0, "spread": 3.0 if kind == "number" else 0.0}
    head = checkpoints.make_head("classify", settings, bare.encoder, labels=labels)
    finetuned = Checkpoint(bare.encoder, {}, tokenizer, tasks={"classify": head}, layout=bare.layout, text="A card.\n")
    checkpoints.save(tmp_path / "ours", finetuned)
    cls = getattr(transformers, TYPES[name].classes + "ForSequenceClassification")
    again, report = cls.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"]
    ids = sequences()
    wanted = ours(finetuned, pack_tokens(ids))
    if kind == "number":
        wanted = wanted * 3.0 + 2.0
    assert_equal(theirs(again.eval(), ids), wanted, tolerance=5 * TOLERANCE)
    values = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert values["problem_type"].startswith({"one": "single", "many": "multi", "number": "regression"}[kind])
    assert_equal(ours(checkpoints.load(tmp_path / "ours"), pack_tokens(ids)), ours(finetuned, pack_tokens(ids)))


PAIRS = [("A cat sleeps.", "The cat is asleep."), ("It rains.", "The train was late, and nobody knew why.")]


@pytest.mark.parametrize("function", ["Sigmoid", "Identity"])
@pytest.mark.parametrize("name", ["bert", "roberta", "electra", "deberta-v2", "modernbert", "distilbert"])
def test_cross_encoders_of_sentence_transformers(
    name: str, function: str, tokenizer: WordPiece, tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    model = drawn(name, "ForSequenceClassification", num_labels=1)
    module = {"Sigmoid": "torch.nn.modules.activation.Sigmoid", "Identity": "torch.nn.modules.linear.Identity"}
    model.config.sentence_transformers = {"activation_fn": module[function], "version": "4.0.0"}
    model.save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs", max_length=60)
    peer = library.CrossEncoder(str(tmp_path / "theirs"), device="cpu")
    wanted = peer.predict(PAIRS)
    loaded = firth.load(tmp_path / "theirs")
    found = [float(made.label) for made in loaded.predict(PAIRS)]
    assert np.abs(np.array(found) - wanted).max() < TOLERANCE
    assert abs(wanted[0] - wanted[1]) > 10 * TOLERANCE

    firth.export(tmp_path / "theirs", out=tmp_path / "ours", kind="huggingface")
    again = library.CrossEncoder(str(tmp_path / "ours"), device="cpu")
    assert np.abs(again.predict(PAIRS) - wanted).max() < TOLERANCE
    assert type(again.activation_fn).__name__ == function


def test_a_head_without_its_weights_is_damage(tokenizer: WordPiece, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from firth.errors import Damaged

    drawn("bert", "ForSequenceClassification", num_labels=3).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["classifier.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(Damaged, match=r"head\.weight"):
        checkpoints.load(tmp_path)
