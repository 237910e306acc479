"""XLNet equals transformers' on random configurations: states, two streams, memory, loss and gradients, and folders."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import XLNetConfig, XLNetLMHeadModel, XLNetModel

from firth import checkpoint as checkpoints
from firth import lineage, rng
from firth.checkpoint import Checkpoint
from firth.data.packing import pack_tokens
from firth.encoders.xlnet import XLNet
from firth.errors import BadInput, Damaged, Unsupported
from firth.nn.likelihood import summed_cross_entropy
from firth.tensors import CONTEXT_RANK, MEMORY_RANK, Batch, PredictionOrder, parameter_count
from firth.tokenizers.wordpiece import WordPiece

NUM_CONFIGS = 10
TOLERANCE = 1e-5


def drawn(index: int) -> Any:
    """The index-th random model, weights large enough for attention to matter, no norm or bias trivial."""

    def one_of(what: str, *choices: Any) -> Any:
        return choices[int(rng.below(rng.key("xlnet", index, what), len(choices)))]

    heads = one_of("heads", 1, 2, 3, 4)
    torch.manual_seed(index)
    config = XLNetConfig(
        vocab_size=one_of("vocabulary", 1200, 1216, 1301),
        d_model=one_of("head", 4, 8, 12, 16) * heads,
        n_layer=one_of("layers", 1, 2, 3, 4),
        n_head=heads,
        d_inner=one_of("feed-forward", 17, 32, 96),
        ff_activation=one_of("activation", "gelu", "gelu_new", "relu"),
        layer_norm_eps=one_of("eps", 1e-12, 1e-7, 1e-5),
        initializer_range=one_of("std", 0.05, 0.1, 0.2),
        pad_token_id=0,
    )
    model = XLNetLMHeadModel(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 or "_bias" in name:
            torch.nn.init.normal_(parameter, mean=0.3, std=0.3)
    return model


@dataclass(frozen=True)
class Text:
    """A sequence of a memory and a segment that is trained, some of whose tokens are predicted."""

    ids: np.ndarray
    segments: np.ndarray
    memory: int
    ranks: np.ndarray
    """-1 for tokens that are not predicted; memory included."""

    @property
    def predicted(self) -> np.ndarray:
        return np.flatnonzero(self.ranks >= 0)


def texts(index: int, vocab_size: int) -> list[Text]:
    key = rng.key("xlnet text", index)
    made = []
    for row in range(6):
        length = int(2 + rng.below(key, 40, row, 0))
        memory = int(rng.below(key, length, row, 1)) if row % 2 else 0
        ids = rng.below(key, vocab_size, np.arange(length), row, 2)
        segments = np.sort(rng.below(key, 3, np.arange(length), row, 3))
        segments[:memory] = 0  # transformers gives its mems the first segment
        candidates = memory + rng.permutation(rng.key("xlnet", index, row), length - memory)
        ranks = np.full(length, CONTEXT_RANK)
        num_predicted = len(candidates) // 2  # the first of them in random order
        ranks[candidates[:num_predicted]] = np.arange(num_predicted)
        made.append(Text(ids, segments, memory, ranks))
    return made


def packed(rows: list[Text]) -> Batch:
    """The texts end to end, with their order of prediction."""
    batch = pack_tokens([row.ids for row in rows], segments=[row.segments for row in rows])
    starts = batch.bounds_B1[:-1].tolist()
    ranks = [np.where(np.arange(len(row.ids)) < row.memory, MEMORY_RANK, row.ranks) for row in rows]
    queries = [row.predicted + start for row, start in zip(rows, starts, strict=True)]
    counts = [len(row) for row in queries]
    order = PredictionOrder(
        torch.from_numpy(np.concatenate(ranks)),
        torch.from_numpy(np.concatenate(queries)),
        torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32),
        max(counts),
    )
    return replace(batch, order=order)


def theirs(model: Any, row: Text) -> tuple[Tensor, Tensor, Tensor]:
    """The content states after the memory, the scores of the predicted tokens, and the summed loss."""
    ids = torch.from_numpy(row.ids)[None]
    segments = torch.from_numpy(row.segments)[None]
    mems = None
    if row.memory:
        read = model.transformer(ids[:, : row.memory], token_type_ids=segments[:, : row.memory], use_mems=True)
        mems = read.mems
    ranks = torch.from_numpy(row.ranks[row.memory :])
    hidden = (ranks[None, :] >= ranks[:, None]) & (ranks[None, :] >= 0)
    places = torch.from_numpy(row.predicted - row.memory)
    mapping = torch.zeros(1, len(places), len(ranks))
    mapping[0, torch.arange(len(places)), places] = 1
    found = model(
        ids[:, row.memory :],
        token_type_ids=segments[:, row.memory :],
        mems=mems,
        perm_mask=hidden.float()[None],
        target_mapping=mapping,
        output_hidden_states=True,
    )
    labels = ids[0, torch.from_numpy(row.predicted)]
    loss = torch.nn.functional.cross_entropy(found.logits[0], labels, reduction="sum")
    return found.hidden_states[-2][0], found.logits[0], loss


def ours(model: Checkpoint, rows: list[Text]) -> tuple[list[Tensor], Tensor, Tensor]:
    batch = packed(rows)
    states = model.encoder(batch)
    bounds = batch.bounds_B1.tolist()
    content = [states.last_ND[bounds[i] + row.memory : bounds[i + 1]] for i, row in enumerate(rows)]
    goal = model.goals["permutation_lm"]
    scores_PV = goal.scores(states.queries_PD, states.table_VD)  # type: ignore[operator]
    labels_P = batch.ids_N[batch.order.queries_P]  # type: ignore[union-attr]
    loss, _ = summed_cross_entropy(states.queries_PD, states.table_VD, goal.bias, labels_P=labels_P)  # type: ignore[arg-type]
    return content, scores_PV, loss


def assert_close(found: Tensor, wanted: Tensor) -> None:
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) < TOLERANCE * max(1.0, float(wanted.abs().max()))


@pytest.mark.parametrize("index", range(NUM_CONFIGS))
def test_numbers_equal_both_ways_through_folders(index: int, tokenizer: WordPiece, tmp_path: Path) -> None:
    model = drawn(index)
    model.save_pretrained(tmp_path / "theirs")
    tokenizer.save(tmp_path / "theirs")
    rows = texts(index, model.config.vocab_size)
    plain = pack_tokens([row.ids for row in rows], segments=[row.segments for row in rows])
    opened = checkpoints.load(tmp_path / "theirs")
    assert opened.encoder.config.cls_last  # their summary is that of the last token
    with torch.inference_mode():
        wanted = [theirs(model, row) for row in rows]
        wanted_plain = [
            model.transformer(
                torch.from_numpy(row.ids)[None], token_type_ids=torch.from_numpy(row.segments)[None]
            ).last_hidden_state[0]
            for row in rows
        ]
        content, scores_PV, loss = ours(opened, rows)
        states = opened.encoder(plain)
    # Without an order: attention in both directions, as in fine-tuning.
    assert_close(states.last_ND, torch.cat(wanted_plain))
    assert_close(states.pooled_BD, torch.stack([each[-1] for each in wanted_plain]))
    assert states.queries_PD is None
    # With two streams and memory.
    assert_close(torch.cat(content), torch.cat([each[0] for each in wanted]))
    assert_close(scores_PV, torch.cat([each[1] for each in wanted]))
    assert_close(loss, torch.stack([each[2] for each in wanted]).sum())
    assert float(scores_PV.std()) > 0.05

    checkpoints.save(tmp_path / "ours", opened)
    again, report = XLNetLMHeadModel.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report.values()), report
    with torch.inference_mode():
        assert_close(theirs(again.eval(), rows[1])[1], wanted[1][1])
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


@pytest.mark.parametrize("index", range(3))
def test_gradients_are_equal_and_none_goes_into_the_memory(index: int, tokenizer: WordPiece, tmp_path: Path) -> None:
    model = drawn(index)
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    rows = texts(index, model.config.vocab_size)
    opened = checkpoints.load(tmp_path)
    torch.stack([theirs(model, row)[2] for row in rows]).sum().backward()
    ours(opened, rows)[2].backward()
    # The gradients in transformers' shapes: those of a model whose weights they are.
    gradients = XLNet(opened.encoder.config)
    for mine, parameter in zip(gradients.parameters(), opened.encoder.parameters(), strict=True):
        mine.data = parameter.grad  # type: ignore[assignment]
    checkpoints.save(tmp_path / "gradients", Checkpoint(gradients, {}, tokenizer))
    found = load_file(tmp_path / "gradients" / "model.safetensors")
    for name, parameter in model.named_parameters():
        if name in found:
            wanted = parameter.grad if parameter.grad is not None else torch.zeros_like(parameter)
            error = float((found[name] - wanted).abs().max())
            assert error < 1e-4 * max(1.0, float(wanted.abs().max())), name
    assert len(found) == len(dict(model.transformer.named_parameters()))


def test_the_published_size() -> None:
    """XLNet-large (Yang et al. 2019, section A.4) with its vocabulary of 32,000, without a bias of the output layer."""
    shape = replace(lineage.make("xlnet", "large").encoder["xlnet"], vocab_size=32000)
    with torch.device("meta"):
        count = parameter_count([XLNet(shape)])
        assert count == parameter_count([XLNetModel(XLNetConfig())])
    assert round(count / 1e6) == 360


def test_a_bare_model_has_no_head_and_a_run_keeps_where_its_cls_is(tokenizer: WordPiece, tmp_path: Path) -> None:
    XLNetModel(drawn(0).config).save_pretrained(tmp_path / "bare")
    tokenizer.save(tmp_path / "bare")
    opened = checkpoints.load(tmp_path / "bare")
    assert not opened.goals
    first = XLNet(replace(opened.encoder.config, cls_last=False))
    checkpoints.save(tmp_path / "first", Checkpoint(first, {}, tokenizer))
    assert XLNetConfig.from_pretrained(tmp_path / "first").summary_type == "first"
    assert not checkpoints.load(tmp_path / "first").encoder.config.cls_last


def test_nothing_is_guessed(tokenizer: WordPiece, tmp_path: Path) -> None:
    drawn(3).save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    for name, value in {"attn_type": "uni", "bi_data": True, "clamp_len": 5, "same_length": True}.items():
        (tmp_path / "config.json").write_text(json.dumps(values | {name: value}))
        with pytest.raises(Unsupported, match=f"{name} = {value!r}"):
            checkpoints.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in values.items() if k != "d_inner"}))
    with pytest.raises(BadInput, match="lacks 'd_inner'"):
        checkpoints.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(values))
    tensors = load_file(tmp_path / "model.safetensors")
    extra = {"logits_proj.weight": torch.zeros(2, 2)}
    save_file({**tensors, **extra}, tmp_path / "model.safetensors")
    with pytest.raises(Unsupported, match=r"logits_proj\.weight"):
        checkpoints.load(tmp_path)
    other = {"lm_loss.weight": tensors["transformer.word_embedding.weight"] + 1}
    save_file({**tensors, **other}, tmp_path / "model.safetensors")
    with pytest.raises(Unsupported, match="output embedding of its own"):
        checkpoints.load(tmp_path)
    tensors.pop("transformer.layer.0.rel_attn.r_s_bias")
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(Damaged, match="r_s_bias"):
        checkpoints.load(tmp_path)
